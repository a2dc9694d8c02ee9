"""Start a sandbox's own interpreter: which isolation to try, its environment, its code.

The interpreter gets its modules as compiled code through a memory file: nothing of this package needs to be readable
where it runs.
"""

import marshal
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torl_env.sandbox.types import Tier
from torl_env.sandbox.visible import PACKAGES_ROOT, PYTHON_ROOT, visible

_MODULES = (
    "kernel",
    "seccomp",
    "root",
    "tree",
    "program",
    "confine",
    "priority",
    "zygote",
)  # in the order of their imports
_PACKAGES = "packages"
_INNER_ID = 1000  # user and group of an ordinary user's programs, within their namespace
_UID_BASE, _UID_BASE_IN_CONTAINER = 0x40000000, 60000  # of root's programs; the latter where ids end at 65535
BASE_PACKAGES = ("numpy", "numpy.random", "sympy")
EXTRA_PACKAGES = (*BASE_PACKAGES, "scipy.optimize", "scipy.stats", "matplotlib.pyplot", "networkx", "pandas")
_BOOTSTRAP = """
import os, sys
def boot():
    import marshal, types
    entry, control, payload = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with open(payload, 'rb', closefd=False) as file:
        file.seek(0)
        modules, plan = marshal.load(file)
    for name in ('torl_env', 'torl_env.sandbox'):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = []
    for name, code in modules:
        name = 'torl_env.sandbox.' + name
        sys.modules[name] = types.ModuleType(name)
        exec(code, sys.modules[name].__dict__)
    own = [sys.modules.pop(name) for name in list(sys.modules) if name.partition('.')[0] == 'torl_env']
    zygote = own[-1]
    if entry == 'launch':
        command = [plan['python'], *plan['flags'], '-c', plan['bootstrap'], 'start', *sys.argv[2:4]]
        zygote.launch(plan, command, control)
    os.close(payload)
    task = zygote.start(plan, control, int(sys.argv[4]) if plan['strict'] else None)
    return zygote.program.run_program, task['code'], task['echo'], own
# The modules stay referred to: taking them down would cost each program a millisecond.
run, code, echo, own = boot()
del boot
os._exit(run(code, echo_last_expr=echo))
"""
_FLAGS = ["-s", "-P", "-S"]  # neither the user's site packages nor the current directory nor any .pth file
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONUTF8": "1",
    "PYTHONHASHSEED": "0",  # set order is the same in every run
    "PYTHONDONTWRITEBYTECODE": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",  # each malloc arena of a thread costs 128 MB of the address space that is limited
    "MPLBACKEND": "Agg",
}


@dataclass(frozen=True, slots=True)
class Isolation:
    """One way to isolate: the tier and whether it goes by way of an ordinary user's namespace."""

    tier: Tier
    own_user_namespace: bool


def isolations(tier: Tier) -> list[Isolation]:
    """Return the ways to reach `tier`, the better first: root can do without a user namespace, if it may."""
    if tier is Tier.FALLBACK:
        return [Isolation(tier, own_user_namespace=False)]
    ways = [Isolation(tier, own_user_namespace=True)]
    return [Isolation(tier, own_user_namespace=False), *ways] if os.geteuid() == 0 else ways


def start_interpreter(
    isolation: Isolation, packages: tuple[str, ...], base_directory: str, control: socket.socket
) -> subprocess.Popen[bytes]:
    """Start an interpreter that reports on `control` that it is ready, or why it cannot be.

    Raises:
        OSError: if it cannot be started at all.
    """
    if base_directory:
        _link_packages(base_directory)
    plan = _plan(isolation, packages, base_directory)
    payload = os.memfd_create("sandbox")
    try:
        with open(payload, "wb", closefd=False) as file:
            marshal.dump((_compiled(), plan), file)
        entry = "launch" if plan["strict"] else "start"
        python = os.path.realpath(sys.executable)
        arguments = [entry, str(control.fileno()), str(payload)]
        return subprocess.Popen(
            [python, *_FLAGS, "-c", _BOOTSTRAP, *arguments],
            env=_environment(base_directory),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[control.fileno(), payload],
            start_new_session=True,  # a terminal's Ctrl-C reaches the caller alone
        )
    finally:
        os.close(payload)


def _plan(isolation: Isolation, packages: tuple[str, ...], base_directory: str) -> dict[str, Any]:
    seen = visible()
    strict = isolation.tier is Tier.STRICT
    drops_user = os.geteuid() == 0 and not isolation.own_user_namespace and (strict or seen.others_can_read)
    return {
        "strict": strict,
        "own_user_namespace": isolation.own_user_namespace,
        "inner_id": _INNER_ID,
        "first_uid": _first_uid() if drops_user else None,
        "packages": list(packages),
        "root": seen.root,
        "readable": ["/"] if strict else seen.readable,
        "listable": [] if strict else [seen.standard_library, f"{base_directory}/{_PACKAGES}"],
        "devices": seen.devices,
        "base_directory": base_directory,
        "python": f"{PYTHON_ROOT}/bin/python",
        "flags": _FLAGS,
        "bootstrap": _BOOTSTRAP,
        "environment": _environment(None),
    }


def _link_packages(base_directory: str) -> None:
    """Make a directory of links to the packages: what else lies beside them is not there to be found or listed."""
    os.mkdir(f"{base_directory}/{_PACKAGES}", 0o755)
    for path in visible().packages:
        os.symlink(path, f"{base_directory}/{_PACKAGES}/{path.name}")


def _environment(base_directory: str | None) -> dict[str, str]:
    """Return the environment of an interpreter on the host, or (None) in the private root.

    On the way to the private root, with "", no packages are needed.
    """
    packages = PACKAGES_ROOT if base_directory is None else f"{base_directory}/{_PACKAGES}"
    environment = {**_ENVIRONMENT, "PYTHONPATH": packages, "MPLCONFIGDIR": "/tmp"}
    inside = base_directory is None
    library = f"{PYTHON_ROOT}/{sys.platlibdir}" if inside else os.path.join(sys.base_prefix, sys.platlibdir)
    if any(Path(sys.base_prefix, sys.platlibdir).glob("libpython3.*so*")):  # found by an absolute path otherwise
        environment["LD_LIBRARY_PATH"] = library
    return environment


def _first_uid() -> int:
    """Return the first of a range of user ids that no account and no other sandbox of this machine has."""
    with open("/proc/self/uid_map") as file:
        ids = sum(int(line.split()[2]) for line in file)
    if ids < 2**31:
        return _UID_BASE_IN_CONTAINER
    return _UID_BASE + (os.getpid() << 8) % 2**30


def _compiled() -> list[tuple[str, Any]]:
    directory = Path(__file__).parent
    return [(name, compile((directory / f"{name}.py").read_text(), "<sandbox>", "exec")) for name in _MODULES]
