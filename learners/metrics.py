"""What a batch of episodes tells: accuracy, lengths and the tool-use analytics of the paper's Fig. 5, as plain numbers.

Pure functions of `EpisodeRecord`s; one name, one meaning, everywhere (result dict, JSON lines, TensorBoard, summary).
A share whose denominator is empty is NaN: nothing was measured.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from learners.episodes import EpisodeRecord
from torl_env.dialect import CodeCounts, count_code

_OK = "success"


def episode_metrics(records: Sequence[EpisodeRecord]) -> dict[str, float]:
    """Return the figures of a batch of episodes.

    `accuracy` and the code figures are over the episodes that count (excluded ones say nothing about the policy):

        accuracy                   share answered correctly
        reward_mean                mean return
        code_ratio                 share of responses that contain code (a complete Python block)
        pass_ratio                 share of executed programs that ran without error
        pass_ratio_correct         the same among correct responses
        pass_ratio_incorrect       the same among incorrect responses
        executed_code_ratio        share of generated blocks that were executed successfully; those past C count as not
        before_answer_code_ratio   share of generated blocks that stand before the first final answer
        tool_calls_mean            programs executed per episode
        response_tokens_mean       sampled tokens per episode; `response_tokens_max` likewise
        truncated_ratio            share that hit a limit
        excluded_ratio             share, of all episodes, that left the batch (sandbox, grader, engine, prompt length)
        num_excluded_<reason>      their number by stop reason, where there are any
        accuracy_kind/<kind>       accuracy per kind of problem, where the problems name one
        accuracy_source/<source>   accuracy per source (a suite), where the problems are of several; `reward_source/...`
                                   likewise the mean return
        run_s_p50, run_s_p99       seconds a program ran; `queue_s_*`: it waited; `tool_wait_s_*`: the episode did

    Args:
        records: the episodes, excluded ones included.

    Returns:
        Name to float. Empty if there are no records.
    """
    if not records:
        return {}
    counted = [record for record in records if record.counts]
    codes = [_code_counts(record) for record in counted]
    num_blocks = sum(code.num_blocks for code in codes)
    passed = sum(call.status == _OK for record in counted for call in record.tool_calls)
    metrics = {
        "accuracy": _mean(record.verdict == "correct" for record in counted),
        "reward_mean": _mean(record.reward for record in counted),
        "code_ratio": _mean(code.num_blocks > 0 for code in codes),
        "pass_ratio": _pass_ratio(counted),
        "pass_ratio_correct": _pass_ratio(record for record in counted if record.verdict == "correct"),
        "pass_ratio_incorrect": _pass_ratio(record for record in counted if record.verdict == "incorrect"),
        "executed_code_ratio": passed / num_blocks if num_blocks else math.nan,
        "before_answer_code_ratio": sum(code.num_before_answer for code in codes) / num_blocks
        if num_blocks
        else math.nan,
        "tool_calls_mean": _mean(len(record.tool_calls) for record in counted),
        "response_tokens_mean": _mean(record.num_response_tokens for record in counted),
        "response_tokens_max": float(max((record.num_response_tokens for record in counted), default=0)),
        "truncated_ratio": _mean(record.truncated for record in counted),
        "excluded_ratio": 1 - len(counted) / len(records),
    }
    for record in records:
        if not record.counts:
            name = f"num_excluded_{record.stop_reason}"
            metrics[name] = metrics.get(name, 0.0) + 1
    metrics.update({f"accuracy_kind/{kind}": value for kind, value in accuracy_per_kind(counted).items()})
    for name, of_sources in figures_per_source(counted).items():
        metrics.update({f"{name}/{source}": value for source, value in of_sources.items()})
    calls = [call for record in records for call in record.tool_calls]
    for name, values in (
        ("run_s", [call.run_s for call in calls]),
        ("queue_s", [call.queue_s for call in calls]),
        ("tool_wait_s", [call.wait_s for call in calls]),
    ):
        for percentile in (50, 99):
            metrics[f"{name}_p{percentile}"] = float(np.percentile(values, percentile)) if values else math.nan
    return metrics


def combine_sample_metrics(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the figures of a batch from those of the runners that sampled it side by side (`SamplerClock.metrics`).

    Numbers (`num_*`), engine steps and summed seconds (`*_s_sum`) add up; `sample_s` is the slowest runner's; other
    seconds and shares are means over the runners.
    """
    combined: dict[str, float] = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        values = [part[name] for part in parts if name in part]
        if name.startswith("num_") or name.endswith("_sum") or name == "engine_steps":
            combined[name] = float(sum(values))
        elif name == "sample_s":
            combined[name] = max(values)
        else:
            combined[name] = _mean(values)
    if "sample_s" in combined:
        combined["response_tokens_per_s"] = combined["num_response_tokens"] / combined["sample_s"]
    return combined


def accuracy_per_kind(records: Iterable[EpisodeRecord]) -> dict[str, float]:
    """Return the share of correct episodes per kind of problem, sorted by kind, leaving out problems without one."""
    correct: dict[str, list[bool]] = defaultdict(list)
    for record in records:
        if record.kind:
            correct[record.kind].append(record.verdict == "correct")
    return {kind: _mean(values) for kind, values in sorted(correct.items())}


def figures_per_source(records: Iterable[EpisodeRecord]) -> dict[str, dict[str, float]]:
    """Return `accuracy_source` and `reward_source`, each per source of problems, sorted; empty unless of several."""
    of_source: dict[str, list[EpisodeRecord]] = defaultdict(list)
    for record in records:
        of_source[record.source].append(record)
    if len(of_source) < 2:
        return {}
    return {
        "accuracy_source": {s: _mean(r.verdict == "correct" for r in own) for s, own in sorted(of_source.items())},
        "reward_source": {s: _mean(r.reward for r in own) for s, own in sorted(of_source.items())},
    }


def code_ratio_of_kinds(records: Iterable[EpisodeRecord], kinds: Iterable[str]) -> float:
    """Return the code ratio on the problems of `kinds`, NaN if there are none."""
    wanted = set(kinds)
    return _mean(_code_counts(record).num_blocks > 0 for record in records if record.counts and record.kind in wanted)


def uses_code(record: EpisodeRecord) -> bool:
    """Return whether the response contains code."""
    return _code_counts(record).num_blocks > 0


def _code_counts(record: EpisodeRecord) -> CodeCounts:
    return count_code(text for role, text in record.turns if role == "response")


def _pass_ratio(records: Iterable[EpisodeRecord]) -> float:
    return _mean(call.status == _OK for record in records for call in record.tool_calls)


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return float(sum(listed) / len(listed)) if listed else math.nan
