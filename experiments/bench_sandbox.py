"""Latency, CPU and throughput of the sandbox, beside a new interpreter for each program.

Every program differs from every other by a constant and its output is checked, so that nothing can be answered from a
cache. Columns:

    way           strict / subprocess (ours, locally), handle (ours, through Ray Serve), http (ours, through HTTP),
                  python -c (a new interpreter), bwrap (a new interpreter in bubblewrap, where that is installed)
    clients       programs asked for at the same time
    p50, p99      milliseconds from the call to its result
    beside        median milliseconds of that which are neither the program's run nor its wait in the queue
    cpu           CPU milliseconds a program: of the program, its zygote, the caller's own work and, through Ray Serve,
                  all of Ray (ours); of the interpreter alone (others)
    runs/s        programs that ended, by wall time
"""

import argparse
import asyncio
import json
import os
import platform
import resource
import shutil
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from torl_env import ExecutionResult, LocalSandbox, Status

_TIMEOUT_S = 60.0
_NEW_INTERPRETER_RUNS = 20
Way = Callable[[str], Awaitable[ExecutionResult]]


@dataclass(slots=True)
class Row:
    """One line of the table; times in milliseconds."""

    way: str
    clients: int
    num_runs: int
    p50_ms: float
    p99_ms: float
    beside_ms: float
    cpu_ms: float
    runs_per_s: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--num-runs", type=int, default=300, help="programs per line of the table")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 16, 128], help="programs at the same time")
    parser.add_argument("--ways", nargs="+", default=["strict", "subprocess", "handle", "http", "python -c", "bwrap"])
    parser.add_argument("--json", type=Path, help="also write the rows there")


def run(options: argparse.Namespace) -> int:
    """Measure, print the table, and return the exit status."""
    print(f"{platform.platform()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}")
    print(f"{'way':<12}{'clients':>8}{'runs':>7}{'p50':>9}{'p99':>9}{'beside':>9}{'cpu':>9}{'runs/s':>9}")
    rows = asyncio.run(_measure_all(options))
    if options.json:
        options.json.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))
    by_way = {row.way: row for row in reversed(rows)}  # the first line of each, with the fewest clients
    for other in ("python -c", "bwrap"):
        if "strict" in by_way and other in by_way:
            ours, theirs = by_way["strict"], by_way[other]
            print(
                f"{other}: {theirs.p50_ms / ours.p50_ms:.0f}x the time and {theirs.cpu_ms / ours.cpu_ms:.0f}x the CPU "
                f"of a strict run, at {ours.clients} client{'s' if ours.clients > 1 else ''}"
            )
    return 0


async def _measure_all(options: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []

    async def table(name: str, way: Way, num_runs: int, clients: list[int], cpu_s: Callable[[], float]) -> None:
        await asyncio.gather(*[way(_program(-i)[0]) for i in range(1, 5)])  # not the first ones: connections, caches
        for number in clients:
            row = await _measure(name, way, max(num_runs, number), number, cpu_s)
            rows.append(row)
            print(
                f"{row.way:<12}{row.clients:>8}{row.num_runs:>7}{row.p50_ms:>9.1f}{row.p99_ms:>9.1f}{row.beside_ms:>9.1f}"
                f"{row.cpu_ms:>9.1f}{row.runs_per_s:>9.1f}",
                flush=True,
            )

    sandbox = LocalSandbox(tier="strict")
    await sandbox.start()
    for name, allow in (("strict", False), ("subprocess", True)):
        if name in options.ways:
            way = _local(sandbox, allow)
            await table(name, way, options.num_runs, options.clients, _cpu_of_this_process_and_below)
    if "http" in options.ways:
        await _over_http(
            sandbox, lambda way: table("http", way, options.num_runs, options.clients, _cpu_of_this_process_and_below)
        )
    await sandbox.close()
    if "handle" in options.ways:
        clients = sorted({*options.clients, 64})
        await _through_serve(
            lambda way: table("handle", way, options.num_runs, clients, _cpu_of_this_process_and_below)
        )
    few = [number for number in options.clients if number <= 16]
    new_interpreter = [sys.executable, "-c"]
    if "python -c" in options.ways:
        await table("python -c", _command(new_interpreter), _NEW_INTERPRETER_RUNS, few, _cpu_of_children)
    if "bwrap" in options.ways:
        if bwrap := shutil.which("bwrap"):
            places = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
            isolated = [bwrap, "--unshare-all", "--die-with-parent", "--as-pid-1", *places, *new_interpreter]
            await table("bwrap", _command(isolated), _NEW_INTERPRETER_RUNS, few, _cpu_of_children)
        else:
            print("bwrap: not installed (package `bubblewrap`)")
    return rows


def _program(number: int) -> tuple[str, str]:
    """Return a program no other is equal to, and what it prints."""
    return f"import sympy; print(sympy.factorint(360), {number})", f"{{2: 3, 3: 2, 5: 1}} {number}\n"


async def _measure(name: str, way: Way, num_runs: int, clients: int, cpu_s: Callable[[], float]) -> Row:
    numbers = iter(range(num_runs))
    latencies_s: list[float] = []
    beside_s: list[float] = []
    programs_cpu_s = 0.0

    async def client() -> None:
        nonlocal programs_cpu_s
        for number in numbers:
            code, expected = _program(number + 1000 * clients)
            started = time.perf_counter()
            result = await way(code)
            latencies_s.append(time.perf_counter() - started)
            if result.stdout != expected:
                raise RuntimeError(f"{name} answered {result!r}; expected {expected!r} on stdout.")
            beside_s.append(latencies_s[-1] - result.run_s - result.queue_s)
            programs_cpu_s += result.cpu_s

    cpu_before, started = cpu_s(), time.perf_counter()
    await asyncio.gather(*[client() for _ in range(clients)])
    wall_s = time.perf_counter() - started
    cpu_ms = (cpu_s() - cpu_before + programs_cpu_s) / num_runs * 1e3
    return Row(
        name,
        clients,
        num_runs,
        p50_ms=statistics.median(latencies_s) * 1e3,
        p99_ms=sorted(latencies_s)[int(0.99 * (num_runs - 1))] * 1e3,
        beside_ms=statistics.median(beside_s) * 1e3,
        cpu_ms=cpu_ms,
        runs_per_s=num_runs / wall_s,
    )


def _local(sandbox: LocalSandbox, allow_subprocess: bool) -> Way:
    return lambda code: sandbox.run(code, _TIMEOUT_S, allow_subprocess=allow_subprocess)


def _command(command: list[str]) -> Way:
    async def way(code: str) -> ExecutionResult:
        process = await asyncio.create_subprocess_exec(*command, code, stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()
        return ExecutionResult(Status.SUCCESS, stdout=output.decode(), return_code=process.returncode)

    return way


async def _over_http(sandbox: LocalSandbox, measure: Callable[[Way], Awaitable[None]]) -> None:
    from aiohttp import web

    from torl_env.sandbox.http import HttpSandbox
    from torl_env.sandbox.serve import build_app

    runner = web.AppRunner(build_app(sandbox))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    client = HttpSandbox(f"http://127.0.0.1:{runner.addresses[0][1]}")
    await measure(lambda code: client.run(code, _TIMEOUT_S))
    await client.close()
    await runner.cleanup()


async def _through_serve(measure: Callable[[Way], Awaitable[None]]) -> None:
    from torl_env.sandbox.deployment import SERVE_ENVIRONMENT, ServeSandbox, start_sandbox, stop_sandbox

    for variable, value in SERVE_ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    import ray

    ray.init(include_dashboard=False, log_to_driver=False, logging_level="warning")
    name = "bench"
    await asyncio.to_thread(start_sandbox, name, tier="strict")
    client = ServeSandbox(name)
    await measure(lambda code: client.run(code, _TIMEOUT_S))
    await client.close()
    await asyncio.to_thread(stop_sandbox, name)
    ray.shutdown()


def _cpu_of_this_process_and_below() -> float:
    """CPU seconds so far of the caller and of the processes beneath it: the interpreters that fork, and Ray's.

    Not of the programs, which have ended: a zygote's own time is without that of its children.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    below = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
    return usage.ru_utime + usage.ru_stime + sum(times.user + times.system for times in below)


def _cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
