"""The figures of a batch of episodes, against numbers worked out by hand."""

import math
from typing import Any

import pytest

from learners.episodes import EpisodeRecord, ToolCall
from learners.metrics import (
    accuracy_per_kind,
    code_ratio_of_kinds,
    combine_sample_metrics,
    episode_metrics,
    figures_per_source,
)

CODE = "```python\nprint(1)\n```\n```output"


def record(
    *responses: str, statuses: tuple[str, ...] = (), verdict: str = "correct", kind: str = "sum", **changes: Any
) -> EpisodeRecord:
    turns = [("prompt", "Q")]
    for number, response in enumerate(responses):
        turns.append(("response", response))
        if number < len(statuses):
            turns.append(("observation", "\n1\n```\n"))
    fields = {
        "group_id": 0,
        "sample_index": 0,
        "problem_id": "p",
        "kind": kind,
        "reward": 1.0 if verdict == "correct" else -1.0,
        "verdict": verdict,
        "terminated": True,
        "truncated": False,
        "stop_reason": "answered",
        "policy_version": 0,
        "num_prompt_tokens": 1,
        "num_tokens": 11,
        "num_response_tokens": 10,
        "turns": tuple(turns),
        "tool_calls": tuple(ToolCall(status, run_s=0.5, queue_s=0.0, wait_s=1.0) for status in statuses),
    }
    return EpisodeRecord(**{**fields, **changes})


BATCH = [
    # one block, run, right; the block stands before the answer
    record(CODE, r" so \boxed{1}", statuses=("success",)),
    # two blocks: the first failed, the second (past C = 1) never ran and stands after the answer; wrong
    record(CODE, r" \boxed{2} and " + CODE, statuses=("failed",), verdict="incorrect", kind="gcd"),
    # no code, right
    record(r"\boxed{1}"),
    # left out: nothing of it counts below
    record(CODE, statuses=("sandbox_error",), verdict="unknown", stop_reason="sandbox_error", truncated=True),
]


def test_shares_are_over_the_episodes_that_count() -> None:
    metrics = episode_metrics(BATCH)
    assert metrics["accuracy"] == pytest.approx(2 / 3)
    assert metrics["reward_mean"] == pytest.approx(1 / 3)  # 1 - 1 + 1
    assert metrics["code_ratio"] == pytest.approx(2 / 3)
    assert metrics["truncated_ratio"] == 0
    assert metrics["excluded_ratio"] == pytest.approx(1 / 4)
    assert metrics["num_excluded_sandbox_error"] == 1


def test_pass_ratio_is_over_executed_programs() -> None:
    metrics = episode_metrics(BATCH)
    assert metrics["pass_ratio"] == pytest.approx(1 / 2)
    assert metrics["pass_ratio_correct"] == 1
    assert metrics["pass_ratio_incorrect"] == 0


def test_blocks_past_c_count_as_not_executed() -> None:
    assert episode_metrics(BATCH)["executed_code_ratio"] == pytest.approx(1 / 3)  # 3 blocks, 1 ran without error


def test_blocks_after_the_first_answer_are_not_before_it() -> None:
    assert episode_metrics(BATCH)["before_answer_code_ratio"] == pytest.approx(2 / 3)


def test_a_share_of_nothing_is_nan_and_an_empty_batch_has_no_figures() -> None:
    assert math.isnan(episode_metrics([record(r"\boxed{1}")])["pass_ratio"])
    assert episode_metrics([]) == {}


def test_figures_per_kind() -> None:
    assert accuracy_per_kind(BATCH[:3]) == {"gcd": 0.0, "sum": 1.0}
    assert episode_metrics(BATCH)["accuracy_kind/gcd"] == 0.0
    assert code_ratio_of_kinds(BATCH, ["sum"]) == pytest.approx(1 / 2)
    assert math.isnan(code_ratio_of_kinds(BATCH, ["lcm"]))


def test_figures_per_source_where_there_are_several() -> None:
    batch = [record(r"\boxed{1}", source="aime24"), record("no", verdict="incorrect", source="aime24")]
    batch.append(record(r"\boxed{1}", source="math500", reward=0.5))
    assert figures_per_source(batch) == {
        "accuracy_source": {"aime24": 0.5, "math500": 1.0},
        "reward_source": {"aime24": 0.0, "math500": 0.5},
    }
    assert episode_metrics(batch)["reward_source/math500"] == 0.5
    assert figures_per_source(batch[:2]) == {}


def test_runners_that_sampled_together_add_up() -> None:
    parts = [
        {"num_response_tokens": 100.0, "sample_s": 2.0, "engine_busy_share": 0.8, "grade_s_sum": 1.0},
        {"num_response_tokens": 300.0, "sample_s": 4.0, "engine_busy_share": 0.6, "grade_s_sum": 2.0},
    ]
    assert combine_sample_metrics(parts) == {
        "num_response_tokens": 400.0,
        "sample_s": 4.0,  # they ran side by side
        "engine_busy_share": pytest.approx(0.7),
        "grade_s_sum": 3.0,
        "response_tokens_per_s": 100.0,  # 400 tokens in 4 s
    }
