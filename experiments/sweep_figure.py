"""The picture of a sweep: accuracy against C, step time against C, KL to the base against its coefficient."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.sweep_results import TrialRow, grouped, mean

_SHIFT = 0.08  # between the points of one C, or their intervals would hide each other


def draw(rows: Sequence[TrialRow], path: Path) -> Path:
    """Draw the trials that are done.

    Args:
        rows: all trials.
        path: PNG to write.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    done = [row for row in rows if row.status == "done"]
    figure, (accuracy, step, kl) = pyplot.subplots(1, 3, figsize=(15, 4), layout="constrained")
    coeffs = [coeff for coeff, _ in grouped(done, lambda row: row.kl_coeff)]
    for position, (coeff, group) in enumerate(grouped(done, lambda row: row.kl_coeff)):
        places = [row.max_tool_calls + _SHIFT * (position - (len(coeffs) - 1) / 2) for row in group]
        values = [row.accuracy for row in group]
        below = [row.accuracy - row.interval[0] for row in group]
        above = [row.interval[1] - row.accuracy for row in group]
        accuracy.errorbar(places, values, yerr=[below, above], fmt="o", capsize=3, label=f"kl_coeff {coeff:g}")
        step.plot(places, [row.step_s for row in group], "o", label=f"kl_coeff {coeff:g}")
    for calls, group in grouped(done, lambda row: row.max_tool_calls):
        heights = [mean(row.final_kl for row in group if row.kl_coeff == coeff) for coeff in coeffs]
        kl.plot(range(len(coeffs)), heights, "o-", label=f"C = {calls}")
    _mean_by_calls(accuracy, done, lambda row: row.accuracy)
    _mean_by_calls(step, done, lambda row: row.step_s)
    accuracy.set(title="Held-out accuracy, greedy; bars: 95% (Wilson)", ylim=(-0.03, 1.03))
    step.set(title="Seconds per step (paper, Table 4)")
    kl.set(title="KL to the base, mean of the last 5 iterations", xlabel="kl_coeff", xticks=range(len(coeffs)))
    kl.set_xticklabels([f"{coeff:g}" for coeff in coeffs])
    for axis in (step, kl):
        # Counts zero among the data, so that the margin at the top is a share of the whole height.
        axis.axhline(0, linewidth=0)
        axis.set_ylim(bottom=0)
    for axis in (accuracy, step, kl):
        axis.grid(alpha=0.3)
        if done:
            axis.legend()
    figure.savefig(path, dpi=80)
    pyplot.close(figure)
    return path


def _mean_by_calls(axis: Any, rows: Sequence[TrialRow], value: Callable[[TrialRow], float]) -> None:
    means = {calls: mean(value(row) for row in group) for calls, group in grouped(rows, lambda row: row.max_tool_calls)}
    axis.plot(list(means), list(means.values()), "k--", lw=1, label="mean")
    axis.set(xlabel="max_tool_calls (C)", xticks=list(means))
