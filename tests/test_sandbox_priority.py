"""Busy programs stand back: those with some CPU time behind them are lowered, whoever starts the sandbox."""

import ctypes
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ordinary_user import as_ordinary_user, as_root

# Runs a program with `allow_subprocess` or without; prints what it says of its own priority beside the sandbox's.
SANDBOX = """
import asyncio, os, sys
from torl_env import LocalSandbox
async def main(tier, code, allow_subprocess):
    sandbox = LocalSandbox(tier=tier)
    result = await sandbox.run(code, 20, allow_subprocess=bool(allow_subprocess))
    await sandbox.close()
    print(os.getpriority(os.PRIO_PROCESS, 0), result.stdout, result.stderr)
asyncio.run(main(*sys.argv[1:]))
"""
NICE = "import os\ndef nice(): return os.getpriority(os.PRIO_PROCESS, 0)\n"  # of the thread that asks
IDLE = NICE + "import time\ntime.sleep(1)\nprint(nice(), int(1000 * time.process_time()))"
# Ends only when both its threads are lowered.
BUSY = NICE + (
    "import threading\nbefore = nice()\ndef work():\n    while nice() == before: pass\n"
    "thread = threading.Thread(target=work)\nthread.start()\nwork()\nthread.join()\nprint(nice())"
)
BUSY_CHILD = (
    NICE + "before = nice()\nif os.fork():\n    os.wait()\nelse:\n    while nice() == before: pass\nprint(nice())"
)


def _without_sys_nice() -> None:
    drop_from_bounding_set, sys_nice = 24, 23
    assert ctypes.CDLL(None).prctl(drop_from_bounding_set, sys_nice, 0, 0, 0) == 0


def run(tier: str, user: str, code: str, *, allow_subprocess: bool = False) -> list[int]:
    """Return the priority of the sandbox's owner and what the program printed."""
    command = [sys.executable, "-c", SANDBOX, tier, code, "x" if allow_subprocess else ""]
    prepare: Callable[[], None] | None = None
    if user == "ordinary user":
        command = as_ordinary_user(command)
    elif user == "root without CAP_SYS_NICE":
        prepare = _without_sys_nice
    done = subprocess.run(
        command, cwd=Path(__file__).parents[1], preexec_fn=prepare, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


@pytest.mark.parametrize("tier", ["strict", "fallback"])
@pytest.mark.parametrize(
    "user",
    [
        "caller",
        pytest.param("ordinary user", marks=as_root),
        pytest.param("root without CAP_SYS_NICE", marks=as_root),
    ],
)
def test_a_busy_program_is_lowered_with_all_its_threads_and_an_idle_one_is_not(tier: str, user: str) -> None:
    own, idle, cpu_ms = run(tier, user, IDLE)
    assert idle == own or cpu_ms >= 20  # a third of it where this was written
    own, busy = run(tier, user, BUSY)
    assert busy == min(own + 10, 19)


@pytest.mark.parametrize("user", ["caller", pytest.param("ordinary user", marks=as_root)])
def test_a_programs_processes_are_lowered_together(user: str) -> None:
    own, *levels = run("strict", user, BUSY_CHILD, allow_subprocess=True)
    assert levels == [min(own + 10, 19)] * 2


def test_a_sandbox_has_one_session() -> None:
    """Linux divides the cores among sessions first: with one each, lowering programs would do nothing."""
    _, same = run("fallback", "caller", "import os\nprint(int(os.getsid(0) == os.getsid(os.getppid())))")
    assert same == 1
