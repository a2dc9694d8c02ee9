"""What a sweep prints of its trials, on trials as Tune shows them to a callback."""

from types import SimpleNamespace
from typing import Any

import pytest

from experiments.sweep_progress import SweepProgress


def trial(iteration: int, *, saved: int = 0, accuracy: float | None = None) -> Any:
    evaluation = {} if accuracy is None else {"evaluation": {"env_runners": {"accuracy": accuracy}}}
    return SimpleNamespace(
        config={"seed": 3},
        last_result={"training_iteration": iteration, **evaluation} if iteration else {},
        latest_checkpoint_result=SimpleNamespace(metrics={"training_iteration": saved}) if saved else None,
    )


@pytest.mark.parametrize(
    ("event", "shown", "line"),
    [
        ("on_trial_start", trial(0), "seed=3: starts"),
        ("on_trial_start", trial(6, saved=4), "seed=3: starts, goes on after iteration 4"),
        ("on_trial_start", trial(3), "seed=3: starts"),  # interrupted before its first checkpoint
        ("on_trial_complete", trial(8, accuracy=0.5), "seed=3: ended after iteration 8, accuracy held out 0.50"),
        ("on_trial_complete", trial(2), "seed=3: stopped by asha at iteration 2"),
        ("on_trial_error", trial(2), "seed=3: FAILED after iteration 2; the other trials go on"),
    ],
)
def test_a_line_says_what_became_of_a_trial(
    event: str, shown: Any, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = SweepProgress(["seed"], num_trials=2, num_iterations=8)
    getattr(progress, event)(iteration=0, trials=[shown], trial=shown)
    assert capsys.readouterr().out.partition("] ")[2] == f"{line}\n"
