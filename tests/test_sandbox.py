"""The local sandbox: one property of a run each."""

import asyncio
import json
import os
import pickle
import select
import signal
import sys
import tempfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from torl_env import ExecutionResult, LocalSandbox, Status
from torl_env.sandbox.blocking import run_blocking

CASES = Path(__file__).resolve().parents[2] / "shared" / "cases" / "sandbox_cases.jsonl"
FOREVER = "import time\nprint('started', flush=True)\ntime.sleep(1000)"
# A process in a session of its own, twice removed from the program; its id is printed.
ESCAPE = """
import os, time
if os.fork() == 0:
    os.setsid()
    if (pid := os.fork()) == 0:
        time.sleep(1000)
    print(pid, flush=True)
    os._exit(0)
os.wait()
time.sleep({linger})
"""


@pytest_asyncio.fixture
async def sandbox() -> AsyncIterator[LocalSandbox]:
    client = LocalSandbox(max_concurrent_runs=2, memory_mb=512)
    yield client
    await client.close()


def assert_dead(pid: int) -> None:
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


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
    result = await sandbox.run("import os\nprint(dict(os.environ), open('/proc/self/environ').read())", 10)
    assert "PATH" in result.stdout
    assert "secret" not in result.stdout
    assert "VIRTUAL_ENV" not in result.stdout


async def test_no_descriptor_of_the_machinery_is_open(sandbox: LocalSandbox) -> None:
    code = "import os\nprint([fd for fd in range(3, 200) if os.path.exists(f'/proc/self/fd/{fd}')])"
    assert (await sandbox.run(code, 10)).stdout == "[]\n"


async def test_each_run_has_an_empty_directory_that_is_removed(sandbox: LocalSandbox) -> None:
    code = (
        "import os, tempfile\n"
        "print(os.getcwd(), os.listdir(), os.environ['HOME'] == tempfile.gettempdir() == os.getcwd())\n"
        "os.mkdir('d')\nopen('d/x', 'w').write('x')"
    )
    directories = set()
    for _ in range(2):
        directory, *rest = (await sandbox.run(code, 10)).stdout.split()
        assert rest == ["[]", "True"]
        assert directory.startswith(tempfile.gettempdir())
        assert not Path(directory).exists()
        directories.add(directory)
    assert len(directories) == 2


async def test_nothing_carries_over_to_the_next_run(sandbox: LocalSandbox) -> None:
    await sandbox.run("import builtins, math\nbuiltins.leak = math.leak = 1", 10)
    result = await sandbox.run("import builtins, math\nprint(hasattr(builtins, 'leak'), hasattr(math, 'leak'))", 10)
    assert result.stdout == "False False\n"


async def test_random_numbers_differ_between_runs_and_hashes_do_not(sandbox: LocalSandbox) -> None:
    first, second = [(await sandbox.run("import random\nprint(random.random(), hash('a'))", 10)) for _ in range(2)]
    assert first.stdout.split()[0] != second.stdout.split()[0]
    assert first.stdout.split()[1] == second.stdout.split()[1]


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


async def test_a_program_that_ends_takes_its_descendants_along(sandbox: LocalSandbox) -> None:
    result = await sandbox.run(ESCAPE.format(linger=0), 10)
    assert result.ok
    assert_dead(int(result.stdout))


async def test_a_time_out_reaches_every_descendant(sandbox: LocalSandbox) -> None:
    result = await sandbox.run(ESCAPE.format(linger=1000), 1)
    assert result.status is Status.TIME_LIMIT
    assert_dead(int(result.stdout))


async def test_a_killed_keeper_is_a_sandbox_error_and_the_next_run_works(sandbox: LocalSandbox) -> None:
    result = await sandbox.run("import os, time\nos.kill(os.getppid(), 9)\ntime.sleep(1000)", 10)
    assert result.status is Status.SANDBOX_ERROR
    assert result.stderr == "SandboxError: the program's keeper is gone"
    assert (await sandbox.run("print(1)", 10)).ok


async def test_a_killed_zygote_is_replaced(sandbox: LocalSandbox) -> None:
    await sandbox.run("1", 10)
    assert sandbox._zygote is not None
    first = sandbox._zygote.pid
    os.kill(first, signal.SIGKILL)
    assert (await sandbox.run("print(1)", 10)).ok
    assert sandbox._zygote.pid != first


async def test_a_killed_zygote_leaves_the_runs_in_flight_alone(sandbox: LocalSandbox) -> None:
    code = "import os, sys, time\nwhile not os.path.exists({!r}): time.sleep(0.01)\nprint('done')"
    with tempfile.TemporaryDirectory() as directory:
        run = asyncio.create_task(sandbox.run(code.format(f"{directory}/go"), 30))
        await sandbox.run("1", 10)  # first come, first served: the other one has started
        assert sandbox._zygote is not None
        os.kill(sandbox._zygote.pid, signal.SIGKILL)
        Path(directory, "go").touch()
        assert (await run).stdout == "done\n"


async def test_a_cancelled_run_is_killed_and_its_slot_is_free() -> None:
    sandbox = LocalSandbox(max_concurrent_runs=1)
    with tempfile.TemporaryDirectory() as directory:
        note = Path(directory, "pid")
        code = f"import os, time\nopen({str(note)!r}, 'w').write(str(os.getpid()))\ntime.sleep(1000)"
        run = asyncio.create_task(sandbox.run(code, 1000))
        while not (note.exists() and note.read_text()):
            await asyncio.sleep(0.01)
        program = os.pidfd_open(int(note.read_text()))
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert (await sandbox.run("print(1)", 10)).ok
        assert select.select([program], [], [], 10)[0]
        os.close(program)
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


async def test_a_thousand_waiting_runs_cost_no_thread_each(sandbox: LocalSandbox) -> None:
    await sandbox.run("1", 10)
    threads = threading.active_count()
    runs = [asyncio.create_task(sandbox.run(FOREVER, 1000)) for _ in range(1000)]
    await asyncio.sleep(0)
    assert threading.active_count() == threads
    await sandbox.close()
    results = await asyncio.gather(*runs)
    assert {result.status for result in results} == {Status.SANDBOX_ERROR}


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
    assert "local-sandbox" not in {thread.name for thread in threading.enumerate()}
    if sandbox._zygote is not None:
        assert not sandbox._zygote.alive


def test_it_serves_several_event_loops() -> None:
    sandbox = LocalSandbox()
    for number in range(2):
        assert asyncio.run(sandbox.run(f"print({number})", 10)).stdout == f"{number}\n"
    asyncio.run(sandbox.close())


def test_it_pickles_as_its_settings() -> None:
    copy = pickle.loads(pickle.dumps(LocalSandbox(max_concurrent_runs=3, memory_mb=100)))
    assert (copy.max_concurrent_runs, copy.memory_mb) == (3, 100)


async def test_settings_out_of_range_are_named(sandbox: LocalSandbox) -> None:
    with pytest.raises(ValueError, match=r"`max_concurrent_runs` \(0\)"):
        LocalSandbox(max_concurrent_runs=0)
    with pytest.raises(ValueError, match=r"`memory_mb` \(10\)"):
        LocalSandbox(memory_mb=10)
    with pytest.raises(ValueError, match=r"`timeout_s` \(0\)"):
        await sandbox.run("1", 0)


async def test_another_system_is_a_sandbox_error(sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    result = await sandbox.run("1", 10)
    assert result.stderr == "SandboxError: programs run on Linux only; this is darwin"


async def test_a_killed_owner_leaves_no_process_and_no_file() -> None:
    script = (
        "import asyncio, os, sys\n"
        "from torl_env import LocalSandbox\n"
        "note = sys.argv[1]\n"
        'code = f\'import os, time; open({note!r}, "w").write(str(os.getpid()) + " " + os.getcwd() + " .")\'\n'
        "async def main():\n"
        "    sandbox = LocalSandbox()\n"
        "    asyncio.ensure_future(sandbox.run(code + '; time.sleep(999)', 999))\n"
        "    while not (os.path.exists(note) and open(note).read().endswith('.')): await asyncio.sleep(0.01)\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    with tempfile.TemporaryDirectory() as directory:
        note = Path(directory, "note")
        owner = await asyncio.create_subprocess_exec(sys.executable, "-c", script, str(note))
        assert await owner.wait() == -signal.SIGKILL
        pid, cwd, _ = note.read_text().split()
        while Path(cwd).exists():  # removed after the program is dead
            await asyncio.sleep(0.01)
        assert_dead(int(pid))


@pytest.mark.skipif(not CASES.exists(), reason="the shared sandbox cases are not part of the repository")
async def test_public_programs_end_as_expected(sandbox: LocalSandbox) -> None:
    """Of the plain categories; the hostile ones need isolation, which this sandbox does not claim."""
    cases = [json.loads(line) for line in CASES.read_text().splitlines()]
    plain = [case for case in cases if case["category"] in ("errors", "output", "math") and "request" not in case]
    assert plain
    for case in plain:
        if isinstance(case["expect"].get("rc"), int):
            assert (await sandbox.run(case["code"], 10)).return_code == case["expect"]["rc"], case
