"""The sandbox on this machine: a queue in front of as many programs as may run at once."""

import asyncio
import os
import re
import selectors
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

from torl_env.sandbox.interpreter import BASE_PACKAGES, EXTRA_PACKAGES
from torl_env.sandbox.process import SandboxProcessError
from torl_env.sandbox.tiers import TIERS, Interpreter, start_isolated
from torl_env.sandbox.types import OVERLOAD, ExecutionResult, RunRequest, Tier, check_kind

T = TypeVar("T")
_sandboxes: "weakref.WeakSet[LocalSandbox]" = weakref.WeakSet()
_parents: list[object] = []
_STARTS = 2  # a zygote that died is replaced once per run before the run counts as a sandbox error
# Programs that name one of these run in a second interpreter that has them warm: in the first they would cost every
# program some milliseconds for the larger interpreter, here they would cost their import, a second.
_NAMES_EXTRA = re.compile(r"\b(scipy|matplotlib|pylab|networkx|pandas|sklearn)\b")


class LocalSandbox:
    """Runs programs on this machine (a `SandboxClient`).

    One thread with an event loop of its own serves all callers, from any thread and loop, so that a busy caller
    cannot stretch a program's time limit and ten thousand waiting programs cost no thread each. The queue is first
    come, first served; a program's clock starts when it leaves the queue. Cancelling a run kills its program.
    Nothing is started before the first run. Pickles as its settings; after `os.fork` the child begins anew.
    """

    def __init__(
        self,
        max_concurrent_runs: int | None = None,
        memory_mb: int = 1024,
        *,
        max_queued_runs: int | None = None,
        tier: str = "auto",
    ) -> None:
        """Set the limits.

        Args:
            max_concurrent_runs: programs at once; None for one a core this process may use.
            memory_mb: address space of each process of a program, beyond the interpreter's own.
            max_queued_runs: programs that may wait; a further one is a sandbox error at once. None for any number.
            tier: "strict" or "fallback" to have that tier or none; "auto" for the better of the two that there is (each
                result names it); "unisolated" for limits without isolation, the only one on systems other than Linux.

        Raises:
            ValueError: if a limit is no whole number or not positive, or the memory is less than an interpreter needs.
        """
        check_kind("max_concurrent_runs", max_concurrent_runs, int, type(None))
        check_kind("memory_mb", memory_mb, int)
        check_kind("max_queued_runs", max_queued_runs, int, type(None))
        if max_concurrent_runs is not None and max_concurrent_runs < 1:
            raise ValueError(f"`max_concurrent_runs` ({max_concurrent_runs}) should be at least 1.")
        if memory_mb < 64:
            raise ValueError(f"`memory_mb` ({memory_mb}) should be at least 64: an interpreter alone needs about 40.")
        if max_queued_runs is not None and max_queued_runs < 0:
            raise ValueError(f"`max_queued_runs` ({max_queued_runs}) should not be negative.")
        if tier not in TIERS:
            raise ValueError(f"`tier` ({tier!r}) should be one of {', '.join(TIERS)}.")
        self.tier = tier
        self.max_concurrent_runs = max_concurrent_runs or len(os.sched_getaffinity(0))
        self.max_queued_runs = max_queued_runs
        self.memory_mb = memory_mb
        self._closed = False
        self._begin()
        _sandboxes.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._selector: selectors.BaseSelector | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._slots = asyncio.Semaphore(self.max_concurrent_runs)  # used on the private loop only
        self._free_slots = list(range(self.max_concurrent_runs))
        self._interpreters: dict[tuple[str, ...], Interpreter] = {}
        self._starting: dict[tuple[str, ...], asyncio.Task[Interpreter]] = {}
        self._tasks: set[asyncio.Task[ExecutionResult]] = set()

    def leave_to_parent(self) -> None:
        """In a process that was just forked: begin anew, since the thread and its programs are the parent's."""
        if self._selector is not None:
            # Kept for good: what is collected is closed, and the programs in flight are not this process's to end.
            _parents.append((self._loop, self._thread, self._interpreters, self._starting, self._tasks))
            self._selector.close()  # what it watches is shared, so that nothing here may change it
        self._begin()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.max_concurrent_runs, self.memory_mb, self.max_queued_runs, self.tier)

    async def run(self, code: str, timeout_s: float, **options: Any) -> ExecutionResult:
        """Run `code` as a Python program for at most `timeout_s` seconds; `options` are `RunRequest`'s other fields.

        Raises:
            ValueError: if an argument is of the wrong kind or out of range.
        """
        return await self.execute(RunRequest(code, timeout_s, **options))

    async def execute(self, request: RunRequest) -> ExecutionResult:
        """Run one program."""
        try:
            return await self._on_own_loop(lambda: self._queue(request))
        except SandboxProcessError as error:
            return ExecutionResult.sandbox_error(str(error))

    async def check(self, timeout_s: float) -> ExecutionResult:
        """Run an empty program past the queue; an interpreter that is stuck is noticed and replaced by it."""
        try:
            slot = self.max_concurrent_runs  # one more than the runs have
            return await self._on_own_loop(lambda: self._run(RunRequest("", timeout_s), slot))
        except SandboxProcessError as error:
            return ExecutionResult.sandbox_error(str(error))

    async def start(self) -> Tier:
        """Start the sandbox now instead of with the first run; return the tier.

        Raises:
            SandboxProcessError: if the tier that was asked for is not available, with the reason and the remedy.
        """
        return await self._on_own_loop(self._start)

    async def _on_own_loop(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        with self._lock:
            if self._closed:
                raise SandboxProcessError("the sandbox is closed")
            if self._loop is None:
                self._selector = selectors.DefaultSelector()
                self._loop = asyncio.SelectorEventLoop(self._selector)
                self._thread = threading.Thread(target=_serve, args=(self._loop,), name="local-sandbox", daemon=True)
                self._thread.start()
            done: Future[T] = asyncio.run_coroutine_threadsafe(work(), self._loop)
        return await asyncio.wrap_future(done)

    async def _start(self) -> Tier:
        return (await self._interpreter(BASE_PACKAGES)).tier

    async def _queue(self, request: RunRequest) -> ExecutionResult:
        task = asyncio.current_task()
        assert task is not None
        if self.max_queued_runs is not None and len(self._tasks) >= self.max_concurrent_runs + self.max_queued_runs:
            refused = ExecutionResult.sandbox_error(f"overloaded: {self.max_queued_runs} programs wait already")
            return replace(refused, limit_hit=OVERLOAD)
        self._tasks.add(task)
        queued = time.perf_counter()
        slot: int | None = None
        try:
            async with self._slots:
                slot = self._free_slots.pop()
                queue_s = time.perf_counter() - queued
                return replace(await self._run(request, slot), queue_s=queue_s)
        except asyncio.CancelledError:
            if self._closed:
                return ExecutionResult.sandbox_error("the sandbox was closed")
            raise
        finally:
            if slot is not None:
                self._free_slots.append(slot)
            self._tasks.discard(task)

    async def _run(self, request: RunRequest, slot: int) -> ExecutionResult:
        packages = EXTRA_PACKAGES if _NAMES_EXTRA.search(request.code) else BASE_PACKAGES
        failure = ""
        for _ in range(_STARTS):
            try:
                interpreter = await self._interpreter(packages)
                if request.allow_subprocess and interpreter.tier is Tier.FALLBACK:
                    return ExecutionResult.sandbox_error("`allow_subprocess` needs the strict tier; this is fallback")
                return await interpreter.run(request, slot, request.memory_mb or self.memory_mb)
            except (SandboxProcessError, OSError) as error:  # the latter for descriptors or processes that ran out
                failure = str(error)
        return ExecutionResult.sandbox_error(failure)

    async def _interpreter(self, packages: tuple[str, ...]) -> Interpreter:
        """Return a live interpreter with `packages`, started by the first run that needs it."""
        interpreter = self._interpreters.get(packages)
        if interpreter is None or not interpreter.alive:
            if self._closed:
                raise SandboxProcessError("the sandbox was closed")
            starting = self._starting.get(packages)
            if starting is None or starting.done():
                starting = self._starting[packages] = asyncio.create_task(self._start_interpreter(packages))
                starting.add_done_callback(lambda task: task.cancelled() or task.exception())
            interpreter = await asyncio.shield(starting)
        return interpreter

    async def _start_interpreter(self, packages: tuple[str, ...]) -> Interpreter:
        """Start an interpreter and note it, whoever still waits for it: `_end` has to find it."""
        interpreter = self._interpreters[packages] = await start_isolated(self.tier, packages)
        return interpreter

    async def close(self) -> None:
        """Kill the programs in flight, end the zygote and the thread; their callers get sandbox errors.

        It goes on if this call is cancelled; another one waits for it too.
        """
        with self._lock:
            self._closed = True
            loop, self._loop = self._loop, None
            if loop is not None:
                asyncio.run_coroutine_threadsafe(self._end(), loop)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    async def _end(self) -> None:
        try:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.gather(*self._starting.values(), return_exceptions=True)
            for interpreter in self._interpreters.values():
                interpreter.close()
            # A check or a start may have been in flight too: it has no interpreter any more.
            await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)
        finally:
            asyncio.get_running_loop().stop()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def _rebuild(max_concurrent_runs: int, memory_mb: int, max_queued_runs: int | None, tier: str) -> LocalSandbox:
    return LocalSandbox(max_concurrent_runs, memory_mb, max_queued_runs=max_queued_runs, tier=tier)


def _leave_to_parent() -> None:
    for sandbox in list(_sandboxes):
        sandbox.leave_to_parent()


os.register_at_fork(after_in_child=_leave_to_parent)
