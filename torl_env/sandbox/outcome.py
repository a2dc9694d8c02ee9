"""From how a process ended to what is said about it."""

import contextlib
import ctypes
import os
import re
import signal
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from torl_env.sandbox.capture import MAX_BYTES, Capture
from torl_env.sandbox.types import ExecutionResult, RunRequest, Status, Tier

_MEMORY_ERROR = re.compile(r"^(MemoryError|numpy\.\S*MemoryError)\b")
_MAX_FETCHED_BYTES = 16 * 2**20
_SYS_OPENAT2 = 437
_RESOLVE = 0x01 | 0x02 | 0x04 | 0x08  # no other file system, no magic links, no symlinks, beneath the directory only
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(slots=True)
class Ending:
    """What the kernel says about a program that ended."""

    status: int  # as waitpid gives it
    cpu_s: float
    max_rss_kb: int


def make_result(
    ending: Ending,
    killed_for: str | None,
    stdout: Capture,
    stderr: Capture,
    request: RunRequest,
    memory_mb: int,
    run_s: float,
    tier: Tier,
    files: Mapping[str, bytes],
) -> ExecutionResult:
    """Put a name to how the run ended; a limit that was hit is the last line of stderr.

    Args:
        ending: from the kernel.
        killed_for: "wall", "output" or "cancel" if this side killed the program.
        stdout: all of it.
        stderr: all of it.
        request: the program and its limits.
        memory_mb: the memory limit that applied.
        run_s: seconds it took.
        tier: how it was isolated.
        files: those that were asked for.
    """
    error_text = stderr.text()
    return_code: int | None = os.waitstatus_to_exitcode(ending.status)
    status = Status.SUCCESS if return_code == 0 else Status.FAILED
    limit_hit: str | None = None
    said = ""
    if return_code == -signal.SIGKILL and killed_for == "wall":
        status, limit_hit = Status.TIME_LIMIT, "wall"
        said = f"TimeoutError: the program ran longer than {request.timeout_s:g} s"
    elif return_code == -signal.SIGKILL and killed_for == "output":
        limit_hit = "output"
        said = f"Error: the program printed more than {MAX_BYTES // 2**20} MB"
    elif return_code == -signal.SIGXCPU or (return_code == -signal.SIGKILL and ending.cpu_s >= request.cpu_limit_s):
        status, limit_hit = Status.TIME_LIMIT, "cpu"
        said = f"TimeoutError: the program used more than {request.cpu_limit_s} s of CPU"
    elif status is Status.FAILED and _MEMORY_ERROR.match(error_text.rstrip().rpartition("\n")[2]):
        status, limit_hit = Status.MEMORY_LIMIT, "memory"
        said = f"MemoryError: the program used more than {memory_mb} MB"
    if said:
        error_text = f"{error_text.rstrip()}\n{said}\n".lstrip("\n")
    return ExecutionResult(
        status,
        stdout=stdout.text(),
        stderr=error_text,
        return_code=None if limit_hit in ("wall", "cpu", "output") else return_code,
        run_s=run_s,
        stdout_truncated=stdout.truncated,
        stderr_truncated=stderr.truncated,
        tier=tier,
        cpu_s=ending.cpu_s,
        max_rss_kb=ending.max_rss_kb,
        limit_hit=limit_hit,
        files=files,
    )


def run_delay_s(pidfd: int) -> float:
    """Return how long the process has waited for a core while it could have run; 0 where the kernel does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open(f"/proc/self/fdinfo/{pidfd}") as info:
            pid = next(int(line.split()[1]) for line in info if line.startswith("Pid:"))
        with open(f"/proc/{pid}/schedstat") as times:
            return int(times.read().split()[1]) / 1e9
    return 0.0


def fetch(directory: int, paths: tuple[str, ...]) -> dict[str, bytes]:
    """Return the ordinary files among `paths` beneath the directory; a program wrote it and may have rigged it."""
    files = {}
    budget = _MAX_FETCHED_BYTES
    for path in paths:
        how = struct.pack("QQQ", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, 0, _RESOLVE)
        size = ctypes.c_size_t(len(how))
        fd = _libc.syscall(ctypes.c_long(_SYS_OPENAT2), ctypes.c_int(directory), os.fsencode(path), how, size)
        if fd < 0:
            continue
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode) or about.st_size > budget:
            os.close(fd)
            continue
        with open(fd, "rb") as file:
            files[path] = file.read(budget)
        budget -= len(files[path])
    return files
