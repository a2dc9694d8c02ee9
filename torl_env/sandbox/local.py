"""The sandbox on this machine: a queue in front of as many programs as may run at once."""

import asyncio
import os
import threading
import time
from concurrent.futures import Future
from dataclasses import replace

from torl_env.sandbox.process import SandboxProcessError, Zygote
from torl_env.sandbox.types import ExecutionResult

_STARTS = 2  # a zygote that died is replaced once per run before the run counts as a sandbox error


class LocalSandbox:
    """Runs programs on this machine (a `SandboxClient`).

    One thread with an event loop of its own serves all callers, from any thread and loop, so that a busy caller
    cannot stretch a program's time limit and ten thousand waiting programs cost no thread each. The queue is first
    come, first served; a program's clock starts when it leaves the queue. Cancelling a run kills its program.
    Nothing is started before the first run. Pickles as its settings.
    """

    def __init__(self, max_concurrent_runs: int | None = None, memory_mb: int = 1024) -> None:
        """Set the limits.

        Args:
            max_concurrent_runs: programs at once; None for one a core this process may use.
            memory_mb: address space of each process of a program.

        Raises:
            ValueError: if a limit is not positive, or the memory is less than an interpreter needs.
        """
        if max_concurrent_runs is not None and max_concurrent_runs < 1:
            raise ValueError(f"`max_concurrent_runs` ({max_concurrent_runs}) should be at least 1.")
        if memory_mb < 64:
            raise ValueError(f"`memory_mb` ({memory_mb}) should be at least 64: an interpreter alone needs about 40.")
        self.max_concurrent_runs = max_concurrent_runs or len(os.sched_getaffinity(0))
        self.memory_mb = memory_mb
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._slots = asyncio.Semaphore(self.max_concurrent_runs)  # used on the private loop only
        self._zygote: Zygote | None = None
        self._tasks: set[asyncio.Task[ExecutionResult]] = set()
        self._closed = False

    def __reduce__(self) -> tuple[type["LocalSandbox"], tuple[int, int]]:
        return LocalSandbox, (self.max_concurrent_runs, self.memory_mb)

    async def run(self, code: str, timeout_s: float) -> ExecutionResult:
        """Run `code` as a Python program for at most `timeout_s` seconds, both of wall time and of CPU.

        Raises:
            ValueError: if `timeout_s` is not positive.
        """
        if not timeout_s > 0:
            raise ValueError(f"`timeout_s` ({timeout_s}) should be positive.")
        with self._lock:
            if self._closed:
                return ExecutionResult.sandbox_error("the sandbox is closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_serve, args=(self._loop,), name="local-sandbox", daemon=True)
                self._thread.start()
            done: Future[ExecutionResult] = asyncio.run_coroutine_threadsafe(self._queue(code, timeout_s), self._loop)
        return await asyncio.wrap_future(done)

    async def _queue(self, code: str, timeout_s: float) -> ExecutionResult:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            queued = time.perf_counter()
            async with self._slots:
                queue_s = time.perf_counter() - queued
                return replace(await self._run(code, timeout_s), queue_s=queue_s)
        except asyncio.CancelledError:
            if self._closed:
                return ExecutionResult.sandbox_error("the sandbox was closed")
            raise
        finally:
            self._tasks.discard(task)

    async def _run(self, code: str, timeout_s: float) -> ExecutionResult:
        failure = ""
        for _ in range(_STARTS):
            try:
                if self._zygote is None or not self._zygote.alive:
                    self._zygote = Zygote(self.memory_mb)
                return await self._zygote.run(code, timeout_s)
            except SandboxProcessError as error:
                failure = str(error)
                if self._zygote is not None and self._zygote.alive:
                    break  # only this run's keeper died: what killed it would do so again
        return ExecutionResult.sandbox_error(failure)

    async def close(self) -> None:
        """Kill the programs in flight, end the zygote and the thread; their callers get sandbox errors."""
        with self._lock:
            self._closed = True
            loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._end(), loop))
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(self._thread.join)

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._zygote is not None:
            self._zygote.close()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()
