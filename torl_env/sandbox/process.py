"""A sandbox interpreter and its runs, seen from the side that wants their results.

What this side believes comes from the kernel: the exit status from the zygote's wait, the end of the output from the
pipes, the kill through a process descriptor. Nothing a program prints or writes is taken for its result.
"""

import asyncio
import contextlib
import marshal
import os
import signal
import socket
import subprocess
import tempfile
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torl_env.sandbox.capture import Capture
from torl_env.sandbox.interpreter import Isolation, start_interpreter
from torl_env.sandbox.outcome import Ending, fetch, make_result, run_delay_s
from torl_env.sandbox.tree import remove_tree
from torl_env.sandbox.types import ExecutionResult, RunRequest, Tier

_MAX_FILE_BYTES = 64 * 2**20
_DISK_MB, _MAX_FILES = 128, 4096
_MAX_MESSAGE_BYTES = 65536
_START_TIMEOUT_S = 60.0  # of an interpreter with its packages, on a machine that is busy
_FORK_TIMEOUT_S = 10.0  # a fork takes milliseconds: a zygote that needs longer is stuck
_KILL_GRACE_S = 5.0  # so does a kill
_MIN_DELAY_S = 0.02
_MAX_STRETCH = 3.0  # a program that waits for a busy core gets its time all the same, up to so many times the limit
_zygotes: "weakref.WeakSet[Zygote]" = weakref.WeakSet()


class SandboxProcessError(Exception):
    """The machinery around the program failed, so that nothing is known about the program."""


class IsolationError(SandboxProcessError):
    """The machine refuses a way of isolating programs; the text says at which step."""


@dataclass(slots=True)
class _Run:
    """Descriptors of a run that has started, closed by `close`."""

    number: int
    report: socket.socket
    killer: int
    directory: int
    ended: asyncio.Future[Ending]
    owner: int = field(default_factory=os.getpid)

    def kill(self) -> None:
        if self.killer < 0 or self.owner != os.getpid():  # a forked process has a copy, which it lets go of at its end
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.killer, signal.SIGKILL)

    def close(self) -> None:
        self.kill()  # if it has not ended by now, nobody waits for it any more
        self.report.close()
        os.close(self.killer)
        os.close(self.directory)
        self.killer = -1


class _Stop:
    """Kills a run for the first of several reasons, which may come before there is a process to kill."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._run: _Run | None = None

    def now(self, reason: str) -> None:
        """Kill the run, or have it killed as soon as it is there."""
        self.reason = self.reason or reason
        if self._run is not None:
            self._run.kill()

    def watch(self, run: _Run) -> None:
        """Name the process to kill."""
        self._run = run
        if self.reason is not None:
            run.kill()


class Zygote:
    """A running zygote and the runs made through it. Belongs to the event loop it was started on."""

    def __init__(self, isolation: Isolation, packages: tuple[str, ...]) -> None:
        """Start the interpreter; `ready` waits until programs can be run.

        Raises:
            SandboxProcessError: if the interpreter cannot be started.
        """
        self.tier = isolation.tier
        self._loop = asyncio.get_running_loop()
        self._next_run = 0
        self._runs: dict[int, asyncio.Future[Ending]] = {}
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._base_directory = "" if self.tier is Tier.STRICT else tempfile.mkdtemp(prefix="torl-sandbox-")
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                if self._base_directory:
                    os.chmod(self._base_directory, 0o711)
                self._process = start_interpreter(isolation, packages, self._base_directory, theirs)
            except OSError as error:
                self._control.close()
                if self._base_directory:
                    remove_tree(self._base_directory)
                raise SandboxProcessError(f"the interpreter did not start ({error.strerror})") from error
        self._control.setblocking(False)
        self.alive = True
        _zygotes.add(self)
        self._loop.add_reader(self._control, self._on_message)

    @property
    def pid(self) -> int:
        """The process id of the zygote, or of the process that waits for it; either takes the other along."""
        return self._process.pid

    async def ready(self) -> None:
        """Wait until programs can be run.

        Raises:
            IsolationError: if the machine refuses this way of isolating.
            SandboxProcessError: if the interpreter ended or hangs.
        """
        done, _ = await asyncio.wait([self._ready], timeout=_START_TIMEOUT_S)
        if not done:
            self._destroy()
            raise SandboxProcessError(f"the interpreter did not start within {_START_TIMEOUT_S:g} s")
        self._ready.result()

    def leave_to_parent(self) -> None:
        """In a process that was just forked: let go of the zygote, which ends when nobody holds its socket."""
        self._control.close()

    def close(self) -> None:
        """End the zygote and with it all its programs."""
        if self._control.fileno() < 0:
            return
        self._loop.remove_reader(self._control)
        self._control.close()
        self._fail_all()
        try:
            self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._base_directory:
            remove_tree(self._base_directory)

    def _destroy(self) -> None:
        """End a zygote that does not answer."""
        if self.tier is Tier.STRICT:
            self._process.terminate()  # the process that waits for the zygote kills it and reaps it
        else:
            self._process.kill()
        self.close()

    def _on_message(self) -> None:
        try:
            message = self._control.recv(_MAX_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self.close()
            return
        kind, *values = marshal.loads(message)
        if kind == "ended":
            run, status, cpu_s, max_rss_kb = values
            future = self._runs.pop(run, None)
            if future is not None and not future.done():
                future.set_result(Ending(status, cpu_s, max_rss_kb))
        elif kind == "failed":
            self._ready.set_exception(IsolationError(values[0]))
        else:
            self._ready.set_result(None)

    def _fail_all(self) -> None:
        self.alive = False
        waited_for: list[asyncio.Future[Any]] = [self._ready, *self._runs.values()]
        for future in waited_for:
            if not future.done():
                future.set_exception(SandboxProcessError("the zygote is gone"))
                future.exception()  # seen: whoever waits gets it, and nobody may
        self._runs.clear()

    async def run(self, request: RunRequest, slot: int, memory_mb: int) -> ExecutionResult:
        """Run one program; when the caller is cancelled the program is killed.

        Args:
            request: the program.
            slot: of the programs that run at a time each has a number of its own.
            memory_mb: the limit that applies.

        Raises:
            SandboxProcessError: if the zygote died, is stuck, or could not confine the program.
        """
        stop = _Stop()
        task = self._loop.create_task(self._run(request, slot, memory_mb, stop))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # The task goes on to its end: a program that the zygote has not answered for yet can be killed only then.
            stop.now("cancel")
            await asyncio.wait([task], timeout=_FORK_TIMEOUT_S + _KILL_GRACE_S)
            if not task.done():
                self._destroy()
            raise

    async def _run(self, request: RunRequest, slot: int, memory_mb: int, stop: "_Stop") -> ExecutionResult:
        with Capture(lambda: stop.now("output")) as stdout, Capture(lambda: stop.now("output")) as stderr:
            started = time.perf_counter()
            run = await self._fork(request, slot, memory_mb, stdout, stderr)
            try:
                stop.watch(run)
                clock = self._loop.create_task(self._clock(run, request.timeout_s, lambda: stop.now("wall")))
                try:
                    ending = await run.ended
                finally:
                    clock.cancel()
                run_s = time.perf_counter() - started
                if request.allow_subprocess:  # the program's status; the zygote knows that of its init
                    with contextlib.suppress(BlockingIOError):
                        if message := run.report.recv(64):
                            ending.status = marshal.loads(message)
                for output in (stdout, stderr):  # every writer is dead, so their ends are there to be read
                    await output.ended
                files = fetch(run.directory, request.fetch_files)
            finally:
                run.close()
                if self._base_directory:
                    path = f"{self._base_directory}/{run.number}"
                    await self._loop.run_in_executor(None, remove_tree, path)
            return make_result(ending, stop.reason, stdout, stderr, request, memory_mb, run_s, self.tier, files)

    async def _clock(self, run: _Run, timeout_s: float, on_end: Any) -> None:
        """Call `on_end` when the program's time is over, not counting the time it waited for a core.

        Otherwise what a program may do would depend on what else the machine does, and rewards would be noisy.
        """
        limit = self._loop.time() + _MAX_STRETCH * timeout_s
        wait_s, counted_delay_s = timeout_s, 0.0
        while wait_s >= _MIN_DELAY_S or counted_delay_s == 0.0:
            await asyncio.sleep(wait_s)
            delay_s = run_delay_s(run.killer)
            wait_s = min(delay_s - counted_delay_s, limit - self._loop.time())
            counted_delay_s = max(delay_s, 1e-9)
        on_end()
        await asyncio.wait([run.ended], timeout=_KILL_GRACE_S)
        if not run.ended.done():
            self._destroy()  # a killed program ends within milliseconds: it is the zygote that does not answer

    async def _fork(self, request: RunRequest, slot: int, memory_mb: int, stdout: Capture, stderr: Capture) -> _Run:
        """Have the program's process forked and confined, up to its first line."""
        self._next_run += 1
        number = self._next_run
        program = {
            "code": request.code.encode("utf-8", "surrogatepass"),
            "echo": request.echo_last_expr,
            "seed": request.seed,
            "files": dict(request.files),
        }
        message = {
            "id": number,
            "slot": slot,
            "subprocess": request.allow_subprocess,
            "cpu_s": request.cpu_limit_s,
            "memory": memory_mb * 2**20,
            "max_file": _MAX_FILE_BYTES,
            "disk_mb": _DISK_MB,
            "max_files": _MAX_FILES,
        }
        report, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        report.setblocking(False)
        ended: asyncio.Future[Ending] = self._loop.create_future()
        with theirs, _memory_file(marshal.dumps(program)) as payload, _standard_input(request.stdin) as stdin:
            self._runs[number] = ended
            fds = [payload, stdin, stdout.write_fd, stderr.write_fd, theirs.fileno()]
            try:
                socket.send_fds(self._control, [marshal.dumps(message)], fds)
            except OSError as error:
                report.close()
                raise SandboxProcessError("the zygote is gone") from error
        stdout.close_write_end()
        stderr.close_write_end()
        try:
            await self._readable(report, _FORK_TIMEOUT_S)
            answer, handles, _, _ = socket.recv_fds(report, 1024, 2)
            if answer[:1] != b"+":
                said = answer[1:].decode("utf-8", "replace") or "its process ended"
                raise SandboxProcessError(f"the program could not be confined ({said})")
        except BaseException:
            report.close()
            raise
        return _Run(number, report, handles[0], handles[1], ended)

    async def _readable(self, sock: socket.socket, timeout_s: float) -> None:
        readable: asyncio.Future[None] = self._loop.create_future()

        def note() -> None:
            if not readable.done():
                readable.set_result(None)

        self._loop.add_reader(sock, note)
        await asyncio.wait([readable], timeout=timeout_s)
        self._loop.remove_reader(sock)
        if not readable.done():
            self._destroy()
            raise SandboxProcessError("the zygote was stuck")


@contextlib.contextmanager
def _memory_file(content: bytes) -> Iterator[int]:
    fd = os.memfd_create("sandbox")
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _standard_input(text: str) -> Iterator[int]:
    if text:
        with _memory_file(text.encode("utf-8", "surrogatepass")) as writable:
            fd = os.open(f"/proc/self/fd/{writable}", os.O_RDONLY)  # the program cannot make it longer
    else:
        fd = os.open(os.devnull, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def _leave_to_parent() -> None:
    for zygote in list(_zygotes):
        zygote.leave_to_parent()


os.register_at_fork(after_in_child=_leave_to_parent)
