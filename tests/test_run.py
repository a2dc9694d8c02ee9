"""What a run says of its evaluations, on records of its own making; whole runs are in `test_train.py`."""

import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from experiments import report_text, run
from experiments.progress import Progress
from experiments.quickstart import quickstart
from experiments.run_folder import RunFolder
from experiments.stopping import StopRequest
from learners import records
from learners.batch import Batch
from tests.test_metrics import record
from torl_env.problems import Problem, ProblemSet


def batch_of(*kinds: str) -> Batch:
    records = [replace(record(), problem_id=str(i), kind=kind) for i, kind in enumerate(kinds)]
    problems = [Problem(str(i), f"{i}?", "1", kind=kind) for i, kind in enumerate(kinds)]
    return Batch(problems=problems, records=records, refs=[], metrics={})


@pytest.mark.parametrize(
    ("kinds", "shown"),
    [
        (["small_sum", "small_sum", "collatz"], ["0", "2"]),  # the second one needs code
        (["math", "math", "math"], ["0", "1"]),  # kinds of somebody else's file, of which nothing is known
        (["", ""], ["0", "1"]),
        (["collatz"], ["0"]),
    ],
)
def test_two_episodes_are_shown_whatever_the_kinds_of_the_problems(kinds: list[str], shown: list[str]) -> None:
    assert [episode["problem_id"] for episode in run._sample_episodes(batch_of(*kinds))] == shown


def test_the_figures_of_an_evaluation_are_those_of_its_records() -> None:
    batch = batch_of("math", "math", "math")
    batch.records[0] = replace(batch.records[0], source="aime24", reward=-1.0, verdict="incorrect")
    batch.records[1] = replace(batch.records[1], source="math500")
    batch.records[2] = replace(batch.records[2], source="math500", stop_reason="sandbox_error")
    figures = run.Run._figures(cast(run.Run, SimpleNamespace(num_trained_on=0)), batch)
    assert (figures["accuracy"], figures["reward_mean"], figures["num_problems"]) == (0.5, 0.0, 3)
    assert figures["excluded_ratio"] == pytest.approx(1 / 3)
    assert figures["accuracy_source"] == {"aime24": 0.0, "math500": 1.0}
    assert figures["reward_source"] == {"aime24": -1.0, "math500": 1.0}


def test_problems_that_are_trained_on_are_counted_among_those_evaluated() -> None:
    train = ProblemSet([Problem(str(i), f"{i}?", "1") for i in range(4)], name="train")
    test = ProblemSet([Problem(f"t{i}", f"{i}?", "1") for i in (7, 2, 8, 3)], name="test")
    assert run._num_trained_on({"train": train, "test": test}, num_evaluated=4) == 2
    assert run._num_trained_on({"train": train, "test": test}, num_evaluated=3) == 1
    assert run._num_trained_on({"train": train}, num_evaluated=4) == 0


class FakeAlgo:
    """An algorithm at the end of its training, which records its evaluations as the real one does."""

    def __init__(self, folder: RunFolder, iteration: int) -> None:
        self.iteration = iteration
        self.num_programs_executed = 0
        self.learner_group = SimpleNamespace(export_hf=lambda path: None)
        self.last_evaluation: Batch | None = None
        self._folder = folder

    def wait_until_ready(self) -> None:
        pass

    def restore_from_path(self, path: str) -> None:
        assert int(Path(path).name) == self.iteration

    def sandbox_stats(self) -> None:
        return None

    def evaluate(self) -> None:
        self.last_evaluation = batch_of("collatz", "collatz")
        records.append(self._folder.path, evaluation_lines(self.iteration))


def evaluation_lines(iteration: int) -> list[dict[str, Any]]:
    return [{"iteration": iteration, "split": "evaluation", "problem_id": problem} for problem in ("0", "1")]


def finish(folder: RunFolder, iteration: int, state: dict[str, Any]) -> list[dict[str, Any]]:
    """Restore a run at its last iteration, and return the records it has in the end."""
    checkpoint = folder.path / "checkpoints" / f"{iteration:06d}" if iteration else None
    if checkpoint:
        checkpoint.mkdir(parents=True)
    made = run.Run(
        recipe="quickstart",
        config=quickstart().training(num_iterations=iteration),
        settings=[],
        folder=folder,
        checkpoint=checkpoint,
        address=None,
        started=0.0,
        state={"recipe": "quickstart", "settings": [], "seed": 0, **state},
        is_default_folder=False,
        own_sandbox=None,
        num_trained_on=0,
        wandb=None,
        mlflow=None,
    )
    unused = cast(Any, SimpleNamespace(peak_mb=0.0))
    made._run(cast(Any, FakeAlgo(folder, iteration)), StopRequest(), unused, Progress(0.0, io.StringIO()), unused)
    return [json.loads(line) for line in (folder.path / records.FILE_NAME).read_text().splitlines()]


def test_a_run_killed_before_its_summary_is_finished_with_one_evaluation_at_its_end(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    train = {"iteration": 3, "split": "train", "problem_id": "7"}
    before = evaluation_lines(0)
    records.append(tmp_path, [*before, train, *evaluation_lines(3)])
    begun = RunFolder(tmp_path / "begun")
    finish(begun, 0, {})
    assert finish(folder, 3, {"before": begun.state["before"]}) == [*before, train, *evaluation_lines(3)]
    assert folder.summary["iterations"] == 3


def test_a_run_of_no_iterations_evaluates_once(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert finish(folder, 0, {}) == evaluation_lines(0)
    assert folder.summary["accuracy_after"] == folder.summary["accuracy_before"] == 1.0


@pytest.mark.parametrize(("trained_on", "said"), [(0, "3 held-out problems"), (2, "3 problems, 2 of them trained on,")])
def test_problems_that_are_trained_on_are_not_called_held_out(trained_on: int, said: str) -> None:
    figures = {
        **dict.fromkeys(("accuracy", "code_ratio", "pass_ratio"), 0.5),
        "num_problems": 3,
        "num_trained_on": trained_on,
        "accuracy_per_kind": {},
        "episodes": [],
    }
    assert said in report_text.evaluation_line("before training", figures)
    closing = report_text.closing("quickstart", figures, figures, Path("c.png"), Path("model"), Path("run"))
    assert ("held out" in closing) is (trained_on == 0)
