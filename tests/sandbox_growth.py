"""What a local sandbox holds before and after many runs: `python -m tests.sandbox_growth strict 200` prints it as JSON.

A process of its own, whose descriptors are the sandbox's alone: other tests open and close some meanwhile.
"""

import asyncio
import json
import sys

import psutil

from torl_env import LocalSandbox, Status

_WARM_UP_RUNS = 100


def held() -> dict[str, float]:
    """Return the number of processes, this one and all beneath it, and of their open descriptors and megabytes."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return {
        "processes": len(processes),
        "descriptors": sum(process.num_fds() for process in processes),
        "megabytes": sum(process.memory_full_info().uss for process in processes) / 2**20,
    }


async def run_many(sandbox: LocalSandbox, num_runs: int) -> None:
    """Run programs, four at a time, of every kind that the tier has: with input, with subprocesses, failing ones."""
    numbers = iter(range(num_runs))
    subprocesses = sandbox.tier == "strict"

    async def client() -> None:
        for number in numbers:
            kind = number % 20
            if kind == 0:
                result = await sandbox.run("1 / 0", 10)
                assert result.status is Status.FAILED, result
                continue
            allow = subprocesses and kind == 2
            result = await sandbox.run(f"print({number})", 10, stdin="x" * (kind == 1), allow_subprocess=allow)
            assert result.stdout == f"{number}\n", result

    await asyncio.gather(*[client() for _ in range(4)])


async def main(tier: str, num_runs: int) -> None:
    """Print what is held after some first runs, and what after so many more."""
    sandbox = LocalSandbox(2, memory_mb=256, tier=tier)
    await run_many(sandbox, _WARM_UP_RUNS)
    before = held()
    await run_many(sandbox, num_runs)
    print(json.dumps({"before": before, "after": held()}))
    await sandbox.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
