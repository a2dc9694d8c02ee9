"""What a report plots against a setting rather than the iteration (a sweep), and its tables.

Accuracy is the last greedy evaluation on held-out problems, step time the mean over the iterations without the first
(which warms up), KL the mean of the last five. Trials that differ in what a figure does not show, mostly in the seed,
are their mean, the lowest and the highest; of a single one the accuracy has its 95% interval (Wilson's), as in the
sweep's own figure.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from experiments import paper
from experiments.intervals import num_judged, wilson
from experiments.reporting.runs import RunData

_KL_ITERATIONS = 5
_BARS = "Bars: lowest and highest, where there are several trials"
_JUDGED = "Over the episodes that could be judged."


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a point figure: x values, y values, and the ends of their bars."""

    name: str
    x: list[str] = field(default_factory=list)
    y: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PointFigure:
    """A figure over the values of a setting, in order unless `is_connected` is False; `style` as in `curves.Figure`."""

    id: str
    section: str
    title: str
    caption: str
    x_title: str
    lines: list[Line]
    style: str = "number"
    is_connected: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts, the first column naming the row."""

    id: str
    title: str
    caption: str
    columns: list[str]
    rows: list[list[str]]


def final_accuracy(run: RunData) -> float:
    """Return the last held-out accuracy, NaN if there was no evaluation since the training began."""
    last = max(run.held_out, default=0)
    return run.held_out[last].get("accuracy", math.nan) if last > 0 else math.nan


def accuracy_interval(run: RunData) -> tuple[float, float]:
    """Return the 95% interval of `final_accuracy` (Wilson's), NaNs if it is not known of how many problems it is."""
    return wilson(final_accuracy(run), num_judged(run.held_out.get(max(run.held_out, default=0), {})))


def mean_step_s(run: RunData) -> float:
    """Return the mean seconds of a step, the first left out where there are others."""
    steps = [row["report/step_s"] for _, row in sorted(run.rows.items()) if "report/step_s" in row]
    return _mean(steps[1:] or steps)


def final_kl(run: RunData) -> float:
    """Return the mean KL to the base of the last iterations, NaN if it was not measured."""
    return _mean(
        [row.get("learners/default_policy/kl", math.nan) for _, row in sorted(run.rows.items())][-_KL_ITERATIONS:]
    )


def sweep_figures(runs: Sequence[RunData]) -> list[PointFigure]:
    """Return accuracy and step time against C, and KL against its coefficient, where these settings vary."""
    trials = [run for run in runs if run.setting("max_tool_calls") is not None]
    figures = []
    if len({run.setting("max_tool_calls") for run in trials}) > 1:
        x_title = "C, programs per episode"
        lines = _lines(trials, "max_tool_calls", "kl_coeff", final_accuracy, accuracy_interval)
        caption = f"Held out, greedy, after training. {_BARS}; of a single trial the 95% interval (Wilson)."
        figures.append(PointFigure("sweep_accuracy", "Sweep", "Accuracy against C", caption, x_title, lines, "share"))
        lines = _lines(trials, "max_tool_calls", "kl_coeff", mean_step_s)
        caption = f"Mean seconds per step (the paper's Table 4). {_BARS}."
        figures.append(PointFigure("sweep_step_s", "Sweep", "Step time against C", caption, x_title, lines, "zero"))
    if len({run.setting("kl_coeff") for run in trials}) > 1:
        lines = _lines(trials, "kl_coeff", "max_tool_calls", final_kl)
        caption = f"KL to the base model, mean of the last {_KL_ITERATIONS} iterations, in nats a token. {_BARS}."
        figures.append(
            PointFigure("sweep_kl", "Sweep", "KL against its coefficient", caption, "kl_coeff", lines, "zero")
        )
    return [figure for figure in figures if any(line.x for line in figure.lines)]


def evaluation_figures(runs: Sequence[RunData]) -> list[PointFigure]:
    """Return the accuracy of each problem set of an evaluation, with its 95% interval."""
    sets = [run for run in runs if run.is_evaluation and "accuracy" in run.held_out[0]]
    if not sets:
        return []
    figures = [run.held_out[0] for run in sets]
    line = Line("accuracy", [run.label for run in sets])
    for name, values in (("accuracy", line.y), ("accuracy_low", line.low), ("accuracy_high", line.high)):
        values += [found[name] for found in figures]
    caption = f"{_JUDGED} 95% interval over the problems."
    title = "Accuracy by problem set"
    return [PointFigure("evaluation", "Evaluation", title, caption, "problem set", [line], "share", is_connected=False)]


def tables(runs: Sequence[RunData]) -> list[Table]:
    """Return the overview of the runs, the comparison with the no-tool baseline, and a sweep's tables."""
    trained, sets = [run for run in runs if not run.is_evaluation], [run for run in runs if run.is_evaluation]
    found = ([_overview(trained)] if trained else []) + ([_evaluations(sets)] if sets else [])
    if any(run.is_without_tool for run in runs) and any(run.rows and not run.is_without_tool for run in runs):
        found.append(_baseline(runs))
    calls = sorted({value for run in runs if (value := run.setting("max_tool_calls")) is not None})
    if len(calls) > 1:
        found.append(_by_calls(runs, calls))
    return found


def _overview(runs: Sequence[RunData]) -> Table:
    rows = []
    for run in runs:
        first = run.held_out.get(0, {})
        last = run.held_out[max(run.held_out)] if max(run.held_out, default=0) > 0 else {}
        rows.append(
            [
                run.label,
                str(max(run.rows, default=0)),
                _arrow(first.get("accuracy"), last.get("accuracy")),
                _arrow(first.get("code_ratio"), last.get("code_ratio")),
                _arrow(first.get("pass_ratio"), last.get("pass_ratio")),
                _number(mean_step_s(run), " s"),
            ]
        )
    return Table(
        "runs",
        "Runs",
        "Greedy on the held-out problems, before → after training.",
        ["run", "iterations", "accuracy", "code ratio", "pass ratio", "step"],
        rows,
    )


def _evaluations(sets: Sequence[RunData]) -> Table:
    rows = []
    for run in sets:
        figures = run.held_out[0]
        k = figures.get("samples_per_problem", 1.0)
        numbers = [
            _number(figures.get(name, math.nan))
            for name in ("accuracy", f"pass_at_k/{k:.0f}/value", "reward_mean", "code_ratio")
        ]
        ends = [
            " to ".join(_number(figures.get(f"{name}_{end}", math.nan)) for end in ("low", "high"))
            for name in ("accuracy", "pass_at_k")
        ]
        counts = [f"{figures.get(name, 0):.0f}" for name in ("num_problems", "samples_per_problem")]
        rows.append([run.label, *counts, numbers[0], ends[0], numbers[1], ends[1], *numbers[2:]])
    return Table(
        "evaluation",
        "Evaluation",
        f"{_JUDGED} With k samples per problem accuracy is avg@k; 95% intervals over the problems.",
        ["set", "problems", "k", "accuracy", "95% interval", "pass@k", "95% interval", "reward", "code ratio"],
        rows,
    )


def _baseline(runs: Sequence[RunData]) -> Table:
    rows = []
    for name, is_without in (("with tool", False), ("without tool", True)):
        members = [run for run in runs if run.rows and run.is_without_tool == is_without]
        sampled = [run.rows[max(run.rows)].get("env_runners/accuracy", math.nan) for run in members]
        rows.append(
            [
                name,
                str(len(members)),
                _range([run.held_out.get(0, {}).get("accuracy", math.nan) for run in members]),
                _range([final_accuracy(run) for run in members]),
                _range(sampled),
                _range([mean_step_s(run) for run in members], " s"),
            ]
        )
    return Table(
        "baseline",
        "With and without the tool",
        "The paper's comparison: accuracy held out, before and after training, and sampled in the last step. Mean over "
        "the runs, in brackets the lowest and the highest. A run without a single program counts as without tool.",
        ["trained", "runs", "before", "after", "sampled", "step"],
        rows,
    )


def _by_calls(runs: Sequence[RunData], calls: Sequence[float]) -> Table:
    rows = []
    times = {
        value: _mean([mean_step_s(run) for run in runs if run.setting("max_tool_calls") == value]) for value in calls
    }
    for value in calls:
        members = [run for run in runs if run.setting("max_tool_calls") == value]
        rows.append(
            [
                f"{value:g}",
                str(len(members)),
                _range([final_accuracy(run) for run in members]),
                _range([mean_step_s(run) for run in members], " s"),
                _number(times[value] / times[calls[0]], " x"),
                paper.step_time(value, calls[0]) or "not in the paper",
            ]
        )
    return Table(
        "sweep",
        "By number of programs (the paper's Table 4)",
        "Mean over the trials, in brackets the lowest and the highest; the paper's times are of 8 A800 GPUs.",
        ["C", "trials", "accuracy held out", "step", f"against C = {calls[0]:g}", "paper's step"],
        rows,
    )


def _lines(
    runs: Sequence[RunData],
    x: str,
    name: str,
    read: Callable[[RunData], float],
    interval: Callable[[RunData], tuple[float, float]] | None = None,
) -> list[Line]:
    """Return one line per value of the setting `name`, over the values of `x`.

    Args:
        runs: the trials.
        x: setting along the axis.
        name: setting that the lines differ in.
        read: the figure of a run; runs without one are left out.
        interval: of the figure, shown where a place has a single run; NaNs are no interval.
    """
    cells: dict[tuple[float, float], list[RunData]] = defaultdict(list)
    for run in runs:
        place, series = run.setting(x), run.setting(name)
        if place is not None and math.isfinite(read(run)):
            cells[math.nan if series is None else series, place].append(run)
    lines = []
    for series in sorted({series for series, _ in cells}):
        line = Line(f"{'C' if name == 'max_tool_calls' else name} = {series:g}")
        for place in sorted(place for other, place in cells if other == series):
            members = cells[series, place]
            values = [read(run) for run in members]
            low, high = min(values), max(values)
            if len(members) == 1 and interval and math.isfinite(sum(ends := interval(members[0]))):
                low, high = ends
            line.x.append(f"{place:g}")
            line.y.append(_mean(values))
            line.low.append(low)
            line.high.append(high)
        lines.append(line)
    return lines


def _arrow(before: float | None, after: float | None) -> str:
    texts = [_number(math.nan if value is None else value) for value in (before, after)]
    return "-" if texts == ["-", "-"] else " → ".join(texts)


def _range(values: Sequence[float], unit: str = "") -> str:
    known = [value for value in values if math.isfinite(value)]
    if len(known) < 2:
        return _number(_mean(known), unit)
    return f"{_number(_mean(known), unit)} [{_number(min(known))}, {_number(max(known))}]"


def _number(value: float, unit: str = "") -> str:
    return f"{value:.2f}{unit}" if math.isfinite(value) else "-"


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan
