"""math-verify in worker processes that can be killed.

A computer algebra system given a model's formula may run for ever or take the process down. math-verify's own time-outs
are signals, which work on the main thread alone and are swallowed elsewhere; a thread cannot be ended at all. So the
question goes to another process, a clean interpreter and no fork of this one (which may hold an engine and its
threads), and a worker that does not answer in time is killed and replaced.
"""

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from torl_env import _grading_worker

_START_S = 120.0  # importing sympy takes a second; on a busy machine many


class _WorkerLostError(Exception):
    """The worker died or did not answer in time."""


class _Worker:
    """One process and its pipes; used by one thread at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(_grading_worker.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a terminal's Ctrl-C is not for it, and it is killed with its children
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._replies = self._process.stdin, self._process.stdout
        self._read_line(_START_S)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: dict[str, str], limit_s: float) -> bool | None:
        """Return the worker's answer; raises _WorkerLostError, after which the worker is dead."""
        try:
            self._requests.write(json.dumps(request).encode() + b"\n")
            self._requests.flush()
        except OSError as error:
            self.kill()
            raise _WorkerLostError from error
        return json.loads(self._read_line(limit_s))

    def _read_line(self, limit_s: float) -> bytes:
        deadline = time.monotonic() + limit_s
        poll = select.poll()
        poll.register(self._replies, select.POLLIN)
        line = b""
        while not line.endswith(b"\n"):
            ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
            chunk = os.read(self._replies.fileno(), 4096) if ready else b""
            if not chunk:
                self.kill()
                raise _WorkerLostError
            line += chunk
        return line

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._requests.close()
        self._replies.close()


class GradingWorkers:
    """Up to `max_workers` workers, started when first needed; callable from any thread."""

    def __init__(self, max_workers: int, limit_s: float = 3.0) -> None:
        """Set the limits; `limit_s` is wall time for one comparison, not counting the wait for a free worker."""
        self.limit_s = limit_s
        self.num_lost = 0  # workers killed at their limit or dead: each an unknown verdict
        self._slots = threading.BoundedSemaphore(max_workers)
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._closed = False

    def is_equal(self, gold: str, answer: str) -> bool | None:
        r"""Return whether two LaTeX expressions are mathematically equal, None if that cannot be found out.

        Args:
            gold: without "\boxed" and "$".
            answer: likewise.
        """
        with self._slots:
            with self._lock:
                worker = self._idle.pop() if self._idle else None
            try:
                if worker is None or not worker.alive:
                    worker = _Worker()
                verdict = worker.ask({"gold": gold, "answer": answer}, self.limit_s)
            except _WorkerLostError:
                with self._lock:
                    self.num_lost += 1
                return None
            with self._lock:
                if not self._closed:
                    self._idle.append(worker)
                    return verdict
            worker.kill()
            return verdict

    def close(self) -> None:
        """End the idle workers; one that is busy is ended when its caller has the answer."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.kill()


_lock = threading.Lock()
_workers: dict[int, GradingWorkers] = {}  # by process id: a fork must not share its parent's pipes


def shared_workers() -> GradingWorkers:
    """Return this process's workers: as many as cores it may use, at most four."""
    with _lock:
        if os.getpid() not in _workers:
            _workers.clear()
            _workers[os.getpid()] = GradingWorkers(max_workers=min(4, len(os.sched_getaffinity(0))))
            atexit.register(_workers[os.getpid()].close)
        return _workers[os.getpid()]
