"""The private root directory of a strict sandbox: the interpreter, the system's libraries, five devices, nothing else.

Runs once per sandbox interpreter, in its fresh mount namespace, before anything is imported there.
"""

import contextlib
import os
import stat
from typing import TypedDict

from torl_env.sandbox import kernel

_ROOT = "/tmp"  # any directory that exists: the new root is mounted over it, then becomes "/"
_DEVICES = ("null", "zero", "full", "random", "urandom")
RUN_DIRECTORY = "/sandbox"  # each run's own file system; /tmp and /dev/shm are links into it
WORK_DIRECTORY = f"{RUN_DIRECTORY}/work"
RUN_SUBDIRECTORIES = ("work", "tmp", "shm")


class Plan(TypedDict):
    """What of the host shows where in the private root; see `visible.py`."""

    binds: list[tuple[str, str]]  # source on the host, target in the root; outer ones before those within
    covers: list[str]  # directories of the root that show up empty
    links: list[tuple[str, str]]  # target, name


def enter_private_root(plan: Plan) -> None:
    """Build the root and move this process into it, for good: the host's directories are detached.

    Raises:
        OSError: if the kernel or a container's policy refuses; the text names the step.
    """
    # Sources are opened first: the new root may hide them, and a path could be exchanged in between.
    sources = [(os.open(source, os.O_PATH), target) for source, target in plan["binds"]]
    devices = [(os.open(f"/dev/{name}", os.O_PATH), f"/dev/{name}") for name in _DEVICES]
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", _ROOT, "tmpfs", kernel.MS_NOSUID, "size=1m,mode=755")
    for directory in ("dev", "etc", RUN_DIRECTORY[1:]):
        os.mkdir(f"{_ROOT}/{directory}", 0o755)
    for fd, target in sources + devices:
        where = _ROOT + target
        # Asked of the descriptor: by path, what lies under /tmp is hidden by the new root already.
        _make_mount_point(where, is_directory=stat.S_ISDIR(os.fstat(fd).st_mode))
        kernel.mount(f"/proc/self/fd/{fd}", where, None, kernel.MS_BIND | kernel.MS_REC)
        os.close(fd)
        no_devices = 0 if target.startswith("/dev/") else kernel.MS_NODEV
        kernel.restrict_mount(where, kernel.MS_RDONLY | kernel.MS_NOSUID | no_devices, recursive=True)
    for target in plan["covers"]:
        if os.path.isdir(_ROOT + target):
            flags = kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
            kernel.mount("tmpfs", _ROOT + target, "tmpfs", flags, "size=4k,mode=755")
    for target, name in [*plan["links"], (f"{RUN_DIRECTORY}/tmp", "/tmp"), (f"{RUN_DIRECTORY}/shm", "/dev/shm")]:
        os.symlink(target, _ROOT + name)
    with open(f"{_ROOT}/etc/passwd", "w") as file:  # for `getpass.getuser` and `os.path.expanduser`
        file.write(f"sandbox:x:{os.getuid()}:{os.getgid()}::{WORK_DIRECTORY}:/bin/false\n")
    kernel.restrict_mount(_ROOT, kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV, recursive=False)
    os.chdir(_ROOT)
    kernel.pivot_root_here()


def mount_run_directory(options: str) -> None:
    """Mount an empty file system where a program may write, with mount options such as `size=64m`."""
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("tmpfs", RUN_DIRECTORY, "tmpfs", flags, options)


def _make_mount_point(path: str, *, is_directory: bool) -> None:
    os.makedirs(path if is_directory else os.path.dirname(path), 0o755, exist_ok=True)
    if not is_directory:
        with contextlib.suppress(FileExistsError), open(path, "x"):
            pass
