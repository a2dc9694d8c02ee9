"""Episode carriers: lengths and masks are checked once at construction; RLlib callbacks see text."""

import numpy as np
import pytest

from learners.episodes import EpisodeRecord, TokenEpisode, ToolCall, to_single_agent_episode


def make_episode(**changes):
    # The docstring's worked example: P P P R R R O O R R.
    fields = {
        "token_ids": np.array([7, 8, 9, 20, 21, 22, 30, 31, 23, 24], np.int32),
        "loss_mask": np.array([0, 0, 0, 1, 1, 1, 0, 0, 1, 1], np.bool_),
        "action_logp": np.array([0, 0, 0, -1, -2, -3, 0, 0, -4, -5], np.float32),
        "prompt_length": 3,
        "policy_version": 4,
    }
    return TokenEpisode(**(fields | changes))


def make_record(**changes):
    fields = {
        "group_id": 1,
        "sample_index": 0,
        "problem_id": "p1",
        "kind": "sum",
        "reward": 1.0,
        "verdict": "correct",
        "terminated": True,
        "truncated": False,
        "stop_reason": "answered",
        "policy_version": 4,
        "num_prompt_tokens": 3,
        "num_tokens": 10,
        "num_response_tokens": 5,
        "turns": (("prompt", "Q"), ("response", "code"), ("observation", "out"), ("response", "answer")),
        "tool_calls": (ToolCall("success", 0.1, 0.0, 0.2),),
    }
    return EpisodeRecord(**(fields | changes))


def test_the_worked_example_is_accepted_and_counted():
    episode = make_episode()
    assert episode.num_tokens == 10
    assert episode.num_response_tokens == 5  # R R R + R R


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"loss_mask": np.ones(9, np.bool_)}, "`loss_mask` must be bool of shape"),
        ({"loss_mask": np.array([0, 0, 1, 1, 1, 1, 0, 0, 1, 1], np.bool_)}, "prompt tokens"),
        ({"token_ids": np.arange(10)}, "`token_ids` must be int32"),
        ({"prompt_length": 0}, "`prompt_length` must lie in"),
        ({"prompt_length": 11}, "`prompt_length` must lie in"),
        ({"action_logp": np.array([0, 0, 0, -1, np.nan, -3, 0, 0, -4, -5], np.float32)}, "finite.*token 4"),
        ({"action_logp": np.array([0, 0, 0, -1, -2, -3, -1, 0, -4, -5], np.float32)}, "must be 0 where"),
    ],
)
def test_contradicting_arrays_are_rejected(changes, message):
    with pytest.raises(ValueError, match=message):
        make_episode(**changes)


@pytest.mark.parametrize("stop_reason", ["answered", "max_response_tokens"])
def test_an_episode_the_policy_ended_counts(stop_reason):
    assert make_record(stop_reason=stop_reason).counts


@pytest.mark.parametrize("stop_reason", ["sandbox_error", "grader_unknown", "prompt_too_long", "engine_error"])
def test_an_episode_the_infrastructure_ended_does_not_count(stop_reason):
    assert not make_record(stop_reason=stop_reason).counts


def test_a_callback_sees_one_step_per_response_with_text_and_reward():
    episode = to_single_agent_episode(make_record())
    assert len(episode) == 2 and episode.is_terminated and not episode.is_truncated
    assert list(episode.get_observations()) == ["Q", "out", ""]
    assert list(episode.get_actions()) == ["code", "answer"]
    assert list(episode.get_rewards()) == [0.0, 1.0] and episode.get_return() == 1.0
    assert episode.get_infos(-1)["record"].problem_id == "p1"


def test_an_episode_without_a_response_is_over_and_has_no_steps():
    record = make_record(turns=(("prompt", "Q"),), terminated=False, truncated=True, stop_reason="prompt_too_long")
    episode = to_single_agent_episode(record)
    assert len(episode) == 0 and episode.is_done
