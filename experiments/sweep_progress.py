"""What a sweep prints while it runs: a line when a trial starts, ends or fails, and one of all trials in between."""

import time
from collections.abc import Sequence
from typing import Any

from ray import tune

from experiments.progress import duration
from experiments.report_text import number
from experiments.sweep_grid import label
from experiments.sweep_results import final_accuracy

_INTERVAL_S = 15.0


class SweepProgress(tune.Callback):
    """A Tune callback that prints plain lines; Tune's own tables are switched off.

    Args:
        keys: of the grid, which name a trial.
        num_trials: in all.
        num_iterations: of a trial.
    """

    def __init__(self, keys: Sequence[str], num_trials: int, num_iterations: int) -> None:
        self._keys = list(keys)
        self._num_trials = num_trials
        self._num_iterations = num_iterations
        self._begin()

    def _begin(self) -> None:
        self._start = self._last_line = time.monotonic()
        self._done_before: int | None = None

    def setup(self, **info: Any) -> None:
        """Start the clock: a restored sweep unpickles this callback and goes on with it."""
        self._begin()

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Note at the first step what an earlier session did, and print the line of all trials when it is due."""
        if self._done_before is None:
            self._done_before = self._num_done(trials)
        if time.monotonic() - self._last_line >= _INTERVAL_S:
            self._last_line = time.monotonic()
            self._say(self._overview(trials))

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Print which trial starts; one that was interrupted before its first checkpoint starts anew."""
        saved = trial.latest_checkpoint_result
        goes_on = f", goes on after iteration {saved.metrics['training_iteration']}" if saved else ""
        self._say(f"{self._name(trial)}: starts{goes_on}")

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Print what the trial reached, or that the scheduler stopped it; one that is interrupted does not complete."""
        iteration = _iterations(trial)
        if iteration < self._num_iterations:
            self._say(f"{self._name(trial)}: stopped by asha at iteration {iteration}")
        else:
            accuracy = number(final_accuracy(trial.last_result))
            self._say(f"{self._name(trial)}: ended after iteration {iteration}, accuracy held out {accuracy}")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Print that the trial failed; the end of the sweep says why."""
        self._say(f"{self._name(trial)}: FAILED after iteration {_iterations(trial)}; the other trials go on")

    def _overview(self, trials: Sequence[Any]) -> str:
        running = [
            f"{self._name(trial)} {_iterations(trial)}/{self._num_iterations}"
            for trial in trials
            if trial.status == "RUNNING"
        ]
        num_ended = sum(trial.is_finished() for trial in trials)
        done, total = self._num_done(trials), self._num_trials * self._num_iterations
        return (
            f"{num_ended}/{self._num_trials} trials ended, {done}/{total} iterations, "
            f"ETA {self._eta(done, total)}  |  {'  |  '.join(running) or 'trials are starting'}"
        )

    def _eta(self, done: int, total: int) -> str:
        here = done - (self._done_before or 0)
        if here <= 0:
            return "-"
        return duration((time.monotonic() - self._start) / here * (total - done))

    def _num_done(self, trials: Sequence[Any]) -> int:
        """Return the iterations that need not be waited for: those done, and all of a trial that has ended."""
        return sum(self._num_iterations if trial.is_finished() else _iterations(trial) for trial in trials)

    def _name(self, trial: Any) -> str:
        return label(trial.config, self._keys)

    def _say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._start:5.0f} s] {text}", flush=True)


def _iterations(trial: Any) -> int:
    return (trial.last_result or {}).get("training_iteration", 0)
