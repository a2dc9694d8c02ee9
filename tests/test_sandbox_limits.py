"""The local sandbox's limits, and the processes a program may start: one property each."""

import asyncio
import signal
from collections.abc import Iterator

import pytest

from tests.sandbox_processes import FOREVER, programs_of
from torl_env import LocalSandbox, Status
from torl_env.sandbox.blocking import run_blocking

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
    """One for all tests, which leave it as it was."""
    client = LocalSandbox(max_concurrent_runs=2, memory_mb=512)
    yield client
    run_blocking(client.close())


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
