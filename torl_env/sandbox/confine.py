"""What a forked process does to itself before it runs a program: the order of the steps is the point.

Runs inside the sandbox's own interpreters. Each step needs what a later one takes away: the mount needs capabilities,
the descriptor that kills the process must exist before seccomp forbids opening one, and so on. If any step fails the
program is not run.
"""

import marshal
import os
import resource
import signal
import socket
import tempfile
from dataclasses import dataclass
from typing import Any

from torl_env.sandbox import kernel, root, seccomp

MEBIBYTE = 2**20
_MAX_PROCESSES = 64  # of an `allow_subprocess` program, threads included
_MAX_THREADS = 512  # of another program; small ones would use up the machine's process ids
_MAX_THREADS_OF_ALL = 4096  # of all programs of an ordinary user, whom the kernel counts together
_MAX_OPEN_FILES = 256
_MAX_STACK = 64 * MEBIBYTE  # Python's own recursion limit is reached long before
READY, FAILED = b"+", b"!"


@dataclass(slots=True)
class Setting:
    """What all runs of a zygote have in common.

    Attributes:
        strict: whether there are namespaces and a private root; without, Landlock, seccomp and limits remain.
        first_uid: user id of slot 0; None to stay who one is.
        own_user_namespace: whether this is an ordinary user's namespace, where all runs share one user id.
        base_directory: where the fallback tier makes each run's directory.
        landlock_abi: version of Landlock's interface.
        rules: descriptor, access, whether it is a file, of everything outside the run's directory.
        proc: descriptor of the host's /proc, closed before any program runs; None in the fallback tier.
        address_space: bytes this interpreter takes up before any program does.
        filters: seccomp filters without and with subprocesses.
    """

    strict: bool
    first_uid: int | None
    own_user_namespace: bool
    base_directory: str
    landlock_abi: int
    rules: list[tuple[int, int, bool]]
    proc: int | None
    address_space: int
    filters: dict[bool, tuple[bytes, tuple[int, ...]]]


def enter(setting: Setting, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """Confine this process and return the program; it was told so on the report socket, or the process ended."""
    payload_fd, stdin_fd, stdout_fd, stderr_fd, report_fd = fds
    report = socket.socket(fileno=report_fd)
    try:
        _enter(setting, request, (stdin_fd, stdout_fd, stderr_fd), report)
        with open(payload_fd, "rb", closefd=False) as file:
            program = marshal.load(file)
        _write_files(program["files"])
        program_filter = seccomp.for_process(*setting.filters[request["subprocess"]], os.getpid())
        handles = [os.pidfd_open(os.getpid())] if request["killer"] is None else [request["killer"]]
        handles.append(os.open(".", os.O_PATH | os.O_DIRECTORY))
        kernel.install_filter(program_filter)
        socket.send_fds(report, [READY], handles)
        # Last: what this interpreter holds would count, and for sending what all the user's processes have in flight.
        resource.setrlimit(resource.RLIMIT_NOFILE, (_MAX_OPEN_FILES, _MAX_OPEN_FILES))
    except BaseException as error:
        report.send(FAILED + f"{type(error).__name__}: {error}".encode()[:500])
        os._exit(70)
    report.close()
    os.closerange(3, 2**31 - 1)
    return program


def _enter(setting: Setting, request: dict[str, Any], streams: tuple[int, int, int], report: socket.socket) -> None:
    os.setpgid(0, 0)  # not a session: see `priority.py`
    kernel.die_with_parent()
    uid = user_id(setting, request)
    directory = _own_directory(setting, request, uid)
    request["killer"] = None
    if request["subprocess"]:
        if setting.own_user_namespace:
            _own_user_namespace(setting.proc)
        request["killer"] = os.pidfd_open(os.getpid())
        _become_init(report)
    for target, source in enumerate(streams):
        os.dup2(source, target)
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    _limit(setting, request)
    kernel.drop_capabilities()
    kernel.no_new_privileges()
    kernel.die_with_parent()  # the change of user undid it
    if setting.strict:
        for name in root.RUN_SUBDIRECTORIES:
            os.mkdir(f"{root.RUN_DIRECTORY}/{name}", 0o700)
        directory = root.WORK_DIRECTORY
    os.chdir(directory)
    os.environ["HOME"] = directory
    os.environ["TMPDIR"] = "/tmp" if setting.strict else directory
    tempfile.tempdir = None
    ruleset = kernel.Ruleset(setting.landlock_abi)
    for fd, access, is_file in setting.rules:
        ruleset.allow(fd, access, is_file=is_file)
    own = os.open(root.RUN_DIRECTORY if setting.strict else directory, os.O_PATH)
    ruleset.allow(own, kernel.WRITE | kernel.READ)
    ruleset.restrict_self()


def user_id(setting: Setting, request: dict[str, Any]) -> int | None:
    """Return the user this run is to be; None for the zygote's own."""
    return None if setting.first_uid is None else setting.first_uid + request["slot"]


def _own_directory(setting: Setting, request: dict[str, Any], uid: int | None) -> str:
    """Make the only place this run can write to; return its path (fallback tier)."""
    if setting.strict:
        kernel.unshare(kernel.CLONE_NEWNS)
        owner = os.getuid() if uid is None else uid
        group = os.getgid() if uid is None else uid
        size, inodes = request["disk_mb"], request["max_files"]
        root.mount_run_directory(f"size={size}m,nr_inodes={inodes},mode=700,uid={owner},gid={group}")
        return root.WORK_DIRECTORY
    directory = f"{setting.base_directory}/{request['id']}"
    os.mkdir(directory, 0o700)
    if uid is not None:
        os.chown(directory, uid, uid)
    return directory


def _own_user_namespace(proc: int | None) -> None:
    """Give the run a user namespace, where its processes are counted apart from other runs'."""
    assert proc is not None
    uid, gid = os.getuid(), os.getgid()
    kernel.set_dumpable(True)  # else its /proc files belong to root
    kernel.unshare(kernel.CLONE_NEWUSER)
    for name, line in (("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        fd = os.open(f"self/{name}", os.O_WRONLY, dir_fd=proc)
        os.write(fd, line.encode())
        os.close(fd)
    kernel.set_dumpable(False)


def _become_init(report: socket.socket) -> None:
    """Fork; the child returns and is the program, this process is the first of its pid namespace and waits for it.

    As process 1 the program would be deaf to SIGTERM, `signal.alarm` and the soft CPU limit. When this process ends the
    kernel kills every process that is left in the namespace, sessions of their own or not.
    """
    program = os.fork()
    if program == 0:
        return
    try:
        kernel.drop_capabilities()
        os.closerange(0, report.fileno())
        os.closerange(report.fileno() + 1, 2**31 - 1)
        while True:
            pid, status = os.waitpid(-1, 0)  # orphans are adopted and reaped here
            if pid == program:
                report.send(marshal.dumps(status))
                os._exit(0)
    finally:
        os._exit(71)


def _limit(setting: Setting, request: dict[str, Any]) -> None:
    limits = {
        resource.RLIMIT_CPU: (request["cpu_s"], request["cpu_s"] + 1),
        resource.RLIMIT_AS: (setting.address_space + request["memory"],) * 2,
        resource.RLIMIT_FSIZE: (request["max_file"],) * 2,
        resource.RLIMIT_STACK: (8 * MEBIBYTE, _MAX_STACK),
        resource.RLIMIT_MEMLOCK: (65536,) * 2,
        resource.RLIMIT_MSGQUEUE: (0, 0),
        resource.RLIMIT_CORE: (0, 0),
    }
    if request["subprocess"]:
        limits[resource.RLIMIT_NPROC] = (_MAX_PROCESSES,) * 2
    elif setting.first_uid is not None:
        limits[resource.RLIMIT_NPROC] = (_MAX_THREADS,) * 2
    elif setting.own_user_namespace:  # else the caller's own processes would count, of which there may be any number
        limits[resource.RLIMIT_NPROC] = (_MAX_THREADS_OF_ALL,) * 2
    for kind, (soft, hard) in limits.items():
        _, ceiling = resource.getrlimit(kind)
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        resource.setrlimit(kind, (soft, hard))
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)


def _write_files(files: dict[str, bytes]) -> None:
    """Write the run's input files; Landlock is in force, so that no path leads outside the run's directory."""
    for path, content in files.items():
        if os.path.dirname(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
