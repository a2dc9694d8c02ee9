"""What a run of one program returns, and the one method every sandbox client has."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Status(StrEnum):
    """How a run ended."""

    SUCCESS = "success"  # the program ended with return code 0
    FAILED = "failed"  # it raised, exited with another code, or was killed by a signal of its own making
    TIME_LIMIT = "time_limit"  # wall-clock or CPU seconds used up; the whole process tree was killed
    MEMORY_LIMIT = "memory_limit"  # it asked for more memory than it may have
    SANDBOX_ERROR = "sandbox_error"  # the sandbox failed, not the program: says nothing about the program


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
        output_truncated: whether stdout or stderr lost its middle.

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
    output_truncated: bool = False

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
