"""Can this machine run the project? Asked before anything is downloaded.

Runs on whatever `python3` the machine has, to say that it is the wrong one: syntax and library of Python 3.6.
"""

import importlib.util
import os
import platform
import shutil
import sys
from typing import FrozenSet, List, NamedTuple, Tuple

GB = 10**9
PYTHON = (3, 11)  # The pins in constraints.txt are for this version; another one is admitted once it has been run.
GLIBC = (2, 28)  # PyTorch's wheels are manylinux_2_28.
MEMORY_GB = 6  # What `make quickstart` needs: Ray, an engine and a learner are processes of their own.


class Machine(NamedTuple):
    """What the checks look at; `read` takes it from this machine, tests make it up.

    `glibc` is (0, 0) where there is none (musl, not Linux). `memory_bytes` is what is available now, or a container's
    limit where that is lower.
    """

    system: str
    architecture: str
    glibc: Tuple[int, int]
    cpu_flags: FrozenSet[str]
    python: Tuple[int, int]
    python_path: str
    has_ensurepip: bool
    disk_bytes: int
    memory_bytes: int


def read(venv: str) -> Machine:
    """Return this machine as seen by the running interpreter; what `venv` takes already counts as free disk."""
    return Machine(
        system=platform.system(),
        architecture=platform.machine(),
        glibc=_glibc(),
        cpu_flags=_cpu_flags(),
        python=(sys.version_info[0], sys.version_info[1]),
        python_path=sys.executable,
        has_ensurepip=importlib.util.find_spec("ensurepip") is not None,
        disk_bytes=shutil.disk_usage(os.path.dirname(os.path.abspath(venv))).free + _size(venv),
        memory_bytes=_memory_bytes(),
    )


def objections(machine: Machine, disk_gb: float) -> List[str]:
    """Return why the project can't be set up here, one sentence each: what was found, the rule, the remedy.

    Of operating system, architecture and CPU only the first is named: on the wrong system the others can't be read.
    """
    found = []
    version = "{}.{}".format(*machine.python)
    wanted = "{}.{}".format(*PYTHON)
    if machine.system != "Linux" or machine.glibc < GLIBC:
        name = machine.system
        if name == "Linux":
            name = "Linux with glibc {}.{}".format(*machine.glibc) if machine.glibc > (0, 0) else "Linux without glibc"
        found.append(
            f"The operating system is {name}; vLLM's CPU build needs Linux with glibc {GLIBC[0]}.{GLIBC[1]} or newer "
            "(Debian 10, Ubuntu 20.04, RHEL 8). Use such a machine, a container or WSL 2."
        )
    elif machine.architecture != "x86_64":
        found.append(
            f"The architecture is {machine.architecture}; the pinned packages are built for x86_64. Use an x86-64 "
            "machine; the environment alone (`pip install .`) runs anywhere."
        )
    elif "avx2" not in machine.cpu_flags:
        found.append(
            "The CPU has no AVX2; vLLM's CPU build needs it. Use a CPU from 2015 or later, and in a virtual machine "
            "pass the host's CPU through (QEMU: `-cpu host`)."
        )
    if machine.python != PYTHON:
        found.append(
            f"Python is {version} ({machine.python_path}); the pinned packages are for Python {wanted}, the only "
            f"version this project has been run on. Install Python {wanted} and name it: "
            f"`make quickstart PYTHON=/path/to/python{wanted}`."
        )
    elif not machine.has_ensurepip:
        found.append(
            f"Python {version} ({machine.python_path}) has no `ensurepip`, which makes virtual environments. Install "
            f"it (Debian, Ubuntu: `apt-get install python{version}-venv`)."
        )
    for what, number, rule, remedy in (
        ("disk", machine.disk_bytes, disk_gb, "Free some, or clone the project to a larger file system."),
        ("memory", machine.memory_bytes, MEMORY_GB, "Stop other programs, or raise the container's or WSL's limit."),
    ):
        if number < rule * GB:
            found.append(f"Free {what} is {number / GB:.1f} GB; {rule:g} GB are needed. {remedy}")
    return found


def _glibc() -> Tuple[int, int]:
    try:
        name, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
        major, minor = version.split(".")[:2]
    except (OSError, ValueError):  # Not Linux, or another C library.
        return (0, 0)
    return (int(major), int(minor)) if name == "glibc" else (0, 0)


def _cpu_flags() -> FrozenSet[str]:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def _memory_bytes() -> int:
    available = [int(line.split()[1]) * 1024 for line in _lines("/proc/meminfo") if line.startswith("MemAvailable:")]
    limits = _lines("/sys/fs/cgroup/memory.max") + _lines("/sys/fs/cgroup/memory/memory.limit_in_bytes")
    return min(available + [int(limit) for limit in limits if limit.strip().isdigit()], default=0)


def _lines(path: str) -> List[str]:
    try:
        with open(path) as file:
            return file.readlines()
    except OSError:
        return []


def _size(directory: str) -> int:
    return sum(
        os.lstat(os.path.join(folder, name)).st_size for folder, _, names in os.walk(directory) for name in names
    )
