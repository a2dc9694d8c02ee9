"""The local sandbox under load: nothing grows, and hostile programs do not hold up the others."""

import asyncio
import statistics
import time

import psutil
import pytest

from torl_env import ExecutionResult, LocalSandbox, Status

HOSTILE = ("while True: pass", "x = []\nwhile True: x.append('a' * 10**6)", "while True: print('x' * 1000)")


def machinery(sandbox: LocalSandbox) -> tuple[int, int, float]:
    """Return the number of processes beneath this one, of open descriptors in all of them, and their megabytes."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    memory = sum(process.memory_full_info().uss for process in processes)
    return len(processes), sum(process.num_fds() for process in processes), memory / 2**20


async def run_many(sandbox: LocalSandbox, num_runs: int) -> None:
    numbers = iter(range(num_runs))

    async def client() -> None:
        for number in numbers:
            kind = number % 20
            if kind == 0:
                result = await sandbox.run("1 / 0", 10)
                assert result.status is Status.FAILED
            else:
                result = await sandbox.run(f"print({number})", 10, stdin="x" * (kind == 1), allow_subprocess=kind == 2)
                assert result.stdout == f"{number}\n", result

    await asyncio.gather(*[client() for _ in range(4)])


@pytest.mark.parametrize("num_runs", [200, pytest.param(20_000, marks=[pytest.mark.slow, pytest.mark.timeout(3000)])])
@pytest.mark.parametrize("tier", ["strict", "fallback"])
async def test_many_runs_leave_nothing_behind(num_runs: int, tier: str) -> None:
    if tier == "fallback":
        num_runs //= 2
    sandbox = LocalSandbox(2, memory_mb=256, tier=tier)
    if tier == "strict":
        await run_many(sandbox, 100)
    else:
        await asyncio.gather(*[sandbox.run("print(1)", 10) for _ in range(100)])
    processes, descriptors, megabytes = machinery(sandbox)
    if tier == "strict":
        await run_many(sandbox, num_runs)
    else:
        results = [await sandbox.run(f"print({i})", 10) for i in range(num_runs)]
        assert all(result.ok for result in results)
        del results
    after = machinery(sandbox)
    print(f"{num_runs} runs: from {processes} processes, {descriptors} descriptors, {megabytes:.1f} MB to {after}")
    # Fewer descriptors is fine: this process may close one of an earlier test's meanwhile.
    assert after[0] == processes
    assert after[1] <= descriptors
    assert after[2] - megabytes < 20
    await sandbox.close()


async def run_128(sandbox: LocalSandbox, hostile: bool) -> list[tuple[float, ExecutionResult]]:
    """Run 128 programs at once, each tenth hostile if asked for; return the others' client seconds and results."""

    async def one(number: int) -> tuple[float, ExecutionResult]:
        started = time.perf_counter()
        result = await sandbox.run(f"import sympy\nprint(sympy.factorint(360), {number})", 60)
        return time.perf_counter() - started, result

    bad = [sandbox.run(HOSTILE[i % 3], 3) for i in range(13)] if hostile else []
    honest = asyncio.gather(*[one(number) for number in range(128 - len(bad))])
    refused = await asyncio.gather(*bad)
    assert not any(result.ok or result.status is Status.SANDBOX_ERROR for result in refused)
    return await honest


async def test_hostile_programs_neither_break_nor_hold_up_the_others() -> None:
    sandbox = LocalSandbox(max_concurrent_runs=128, memory_mb=256)
    await run_128(sandbox, hostile=False)
    times = {}
    for hostile in (False, True):
        outcomes = await run_128(sandbox, hostile)
        assert [result.stdout for _, result in outcomes] == [
            f"{{2: 3, 3: 2, 5: 1}} {i}\n" for i in range(len(outcomes))
        ]
        times[hostile] = statistics.median(seconds for seconds, _ in outcomes)
    print(f"median {times[False]:.2f} s alone, {times[True]:.2f} s beside hostile programs")
    # At most twice as slow on an idle machine; three times leaves room for one where other things run.
    assert times[True] < 3 * times[False]
    await sandbox.close()
