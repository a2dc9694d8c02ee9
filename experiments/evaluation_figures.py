"""From the episodes of an evaluation to its figures, and the figures as a table beside the paper's."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.paper import PUBLISHED
from experiments.pass_at_k import interval_of_mean, pass_at_k, powers_up_to
from experiments.suites import SUITES
from learners.episodes import EpisodeRecord
from learners.metrics import accuracy_per_kind, episode_metrics

_QUOTED = (
    "reward_mean",
    "code_ratio",
    "pass_ratio",
    "tool_calls_mean",
    "response_tokens_mean",
    "truncated_ratio",
    "excluded_ratio",
)


def set_figures(records: Sequence[EpisodeRecord], samples_per_problem: int) -> dict[str, Any]:
    """Return the figures of one problem set.

        num_problems, num_episodes   with at least one episode that counts; of those that count
        accuracy                     avg@k: mean over problems of the share of their samples that is correct
        accuracy_interval            its 95% interval over problems (`pass_at_k.interval_of_mean`)
        pass_at_k                    {k: {value, interval, num_problems}} for k = 1, 2, 4, ... and the number of
                                     samples; the mean over problems with at least k samples that count
        accuracy_per_kind            where problems name one
        reward_mean, code_ratio, ... as in `learners.metrics.episode_metrics`

    An episode that could not be judged counts nowhere: the sandbox or the grader failed, or the prompt was too long.

    Args:
        records: all episodes of the set, in any order.
        samples_per_problem: how many each problem has.
    """
    verdicts: dict[str, list[bool]] = defaultdict(list)
    counted = [record for record in records if record.counts]
    for record in sorted(counted, key=lambda record: (record.problem_id, record.sample_index)):
        verdicts[record.problem_id].append(record.verdict == "correct")
    shares = [sum(correct) / len(correct) for correct in verdicts.values()]
    passes = {}
    for k in powers_up_to(samples_per_problem):
        values = [pass_at_k(len(correct), sum(correct), k) for correct in verdicts.values() if len(correct) >= k]
        passes[k] = {"value": _mean(values), "interval": interval_of_mean(values), "num_problems": len(values)}
    metrics = episode_metrics(records)
    return {
        "num_problems": len(verdicts),
        "num_episodes": len(counted),
        "samples_per_problem": samples_per_problem,
        "accuracy": _mean(shares),
        "accuracy_interval": interval_of_mean(shares),
        "pass_at_k": passes,
        "accuracy_per_kind": accuracy_per_kind(counted),
        **{name: metrics[name] for name in _QUOTED},
    }


def table(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a line per problem set: accuracy and pass@k with intervals, and how the tool was used. In percent."""
    k = max(found["samples_per_problem"] for found in figures.values())
    width = max(14, *(len(name) + 2 for name in figures))
    accuracy = f"avg@{k}" if k > 1 else "accuracy"
    lines = [
        f"{'set':<{width}}{'problems':>9}{accuracy:>10}{'95% interval':>15}"
        + (f"{f'pass@{k}':>9}{'95% interval':>15}" if k > 1 else "")
        + f"{'code':>7}{'pass':>7}{'tokens':>8}{'cut':>7}{'no verdict':>12}"
    ]
    for name, found in figures.items():
        passed = found["pass_at_k"][k] if k > 1 else None
        lines.append(
            f"{name:<{width}}{found['num_problems']:>9}{_percent(found['accuracy']):>10}"
            f"{_range(found['accuracy_interval']):>15}"
            + (f"{_percent(passed['value']):>9}{_range(passed['interval']):>15}" if passed else "")
            + f"{_percent(found['code_ratio']):>7}{_percent(found['pass_ratio']):>7}"
            f"{found['response_tokens_mean']:>8.0f}{_percent(found['truncated_ratio']):>7}"
            f"{_percent(found['excluded_ratio']):>12}"
        )
    return "\n".join(lines)


def papers_table(model: str, figures: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the paper's Table 3 with this model's accuracies as its first row.

    The mean is over all five suites, so a model that was evaluated on fewer has none.
    """
    width = max(len(name) for name in [model, *PUBLISHED]) + 2
    heads = "".join(f"{suite.title:>10}" for suite in SUITES.values())
    lines = [
        f"{'accuracy, %':<{width}}{heads}{'published':>11}{'mean of':>9}",
        f"{'':<{width + 50}}{'average':>11}{'row':>9}",
    ]
    own = [figures[name]["accuracy"] if name in figures else math.nan for name in SUITES]
    lines.append(
        f"{model:<{width}}{''.join(f'{_percent(value):>10}' for value in own)}{'':>11}{_percent(_mean(own)):>9}"
    )
    for name, (row, average) in PUBLISHED.items():
        cells = "".join(f"{value:>10.1f}" for value in row)
        lines.append(f"{name:<{width}}{cells}{average:>11.1f}{sum(row) / len(row):>9.1f}")
    lines.append("Rows but the first: arXiv 2503.23383, Table 3, greedy.")
    return "\n".join(lines)


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.1f}"


def _range(interval: tuple[float, float]) -> str:
    return "-".join(map(_percent, interval))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
