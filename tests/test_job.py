"""`ray job submit` against a head node: results outside the copy, a killed driver, the same command again."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from experiments.run_folder import RunFolder
from tests.ports import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
MARK = "TORL_TEST_JOB"
NUM_ITERATIONS = 8
COMMAND = [
    "python",
    "-m",
    "experiments.train",
    "quickstart",
    "--num-iterations",
    str(NUM_ITERATIONS),
    "--seed",
    "3",
    "--restore",
    "auto",
]
SETTINGS = ["num_problems_per_step=4", "group_size=4", "minibatch_size=16", "evaluation_duration=8"]
SETTINGS += ["checkpoint_interval=2", "num_learners=0"]


class Cluster:
    """A head node of its own: ports, temporary folder, home and, with `token`, an authentication token."""

    def __init__(self, *, token: bool) -> None:
        # Not pytest's folder: its name is too long for the sockets in it.
        self.home = Path(tempfile.mkdtemp(prefix="torl-"))
        self.mark = uuid.uuid4().hex
        port, dashboard, client, agent = free_ports(4)
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "OMP_"))}
        self.environment = inherited | {
            "HOME": str(self.home),
            "PATH": f"{BIN}:{os.environ['PATH']}",  # `python` of a job is the cluster's
            "OMP_NUM_THREADS": "1",
            MARK: self.mark,
            "RAY_ADDRESS": f"http://127.0.0.1:{dashboard}",
            "RAY_USAGE_STATS_ENABLED": "0",
            "PYTHONUNBUFFERED": "1",  # into a pipe `ray job submit` would pass the log on when the job has ended
        }
        if token:
            self.environment["RAY_AUTH_MODE"] = "token"
            self.ray("get-auth-token", "--generate")
        head = {key: value for key, value in self.environment.items() if key != "RAY_ADDRESS"}
        options = [f"--port={port}", f"--dashboard-port={dashboard}", f"--ray-client-server-port={client}"]
        options += [f"--dashboard-agent-listen-port={agent}"]  # of the usual one, another Ray here may have it
        self._log = (self.home / "head.log").open("w")
        self.process = subprocess.Popen(
            [str(BIN / "ray"), "start", "--head", "--block", "--num-cpus=2", *options, f"--temp-dir={self.home}/ray"],
            env=head,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait_until_up(self) -> None:
        deadline = time.monotonic() + 240
        # Listing jobs works before there is an agent that takes one.
        while self.ray("job", "submit", "--", "true").returncode:
            assert time.monotonic() < deadline and self.process.poll() is None, (self.home / "head.log").read_text()

    def ray(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([BIN / "ray", *arguments], env=self.environment, capture_output=True, text=True)

    def submit(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [BIN / "ray", "job", "submit", "--working-dir", ".", "--", *COMMAND, *arguments, "--set", *SETTINGS],
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def processes(self) -> Iterator[psutil.Process]:
        """Yield everything the cluster and its jobs have started."""
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark:
                    yield process
            except psutil.Error:  # it ended meanwhile
                continue

    def close(self) -> None:
        for process in [self.process, *self.processes()]:
            try:
                process.kill()
            except psutil.Error:
                continue
        self.process.wait()
        self._log.close()
        shutil.rmtree(self.home, ignore_errors=True)


@pytest.fixture(params=[True, False], ids=["token", "no-token"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    found = Cluster(token=request.param)
    try:
        found.wait_until_up()
        yield found
    finally:
        found.close()


def episodes(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]


def figures(folder: Path) -> list[tuple[Any, ...]]:
    """Return the counters of each iteration, and figures that other weights or problems would change."""
    rows = [json.loads(line) for line in (folder / "result.json").read_text().splitlines()]
    return [
        (
            row["training_iteration"],
            row["env_runners"]["policy_version"],
            row["learners"]["default_policy"]["num_optimizer_steps"],
            row["learners"]["__all_modules__"]["num_env_steps_trained_lifetime"],
            row["learners"]["default_policy"]["grad_norm"],
        )
        for row in rows
    ]


def test_a_killed_job_goes_on_exactly_when_its_command_is_submitted_again(cluster: Cluster, tmp_path: Path) -> None:
    killed = cluster.submit()
    output = ""
    assert killed.stdout is not None
    while not re.search(r"^iteration +3/", output, re.MULTILINE):
        line = killed.stdout.readline()
        assert line, output
        output += line
    folder = Path(re.findall(r"run folder (.*)", output)[0])
    os.kill(int((folder / "run.lock").read_text().split()[1]), signal.SIGKILL)
    output += killed.stdout.read()
    assert killed.wait() != 0 and "iteration    3/" in output and "iteration    8/" not in output, output
    assert not re.search(r"^(iteration|\[).*\x1b", output, re.MULTILINE)  # plain lines, no control codes
    assert folder.parent == cluster.home / "torl-runs"
    # Its log comes late: it may have got further than it had said.
    last = int(RunFolder(folder).checkpoints()[-1].name)
    assert 2 <= last < NUM_ITERATIONS

    again = cluster.submit()
    output = again.communicate()[0]
    assert again.returncode == 0, output
    assert f"iteration {last}\n" in output
    assert f"iteration {last + 1:4d}/" in output and f"iteration {last:4d}/" not in output
    assert not [
        p for p in cluster.processes() if "ServeReplica" in " ".join(p.cmdline())
    ]  # the killed run's is gone too

    straight = cluster.submit("--storage-path", str(tmp_path / "straight"))
    output = straight.communicate()[0]
    assert straight.returncode == 0, output
    keys = ("iteration", "split", "problem_id", "policy_version", "token_ids", "advantage", "logp")
    rows = [[[row[key] for key in keys] for row in episodes(path)] for path in (folder, tmp_path / "straight")]
    assert rows[0] == rows[1]
    assert figures(folder) == figures(tmp_path / "straight")
    assert [row[:3] for row in figures(folder)] == [(i, i, float(i)) for i in range(1, NUM_ITERATIONS + 1)]

    failed = cluster.submit("--storage-path", "/proc/no/such/folder")
    output = failed.communicate()[0]
    assert failed.returncode != 0 and "No such file" in output, output
