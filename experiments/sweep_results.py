"""What a sweep found: its trials as rows, the tables it prints, and `trials.csv` (`sweep_figure.py` draws).

Everything is read through Tune's own `ResultGrid`, so the same comes out of a sweep that has just ended and of one that
`Tuner.restore` reads from its folder.

    accuracy   greedy on the held-out problems after the last iteration, with its 95% interval (Wilson's) as a share of
               that many problems; nothing where a trial failed or was stopped before
    step_s     mean seconds of a training step, the first left out
    final_kl   KL to the base model, mean of the last 5 iterations
"""

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import paper
from experiments.intervals import mean_interval, num_judged, wilson
from experiments.report_text import number
from experiments.sweep_grid import label, value_of

_KL_ITERATIONS = 5


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One trial. Figures that were not measured are NaN.

    Attributes:
        name: Its place in the grid.
        values: Key of the grid -> value.
        status: "done", "failed", "interrupted", or "stopped by asha", which is done too.
        error: Last line of what went wrong, or "".
        folder: Of the trial.
        max_tool_calls, kl_coeff, seed, iterations: As they are.
        accuracy, num_problems, step_s, final_kl: See the module's docstring.
    """

    name: str
    values: Mapping[str, Any]
    status: str
    error: str
    folder: str
    max_tool_calls: int
    kl_coeff: float
    seed: int
    iterations: int
    accuracy: float
    num_problems: int
    step_s: float
    final_kl: float

    @property
    def interval(self) -> tuple[float, float]:
        """95% interval of the accuracy."""
        return wilson(self.accuracy, self.num_problems)


def read(results: Any, trials: Iterable[Any], keys: Sequence[str], num_iterations: int) -> list[TrialRow]:
    """Return the rows of Tune's `ResultGrid` in the order of the grid, trials that never started left out.

    Args:
        results: `ray.tune.ResultGrid`.
        trials: `ray.tune.ExperimentAnalysis(...).trials`: config and status, which a `Result` lacks where a trial
            failed before its first report, or in another process.
        keys: of the grid.
        num_iterations: of a whole trial.
    """
    of_folder = {result.path: result for result in results}
    return [
        _row(result, trial, keys, num_iterations)
        for trial in sorted(trials, key=lambda trial: trial.trial_id)
        if (result := of_folder.get(trial.path)) is not None
        if trial.status == "ERROR" or "training_iteration" in result.metrics
    ]


def _row(result: Any, trial: Any, keys: Sequence[str], num_iterations: int) -> TrialRow:
    config, history = trial.config, _history(result)
    iterations = result.metrics.get("training_iteration", 0)
    ended = "done" if iterations >= num_iterations else "stopped by asha"
    status = {"ERROR": "failed", "TERMINATED": ended}.get(trial.status, "interrupted")
    evaluation = result.metrics.get("evaluation", {}).get("env_runners", {})
    return TrialRow(
        name=label(config, keys),
        values={key: value_of(config, key) for key in keys},
        status=status,
        error=_last_line(result.error),
        folder=str(result.path),
        max_tool_calls=config["env_config"]["max_tool_calls"],
        kl_coeff=config["kl_coeff"],
        seed=config["seed"],
        iterations=iterations,
        accuracy=final_accuracy(result.metrics) if status == "done" else math.nan,
        num_problems=num_judged(evaluation),
        step_s=mean(row.get("timings/step_s", math.nan) for row in history[1:] or history),
        final_kl=mean(row.get("learners/default_policy/kl", math.nan) for row in history[-_KL_ITERATIONS:]),
    )


def final_accuracy(metrics: Mapping[str, Any]) -> float:
    """Return the held-out accuracy of a result dict, NaN if none was measured in that iteration."""
    return metrics.get("evaluation", {}).get("env_runners", {}).get("accuracy", math.nan)


def write_csv(rows: Sequence[TrialRow], path: Path) -> Path:
    """Write one line per trial."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        keys = [key for key in rows[0].values if key not in ("max_tool_calls", "kl_coeff", "seed")] if rows else []
        figures = ["status", "iterations", "accuracy", "accuracy_low", "accuracy_high", "num_problems", "step_s"]
        writer.writerow(["max_tool_calls", "kl_coeff", "seed", *keys, *figures, "final_kl", "folder", "error"])
        for row in rows:
            values = [row.max_tool_calls, row.kl_coeff, row.seed, *(row.values[key] for key in keys)]
            values += [row.status, row.iterations, row.accuracy, *row.interval, row.num_problems, row.step_s]
            writer.writerow([*values, row.final_kl, row.folder, row.error])
    return path


def tables(rows: Sequence[TrialRow]) -> str:
    """Return the tables a sweep ends with: every trial, accuracy and step time by C, KL by coefficient."""
    width = max([len("trial"), *(len(row.name) for row in rows)])
    lines = [f"{'trial':<{width}}  accuracy  95% interval   step s  final KL  iterations"]
    for row in rows:
        low, high = row.interval
        at = f" at iteration {row.iterations}" if row.status == "stopped by asha" else ""
        note = "" if row.status == "done" else f"  {row.status}{at}"
        lines.append(
            f"{row.name:<{width}}  {number(row.accuracy):>8}  {number(low):>5} .. {number(high):<5}  "
            f"{_digits(row.step_s, 2):>6}  {_digits(row.final_kl, 4):>8}  {row.iterations:>10}{note}"
        )
    done = [row for row in rows if row.status == "done"]
    lines += ["", *_by_max_tool_calls(done), "", *_by_kl_coeff(done)]
    return "\n".join(lines)


def _by_max_tool_calls(rows: Sequence[TrialRow]) -> list[str]:
    lines = ["  C  trials  accuracy  95% interval of the mean  step s  / lowest C   paper's (Table 4)"]
    first: tuple[int, float] | None = None
    for calls, group in grouped(rows, lambda row: row.max_tool_calls):
        accuracies = [row.accuracy for row in group]
        low, high = mean_interval(accuracies)
        step_s = mean(row.step_s for row in group)
        first = first or (calls, step_s)
        lines.append(
            f"{calls:>3}  {len(group):>6}  {number(mean(accuracies)):>8}  {number(low):>15} .. {number(high):<5}  "
            f"{_digits(step_s, 2):>6}  {_digits(step_s / first[1], 2):>8} x   {paper.step_time(calls, first[0]) or '-'}"
        )
    return lines


def _by_kl_coeff(rows: Sequence[TrialRow]) -> list[str]:
    calls = sorted({row.max_tool_calls for row in rows})
    lines = ["final KL".rjust(10) + "".join(f"C={value}".rjust(10) for value in calls) + "  accuracy"]
    for coeff, group in grouped(rows, lambda row: row.kl_coeff):
        kls = [mean(row.final_kl for row in group if row.max_tool_calls == value) for value in calls]
        accuracy = number(mean(row.accuracy for row in group))
        lines.append(f"kl={coeff:g}".rjust(10) + "".join(_digits(kl, 4).rjust(10) for kl in kls) + f"{accuracy:>10}")
    return lines


def _history(result: Any) -> list[dict[str, Any]]:
    """Return one flat dict per iteration; of one that a restored trial did again, the later."""
    frame = result.metrics_dataframe
    if frame is None:
        return []
    rows = {row["training_iteration"]: row for row in frame.to_dict("records")}
    return [rows[iteration] for iteration in sorted(rows)]


def grouped(rows: Sequence[TrialRow], key: Callable[[TrialRow], Any]) -> Iterable[tuple[Any, list[TrialRow]]]:
    """Yield each value of `key`, in order, with the rows that have it."""
    for value in sorted({key(row) for row in rows}):
        yield value, [row for row in rows if key(row) == value]


def _last_line(error: Any) -> str:
    lines = [line for line in str(error or "").splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def _digits(value: float, num: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{num}f}"


def mean(values: Iterable[float]) -> float:
    """Return the mean, NaN of nothing."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else math.nan
