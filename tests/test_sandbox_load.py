"""The local sandbox under load: nothing grows, and hostile programs do not hold up the others."""

import asyncio
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torl_env import ExecutionResult, LocalSandbox, Status

HOSTILE = ("while True: pass", "x = []\nwhile True: x.append('a' * 10**6)", "while True: print('x' * 1000)")


@pytest.mark.parametrize("num_runs", [200, pytest.param(20_000, marks=[pytest.mark.slow, pytest.mark.timeout(3000)])])
@pytest.mark.parametrize("tier", ["strict", "fallback"])
def test_many_runs_leave_nothing_behind(num_runs: int, tier: str) -> None:
    if tier == "fallback":
        num_runs //= 2
    command = [sys.executable, "-m", "tests.sandbox_growth", tier, str(num_runs)]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    print(f"{num_runs} runs: {done.stdout}")
    before, after = (json.loads(done.stdout)[when] for when in ("before", "after"))
    assert after["processes"] == before["processes"]
    assert after["descriptors"] <= before["descriptors"]
    assert after["megabytes"] - before["megabytes"] < 20


async def run_128(sandbox: LocalSandbox, hostile: bool) -> float:
    """Ask for 128 programs at once, each tenth hostile or left out; return the others' median client seconds."""

    async def one(number: int) -> float:
        started = time.perf_counter()
        result = await sandbox.run(f"import sympy\nprint(sympy.factorint(360), {number})", 60)
        assert result.stdout == f"{{2: 3, 3: 2, 5: 1}} {number}\n", result
        return time.perf_counter() - started

    honest: list[asyncio.Task[float]] = []
    bad: list[asyncio.Task[ExecutionResult]] = []
    for number in range(128):
        if number % 10:
            honest.append(asyncio.create_task(one(number)))
        elif hostile:
            bad.append(asyncio.create_task(sandbox.run(HOSTILE[number // 10 % 3], 60)))  # longer than the others take
    times = await asyncio.gather(*honest)
    for run in bad:
        run.cancel()
    ended = [end for end in await asyncio.gather(*bad, return_exceptions=True) if isinstance(end, ExecutionResult)]
    assert not any(result.ok or result.status is Status.SANDBOX_ERROR for result in ended)
    return statistics.median(times)


@pytest.mark.parametrize("tier", ["strict", "fallback"])
async def test_hostile_programs_neither_break_nor_hold_up_the_others(tier: str) -> None:
    sandbox = LocalSandbox(max_concurrent_runs=128, memory_mb=256, tier=tier)
    await run_128(sandbox, hostile=False)
    ratios = []
    for _ in range(5):  # one is as noisy as the machine
        alone = await run_128(sandbox, hostile=False)
        ratios.append(await run_128(sandbox, hostile=True) / alone)
    await sandbox.close()
    print("beside hostile programs, times the median seconds alone:", *[f"{ratio:.2f}" for ratio in ratios])
    assert statistics.median(ratios) < 2
