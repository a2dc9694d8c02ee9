"""What a run says of its evaluations, on records of its own making; whole runs are in `test_train.py`."""

from dataclasses import replace
from pathlib import Path

import pytest

from experiments import report_text, run
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


def test_problems_that_are_trained_on_are_counted_among_those_evaluated() -> None:
    train = ProblemSet([Problem(str(i), f"{i}?", "1") for i in range(4)], name="train")
    test = ProblemSet([Problem(f"t{i}", f"{i}?", "1") for i in (7, 2, 8, 3)], name="test")
    assert run._num_trained_on({"train": train, "test": test}, num_evaluated=4) == 2
    assert run._num_trained_on({"train": train, "test": test}, num_evaluated=3) == 1
    assert run._num_trained_on({"train": train}, num_evaluated=4) == 0


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
