"""The local sandbox: one property of a run each."""

import asyncio
import os
import pickle
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import psutil
import pytest
import pytest_asyncio

from torl_env import ExecutionResult, LocalSandbox, Status
from torl_env.sandbox.blocking import run_blocking
from torl_env.sandbox.types import Tier

FOREVER = "import time\nprint('started', flush=True)\ntime.sleep(1000)"
# Leaves a process in a session of its own, twice removed from the program.
ESCAPE = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(1000)
    print('away', flush=True)
    os._exit(0)
os.wait()
time.sleep({linger})
"""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[LocalSandbox]:
    """One for all tests that leave it as it was."""
    client = LocalSandbox(max_concurrent_runs=2, memory_mb=512)
    yield client
    run_blocking(client.close())


@pytest_asyncio.fixture
async def own_sandbox() -> AsyncIterator[LocalSandbox]:
    """One for a test that breaks it."""
    client = LocalSandbox(max_concurrent_runs=2, memory_mb=512)
    await client.start()
    yield client
    await client.close()


def zygote_pid(sandbox: LocalSandbox) -> int:
    (interpreter,) = sandbox._interpreters.values()
    return interpreter.pid


def programs_of(sandbox: LocalSandbox) -> list[psutil.Process]:
    """The processes of running programs: the zygote is the only child of the process that keeps its namespaces."""
    (zygote,) = psutil.Process(zygote_pid(sandbox)).children()
    return zygote.children(recursive=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def test_the_output_is_the_programs_alone(sandbox: LocalSandbox) -> None:
    result = await sandbox.run("import sys\nprint(6 * 7)\nprint('é', file=sys.stderr)", 10)
    assert (result.status, result.stdout, result.stderr, result.return_code) == (Status.SUCCESS, "42\n", "é\n", 0)
    assert result.ok
    assert result.run_s > 0
    assert not result.output_truncated


@pytest.mark.parametrize(
    ("code", "last_line", "return_code"),
    [
        ("print(a)", "NameError: name 'a' is not defined", 1),
        ("def f(:", "SyntaxError: invalid syntax", 1),
        ("x = '\0'", "SyntaxError: source code string cannot contain null bytes", 1),
        ("raise SystemExit('bye')", "bye", 1),
        ("import sys; sys.exit(3)", "", 3),
        ("input()", "EOFError: EOF when reading a line", 1),
        ("import os; os.abort()", "", -signal.SIGABRT),
        ("x = '\ud800'", "SyntaxError: (unicode error) 'utf-8' codec can't decode byte 0xed in position 0", 1),
    ],
)
async def test_a_failing_program_fails_as_python_does(
    sandbox: LocalSandbox, code: str, last_line: str, return_code: int
) -> None:
    result = await sandbox.run(code, 10)
    assert (result.status, result.return_code) == (Status.FAILED, return_code)
    assert result.stderr.rstrip().rpartition("\n")[2].startswith(last_line)
    assert "zygote" not in result.stderr


@pytest.mark.parametrize("code", ["", "raise SystemExit", "import sys; sys.exit(0)", "exit()"])
def test_a_program_may_end_quietly(code: str) -> None:
    sandbox = LocalSandbox()
    assert run_blocking(sandbox.run(code, 10)).ok
    run_blocking(sandbox.close())


async def test_it_is_a_main_program_with_the_usual_endings(sandbox: LocalSandbox) -> None:
    code = (
        "import atexit, threading\n"
        "atexit.register(print, 'at exit')\n"
        "def late():\n    gate.wait()\n    print('thread')\n"
        "gate = threading.Event()\n"
        "threading.Thread(target=late).start()\n"
        "if __name__ == '__main__':\n    print('main', flush=True)\n"
        "gate.set()\n"
    )
    assert (await sandbox.run(code, 10)).stdout == "main\nthread\nat exit\n"


async def test_numpy_and_sympy_can_be_imported(sandbox: LocalSandbox) -> None:
    code = "import numpy, sympy\nprint(numpy.arange(3).sum(), sympy.factorint(12))"
    assert (await sandbox.run(code, 60)).stdout == "3 {2: 2, 3: 1}\n"


async def test_nothing_of_the_caller_is_in_the_environment(
    sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_TOKEN", "secret")
    result = await sandbox.run("import os\nprint(dict(os.environ))", 10)
    assert "PATH" in result.stdout
    assert "secret" not in result.stdout
    assert "VIRTUAL_ENV" not in result.stdout


async def test_no_descriptor_of_the_machinery_is_open(sandbox: LocalSandbox) -> None:
    code = (
        "import os\ndef is_open(fd):\n    try: return bool(os.fstat(fd))\n    except OSError: return False\n"
        "print([fd for fd in range(1200) if is_open(fd)])"
    )
    assert (await sandbox.run(code, 10)).stdout == "[0, 1, 2]\n"


async def test_each_run_has_empty_directories_that_are_removed(sandbox: LocalSandbox) -> None:
    code = (
        "import os, tempfile\n"
        "places = os.getcwd(), tempfile.gettempdir(), '/dev/shm'\n"
        "print([os.listdir(place) for place in places], os.environ['HOME'] == os.getcwd())\n"
        "for place in places: open(place + '/x', 'w').write('x')"
    )
    for _ in range(2):
        assert (await sandbox.run(code, 10)).stdout == "[[], [], []] True\n"


async def test_nothing_carries_over_to_the_next_run(sandbox: LocalSandbox) -> None:
    await sandbox.run("import builtins, math\nbuiltins.leak = math.leak = 1", 10)
    result = await sandbox.run("import builtins, math\nprint(hasattr(builtins, 'leak'), hasattr(math, 'leak'))", 10)
    assert result.stdout == "False False\n"


RANDOM = (
    "import random, numpy, uuid\nfrom sympy.core.random import rng\n"
    "print(random.random(), numpy.random.rand(), rng.random())\nprint(hash('a'), {'b', 'a', 'c'})"
)


async def test_random_numbers_differ_between_runs_and_hashes_do_not(sandbox: LocalSandbox) -> None:
    first, second = [(await sandbox.run(RANDOM, 10)).stdout.splitlines() for _ in range(2)]
    assert not set(first[0].split()) & set(second[0].split())
    assert first[1] == second[1]


async def test_a_seed_makes_random_numbers_the_same(sandbox: LocalSandbox) -> None:
    first, second, third = [(await sandbox.run(RANDOM, 10, seed=seed)).stdout for seed in (1, 1, 2)]
    assert first == second != third


async def test_the_last_expression_is_echoed_on_request_only(sandbox: LocalSandbox) -> None:
    code = "x = 20\nx + 22"
    assert (await sandbox.run(code, 10)).stdout == ""
    assert (await sandbox.run(code, 10, echo_last_expr=True)).stdout == "42\n"
    assert (await sandbox.run("print(1)", 10, echo_last_expr=True)).stdout == "1\n"
    assert (await sandbox.run("x = 1", 10, echo_last_expr=True)).stdout == ""
    failed = await sandbox.run("y = 1\n1 / 0", 10, echo_last_expr=True)
    assert failed.stderr.startswith('Traceback (most recent call last):\n  File "<string>", line 2, in <module>\n')


async def test_standard_input_is_read(sandbox: LocalSandbox) -> None:
    assert (await sandbox.run("print(input(), input())", 10, stdin="a\nb")).stdout == "a b\n"
    assert (await sandbox.run("print(1)", 10, stdin="x" * 500_000)).stdout == "1\n"


async def test_files_come_in_and_go_out(sandbox: LocalSandbox) -> None:
    code = (
        "import os\nopen('out', 'wb').write(open('d/in', 'rb').read() * 2)\n"
        "os.symlink('/etc/passwd', 'link')\nos.mkfifo('f')"
    )
    names = ("out", "link", "f", "missing", "../out", "/etc/passwd", "d")
    result = await sandbox.run(code, 10, files={"d/in": b"ab"}, fetch_files=names)
    assert result.files == {"out": b"abab"}


async def test_a_file_cannot_be_put_outside_the_runs_directory(sandbox: LocalSandbox) -> None:
    for path in ("/usr/x", "../x", "a/../../x", ""):
        with pytest.raises(ValueError, match="paths should lead into the working directory"):
            await sandbox.run("print(1)", 10, files={path: b"x"})


async def test_signals_are_as_python_sets_them_whatever_the_owner_ignores() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    try:
        sandbox = LocalSandbox(max_concurrent_runs=1)
        await sandbox.start()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        signal.signal(signal.SIGINT, before)
    code = "import signal\nprint(signal.getsignal(signal.SIGINT).__name__)\nsignal.alarm(1)\nsignal.pause()"
    result = await sandbox.run(code, 10)
    assert (result.stdout, result.return_code) == ("default_int_handler\n", -signal.SIGALRM)
    await sandbox.close()


async def test_the_time_limit_ends_the_program_and_keeps_what_it_printed(sandbox: LocalSandbox) -> None:
    result = await sandbox.run(FOREVER, 0.5)
    assert (result.status, result.return_code) == (Status.TIME_LIMIT, None)
    assert (result.stdout, result.stderr) == ("started\n", "TimeoutError: the program ran longer than 0.5 s\n")
    assert 0.5 <= result.run_s < 3


async def test_a_busy_loop_and_one_that_holds_the_interpreter_are_ended(sandbox: LocalSandbox) -> None:
    results = await asyncio.gather(*[sandbox.run(code, 1) for code in ("while True: pass", "9 ** 9 ** 9")])
    assert [result.status for result in results] == [Status.TIME_LIMIT] * 2


async def test_cpu_seconds_of_threads_count_too(sandbox: LocalSandbox) -> None:
    code = (
        "import hashlib, threading\n"
        "def work():\n    while True: hashlib.sha256(bytes(10**7))\n"  # without the interpreter's lock
        "for _ in range(8): threading.Thread(target=work).start()"
    )
    result = await sandbox.run(code, 2)
    assert result.status is Status.TIME_LIMIT


async def test_the_memory_limit_says_so(sandbox: LocalSandbox) -> None:
    for code in ("x = bytearray(2 ** 30)", "import numpy\nnumpy.ones(2 ** 30)"):
        result = await sandbox.run(code, 30)
        assert result.status is Status.MEMORY_LIMIT
        assert result.stderr.endswith("\nMemoryError: the program used more than 512 MB\n")
    assert (await sandbox.run("x = bytearray(2 ** 27)", 10)).ok


async def test_a_large_file_cannot_be_written(sandbox: LocalSandbox) -> None:
    result = await sandbox.run("with open('x', 'wb') as f:\n    for _ in range(100): f.write(bytes(2 ** 20))", 10)
    assert result.stderr.endswith("OSError: [Errno 27] File too large\n")
    assert (await sandbox.run("open('x', 'wb').write(bytes(2 ** 20))", 10)).ok


async def test_long_output_keeps_head_and_tail(sandbox: LocalSandbox) -> None:
    result = await sandbox.run("print('a' * 10 ** 6)\nprint('the end')", 10)
    assert result.ok
    assert result.output_truncated
    assert result.stdout.startswith("aaaa")
    assert result.stdout.endswith("aaaa\nthe end\n")
    # 1,000,009 bytes were printed and 65,536 kept.
    assert "\n... (934473 bytes left out) ...\n" in result.stdout


async def test_a_flood_is_ended(sandbox: LocalSandbox) -> None:
    result = await sandbox.run("while True: print('x' * 1000)", 60)
    assert (result.status, result.stderr) == (Status.FAILED, "Error: the program printed more than 16 MB\n")


async def test_a_program_may_start_processes_on_request_only(sandbox: LocalSandbox) -> None:
    code = "import subprocess\nprint(subprocess.run(['/bin/echo', 'hi'], capture_output=True, text=True).stdout)"
    assert (await sandbox.run(code, 10)).stderr.endswith("PermissionError: [Errno 1] Operation not permitted\n")
    assert (await sandbox.run(code, 10, allow_subprocess=True)).stdout == "hi\n\n"


async def test_a_program_with_processes_ends_as_python_does(sandbox: LocalSandbox) -> None:
    for code, return_code in (("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 15)", -signal.SIGTERM)):
        assert (await sandbox.run(code, 10, allow_subprocess=True)).return_code == return_code
    failed = await sandbox.run("import signal; signal.alarm(1); signal.pause()", 10, allow_subprocess=True)
    assert failed.return_code == -signal.SIGALRM


async def test_a_fork_bomb_is_contained(sandbox: LocalSandbox) -> None:
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    results = await asyncio.gather(sandbox.run(bomb, 2, allow_subprocess=True), sandbox.run("print(1)", 10))
    assert results[0].status is Status.TIME_LIMIT
    assert results[1].ok
    assert programs_of(sandbox) == []


@pytest.mark.parametrize("linger", [0, 1000])
async def test_a_program_that_ends_takes_its_descendants_along(sandbox: LocalSandbox, linger: int) -> None:
    result = await sandbox.run(ESCAPE.format(linger=linger), 2, allow_subprocess=True)
    assert result.status is (Status.TIME_LIMIT if linger else Status.SUCCESS)
    assert result.stdout == "away\n"
    assert programs_of(sandbox) == []


async def test_a_killed_zygote_is_replaced(own_sandbox: LocalSandbox) -> None:
    first = zygote_pid(own_sandbox)
    os.kill(first, signal.SIGKILL)
    assert (await own_sandbox.run("print(1)", 10)).ok
    assert zygote_pid(own_sandbox) != first


async def test_a_run_whose_zygote_is_killed_is_made_again(own_sandbox: LocalSandbox) -> None:
    run = asyncio.create_task(own_sandbox.run("import time\ntime.sleep(1)\nprint('done')", 30))
    await until(lambda: bool(programs_of(own_sandbox)))
    programs = programs_of(own_sandbox)
    os.kill(zygote_pid(own_sandbox), signal.SIGKILL)
    assert (await run).stdout == "done\n"
    await until(lambda: not any(program.is_running() for program in programs))


async def test_a_zygote_that_is_killed_again_and_again_is_a_sandbox_error(own_sandbox: LocalSandbox) -> None:
    run = asyncio.create_task(own_sandbox.run(FOREVER, 60))
    for _ in range(2):
        pid = zygote_pid(own_sandbox)
        await until(lambda: bool(programs_of(own_sandbox)))
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


def test_it_serves_several_event_loops() -> None:
    sandbox = LocalSandbox()
    for number in range(2):
        assert asyncio.run(sandbox.run(f"print({number})", 10)).stdout == f"{number}\n"
    asyncio.run(sandbox.close())


def test_it_pickles_as_its_settings() -> None:
    copy = pickle.loads(pickle.dumps(LocalSandbox(3, memory_mb=100, max_queued_runs=5, tier="fallback")))
    assert (copy.max_concurrent_runs, copy.memory_mb, copy.max_queued_runs, copy.tier) == (3, 100, 5, "fallback")


async def test_settings_out_of_range_are_named(sandbox: LocalSandbox) -> None:
    with pytest.raises(ValueError, match=r"`max_concurrent_runs` \(0\)"):
        LocalSandbox(max_concurrent_runs=0)
    with pytest.raises(ValueError, match=r"`memory_mb` \(10\)"):
        LocalSandbox(memory_mb=10)
    with pytest.raises(ValueError, match=r"`max_queued_runs` \(-1\)"):
        LocalSandbox(max_queued_runs=-1)
    with pytest.raises(ValueError, match=r"`tier` \('best'\) should be one of auto, strict, fallback, unisolated"):
        LocalSandbox(tier="best")
    with pytest.raises(ValueError, match=r"`timeout_s` \(0\)"):
        await sandbox.run("1", 0)


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


async def test_a_killed_owner_leaves_no_process() -> None:
    script = (
        "import asyncio, os\n"
        "from torl_env import LocalSandbox\n"
        "async def main():\n"
        "    sandbox = LocalSandbox()\n"
        "    await sandbox.start()\n"
        "    asyncio.ensure_future(sandbox.run('import time; time.sleep(999)', 999))\n"
        "    print('started', flush=True)\n"
        "    await asyncio.sleep(1000)\n"
        "asyncio.run(main())\n"
    )
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    assert owner.stdout is not None
    assert await owner.stdout.readline() == b"started\n"
    await until(lambda: len(psutil.Process(owner.pid).children(recursive=True)) == 3)  # keeper, zygote, program
    descendants = psutil.Process(owner.pid).children(recursive=True)
    owner.kill()
    await owner.wait()
    await until(lambda: not any(process.is_running() for process in descendants))
