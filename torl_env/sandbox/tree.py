"""Remove what a program has written. Runs inside the sandbox's own interpreters too: standard library only."""

import contextlib
import os
import shutil


def remove_tree(path: str) -> None:
    """Remove a directory that a program has written (fallback tier), however deep or locked it made it."""
    with contextlib.suppress(RecursionError):
        shutil.rmtree(path, ignore_errors=True)
    if os.path.lexists(path):
        import subprocess  # seldom needed: programs need not have it warm

        for command in (["chmod", "-R", "u+rwx", "--", path], ["rm", "-rf", "--", path]):
            subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
