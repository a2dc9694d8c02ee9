"""What hostile programs cannot do, each attempt by way of Python and of raw system calls; every tier, root and user."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ordinary_user import as_ordinary_user, as_root
from tests.shared_files import SANDBOX_CASES, needs_shared_files
from torl_env import LocalSandbox, Status
from torl_env.sandbox import seccomp
from torl_env.sandbox.blocking import run_blocking
from torl_env.sandbox.process import IsolationError, Zygote
from torl_env.sandbox.types import Tier

README = Path(__file__).parents[1] / "README.md"
CHECK = [sys.executable, "-m", "torl_env.sandbox.check", str(SANDBOX_CASES), "--num-at-once", "8"]
# A file system's total size and hidden paths are beyond Landlock; everything else is not.
BEYOND_FALLBACK = {"fs-22", "fs-29"}
STAT = ("st_mode", "st_uid", "st_gid", "st_size", "st_mtime_ns", "st_ctime_ns", "st_nlink")
CHANGES = """
import os
def fchmod():  # of a file that may be read
    fd = os.open(os.__file__, os.O_RDONLY)
    os.fchmod(fd, os.fstat(fd).st_mode & 0o777)
for change in (
    lambda: os.chmod(path, 0o777), lambda: os.chown(path, 1, 1), lambda: os.utime(path, (0, 0)), fchmod,
    lambda: os.truncate(path, 0), lambda: os.open(path, os.O_TRUNC), lambda: os.setxattr(path, 'user.x', b'1'),
    lambda: os.unlink(path), lambda: os.rename(path, path + '2'), lambda: os.link(path, 'mine'),
    lambda: open(path, 'a'),
):
    try: print('changed', change())
    except OSError: pass
"""
CTYPES = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"


@pytest.fixture(scope="module", params=["strict", "fallback"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[LocalSandbox]:
    client = LocalSandbox(max_concurrent_runs=2, memory_mb=512, tier=request.param)
    yield client
    run_blocking(client.close())


async def printed(sandbox: LocalSandbox, code: str) -> str:
    result = await sandbox.run(code, 20)
    assert result.status is Status.SUCCESS, result.stderr
    return result.stdout


async def test_every_result_names_its_tier(sandbox: LocalSandbox) -> None:
    for code in ("print(1)", "1 / 0"):
        assert (await sandbox.run(code, 10)).tier == sandbox.tier


async def test_the_project_cannot_be_seen(sandbox: LocalSandbox) -> None:
    code = (
        "import importlib, sys\nfound = []\n"
        "for name in ('torl_env', 'learners', 'experiments', 'ray', 'vllm', 'torch'):\n"
        "    try: found.append(importlib.import_module(name))\n    except (ImportError, PermissionError): pass\n"
        f"for path in ({__file__!r}, {str(README)!r}, '/proc/self/environ', '/etc/shadow'):\n"
        "    try: found.append(open(path).read())\n    except OSError: pass\n"
        "print(found, [name for name in sys.modules if 'torl' in name])"
    )
    assert await printed(sandbox, code) == "[] []\n"


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("open a file for writing", "257, -100, b'/usr/x', 0o101, 0o644"),
        ("chmod", "90, b'/etc', 0o755"),
        ("chmod by another call", "268, -100, b'/etc', 0o755"),
        ("chmod by a new call", "452, -100, b'/etc', 0o755, 0"),
        ("truncate", "76, b'/etc/none', 0"),
        ("fork", "57"),
        ("clone a process", "56, 17, 0, 0, 0, 0"),
        ("clone a user namespace", "56, 0x10000000 | 17, 0, 0, 0, 0"),
        ("clone3", "435, 0, 88"),
        ("execve", "59, b'/bin/true', 0, 0"),
        ("socket", "41, 2, 1, 0"),
        ("a datagram pair", "53, 1, 2, 0, ctypes.create_string_buffer(8)"),
        ("unshare", "272, 0x10000000"),
        ("mount", "165, b'none', b'/sandbox', b'tmpfs', 0, 0"),
        ("ptrace", "101, 16, 1, 0, 0"),
        ("kill everything", "62, -1, 9"),
        ("kill the group", "62, 0, 0"),
        ("leave the group", "109, 0, 0"),
        ("leave the session", "112"),
        ("tkill", "200, 1, 9"),
        ("another's limits", "302, 1, 7, 0, 0"),
        ("pidfd_open", "434, 1, 0"),
        ("io_uring", "425, 8, ctypes.create_string_buffer(120)"),
        ("a memory file", "319, b'x', 0"),
        ("shared memory", "29, 0, 4096, 0o1600"),
        ("a keyring", "250, 0, -3, 1"),
        ("bpf", "321, 0, 0, 0"),
        ("userfaultfd", "323, 1"),
        ("perf events", "298, 0, 0, 0, 0, 0"),
        ("a signal by way of a descriptor", "72, 0, 8, 1"),
        ("another user", "105, 0"),
        ("a lease on a file", "72, 0, 1024, 0"),
        *(
            (f"a socket's buffer ({option})", f"54, socketpair()[0].detach(), 1, {option}, SIZE, 4")
            for option in (7, 8, 32, 33)
        ),
        ("a pipe's buffer", "72, os.pipe()[0], 1031, 2 ** 19"),
        ("a call by the x32 numbers", "0x40000000 + 39"),
        ("a call nobody knows", "999"),
    ],
)
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers are those of x86-64")
async def test_a_raw_system_call_is_refused(sandbox: LocalSandbox, call: str, arguments: str) -> None:
    made = "from socket import socketpair\nSIZE = (ctypes.c_int * 1)(2 ** 20)\n"
    assert await printed(sandbox, CTYPES + made + f"print(libc.syscall({arguments}))") == "-1\n"


async def test_nothing_of_a_file_that_is_not_the_programs_can_be_changed(sandbox: LocalSandbox, tmp_path: Path) -> None:
    """Landlock alone leaves mode, owner, times and attributes to the file's owner, which a program may be."""
    file = tmp_path / "file"
    file.write_bytes(b"content")
    for path in (file, *list(file.parents)[:3]):  # as far as pytest made them
        path.chmod(0o755)
    before = file.stat()
    assert await printed(sandbox, f"path = {str(file)!r}\n" + CHANGES) == ""
    after = file.stat()
    assert [getattr(after, name) for name in STAT] == [getattr(before, name) for name in STAT]
    assert file.read_bytes() == b"content"


async def test_a_program_cannot_use_up_the_machines_process_ids() -> None:
    sandbox = LocalSandbox(tier="strict")
    code = (
        "import threading, time\nthreading.stack_size(32768)\nnumber = 0\n"
        "try:\n    while number < 5000:\n"
        "        threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n        number += 1\n"
        "except RuntimeError as error: print(error)\nprint(number < 5000)"
    )
    assert await printed(sandbox, code) == "can't start new thread\nTrue\n"
    await sandbox.close()


async def test_privileges_cannot_be_raised_again(sandbox: LocalSandbox) -> None:
    code = CTYPES + (
        "header = ctypes.create_string_buffer(b'\\x22\\x05\\x08\\x20\\x00\\x00\\x00\\x00', 8)\n"
        "data = ctypes.create_string_buffer(24)\nlibc.capget(header, data)\n"
        "print(data.raw == bytes(24), libc.prctl(38, 0, 0, 0, 0), libc.prctl(1, 0, 0, 0, 0))"
    )
    assert await printed(sandbox, code) == "True -1 -1\n"


async def test_a_run_sees_no_other_run(sandbox: LocalSandbox) -> None:
    async def alone(name: str) -> str:
        code = (
            "import os, time\n"
            f"open('{name}', 'w').write('x')\nprint(os.getcwd())\ntime.sleep(0.5)\nprint(os.listdir('.'))"
        )
        return (await printed(sandbox, code)).splitlines()[1]

    assert await asyncio.gather(alone("a"), alone("b")) == ["['a']", "['b']"]


async def test_the_runners_frames_hold_nothing(sandbox: LocalSandbox) -> None:
    code = (
        "import gc, socket, sys\nframe, names = sys._getframe(), []\n"
        "while frame: names += frame.f_locals; frame = frame.f_back\n"
        "print([name for name in names if name in ('control', 'report', 'plan', 'setting', 'request', 'fds')],"
        " [o for o in gc.get_objects() if isinstance(o, socket.socket) and o.fileno() >= 0])"
    )
    assert await printed(sandbox, code) == "[] []\n"


async def test_fallback_removes_what_a_program_wrote_however_deep_and_locked() -> None:
    sandbox = LocalSandbox(tier="fallback")
    code = "import os\nos.mkdir('locked', 0)\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')\nprint('done')"
    assert await printed(sandbox, code) == "done\n"
    (interpreter,) = sandbox._interpreters.values()
    assert isinstance(interpreter, Zygote)
    directory = Path(interpreter._base_directory)
    assert [path.name for path in directory.iterdir()] == ["packages"]
    await sandbox.close()
    assert not directory.exists()


async def test_a_package_that_is_not_the_programs_is_not_found(sandbox: LocalSandbox) -> None:
    """Libraries import what they can do without, and go on if that raises ImportError (pandas and pyarrow)."""
    code = (
        "try: import torch\nexcept ImportError: print('no torch')\nimport pandas, os, sys\n"
        "print(pandas.Series([1, 2]).sum(), [name for name in os.listdir(sys.path[0]) if name in ('ray', 'torch')])"
    )
    assert await printed(sandbox, code) == "no torch\n3 []\n"


async def test_fallback_refuses_subprocesses_by_name() -> None:
    sandbox = LocalSandbox(tier="fallback")
    result = await sandbox.run("print(1)", 10, allow_subprocess=True)
    assert result.stderr == "SandboxError: `allow_subprocess` needs the strict tier; this is fallback"
    await sandbox.close()


async def test_a_missing_tier_is_an_error_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torl_env.sandbox.tiers.isolations", lambda tier: [])
    sandbox = LocalSandbox(tier="strict")
    with pytest.raises(IsolationError, match=r"no strict isolation here .* needs unprivileged user namespaces"):
        await sandbox.start()
    assert (await sandbox.run("print(1)", 10)).status is Status.SANDBOX_ERROR
    await sandbox.close()


async def test_auto_takes_fallback_where_namespaces_are_blocked_and_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def plan_without_root(*arguments: object) -> dict[str, object]:
        made = make_plan(*arguments)  # type: ignore[arg-type]
        return made | {"root": {"binds": [("/no/such/directory", "/x")], "covers": [], "links": []}}

    from torl_env.sandbox import interpreter, tiers

    make_plan = interpreter._plan
    monkeypatch.setattr(interpreter, "_plan", plan_without_root)
    monkeypatch.setattr(tiers, "_told", set())
    sandbox = LocalSandbox()
    assert await sandbox.start() is Tier.FALLBACK
    assert "fallback tier (strict: " in caplog.text
    assert "/no/such/directory" in caplog.text
    await sandbox.close()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize(("allow_subprocess", "private_root"), [(False, True), (True, True), (False, False)])
def test_the_filter_fits_the_kernels_limits(machine: str, allow_subprocess: bool, private_root: bool) -> None:
    program, places = seccomp.build_filter(
        allow_subprocess=allow_subprocess, private_root=private_root, machine=machine
    )
    assert len(program) % 8 == 0
    assert len(program) // 8 <= 4096  # BPF_MAXINSNS
    assert bool(places) is not allow_subprocess
    assert seccomp.for_process(program, places, 7) != program or allow_subprocess


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(ValueError, match="no list of system calls for 'riscv64'"):
        seccomp.build_filter(allow_subprocess=False, machine="riscv64")


@needs_shared_files
@pytest.mark.parametrize("tier", ["strict", pytest.param("fallback", marks=pytest.mark.slow)])
@pytest.mark.parametrize("user", ["caller", pytest.param("ordinary user", marks=as_root)])
async def test_all_public_cases_end_as_expected(tier: str, user: str) -> None:
    command = [*CHECK, "--tier", tier]
    if user == "ordinary user":
        command = as_ordinary_user(command)
    process = await asyncio.create_subprocess_exec(
        *command, cwd=Path(__file__).parents[1], stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = (text.decode() for text in await process.communicate())
    mismatches = {line.split()[1].rstrip(":") for line in output.splitlines() if line.startswith("MISMATCH")}
    assert f"tier: {tier}\n" in output, errors
    assert mismatches == (BEYOND_FALLBACK if tier == "fallback" else set()), output
    assert process.returncode == bool(mismatches)


@pytest.mark.slow
@as_root
def test_an_ordinary_users_programs_can_do_no_more_than_roots() -> None:
    others = [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "not public_cases"]
    command = as_ordinary_user([*others, "-m", "not slow"])
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout


def test_an_environment_below_tmp_is_no_obstacle_to_the_strict_tier() -> None:
    """The private root is built over /tmp, which hides what lies there by path."""
    package = Path(tempfile.mkdtemp(dir="/tmp")) / "cycler"  # one of the names a program may import
    package.mkdir()
    (package / "__init__.py").write_text("MARK = 'from below /tmp'\n")
    script = (
        "import asyncio, torl_env\n"
        "result = asyncio.run(torl_env.LocalSandbox(tier='strict').run('import cycler; print(cycler.MARK)', 10))\n"
        "print(result.tier, result.stdout, result.stderr)\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{package.parent}:{Path(__file__).parent.parent}"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    shutil.rmtree(package.parent)
    assert done.stdout.split("\n")[0] == "strict from below /tmp", done.stdout + done.stderr
