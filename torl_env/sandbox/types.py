"""What a run of one program returns, and the one method every sandbox client has."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Protocol


class Status(StrEnum):
    """How a run ended."""

    SUCCESS = "success"  # the program ended with return code 0
    FAILED = "failed"  # it raised, exited with another code, or was killed by a signal of its own making
    TIME_LIMIT = "time_limit"  # wall-clock or CPU seconds used up; the whole process tree was killed
    MEMORY_LIMIT = "memory_limit"  # it asked for more memory than it may have
    SANDBOX_ERROR = "sandbox_error"  # the sandbox failed, not the program: says nothing about the program


OVERLOAD = "queue"
"""`limit_hit` of a call that was refused because too many programs waited."""


_MAX_NUMBER = 10**7  # seconds or megabytes: far above any use, far below what the kernel's numbers hold
_MAX_NAME_BYTES, _MAX_PATH_BYTES = 255, 4000  # the kernel's limits, less the working directory


_KINDS: dict[str, tuple[type, ...]] = {
    "code": (str,),
    "timeout_s": (int, float),
    "cpu_timeout_s": (int, float, type(None)),
    "memory_mb": (int, type(None)),
    "stdin": (str,),
    "seed": (int, type(None)),
    "allow_subprocess": (bool,),
    "echo_last_expr": (bool,),
    "files": (Mapping,),
    "fetch_files": (tuple, list),
}


def check_kind(name: str, value: object, *kinds: type) -> None:
    """Raise `ValueError` if a value is of none of these kinds; True and False are numbers nowhere."""
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        wanted = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
        raise ValueError(f"`{name}` ({value!r:.100}) should be of kind {wanted}.")


class Tier(StrEnum):
    """How well programs are isolated."""

    STRICT = "strict"  # namespaces, a private root and file system, Landlock, seccomp, limits
    FALLBACK = "fallback"  # Landlock, seccomp, limits: where namespaces are blocked
    UNISOLATED = "unisolated"  # limits only; the one tier of systems other than Linux, and never chosen unasked


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One program and how to run it.

    Attributes:
        code: the program's text.
        timeout_s: seconds it may take from its start to its end, time spent waiting for a busy core not counted.
        cpu_timeout_s: seconds of CPU, rounded up to whole ones; None for `timeout_s`.
        memory_mb: address space the program may add to the interpreter's; None for the sandbox's own limit.
        stdin: what it reads from standard input.
        seed: of `random`, numpy's and sympy's generators; None for fresh ones.
        allow_subprocess: whether it may start processes (strict tier only; they end with the program).
        echo_last_expr: whether the value of a last line that is an expression is printed, as in a notebook.
        files: written to the working directory before the start, by relative path.
        fetch_files: relative paths to return afterwards; those that are not ordinary files are left out.
    """

    code: str
    timeout_s: float
    cpu_timeout_s: float | None = None
    memory_mb: int | None = None
    stdin: str = ""
    seed: int | None = None
    allow_subprocess: bool = False
    echo_last_expr: bool = False
    files: Mapping[str, bytes] = field(default_factory=dict)
    fetch_files: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise `ValueError` if a field is of the wrong kind, a number out of range, or a path leads elsewhere."""
        for name, kinds in _KINDS.items():
            check_kind(name, getattr(self, name), *kinds)
        for path, content in self.files.items():
            check_kind("files", path, str)
            check_kind(f"files[{path!r}]", content, bytes)
        for path in self.fetch_files:
            check_kind("fetch_files", path, str)
        for name in ("timeout_s", "cpu_timeout_s", "memory_mb"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= _MAX_NUMBER:
                raise ValueError(f"`{name}` ({value}) should be positive and at most {_MAX_NUMBER:,}.")
        for path in self.files:
            if not _is_file_name(path):
                raise ValueError(f"`files` has the path {path!r}; paths should lead into the working directory.")
        names = {os.path.normpath(path) for path in self.files}
        for name in names:
            if any(str(directory) in names for directory in PurePosixPath(name).parents):
                raise ValueError(f"`files` has the path {name!r} below another file.")
        for path in self.fetch_files:
            if not _is_encodable(path):
                raise ValueError(f"`fetch_files` has the path {path!r}, which no file can have.")

    @property
    def cpu_limit_s(self) -> int:
        """Whole seconds of CPU, which are what the kernel counts."""
        return math.ceil(self.cpu_timeout_s or self.timeout_s)


def _is_file_name(path: str) -> bool:
    parts = path.split("/")
    if not _is_encodable(path) or path.startswith("/") or ".." in parts or parts[-1] in ("", "."):
        return False
    return (
        max(len(os.fsencode(part)) for part in parts) <= _MAX_NAME_BYTES and len(os.fsencode(path)) <= _MAX_PATH_BYTES
    )


def _is_encodable(path: str) -> bool:
    """Whether a file may have this path: no null character, and no half of a character outside UTF-8."""
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """One run of one program.

    Attributes:
        status: how the run ended.
        stdout: what the program printed; if it printed more than the sandbox keeps, head and tail around a mark.
        stderr: likewise. When `status` is `time_limit`, `memory_limit` or `sandbox_error` its last line is written
            by the sandbox and says so in one short sentence ("TimeoutError: the program ran longer than 5 s").
        return_code: from the operating system, negative for a signal; None when the sandbox ended the run.
        run_s: seconds from the program's start to its end.
        queue_s: seconds the run waited for its turn before that.
        stdout_truncated: whether stdout lost its middle.
        stderr_truncated: whether stderr did.
        tier: how the program was isolated; None if it was not run.
        cpu_s: seconds of CPU it used.
        max_rss_kb: its largest resident memory in KiB, what it shares with the interpreter it was forked from included.
        limit_hit: "wall", "cpu", "memory" or "output" if that limit ended it; "queue" if it was not run since too many
            programs waited already (then `status` is `sandbox_error`).
        files: the files asked for, by path.

    Example:
        >>> ExecutionResult(Status.SUCCESS, stdout="42\\n", return_code=0, run_s=0.02).ok
        True
    """

    status: Status
    stdout: str = ""
    stderr: str = ""
    return_code: int | None = None
    run_s: float = 0.0
    queue_s: float = 0.0
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    tier: Tier | None = None
    cpu_s: float = 0.0
    max_rss_kb: int = 0
    limit_hit: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def output_truncated(self) -> bool:
        """Whether stdout or stderr lost its middle."""
        return self.stdout_truncated or self.stderr_truncated

    @property
    def ok(self) -> bool:
        """Whether the program ran to its end without an error."""
        return self.status is Status.SUCCESS

    @classmethod
    def sandbox_error(cls, reason: str, *, run_s: float = 0.0, queue_s: float = 0.0) -> "ExecutionResult":
        """Return the result of a run that the sandbox could not make, `reason` being one short sentence."""
        return cls(Status.SANDBOX_ERROR, stderr=f"SandboxError: {reason}", run_s=run_s, queue_s=queue_s)


class SandboxClient(Protocol):
    """Anything that runs programs.

    `run` never raises for what the program or the infrastructure does: trouble with either is a result. A client
    belongs to no event loop: `run` may be awaited from any loop, by any number of callers at once.
    """

    async def run(self, code: str, timeout_s: float) -> ExecutionResult:
        """Run `code` as a Python program for at most `timeout_s` seconds of wall time, counted from its start."""
        ...

    async def close(self) -> None:
        """End the runs in flight and free what the client holds; later runs are sandbox errors."""
        ...
