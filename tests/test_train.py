"""`python -m experiments.train` as a user runs it: to its end, interrupted, restored, failing; and what it leaves."""

import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from experiments.trackers import numbers
from tests.wandb_file import read_history
from torl_env.problems import Problem, ProblemSet, ProblemStream

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parent.parent
NUM_ITERATIONS = 10
SMALL = [
    "--set",
    "num_problems_per_step=4",
    "group_size=4",
    "minibatch_size=16",
    "evaluation_duration=8",
    "evaluation_interval=5",
    "checkpoint_interval=1",
    "num_learners=0",  # one process less to start, in each of these runs; test_algorithm.py has one and two learners
]
MARK = "TORL_TEST_RUN"


class Command:
    """One run of a command in a session of its own, with everything it starts marked in its environment."""

    def __init__(self, *arguments: str, module: str = "experiments.train") -> None:
        self.mark = uuid.uuid4().hex
        self._shared_memory = set(os.listdir("/dev/shm"))
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env={**os.environ, MARK: self.mark, "WANDB_MODE": "offline"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []

    def wait_for(self, pattern: str) -> None:
        """Read the output up to the first line that matches."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if re.search(pattern, line):
                return
        raise AssertionError(f"the command ended without printing {pattern!r}:\n{''.join(self.lines)}")

    def interrupt(self) -> None:
        """Do what Ctrl-C in a terminal does: signal the whole foreground process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self) -> int:
        """Read the rest, and check that no process and no shared memory is left."""
        assert self.process.stdout is not None
        self.lines += self.process.stdout
        self.process.stdout.close()
        status = self.process.wait(timeout=60)
        assert marked_processes(self.mark) == []
        assert set(os.listdir("/dev/shm")) - self._shared_memory == set()
        return status

    @property
    def output(self) -> str:
        return "".join(self.lines)


def marked_processes(mark: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it ended meanwhile
            continue
    return found


def episodes(folder: Path, split: str = "train") -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    return [row for row in rows if row["split"] == split]


def results(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "result.json").read_text().splitlines()]


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def problems_with_a_second_one_too_long(path: Path) -> int:
    """Write a file of two problems; return a seed by which the second drawn is longer than any prompt may be."""
    short, long = Problem("short", "What is 1 + 1?", "2"), Problem("long", "What is 1 + 1? " * 200, "2")
    rows = [{"id": problem.id, "question": problem.question, "answer": problem.answer} for problem in (short, long)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    problems = ProblemSet.load(path)
    return next(seed for seed in range(20) if ProblemStream(problems, seed).next_batch(2)[1].id == "long")


@pytest.fixture(scope="module")
def failed_and_straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Command, Command, Path]:
    """Return two runs that have ended, one in its second iteration, and the other's folder.

    They run side by side, since a run that starts leaves a core idle most of the time.
    """
    folder = tmp_path_factory.mktemp("runs")
    seed = problems_with_a_second_one_too_long(folder / "problems.jsonl")
    failing = Command(
        *("quickstart", "--storage-path", str(folder / "failing"), "--seed", str(seed), "--set"),
        *(f"problems={folder / 'problems.jsonl'}", "num_problems_per_step=1", "group_size=4", "evaluation_duration=1"),
    )
    straight = Command(
        *("quickstart", "--num-iterations", str(NUM_ITERATIONS), "--storage-path", str(folder / "straight")),
        *("--seed", "3", *SMALL, "--wandb", "--mlflow"),
    )
    for command in (failing, straight):  # the first to end is the first whose remains are looked for
        command.end()
    return failing, straight, folder / "straight"


@pytest.fixture(scope="module")
def straight(failed_and_straight: tuple[Command, Command, Path]) -> tuple[Path, str]:
    """Return the folder and the output of one uninterrupted run."""
    _, command, folder = failed_and_straight
    assert command.process.returncode == 0, command.output
    return folder, command.output


def test_a_run_leaves_everything_it_promises(straight: tuple[Path, str]) -> None:
    folder, output = straight
    names = {path.name for path in folder.iterdir()}
    assert {"run.json", "result.json", "episodes.jsonl", "checkpoints", "model", "summary.json", "curves.png"} <= names
    assert any(name.startswith("events.out.tfevents") for name in names)
    found = summary(folder)
    for key in (
        *(f"{figure}_before" for figure in ("accuracy", "reward_mean", "code_ratio", "pass_ratio")),
        *(f"{figure}_after" for figure in ("accuracy", "reward_mean", "code_ratio", "pass_ratio")),
        "accuracy_per_kind_after",
        "code_ratio_needed_after",
        "first_update_s",
        "wall_s",
        "peak_memory_mb",
        "versions",
    ):
        assert key in found
    assert found["iterations"] == NUM_ITERATIONS
    assert found["sandbox_runs"] == found["programs_executed"] > 0
    assert 0 < found["first_update_s"] < found["wall_s"]
    assert found["peak_memory_mb"] > 500  # vLLM, the learner and Ray take more than this process alone
    for text in ("held out, greedy", "before training:", "after training:", "Try next:", "curves.png"):
        assert text in output
    assert len(re.findall(r"^iteration +\d+/10 .*ETA", output, re.MULTILINE)) == NUM_ITERATIONS
    for text in ("starting Ray", "loading the model into the engine", "evaluating"):
        assert re.search(rf"^\[ *[\d.]+ s\] {text}$", output, re.MULTILINE)
    assert "\x1b" not in output


def test_a_run_evaluates_on_an_interval_and_not_twice_at_its_end(straight: tuple[Path, str]) -> None:
    folder, output = straight
    evaluated = {row["training_iteration"]: row["evaluation"] for row in results(folder) if "evaluation" in row}
    assert list(evaluated) == [5, 10]
    for iteration, evaluation in evaluated.items():
        rows = [row for row in episodes(folder, "evaluation") if row["iteration"] == iteration]
        assert len(rows) == 8
        found = evaluation["env_runners"]
        assert found["accuracy"] == sum(row["verdict"] == "correct" for row in rows) / 8
        assert found["episode_return_mean"] == sum(row["reward"] for row in rows) / 8
    assert summary(folder)["accuracy_after"] == evaluated[10]["env_runners"]["accuracy"]
    assert summary(folder)["reward_mean_after"] == evaluated[10]["env_runners"]["reward_mean"]
    assert len(re.findall(r"^iteration .* held out \d\.\d\d ", output, re.MULTILINE)) == 2


def test_the_trackers_have_what_the_result_file_has(straight: tuple[Path, str]) -> None:
    import mlflow

    folder, _ = straight
    logged = [numbers(row) for row in results(folder)]
    assert all("env_runners/accuracy" in row and "learners/default_policy/grad_norm" in row for row in logged)
    wandb = read_history(folder)
    assert [row["_step"] for row in wandb] == list(range(1, NUM_ITERATIONS + 1))
    wandb_id = json.loads((folder / "run.json").read_text())["wandb_id"]
    assert len(list(folder.glob(f"wandb/offline-run-*-{wandb_id}"))) == 1
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder.parent}/mlflow.db")
    [run] = client.search_runs([client.get_experiment_by_name("torl").experiment_id])
    assert (run.info.run_name, run.data.params["lr"]) == ("straight", "0.0002")
    events = EventAccumulator(str(folder))
    events.Reload()
    for name in ("env_runners/accuracy", "timings/sample_s", "evaluation/env_runners/accuracy"):
        expected = [(row["training_iteration"], pytest.approx(row[name])) for row in logged if name in row]
        assert [(row["_step"], row[name]) for row in wandb if name in row] == expected
        history = client.get_metric_history(run.info.run_id, name)
        assert [(metric.step, metric.value) for metric in history] == expected
        assert [(event.step, event.value) for event in events.Scalars(name)] == expected


def test_evaluating_a_run_reproduces_its_accuracy_in_a_fresh_process(
    straight: tuple[Path, str], tmp_path: Path
) -> None:
    folder, _ = straight
    output = tmp_path / "figures.json"
    command = Command(
        *("--model", str(folder), "--problems", "arithmetic", "--num-problems", "8", "--output", str(output)),
        module="experiments.evaluate",
    )
    assert command.end() == 0, command.output
    found = json.loads(output.read_text())
    assert found["sets"]["arithmetic"]["accuracy"] == summary(folder)["accuracy_after"]
    # No held-out problem is trained on; of this kind a question is like one in training but for its last number.
    assert found["contamination"] == [
        "arithmetic: 0 of 8 problems are, or nearly are, in the training set arithmetic/train; "
        "with other numbers 1 more: power_remainder/9-16-380 (like power_remainder/9-16-839)"
    ]
    trained = {row["problem_id"]: row for row in episodes(folder, "evaluation") if row["iteration"] == NUM_ITERATIONS}
    [path] = folder.glob("evaluations/*/arithmetic")
    again = {row["problem_id"]: row for row in episodes(path, "evaluation")}
    assert again.keys() == trained.keys() and len(again) == 8
    assert all(again[problem]["token_ids"] == row["token_ids"] for problem, row in trained.items())


def test_interrupted_and_restored_runs_equal_a_straight_one(straight: tuple[Path, str], tmp_path: Path) -> None:
    folder = tmp_path / "interrupted"
    arguments = ["quickstart", "--num-iterations", str(NUM_ITERATIONS)]

    once = Command(*arguments, "--storage-path", str(folder), "--seed", "3", *SMALL)
    once.wait_for(r"^iteration +2/")
    once.interrupt()
    assert once.end() == 130, once.output
    assert "Stopping after this iteration" in once.output and f"--restore {folder}" in once.output

    twice = Command(*arguments, "--restore", str(folder))
    twice.wait_for(r"^iteration +5/")
    twice.interrupt()
    twice.interrupt()
    assert twice.end() == 130, twice.output

    terminated = Command(*arguments, "--restore", str(folder))
    terminated.wait_for(r"^iteration +7/")
    os.kill(terminated.process.pid, signal.SIGTERM)
    assert terminated.end() == 128 + signal.SIGTERM, terminated.output

    last = Command(*arguments, "--restore", str(folder))
    assert last.end() == 0, last.output

    reference, _ = straight
    for keys in (("iteration", "problem_id", "policy_version"), ("token_ids",), ("advantage",)):
        assert [[row[key] for key in keys] for row in episodes(folder)] == [
            [row[key] for key in keys] for row in episodes(reference)
        ]
    steps: Callable[[Path], list[Any]] = lambda path: [  # noqa: E731
        (row["training_iteration"], row["learners"]["default_policy"]["num_optimizer_steps"]) for row in results(path)
    ]
    assert steps(folder) == steps(reference) == [(i, float(i)) for i in range(1, NUM_ITERATIONS + 1)]
    for key in ("accuracy_before", "accuracy_after", "iterations"):
        assert summary(folder)[key] == summary(reference)[key]


def test_a_failing_iteration_ends_the_run_and_leaves_nothing_behind(
    failed_and_straight: tuple[Command, Command, Path],
) -> None:
    command = failed_and_straight[0]
    assert command.process.returncode == 1, command.output
    assert "iteration    1/" in command.output and "iteration    2/" not in command.output
    assert "None of the 4 episodes of this step says anything about the policy (stop reasons: prompt_too_long)" in (
        command.output
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["quikstart"], "Did you mean: quickstart"),
        (["quickstart", "--set", "kl_coef=1"], "Did you mean: kl_coeff"),
        (["quickstart", "--set", "problems=no/such/file.jsonl"], "No problem file 'no/such/file.jsonl'"),
        (["quickstart", "--set", "group_size=1"], "`group_size` must be an integer >= 2. Received 1"),
        (["quickstart", "--restore", "no/such/run"], "neither a run folder"),
    ],
)
def test_bad_input_is_answered_before_anything_starts(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from experiments.train import main

    assert main(arguments) == 2
    assert message in capsys.readouterr().err
