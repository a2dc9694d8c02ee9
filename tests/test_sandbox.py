"""The local sandbox: what a program sees and what comes back of it, one property each."""

import signal
from collections.abc import Iterator

import pytest

from torl_env import LocalSandbox, Status
from torl_env.sandbox.blocking import run_blocking


@pytest.fixture(scope="module")
def sandbox() -> Iterator[LocalSandbox]:
    """One for all tests, which leave it as it was."""
    client = LocalSandbox(max_concurrent_runs=2, memory_mb=512)
    yield client
    run_blocking(client.close())


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
    read = "print(open('a/b').read(), open('c').read())"
    assert (await sandbox.run(read, 10, files={"./a//b": b"1", "./c": b"2"})).stdout == "1 2\n"


async def test_a_file_cannot_be_put_outside_the_runs_directory(sandbox: LocalSandbox) -> None:
    for path in ("/usr/x", "../x", "a/../../x", "", ".", "a/", "x" * 256, "a/" * 2000 + "b", "a\0b"):
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
