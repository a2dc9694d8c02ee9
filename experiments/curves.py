"""The picture of a run: reward and accuracy, tool use, and where the time went, per iteration."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_PANELS: tuple[tuple[str, dict[str, tuple[str, ...]]], ...] = (
    (
        "Accuracy (sampled)",
        {"accuracy": ("env_runners", "accuracy")},
    ),
    (
        "Tool use (paper, Fig. 5)",
        {
            "code ratio": ("env_runners", "code_ratio"),
            "pass ratio": ("env_runners", "pass_ratio"),
            "executed code ratio": ("env_runners", "executed_code_ratio"),
        },
    ),
    (
        "Seconds per step",
        {
            "sample": ("timings", "sample_s"),
            "update": ("timings", "update_s"),
            "sync": ("timings", "sync_s"),
        },
    ),
)


def draw(results: Sequence[Mapping[str, Any]], evaluations: Mapping[int, float], path: Path) -> Path:
    """Draw the curves of a run's result dicts.

    Args:
        results: one result dict per iteration.
        evaluations: iteration to greedy held-out accuracy, drawn as points.
        path: PNG to write.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(_PANELS), figsize=(15, 4), layout="constrained")
    iterations = [result["training_iteration"] for result in results]
    for axis, (title, series) in zip(axes, _PANELS, strict=True):
        for label, keys in series.items():
            axis.plot(iterations, [_get(result, keys) for result in results], label=label)
        axis.set(title=title, xlabel="iteration")
        axis.grid(alpha=0.3)
    axes[0].plot(list(evaluations), list(evaluations.values()), "o", label="accuracy held out, greedy")
    for axis in axes[:2]:
        axis.set_ylim(-0.03, 1.03)
    for axis in axes:
        axis.legend()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def _get(result: Mapping[str, Any], keys: tuple[str, ...]) -> float:
    value: Any = result
    for key in keys:
        value = value.get(key, {}) if isinstance(value, Mapping) else {}
    return float(value) if isinstance(value, int | float) else math.nan
