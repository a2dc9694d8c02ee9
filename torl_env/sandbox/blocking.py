"""Wait for a coroutine from ordinary code, whether or not the calling thread runs an event loop."""

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}  # by process id: after a fork the parent's thread is not there


def background_loop() -> asyncio.AbstractEventLoop:
    """Return this process's background loop, started by the first call."""
    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="torl-env", daemon=True).start()
        return loop


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run `coroutine` on this process's background loop and return its result; an interrupt cancels it.

    In a notebook the thread already runs a loop, so `asyncio.run` would raise.
    """
    future = asyncio.run_coroutine_threadsafe(coroutine, background_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
