"""Which programs get the cores: new ones, and the zygote that forks them, come before those that are busy.

Without this an endless loop gets as much of a core as the zygote does, and a dozen of them hold up all other programs.

All programs of a zygote stay in its session: where Linux groups by session (autogroup) it divides the cores among the
sessions first and looks at priorities within each alone. So a sandbox has one session's share there, and to lower a
program's priority means the same with that grouping and without, as in a container. It is never raised again.

A program without subprocesses can leave neither its process group, which is lowered as one, nor the session. Of those
with subprocesses, processes that left their group before it was lowered are not.

Runs inside the sandbox's own interpreters.
"""

import contextlib
import os
import time

from torl_env.sandbox import kernel

_STEP = 10  # of 19: a lowered program gets a tenth of what others get
_BUSY_CPU_S = 0.02  # with numpy or sympy a short program uses a third of it
_OLD_S = 1.0  # the same for programs with subprocesses, which no clock shows the CPU time of
_LOOK_EVERY_S = 0.01


class Ranks:
    """The running programs that have not been lowered yet."""

    def __init__(self, *, dies_with_parent: bool) -> None:
        """Start with none; `dies_with_parent` tells whether `kernel.die_with_parent` is in force here."""
        self._dies_with_parent = dies_with_parent
        self._fresh: dict[int, tuple[int | None, float | None]] = {}  # process: user, when it counts as busy anyway
        self._next_look = 0.0
        self._lowered = min(os.getpriority(os.PRIO_PROCESS, 0) + _STEP, 19)

    def add(self, pid: int, uid: int | None, *, subprocess: bool) -> None:
        """Watch the program `pid`, which leads a process group and runs as `uid` (None: as this process)."""
        self._fresh[pid] = uid, time.monotonic() + _OLD_S if subprocess else None

    def forget(self, pid: int) -> None:
        """Stop watching a program that ended and has not been waited for."""
        self._fresh.pop(pid, None)

    def lower_busy(self) -> float | None:
        """Lower the busy programs; return in how many milliseconds to call this again, None if there are no others."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + _LOOK_EVERY_S
            for pid, (uid, old_at) in list(self._fresh.items()):
                if (now >= old_at) if old_at is not None else (_cpu_s(pid) >= _BUSY_CPU_S):
                    self._lower(pid, uid)
        return (self._next_look - now) * 1e3 if self._fresh else None

    def _lower(self, pid: int, uid: int | None) -> None:
        own = os.geteuid()
        if uid is not None:
            os.seteuid(uid)  # root without CAP_SYS_NICE may not lower others' processes
        # It leads no group yet, or the group's first process, which only waits, is not this user's: again next time.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.setpriority(os.PRIO_PGRP, pid, self._lowered)  # all threads, where PRIO_PROCESS is one only
            del self._fresh[pid]
        if uid is not None:
            os.seteuid(own)
            kernel.set_dumpable(False)  # the change of user undid both
            if self._dies_with_parent:
                kernel.die_with_parent()


def _cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process with all its threads, by the clock that clock_getcpuclockid(3) names."""
    return time.clock_gettime(~pid << 3 | 2)
