"""The processes of a local sandbox, as the tests look at them."""

import asyncio
from collections.abc import Callable

import psutil

from torl_env import LocalSandbox

FOREVER = "import time\nprint('started', flush=True)\ntime.sleep(1000)"


def zygote_pid(sandbox: LocalSandbox) -> int:
    (interpreter,) = sandbox._interpreters.values()
    return interpreter.pid


def programs_of(sandbox: LocalSandbox) -> list[psutil.Process]:
    """The processes of running programs: the zygote is the only child of the process that keeps its namespaces."""
    (zygote,) = psutil.Process(zygote_pid(sandbox)).children()
    return zygote.children(recursive=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)
