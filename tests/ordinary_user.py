"""Start a command as an ordinary user where the tests run as root, whose home that user could not enter."""

import os
import sys

import pytest

from torl_env.sandbox import kernel

_USER_ID = 12345
as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="not root: the same test without a change of user runs as an ordinary user already"
)


def as_ordinary_user(command: list[str]) -> list[str]:
    """Return a command that drops to an unprivileged user and then becomes `command`."""
    return [sys.executable, "-m", "tests.ordinary_user", *command]


def _drop_to_ordinary_user() -> None:
    """In a mount namespace of its own, show the interpreter and the checkout where they are and readable for all."""
    wanted = [os.path.realpath(sys.base_prefix), os.path.realpath(sys.prefix), os.getcwd()]
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    sources = [(os.open(path, os.O_PATH), path) for path in wanted]
    closed = {top for path in wanted if (top := _first_closed_directory(path)) is not None}
    for directory in closed:
        kernel.mount("tmpfs", directory, "tmpfs", 0, "mode=755")
    for fd, path in sources:
        if any(path.startswith(f"{directory}/") for directory in closed):
            os.makedirs(path, exist_ok=True)
            kernel.mount(f"/proc/self/fd/{fd}", path, None, kernel.MS_BIND | kernel.MS_REC)
    os.setgroups([])
    os.setresgid(_USER_ID, _USER_ID, _USER_ID)
    os.setresuid(_USER_ID, _USER_ID, _USER_ID)
    os.chdir(wanted[-1])


def _first_closed_directory(path: str) -> str | None:
    parts = path.split("/")
    for end in range(2, len(parts) + 1):
        directory = "/".join(parts[:end])
        if not os.stat(directory).st_mode & 0o001:
            return directory
    return None


if __name__ == "__main__":
    _drop_to_ordinary_user()
    os.environ["HOME"] = "/tmp"
    os.execv(sys.argv[1], sys.argv[1:])
