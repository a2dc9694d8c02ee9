"""What of this machine a program may see: the interpreter, system libraries and numeric packages, by name.

Packages are listed one by one, so that the project's own code, other agents' frameworks and editable installs are not
there to be imported, whatever else the environment holds.
"""

import functools
import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from torl_env.sandbox.root import Plan

# Importable names and the folders of shared libraries beside them.
_PACKAGES = """
numpy numpy.libs scipy scipy.libs sympy isympy.py mpmath gmpy2 gmpy2.libs networkx
matplotlib mpl_toolkits pylab.py contourpy cycler kiwisolver fontTools PIL pillow.libs pyparsing packaging dateutil
six.py pandas pandas.libs pytz tzdata sklearn scikit_learn.libs joblib threadpoolctl.py
"""
PYTHON_ROOT = "/python"  # the interpreter's place in the private root: the host's paths do not show in tracebacks
PACKAGES_ROOT = f"{PYTHON_ROOT}/packages"
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib64", "/lib32", "/usr", "/nix/store", "/etc/ld.so.cache", "/etc/alternatives")
_LIBRARIES = ("/usr/lib64", "/lib64", "/usr/share/zoneinfo", "/usr/share/fonts", "/nix/store", "/etc/ld.so.cache")
_HIDDEN_BELOW_USR = ("/usr/local", "/usr/src", "/usr/lib/python3/dist-packages")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


@dataclass(frozen=True, slots=True)
class Visible:
    """The same answer for both tiers.

    Attributes:
        root: of the private root (strict).
        readable: files and directories of the host that may be read (fallback).
        standard_library: a directory that may be listed, so that the import system finds what is in it (fallback).
        devices: that may be read and written (fallback).
        packages: files and directories of the packages; the import system is to find these alone (fallback).
        others_can_read: whether another user can reach the interpreter by its path.
    """

    root: Plan
    readable: list[str]
    standard_library: str
    devices: list[str]
    packages: list[Path]
    others_can_read: bool


@functools.cache
def visible() -> Visible:
    """Return what programs of this interpreter may see."""
    stdlib = Path(sysconfig.get_path("stdlib")).resolve()
    library = Path(sys.base_prefix, sys.platlibdir).resolve()
    packages = _find_packages()
    binds = [(path, path) for path in _SYSTEM if os.path.exists(path) and not os.path.islink(path)]
    binds.append((os.path.realpath(sys.executable), f"{PYTHON_ROOT}/bin/python"))
    binds.append((str(library), f"{PYTHON_ROOT}/{sys.platlibdir}"))
    if stdlib.parent != library:  # the C part of the standard library lies apart (lib64)
        binds.append((str(stdlib.parent), f"{PYTHON_ROOT}/{stdlib.parent.name}"))
    binds += [(str(path), f"{PACKAGES_ROOT}/{path.name}") for path in packages]
    covers = [f"{PYTHON_ROOT}/{stdlib.parent.name}/{stdlib.name}/site-packages", *_HIDDEN_BELOW_USR]
    covers += [f"{PYTHON_ROOT}/{name}/python3/dist-packages" for name in {library.name, stdlib.parent.name}]
    links = [(os.readlink(path), path) for path in _SYSTEM if os.path.islink(path)]
    readable = [path for path in stdlib.iterdir() if path.name not in ("site-packages", "dist-packages")]
    readable += [*library.glob("*.so*"), *packages]
    readable += [Path(path) for path in _LIBRARIES] + list(Path("/usr/lib").glob("*-linux-gnu*"))
    return Visible(
        root={"binds": binds, "covers": covers, "links": links},
        readable=[str(path) for path in readable if path.exists()],
        standard_library=str(stdlib),
        devices=[path for path in _DEVICES if os.path.exists(path)],
        packages=packages,
        others_can_read=all(_others_can_read(path) for path in {stdlib, *(path.parent for path in packages)}),
    )


def _find_packages() -> list[Path]:
    places = [Path(entry).resolve() for entry in sys.path if entry and os.path.isdir(entry)]
    candidates = [[place / name for place in places if (place / name).exists()] for name in _PACKAGES.split()]
    return [paths[0] for paths in candidates if paths]


def _others_can_read(path: Path) -> bool:
    return all(place.stat().st_mode & 0o5 == 0o5 for place in (path, *path.parents))
