"""The sandbox as a Ray Serve application, on a real one."""

import asyncio
import pickle
import threading
import time
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import aiohttp
import psutil
import pytest

from tests.ports import free_ports
from torl_env import ExecutionResult, Status
from torl_env.sandbox import deployment
from torl_env.sandbox.deployment import (
    SERVE_ENVIRONMENT,
    ServeSandbox,
    sandbox_stats,
    start_sandbox,
    stop_sandbox,
)
from torl_env.sandbox.http import HttpSandbox
from torl_env.sandbox.process import IsolationError
from torl_env.sandbox.replica import SandboxReplica
from torl_env.sandbox.stats import SandboxStats

T = TypeVar("T")
NAME = "sandbox-under-test"
(HTTP_PORT,) = free_ports(1)


@pytest.fixture(scope="module")
def application() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as environment:
        for variable, value in SERVE_ENVIRONMENT.items():
            environment.setenv(variable, value)
        import ray

        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="warning")
        assert start_sandbox(NAME, num_replicas=2, max_concurrent_runs=1, http_port=HTTP_PORT)
        yield NAME
        stop_sandbox(NAME)
        ray.shutdown()


@pytest.fixture(scope="module")
def loop(application: str) -> Iterator[asyncio.AbstractEventLoop]:
    """One loop for the module, as a driver or an actor has: Serve's handles live on the loop that made them."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def client(loop: asyncio.AbstractEventLoop) -> Iterator[ServeSandbox]:
    client = ServeSandbox(NAME)
    yield client
    loop.run_until_complete(client.close())
    late = loop.run_until_complete(client.run("print(1)", 10))
    assert late.stderr == "SandboxError: the sandbox client is closed"


def within(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> T:
    return loop.run_until_complete(asyncio.wait_for(coroutine, 150))


def busy_replicas(name: str) -> list[psutil.Process]:
    """Processes of an application's replicas that run a program."""
    title = f"ray::ServeReplica:{name}:"
    replicas = [one for one in psutil.process_iter(["cmdline"]) if title in "".join(one.info["cmdline"] or ())]
    # Beneath a replica: the process that keeps the namespaces, the zygote, and while there is one a program.
    return [replica for replica in replicas if len(replica.children(recursive=True)) == 3]


async def until_busy(name: str) -> list[psutil.Process]:
    """Wait until a replica of the application runs a program; return those that do."""
    async with asyncio.timeout(30):
        while not (busy := busy_replicas(name)):
            await asyncio.sleep(0.05)
    return busy


def test_a_program_runs_in_a_replica(loop: asyncio.AbstractEventLoop, client: ServeSandbox) -> None:
    result = within(loop, client.run("import os\nprint(6 * 7, os.environ.get('RAY_JOB_ID'))", 10))
    assert (result.status, result.stdout) == (Status.SUCCESS, "42 None\n")
    failed = within(loop, client.run("print(a)", 10))
    assert (failed.status, failed.return_code) == (Status.FAILED, 1)


def test_every_program_is_counted_once_over_all_replicas(loop: asyncio.AbstractEventLoop, client: ServeSandbox) -> None:
    async def many() -> list[ExecutionResult]:
        return await asyncio.gather(*[client.run(f"print({i})", 10) for i in range(200)])

    before = sandbox_stats(NAME)
    results = within(loop, many())
    assert [result.stdout for result in results] == [f"{i}\n" for i in range(200)]
    stats = sandbox_stats(NAME)
    assert (stats.num_runs, stats.num_replicas) == (before.num_runs + 200, 2)
    assert stats.tiers == {"strict": stats.num_runs}
    assert stats.statuses["success"] - before.statuses["success"] == 200
    assert sum(stats.run_s) == sum(stats.queue_s) == stats.num_runs


def test_stats_work_inside_a_running_loop(loop: asyncio.AbstractEventLoop, client: ServeSandbox) -> None:
    async def ask() -> SandboxStats:
        await client.run("1", 10)
        return sandbox_stats(NAME)

    assert within(loop, ask()).num_runs > 0


def test_http_is_answered_by_the_same_replicas(loop: asyncio.AbstractEventLoop, client: ServeSandbox) -> None:
    async def over_http() -> list[ExecutionResult]:
        over_http = HttpSandbox(f"http://127.0.0.1:{HTTP_PORT}")
        calls = [over_http.run(f"print(input(), {i})", 10, stdin="hi") for i in range(20)]
        results = await asyncio.gather(*calls, over_http.run("1 / 0", 10), over_http.run("while True: pass", 1))
        await over_http.close()
        return results

    async def wrong() -> tuple[int, int]:
        async with aiohttp.ClientSession() as session:
            async with session.post(f"http://127.0.0.1:{HTTP_PORT}/run_code", json={"code": 1}) as bad_body:
                pass
            async with session.get(f"http://127.0.0.1:{HTTP_PORT}/elsewhere") as bad_path:
                return bad_body.status, bad_path.status

    before = sandbox_stats(NAME)
    *printing, failed, late = within(loop, over_http())
    assert [(result.stdout, result.tier) for result in printing] == [(f"hi {i}\n", "strict") for i in range(20)]
    assert failed.stderr.endswith("\nZeroDivisionError: division by zero\n")
    assert (late.status, late.limit_hit) in ((Status.TIME_LIMIT, "wall"), (Status.TIME_LIMIT, "cpu"))
    assert sandbox_stats(NAME).num_runs == before.num_runs + 22
    assert within(loop, wrong()) == (422, 404)


def test_a_thousand_waiting_calls_cost_no_thread_each(loop: asyncio.AbstractEventLoop, client: ServeSandbox) -> None:
    async def wait_and_cancel() -> int:
        await client.run("1", 10)
        before = threading.active_count()
        calls = [asyncio.create_task(client.run("import time\ntime.sleep(1000)", 1000)) for _ in range(1000)]
        await until_busy(NAME)
        threads = threading.active_count() - before
        for call in calls:
            call.cancel()
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(error, asyncio.CancelledError) for error in ended)
        return threads

    assert within(loop, wait_and_cancel()) < 10


def test_cancelled_calls_free_the_replicas(loop: asyncio.AbstractEventLoop, client: ServeSandbox) -> None:
    async def hold_and_cancel() -> ExecutionResult:
        calls = [asyncio.create_task(client.run("import time\ntime.sleep(1000)", 1000)) for _ in range(4)]
        await until_busy(NAME)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        return await client.run("print(1)", 10)

    assert within(loop, hold_and_cancel()).ok


def test_a_call_from_an_actor_with_a_loop_of_its_own(application: str) -> None:
    import ray

    class Caller:
        def call(self, client: ServeSandbox, count: int) -> int:
            async def many() -> int:
                results = await asyncio.gather(*[client.run(f"print({i})", 10) for i in range(count)])
                await client.close()
                return sum(int(result.stdout) for result in results)

            return asyncio.run(many())

    # 0 + 1 + ... + 49 = 1225
    caller = ray.remote(num_cpus=0)(Caller).remote()
    assert ray.get(caller.call.remote(ServeSandbox(application), 50), timeout=60) == 1225


def test_a_call_in_flight_survives_the_death_of_its_replica(
    loop: asyncio.AbstractEventLoop, client: ServeSandbox
) -> None:
    async def kill_its_replica() -> tuple[ExecutionResult, list[psutil.Process]]:
        call = asyncio.create_task(client.run("import time\ntime.sleep(2)\nprint('done')", 30))
        (replica,) = await until_busy(NAME)
        below = replica.children(recursive=True)
        replica.kill()
        return await call, below

    started = time.monotonic()
    result, below = within(loop, kill_its_replica())
    assert result.stdout == "done\n"
    assert time.monotonic() - started < 30
    assert not any(process.is_running() for process in below)


def test_a_call_in_flight_ends_before_its_application_goes(loop: asyncio.AbstractEventLoop, application: str) -> None:
    assert start_sandbox("going", max_concurrent_runs=1)
    client = ServeSandbox("going")

    async def stop_meanwhile() -> ExecutionResult:
        await client.run("1", 10)
        call = asyncio.create_task(client.run("import time\ntime.sleep(3)\nprint('done')", 30))
        await until_busy("going")
        await asyncio.to_thread(stop_sandbox, "going")
        return await call

    assert within(loop, stop_meanwhile()).stdout == "done\n"
    within(loop, client.close())


def test_a_running_application_is_reused(application: str) -> None:
    assert start_sandbox(application) is False


def test_a_missing_application_is_a_sandbox_error(loop: asyncio.AbstractEventLoop, application: str) -> None:
    result = within(loop, ServeSandbox("no-such-application").run("print(1)", 10))
    assert result.status is Status.SANDBOX_ERROR
    assert "'no-such-application' did not answer" in result.stderr
    stop_sandbox("no-such-application")


def test_settings_out_of_range_are_named(application: str) -> None:
    with pytest.raises(ValueError, match=r"`num_replicas` \(0\)"):
        start_sandbox("other", num_replicas=0)
    with pytest.raises(ValueError, match=r"`num_replicas` \(many\) should be at least 1, or 'auto'"):
        start_sandbox("other", num_replicas="many")
    with pytest.raises(ValueError, match=r"`memory_mb` \(1\)"):
        start_sandbox("other", memory_mb=1)


def test_load_takes_replicas_from_one_to_two_and_back_without_losing_a_call(
    loop: asyncio.AbstractEventLoop, application: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployment, "_UPSCALE_DELAY_S", 1.0)
    monkeypatch.setattr(deployment, "_DOWNSCALE_DELAY_S", 2.0)
    assert start_sandbox("auto", num_replicas="auto", max_concurrent_runs=1)
    client = ServeSandbox("auto")

    async def replicas_become(number: int) -> None:
        while (await asyncio.to_thread(sandbox_stats, "auto")).num_replicas != number:
            await asyncio.sleep(0.2)

    async def load() -> list[ExecutionResult]:
        code = "import time\ntime.sleep(0.2)\nprint({})"
        calls = [asyncio.create_task(client.run(code.format(i), 10)) for i in range(40)]
        await replicas_become(2)
        calls += [asyncio.create_task(client.run(code.format(i), 10)) for i in range(40, 60)]
        results = await asyncio.gather(*calls)
        await replicas_become(1)
        return results

    results = loop.run_until_complete(asyncio.wait_for(load(), 240))
    assert [result.stdout for result in results] == [f"{i}\n" for i in range(60)]
    assert within(loop, client.run("print(1)", 10)).ok
    within(loop, client.close())
    stop_sandbox("auto")


def test_a_replica_whose_sandbox_does_not_run_programs_is_unhealthy() -> None:
    class Broken:
        async def check(self, timeout_s: float) -> ExecutionResult:
            return ExecutionResult.sandbox_error("the zygote was stuck")

    replica = SandboxReplica.__new__(SandboxReplica)
    replica._sandbox = Broken()  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="does not run programs: SandboxError: the zygote was stuck"):
        asyncio.run(replica.check_health())


def test_a_full_queue_is_a_clear_answer(loop: asyncio.AbstractEventLoop, application: str) -> None:
    assert start_sandbox("small", max_concurrent_runs=1, max_queued_runs=0)
    client = ServeSandbox("small")

    async def overload() -> ExecutionResult:
        holding = asyncio.create_task(client.run("import time\ntime.sleep(1000)", 1000))
        await until_busy("small")
        refused = await client.run("print(1)", 10)
        holding.cancel()
        return refused

    refused = within(loop, overload())
    assert refused.stderr == "SandboxError: overloaded: 0 programs wait already"
    within(loop, client.close())
    stop_sandbox("small")


def test_a_tier_that_is_missing_is_an_error_at_once(application: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torl_env.sandbox.tiers.isolations", lambda tier: [])
    with pytest.raises(IsolationError, match="no strict isolation here"):
        start_sandbox("other", tier="strict")


def test_an_application_that_replaces_a_replica_is_not_deployed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    async def no_probe(tier: str) -> None:
        pass

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True}])
    monkeypatch.setattr(deployment, "probe", no_probe)
    monkeypatch.setattr(deployment, "_serve", lambda: None)  # deploying would fail
    monkeypatch.setattr(deployment, "_start_serve", lambda serve, http_port: None)
    statuses = ["UNHEALTHY", "UNHEALTHY", "RUNNING"]
    monkeypatch.setattr(deployment, "_status", lambda name: statuses.pop(0))
    assert start_sandbox("other") is False
    monkeypatch.setattr(deployment, "_START_TIMEOUT_S", 0.0)
    monkeypatch.setattr(deployment, "_status", lambda name: "UNHEALTHY")
    with pytest.raises(RuntimeError, match="Serve application 'other' is still unhealthy after 0 s"):
        start_sandbox("other")


def test_the_client_pickles_as_its_name() -> None:
    assert pickle.loads(pickle.dumps(ServeSandbox("a"))).name == "a"


def test_without_ray_there_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(RuntimeError, match=r"call `ray\.init` before"):
        start_sandbox("other")
