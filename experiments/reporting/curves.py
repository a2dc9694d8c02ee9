"""The curves of a report: which figures there are, and each run's values in them; seeds become mean and range."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from experiments.reporting.runs import RunData

_SAMPLED = "env_runners/"
_LEARNER = "learners/default_policy/"
_SUITE_ACCURACY, _SUITE_REWARD = "accuracy_source/", "reward_source/"


@dataclass(frozen=True, slots=True)
class Series:
    """One quantity of a figure.

    Attributes:
        name: In the legend.
        key: Name in the result dict (`RunData.rows`), or of a held-out figure (`RunData.held_out`).
        held_out: Which of the two.
    """

    name: str
    key: str
    held_out: bool = False

    def values(self, run: RunData) -> dict[int, float]:
        """Return iteration -> value; iterations in which it was not measured are left out."""
        rows = run.held_out if self.held_out else run.rows
        found = {iteration: row.get(self.key, math.nan) for iteration, row in sorted(rows.items())}
        return {iteration: value for iteration, value in found.items() if math.isfinite(value)}


@dataclass(frozen=True, slots=True)
class Figure:
    """What is plotted against the iteration.

    Attributes:
        id: File name of its PNG and CSV.
        section: Heading it stands under.
        title: Its own.
        caption: What the quantities mean, with units.
        series: One or more.
        style: "share" (0 to 1), "number", "zero" (from 0), "log", or "parts" (seconds that add up).
    """

    id: str
    section: str
    title: str
    caption: str
    series: tuple[Series, ...]
    style: str = "number"


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a figure: a run, or the mean over runs that differ in the seed alone.

    Attributes:
        group: `RunData.group`.
        series: Index in `Figure.series`.
        x: Iterations.
        y: Values; means over the seeds where there are several.
        low, high: Lowest and highest seed; empty for a single run.
    """

    group: str
    series: int
    x: list[int]
    y: list[float]
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)


def _sampled(*names: tuple[str, str]) -> tuple[Series, ...]:
    return tuple(Series(name, _SAMPLED + key) for name, key in names)


FIGURES: tuple[Figure, ...] = (
    Figure(
        "accuracy",
        "Outcome",
        "Accuracy",
        "Share answered correctly: sampled in training, and greedily on held-out problems.",
        (Series("sampled", _SAMPLED + "accuracy"), Series("held out, greedy", "accuracy", held_out=True)),
        "share",
    ),
    Figure(
        "reward",
        "Outcome",
        "Reward",
        "Mean return of an episode: 1 if correct, -1 if not, less penalties.",
        (Series("sampled", _SAMPLED + "reward_mean"), Series("held out, greedy", "reward_mean", held_out=True)),
    ),
    Figure(
        "code_ratio",
        "Tool use (paper, Fig. 5)",
        "Code ratio",
        "Share of responses that contain a complete Python block.",
        (Series("sampled", _SAMPLED + "code_ratio"), Series("held out, greedy", "code_ratio", held_out=True)),
        "share",
    ),
    Figure(
        "pass_ratio",
        "Tool use (paper, Fig. 5)",
        "Pass ratio",
        "Share of executed programs that ran without error; also among correct and among incorrect responses.",
        _sampled(("all", "pass_ratio"), ("correct", "pass_ratio_correct"), ("incorrect", "pass_ratio_incorrect")),
        "share",
    ),
    Figure(
        "block_ratios",
        "Tool use (paper, Fig. 5)",
        "What became of the code",
        "Share of generated blocks that were executed successfully (those past C count as not), and that stand before "
        "the first final answer.",
        _sampled(("executed", "executed_code_ratio"), ("before the answer", "before_answer_code_ratio")),
        "share",
    ),
    Figure(
        "tool_calls",
        "Tool use (paper, Fig. 5)",
        "Programs per episode",
        "Executed programs, mean over the episodes.",
        _sampled(("sampled", "tool_calls_mean")),
    ),
    Figure(
        "response_length",
        "Response",
        "Response length",
        "Sampled tokens per episode.",
        _sampled(("mean", "response_tokens_mean"), ("longest", "response_tokens_max")),
    ),
    Figure(
        "cut_off",
        "Response",
        "Cut off or left out",
        "Share of episodes that hit a limit, and that left the batch because sandbox, grader or engine failed.",
        _sampled(("truncated", "truncated_ratio"), ("left out", "excluded_ratio")),
        "zero",
    ),
    Figure(
        "kl", "Optimisation", "KL to the base model", "k3 estimate, in nats a token.", (Series("KL", _LEARNER + "kl"),)
    ),
    Figure(
        "entropy", "Optimisation", "Entropy", "Of the next token, in nats.", (Series("entropy", _LEARNER + "entropy"),)
    ),
    Figure(
        "grad_norm",
        "Optimisation",
        "Gradient norm",
        "Before clipping; last update of the step.",
        (Series("gradient norm", _LEARNER + "grad_norm"),),
    ),
    Figure(
        "logp_diff_max",
        "Optimisation",
        "Sampler against learner",
        "Largest difference of a token's log-probability between the sampler and the learner on the same weights.",
        (Series("logp_diff_max", _LEARNER + "logp_diff_max"),),
        "log",
    ),
    Figure(
        "step_parts",
        "Time",
        "Where a step's time goes",
        "Seconds. Waiting: a program is awaited and the engine has nothing to decode.",
        (
            Series("decoding", "report/engine_s"),
            Series("waiting for tools", "report/tool_idle_s"),
            Series("grading and rest of sampling", "report/rest_s"),
            Series("update", "report/update_s"),
            Series("weight sync", "report/sync_s"),
        ),
        "parts",
    ),
    Figure(
        "step_s", "Time", "Seconds per step", "Sample, advantage, update and sync.", (Series("step", "report/step_s"),)
    ),
    Figure(
        "waits",
        "Time",
        "Waits, summed over episodes",
        "Seconds; episodes wait side by side, so these overlap each other and the decoding.",
        _sampled(("for programs", "tool_wait_s_sum"), ("for grading", "grade_s_sum")),
    ),
    Figure(
        "tokens_per_s",
        "Time",
        "Sampled tokens per second",
        "Over the whole of sampling, waits included.",
        _sampled(("tokens/s", "response_tokens_per_s")),
    ),
    Figure(
        "program_s",
        "Sandbox",
        "Seconds a program runs",
        "Median and 99th percentile of the step's programs.",
        _sampled(("p50", "run_s_p50"), ("p99", "run_s_p99")),
    ),
    Figure(
        "queue_s",
        "Sandbox",
        "Seconds a program waits for a free slot",
        "Median and 99th percentile of the step's programs.",
        _sampled(("p50", "queue_s_p50"), ("p99", "queue_s_p99")),
    ),
)


def figures_of(runs: Sequence[RunData]) -> list[Figure]:
    """Return `FIGURES`, with one for each suite that the runs were evaluated on behind the first section."""
    evaluations = [figures for run in runs for figures in run.held_out.values()]
    suites = {
        name.removeprefix(_SUITE_ACCURACY): None
        for figures in evaluations
        for name in figures
        if name.startswith(_SUITE_ACCURACY)
    }
    of_suites = [
        Figure(
            f"held_out_{number}",
            "Held out, by suite (paper, Fig. 4)",
            suite or "(no source named)",
            "Greedy on the held-out problems of this source: share answered correctly, and mean return.",
            (
                Series("accuracy", _SUITE_ACCURACY + suite, held_out=True),
                Series("reward", _SUITE_REWARD + suite, held_out=True),
            ),
        )
        for number, suite in enumerate(sorted(suites), start=1)
    ]
    outcome = [figure for figure in FIGURES if figure.section == FIGURES[0].section]
    return [*outcome, *of_suites, *(figure for figure in FIGURES if figure not in outcome)]


def curves_of(figure: Figure, runs: Sequence[RunData]) -> list[Curve]:
    """Return the figure's lines, group by group; series without a value are left out, as are evaluations.

    Of several seeds only iterations with a value of each are shown: a mean would jump where a seed drops out.
    """
    groups: dict[str, list[RunData]] = defaultdict(list)
    for run in runs:
        if not run.is_evaluation:
            groups[run.group].append(run)
    curves = []
    for group, members in groups.items():
        for index, series in enumerate(figure.series):
            curve = _combined(group, index, [series.values(run) for run in members])
            if curve.x:
                curves.append(curve)
    return curves


def _combined(group: str, series: int, values: Sequence[Mapping[int, float]]) -> Curve:
    if len(values) == 1:
        return Curve(group, series, list(values[0]), list(values[0].values()))
    shared = sorted(set(values[0]).intersection(*values[1:]))
    columns = [[of_run[iteration] for of_run in values] for iteration in shared]
    return Curve(
        group,
        series,
        shared,
        [sum(column) / len(column) for column in columns],
        [min(column) for column in columns],
        [max(column) for column in columns],
    )
