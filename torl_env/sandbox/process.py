"""One program in its own process, with limits, seen from the side that wants its result.

Covers: wall-clock and CPU seconds, memory per process, size of written files and of the output; the whole process tree
is killed, sessions of its own included; a private working directory, removed afterwards; an environment without the
caller's; no standard input.

Does not cover: reading the host's files, the network, other processes of the same user, the number of processes.
Programs run as the calling user: enough for what a model writes by accident, not for hostile code.
"""

import asyncio
import contextlib
import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torl_env.sandbox import zygote
from torl_env.sandbox.types import ExecutionResult, Status

_MAX_FILE_BYTES = 64 * 2**20
_MAX_OUTPUT_BYTES = 16 * 2**20  # a program that prints more is ended
_KEPT_OUTPUT_BYTES = 64 * 2**10  # of stdout and of stderr each: head and tail
_CHUNK_BYTES = 64 * 2**10
_KILL_GRACE_S = 5.0  # a killed tree is gone within milliseconds; past this the machine is in trouble
_MEMORY_ERROR = re.compile(r"^(MemoryError|numpy\.\S*MemoryError)\b")
_ENVIRONMENT = {
    "PATH": os.defpath,
    "LANG": "C.UTF-8",
    "PYTHONUTF8": "1",
    "PYTHONHASHSEED": "0",  # set order is the same in every run
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",  # each malloc arena of a thread costs 128 MB of the address space that is limited
}


class SandboxProcessError(Exception):
    """The machinery around the program failed, so that nothing is known about the program."""


@dataclass(frozen=True, slots=True)
class _Ending:
    """How a run ended: the kernel's exit code, and the reason if this side ended it."""

    exit_code: int
    killed_for: str | None = None  # "time" | "output" | "cancel"


class Zygote:
    """A running zygote and the runs made through it. Belongs to the event loop it was started on."""

    def __init__(self, memory_mb: int) -> None:
        """Start the zygote: about 50 ms until the first program runs.

        Raises:
            SandboxProcessError: off Linux, or if the interpreter cannot be started.
        """
        if sys.platform != "linux":
            raise SandboxProcessError(f"programs run on Linux only; this is {sys.platform}")
        self._memory_mb = memory_mb
        self._control, theirs = socket.socketpair()
        with theirs:
            # -s -P: neither the user's site packages nor any current directory; a session of its own, so that a
            # terminal's Ctrl-C reaches the caller alone.
            command = [sys.executable, "-s", "-P", str(Path(zygote.__file__)), str(theirs.fileno())]
            try:
                self._process = subprocess.Popen(
                    command,
                    env=_ENVIRONMENT,
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except OSError as error:
                self._control.close()
                raise SandboxProcessError(f"the interpreter did not start ({error.strerror})") from error

    @property
    def alive(self) -> bool:
        """Whether new programs can be started."""
        if self._process.poll() is not None:
            return False
        try:  # a dying process has lost its socket before it can be waited for
            return self._control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    @property
    def pid(self) -> int:
        """The zygote's process id."""
        return self._process.pid

    def close(self) -> None:
        """End the zygote; runs in flight end with their own calls."""
        self._control.close()
        try:
            self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    async def run(self, code: str, timeout_s: float) -> ExecutionResult:
        """Run one program; when the caller is cancelled the program is killed.

        Raises:
            SandboxProcessError: if the zygote or the program's keeper died.
        """
        started = time.perf_counter()
        channel, stdout_fd, stderr_fd = self._fork()
        with channel, _Capture(stdout_fd) as stdout, _Capture(stderr_fd) as stderr:
            # From here on the end of `channel`, for whatever reason, ends the program and all its descendants.
            ending = await self._await_ending(channel, code, timeout_s, (stdout, stderr))
            run_s = time.perf_counter() - started
            for output in (stdout, stderr):  # every writer is dead, so their ends are there to be read
                await output.ended
            return _result(ending, stdout, stderr, timeout_s, self._memory_mb, run_s)

    def _fork(self) -> tuple[socket.socket, int, int]:
        """Have a keeper forked; return its channel and the reading ends of the program's stdout and stderr."""
        channel, theirs = socket.socketpair()
        stdout_fd, stdout_end = os.pipe()
        stderr_fd, stderr_end = os.pipe()
        try:
            socket.send_fds(self._control, [b"r"], [theirs.fileno(), stdout_end, stderr_end])
        except OSError as error:
            channel.close()
            os.close(stdout_fd)
            os.close(stderr_fd)
            raise SandboxProcessError("the zygote is gone") from error
        finally:
            theirs.close()
            os.close(stdout_end)
            os.close(stderr_end)
        channel.setblocking(False)
        return channel, stdout_fd, stderr_fd

    async def _await_ending(
        self, channel: socket.socket, code: str, timeout_s: float, outputs: "tuple[_Capture, _Capture]"
    ) -> _Ending:
        loop = asyncio.get_running_loop()
        program = code.encode("utf-8", "surrogatepass")
        cpu_s = math.ceil(timeout_s)
        killed_for: str | None = None

        def end(reason: str, direction: int = socket.SHUT_WR) -> None:
            nonlocal killed_for
            killed_for = killed_for or reason
            with contextlib.suppress(OSError):  # it has just ended by itself
                channel.shutdown(direction)

        for output in outputs:
            output.on_flood = lambda: end("output")
        timer = loop.call_later(timeout_s, end, "time")
        give_up = loop.call_later(timeout_s + _KILL_GRACE_S, end, "time", socket.SHUT_RD)
        try:
            request = zygote.REQUEST.pack(len(program), cpu_s, self._memory_mb * 2**20, _MAX_FILE_BYTES) + program
            await loop.sock_sendall(channel, request)
            try:
                reply = await loop.sock_recv(channel, zygote.REPLY.size)
            except asyncio.CancelledError:
                end("cancel")
                await loop.sock_recv(channel, zygote.REPLY.size)  # the program is dead when the caller goes on
                raise
        except OSError as error:
            raise SandboxProcessError("the program's keeper is gone") from error
        finally:
            timer.cancel()
            give_up.cancel()
        if len(reply) < zygote.REPLY.size:
            raise SandboxProcessError("the program's keeper is gone")
        return _Ending(zygote.REPLY.unpack(reply)[0], killed_for)


class _Capture:
    """Reads a pipe until its end, keeping head and tail.

    The event loop calls `_read` whenever there is something; no thread and no task waits.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._head = bytearray()
        self._tail = bytearray()
        self._num_bytes = 0
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.on_flood: Callable[[], None] = lambda: None

    def __enter__(self) -> "_Capture":
        self._loop.add_reader(self._fd, self._read)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _read(self) -> None:
        chunk = os.read(self._fd, _CHUNK_BYTES)
        if not chunk:
            self._loop.remove_reader(self._fd)
            self.ended.set_result(None)
            return
        self._num_bytes += len(chunk)
        room = _KEPT_OUTPUT_BYTES // 2 - len(self._head)
        self._head += chunk[:room]
        self._tail = (self._tail + chunk[room:])[-_KEPT_OUTPUT_BYTES // 2 :]
        if self._num_bytes > _MAX_OUTPUT_BYTES:
            self.on_flood()

    @property
    def truncated(self) -> bool:
        """Whether the middle is missing."""
        return self._num_bytes > len(self._head) + len(self._tail)

    def text(self) -> str:
        """Return what was kept, with a mark where the middle is missing."""
        left_out = self._num_bytes - len(self._head) - len(self._tail)
        mark = f"\n... ({left_out} bytes left out) ...\n".encode() if left_out else b""
        return (self._head + mark + self._tail).decode("utf-8", "replace")


def _result(
    ending: _Ending, stdout: _Capture, stderr: _Capture, timeout_s: float, memory_mb: int, run_s: float
) -> ExecutionResult:
    """Put a name to how the run ended; a limit that was hit is the last line of stderr."""
    error_text = stderr.text()
    return_code: int | None = ending.exit_code
    status = Status.SUCCESS if return_code == 0 else Status.FAILED
    said = ""
    if ending.exit_code == -signal.SIGKILL and ending.killed_for:
        return_code = None
        if ending.killed_for == "time":
            status, said = Status.TIME_LIMIT, f"TimeoutError: the program ran longer than {timeout_s:g} s"
        else:
            said = f"Error: the program printed more than {_MAX_OUTPUT_BYTES // 2**20} MB"
    elif ending.exit_code == -signal.SIGXCPU:
        return_code = None
        status, said = Status.TIME_LIMIT, f"TimeoutError: the program used more than {math.ceil(timeout_s)} s of CPU"
    elif status is Status.FAILED and _MEMORY_ERROR.match(error_text.rstrip().rpartition("\n")[2]):
        status, said = Status.MEMORY_LIMIT, f"MemoryError: the program used more than {memory_mb} MB"
    if said:
        error_text = f"{error_text.rstrip()}\n{said}\n".lstrip("\n")
    return ExecutionResult(
        status,
        stdout=stdout.text(),
        stderr=error_text,
        return_code=return_code,
        run_s=run_s,
        output_truncated=stdout.truncated or stderr.truncated,
    )
