"""The local sandbox's queue, its end, and the deaths of its parts in the middle of a run."""

import asyncio
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from tests.sandbox_processes import FOREVER, programs_of, until, zygote_pid
from torl_env import ExecutionResult, LocalSandbox, Status
from torl_env.sandbox.process import Zygote
from torl_env.sandbox.tiers import start_isolated
from torl_env.sandbox.types import RunRequest, Tier


@pytest_asyncio.fixture
async def own_sandbox() -> AsyncIterator[LocalSandbox]:
    """One for a test that breaks it."""
    client = LocalSandbox(max_concurrent_runs=2, memory_mb=512)
    await client.start()
    yield client
    await client.close()


async def test_a_killed_zygote_is_replaced(own_sandbox: LocalSandbox) -> None:
    first = zygote_pid(own_sandbox)
    os.kill(first, signal.SIGKILL)
    assert (await own_sandbox.run("print(1)", 10)).ok
    assert zygote_pid(own_sandbox) != first


@pytest.mark.parametrize("allow_subprocess", [False, True])
@pytest.mark.parametrize("killed", ["keeper", "zygote"])
async def test_a_run_whose_zygote_is_killed_is_made_again(
    own_sandbox: LocalSandbox, killed: str, allow_subprocess: bool
) -> None:
    code = "import time\ntime.sleep(1)\nprint('done')"
    run = asyncio.create_task(own_sandbox.run(code, 30, allow_subprocess=allow_subprocess))
    await until(lambda: len(programs_of(own_sandbox)) == 1 + allow_subprocess)  # the program, and its init
    keeper = psutil.Process(zygote_pid(own_sandbox))
    below = keeper.children(recursive=True)
    (keeper if killed == "keeper" else below[0]).kill()
    assert (await run).stdout == "done\n"
    await until(lambda: not any(process.is_running() for process in [keeper, *below]))


async def test_a_zygote_that_is_killed_again_and_again_is_a_sandbox_error(own_sandbox: LocalSandbox) -> None:
    run = asyncio.create_task(own_sandbox.run("while True: pass", 60))
    for _ in range(2):
        pid = zygote_pid(own_sandbox)
        # Beyond its confinement, which takes milliseconds: a death during that has a message of its own.
        await until(lambda: any(program.cpu_times().user > 0.2 for program in programs_of(own_sandbox)))
        os.kill(pid, signal.SIGKILL)
        await until(lambda: run.done() or zygote_pid(own_sandbox) != pid)  # noqa: B023
    assert (await run).stderr == "SandboxError: the zygote is gone"


async def test_a_stuck_zygote_is_noticed_and_replaced(
    own_sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torl_env.sandbox.process._FORK_TIMEOUT_S", 1.0)
    (zygote,) = psutil.Process(zygote_pid(own_sandbox)).children()
    zygote.send_signal(signal.SIGSTOP)
    assert (await own_sandbox.run("print(1)", 10)).ok
    assert not zygote.is_running()


async def test_a_cancelled_run_is_killed_and_its_slot_is_free() -> None:
    sandbox = LocalSandbox(max_concurrent_runs=1)
    await sandbox.start()
    run = asyncio.create_task(sandbox.run("import time\ntime.sleep(1000)", 1000))
    await until(lambda: bool(programs_of(sandbox)))
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert (await sandbox.run("print(1)", 10)).ok
    assert programs_of(sandbox) == []
    await sandbox.close()


@pytest.mark.parametrize("allow_subprocess", [False, True])
async def test_a_run_that_is_cancelled_while_its_program_starts_is_killed(allow_subprocess: bool) -> None:
    interpreter = await start_isolated("strict", ())
    assert isinstance(interpreter, Zygote)
    (zygote,) = psutil.Process(interpreter.pid).children()
    zygote.suspend()
    request = RunRequest("while True: pass", 1000, allow_subprocess=allow_subprocess)
    run = asyncio.create_task(interpreter.run(request, 0, 256))
    await until(lambda: bool(interpreter._runs))
    zygote.resume()
    deadline = time.monotonic() + 20
    # Waits without the loop, which so does not hear of the program before the cancellation.
    while not any(process.cpu_times().user > 0.1 for process in zygote.children(recursive=True)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await until(lambda: not zygote.children(recursive=True))
    assert interpreter.alive
    interpreter.close()


async def test_runs_queue_and_the_clock_starts_after_the_queue() -> None:
    sandbox = LocalSandbox(max_concurrent_runs=1)
    await sandbox.run("1", 10)
    results = await asyncio.gather(*[sandbox.run("import time\ntime.sleep(0.4)", 0.9) for _ in range(4)])
    assert all(result.ok for result in results)  # the last one waited for 1.2 s, longer than it may run
    waits = sorted(result.queue_s for result in results)
    assert waits[0] < 0.3
    assert waits[3] > 1.2
    await sandbox.close()


async def test_a_thousand_waiting_runs_cost_no_thread_each(own_sandbox: LocalSandbox) -> None:
    threads = threading.active_count()
    runs = [asyncio.create_task(own_sandbox.run(FOREVER, 1000)) for _ in range(1000)]
    await asyncio.sleep(0)
    assert threading.active_count() == threads
    await own_sandbox.close()
    results = await asyncio.gather(*runs)
    assert {result.status for result in results} == {Status.SANDBOX_ERROR}


async def test_a_full_queue_refuses_at_once() -> None:
    sandbox = LocalSandbox(max_concurrent_runs=1, max_queued_runs=1)
    results = await asyncio.gather(*[sandbox.run(f"print({i})", 10) for i in range(3)])
    assert [result.stdout for result in results[:2]] == ["0\n", "1\n"]
    assert results[2].stderr == "SandboxError: overloaded: 1 programs wait already"
    assert results[2].limit_hit == "queue"
    assert (await sandbox.run("print(3)", 10)).ok
    await sandbox.close()


async def test_a_check_does_not_wait_in_the_queue() -> None:
    sandbox = LocalSandbox(max_concurrent_runs=1)
    runs = [asyncio.create_task(sandbox.run(FOREVER, 1000)) for _ in range(3)]
    await asyncio.sleep(0)
    assert (await sandbox.check(10)).ok
    await sandbox.close()
    await asyncio.gather(*runs)


async def test_closing_ends_everything() -> None:
    sandbox = LocalSandbox(max_concurrent_runs=1)
    run = asyncio.create_task(sandbox.run(FOREVER, 1000))
    waiting = asyncio.create_task(sandbox.run("print(1)", 10))
    await asyncio.sleep(0)
    await sandbox.close()
    await sandbox.close()
    closed = ExecutionResult.sandbox_error("the sandbox was closed")
    assert [(await task).stderr for task in (run, waiting)] == [closed.stderr] * 2
    assert (await sandbox.run("1", 10)).stderr == "SandboxError: the sandbox is closed"
    assert sandbox._thread is not None
    assert not sandbox._thread.is_alive()
    assert not any(interpreter.alive for interpreter in sandbox._interpreters.values())


async def test_closing_ends_an_interpreter_that_is_just_starting() -> None:
    before = set(psutil.Process().children())
    sandbox = LocalSandbox()
    run = asyncio.create_task(sandbox.run(FOREVER, 1000))
    check = asyncio.create_task(sandbox.check(1000))
    await until(lambda: bool(set(psutil.Process().children()) - before))
    await sandbox.close()
    assert (await run).stderr == "SandboxError: the sandbox was closed"
    assert (await check).status is not Status.FAILED
    assert set(psutil.Process().children()) <= before


async def test_closing_goes_on_when_its_caller_is_cancelled(own_sandbox: LocalSandbox) -> None:
    run = asyncio.create_task(own_sandbox.run(FOREVER, 1000))
    await until(lambda: len(programs_of(own_sandbox)) == 1)
    keeper = psutil.Process(zygote_pid(own_sandbox))
    closing = asyncio.create_task(own_sandbox.close())
    await asyncio.sleep(0)
    closing.cancel()
    await own_sandbox.close()
    assert not keeper.is_running()
    assert own_sandbox._thread is not None
    assert not own_sandbox._thread.is_alive()
    assert (await run).stderr == "SandboxError: the sandbox was closed"


FORK = """
import asyncio, os, signal, sys
import psutil
from torl_env import LocalSandbox
from torl_env.sandbox.blocking import background_loop, run_blocking
sandbox = LocalSandbox(max_concurrent_runs=2, tier=sys.argv[1])
run_blocking(sandbox.start())
(keeper,) = psutil.Process().children()
num_before = len(keeper.children(recursive=True))
code = "import time; time.sleep(2); print('of the parent')"
run = asyncio.run_coroutine_threadsafe(sandbox.run(code, 60), background_loop())
while len(keeper.children(recursive=True)) == num_before:
    pass
child = os.fork()
if child == 0:
    print(run_blocking(sandbox.run("print('of the child')", 60)).stdout, end="", flush=True)
    run_blocking(sandbox.close())
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
print(run.result().stdout, end="", flush=True)
if os.fork() == 0:
    print(os.getpid(), keeper.pid, flush=True)
    signal.pause()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("tier", ["strict", "fallback"])
async def test_a_forked_process_has_a_sandbox_of_its_own(tier: str) -> None:
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", FORK, tier, stdout=asyncio.subprocess.PIPE)
    assert owner.stdout is not None
    lines = [await asyncio.wait_for(owner.stdout.readline(), 60) for _ in range(3)]
    assert lines[:2] == [b"of the child\n", b"of the parent\n"]
    child, keeper = map(int, lines[2].split())
    await until(lambda: not psutil.pid_exists(keeper))  # although the child lives, which had a copy of its socket
    os.kill(child, signal.SIGKILL)
    await owner.communicate()


def test_it_serves_several_event_loops() -> None:
    sandbox = LocalSandbox()
    for number in range(2):
        assert asyncio.run(sandbox.run(f"print({number})", 10)).stdout == f"{number}\n"
    asyncio.run(sandbox.close())


def test_it_pickles_as_its_settings() -> None:
    copy = pickle.loads(pickle.dumps(LocalSandbox(3, memory_mb=100, max_queued_runs=5, tier="fallback")))
    assert (copy.max_concurrent_runs, copy.memory_mb, copy.max_queued_runs, copy.tier) == (3, 100, 5, "fallback")


async def test_settings_out_of_range_are_named() -> None:
    with pytest.raises(ValueError, match=r"`max_concurrent_runs` \(0\)"):
        LocalSandbox(max_concurrent_runs=0)
    with pytest.raises(ValueError, match=r"`memory_mb` \(10\)"):
        LocalSandbox(memory_mb=10)
    with pytest.raises(ValueError, match=r"`max_queued_runs` \(-1\)"):
        LocalSandbox(max_queued_runs=-1)
    with pytest.raises(ValueError, match=r"`tier` \('best'\) should be one of auto, strict, fallback, unisolated"):
        LocalSandbox(tier="best")
    with pytest.raises(ValueError, match=r"`timeout_s` \(0\)"):
        await LocalSandbox().run("1", 0)
    for name, value in (("max_concurrent_runs", 1.5), ("memory_mb", 512.5), ("max_queued_runs", "1")):
        with pytest.raises(ValueError, match=f"`{name}` .* should be of kind int"):
            LocalSandbox(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("code", None, "str"),
        ("timeout_s", "5", "int or float"),
        ("timeout_s", True, "int or float"),
        ("cpu_timeout_s", "5", "int or float or None"),
        ("memory_mb", 512.5, "int or None"),
        ("stdin", b"", "str"),
        ("seed", 1.5, "int or None"),
        ("seed", "a", "int or None"),
        ("allow_subprocess", "no", "bool"),
        ("echo_last_expr", 1, "bool"),
        ("files", {"a": "text"}, "bytes"),
        ("files", {1: b""}, "str"),
        ("files", ["a"], "Mapping"),
        ("fetch_files", "abc", "tuple or list"),
        ("fetch_files", (1,), "str"),
    ],
)
async def test_an_argument_of_the_wrong_kind_is_named(name: str, value: object, kind: str) -> None:
    arguments: dict[str, Any] = {"code": "1", "timeout_s": 5}
    with pytest.raises(ValueError, match=f"`{name}.*should be of kind {kind}\\.$"):
        await LocalSandbox().run(**(arguments | {name: value}))


async def test_another_system_is_a_sandbox_error_unless_asked_for_unisolated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    result = await LocalSandbox().run("1", 10)
    assert result.stderr.startswith("SandboxError: isolated programs need Linux and this is darwin; tier='unisolated'")
    unisolated = LocalSandbox(tier="unisolated")
    result = await unisolated.run("print(input())", 10, stdin="hi")
    assert (result.stdout, result.tier) == ("hi\n", Tier.UNISOLATED)
    result = await unisolated.run("import time\nprint(1)\ntime.sleep(1000)", 1)
    assert (result.status, result.stdout) == (Status.TIME_LIMIT, "1\n")
    await unisolated.close()


@pytest.mark.parametrize(("tier", "num_below"), [("strict", 3), ("fallback", 2)])  # a keeper, a zygote, a program
async def test_a_killed_owner_leaves_no_process_and_no_file(tier: str, num_below: int, tmp_path: Path) -> None:
    script = (
        "import asyncio\n"
        "from torl_env import LocalSandbox\n"
        "async def main():\n"
        f"    sandbox = LocalSandbox(tier={tier!r})\n"
        "    await sandbox.start()\n"
        "    asyncio.ensure_future(sandbox.run('import time; time.sleep(999)', 999))\n"
        "    print('started', flush=True)\n"
        "    await asyncio.sleep(1000)\n"
        "asyncio.run(main())\n"
    )
    owner = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script), stdout=asyncio.subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert owner.stdout is not None
    assert await owner.stdout.readline() == b"started\n"
    await until(lambda: len(psutil.Process(owner.pid).children(recursive=True)) == num_below)
    descendants = psutil.Process(owner.pid).children(recursive=True)
    owner.kill()
    await owner.wait()
    await until(lambda: not any(process.is_running() for process in descendants))
    assert not list(tmp_path.iterdir())


async def test_a_killed_owner_leaves_no_file_however_deep_and_locked(tmp_path: Path) -> None:
    code = (
        "import os, time\nfor _ in range(1500):\n    os.mkdir('d')\n    os.chdir('d')\nos.mkdir('locked', 0)\n"
        "open(os.environ['HOME'] + '/done', 'w')\ntime.sleep(999)"
    )
    script = (
        "import asyncio, sys\nfrom torl_env import LocalSandbox\n"
        "asyncio.run(LocalSandbox(tier='fallback').run(sys.argv[1], 999))"
    )
    owner = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script, code), env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    await until(lambda: bool(list(tmp_path.glob("torl-sandbox-*/*/done"))))
    descendants = psutil.Process(owner.pid).children(recursive=True)
    owner.kill()
    await owner.wait()
    await until(lambda: not any(process.is_running() for process in descendants))
    assert not list(tmp_path.iterdir())


async def test_an_owner_that_is_killed_while_its_sandbox_starts_leaves_nothing(tmp_path: Path) -> None:
    script = "import asyncio\nfrom torl_env import LocalSandbox\nasyncio.run(LocalSandbox(tier='fallback').start())"
    owner = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script), env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    await until(lambda: bool(psutil.Process(owner.pid).children()))
    starting = psutil.Process(owner.pid).children()
    owner.kill()
    await owner.wait()
    await until(lambda: not any(process.is_running() for process in starting))
    assert not list(tmp_path.iterdir())
