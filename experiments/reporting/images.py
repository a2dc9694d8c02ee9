"""Every figure of a report as PNG (matplotlib) and CSV, values as measured."""

import csv
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments.reporting.curves import Curve, Figure, curves_of, figures_of
from experiments.reporting.points import PointFigure, evaluation_figures, sweep_figures
from experiments.reporting.runs import RunData

_MAX_INSIDE = 8  # lines that a legend inside the axes may name


def write_images(folder: Path, runs: Sequence[RunData]) -> list[Path]:
    """Write `<figure>.png` and `<figure>.csv` for each figure that has a value; return the PNGs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    written = []
    drawings: list[tuple[Figure | PointFigure, list[list[Any]]]] = []
    drawings += [(figure, _curve_rows(figure, runs)) for figure in figures_of(runs)]
    drawings += [(figure, _point_rows(figure)) for figure in evaluation_figures(runs) + sweep_figures(runs)]
    for figure, rows in drawings:
        if len(rows) == 1:
            continue
        with (folder / f"{figure.id}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
        picture, axis = pyplot.subplots(figsize=(6.4, 4), layout="constrained")
        if isinstance(figure, Figure):
            _draw_curves(axis, figure, curves_of(figure, runs))
        else:
            _draw_points(axis, figure)
        axis.set_title(_literal(figure.title))
        axis.grid(alpha=0.3)
        _add_legend(picture, axis)
        picture.savefig(folder / f"{figure.id}.png", dpi=110)
        pyplot.close(picture)
        written.append(folder / f"{figure.id}.png")
    return written


def _curve_rows(figure: Figure, runs: Sequence[RunData]) -> list[list[Any]]:
    """Return a head and one row per run, series and iteration."""
    rows: list[list[Any]] = [["run", "seed", "series", "iteration", "value"]]
    for run in runs:
        for series in () if run.is_evaluation else figure.series:
            rows += [[run.label, run.seed, series.name, x, value] for x, value in series.values(run).items()]
    return rows


def _point_rows(figure: PointFigure) -> list[list[Any]]:
    rows: list[list[Any]] = [["series", figure.x_title, "value", "low", "high"]]
    for line in figure.lines:
        rows += [[line.name, *values] for values in zip(line.x, line.y, line.low, line.high, strict=True)]
    return rows


def _draw_curves(axis: Any, figure: Figure, curves: Iterable[Curve]) -> None:
    listed = list(curves)
    groups = list(dict.fromkeys(curve.group for curve in listed))
    styles = ("-", "--", ":", "-.", (0, (6, 2)))
    if figure.style == "parts" and len(groups) == 1 and len({tuple(curve.x) for curve in listed}) == 1:
        names = [figure.series[curve.series].name for curve in listed]
        axis.stackplot(listed[0].x, [curve.y for curve in listed], labels=names, alpha=0.7)
    else:
        for curve in listed:
            color = f"C{groups.index(curve.group) if len(groups) > 1 else curve.series}"
            names = [curve.group] * (len(groups) > 1) + [figure.series[curve.series].name] * (len(figure.series) > 1)
            marker = "o" if figure.series[curve.series].held_out or len(curve.x) == 1 else None
            style = styles[curve.series % 5] if len(groups) > 1 else "-"
            label = _literal(" · ".join(names) or figure.title)
            axis.plot(curve.x, curve.y, color=color, ls=style, marker=marker, label=label)
            if curve.low:
                axis.fill_between(curve.x, curve.low, curve.high, color=color, alpha=0.18, lw=0)
    axis.set_xlabel("iteration")
    if figure.style == "share":
        axis.set_ylim(-0.03, 1.03)
    if figure.style == "log" and any(value > 0 for curve in listed for value in curve.y):
        axis.set_yscale("log")


def _draw_points(axis: Any, figure: PointFigure) -> None:
    # Lines hold their places in order; one that a line lacks goes behind those before it.
    places = list(dict.fromkeys(x for line in sorted(figure.lines, key=lambda line: -len(line.x)) for x in line.x))
    for line in figure.lines:
        middle, low, high = line.y, line.low, line.high
        error = [
            [y - v for y, v in zip(middle, low, strict=True)],
            [v - y for y, v in zip(middle, high, strict=True)],
        ]
        x = [places.index(place) for place in line.x]
        axis.errorbar(
            x, middle, yerr=error, fmt="o-" if figure.is_connected else "o", capsize=3, label=_literal(line.name)
        )
    axis.set_xticks(range(len(places)), [_literal(place) for place in places])
    axis.set_xlabel(figure.x_title)
    if figure.style == "share":
        axis.set_ylim(-0.03, 1.03)
    elif not math.isnan(sum(line.y[0] for line in figure.lines)):
        axis.set_ylim(bottom=0)


def _add_legend(picture: Any, axis: Any) -> None:
    """Name the lines: within the axes if they are few, else below, on a picture that is higher for it."""
    num_lines = len(axis.get_legend_handles_labels()[0])
    if num_lines <= _MAX_INSIDE:
        axis.legend(fontsize="small")
        return
    picture.set_figheight(picture.get_figheight() + 0.2 * math.ceil(num_lines / 2))
    picture.legend(loc="outside lower center", ncols=2, fontsize="x-small")


def _literal(text: str) -> str:
    """Return the text with dollars that matplotlib does not take for mathematics."""
    return text.replace("$", r"\$")
