"""Group-relative advantages, with the numbers worked out by hand."""

import numpy as np
import pytest

from learners.advantages import group_advantages

ALL = np.ones(4, bool)


def test_a_mixed_group_is_centred_and_scaled_to_unit_deviation() -> None:
    # rewards 1 1 1 -1: mean 0.5, variance (3 * 0.25 + 2.25) / 4 = 0.75, deviation 0.8660254
    # 0.5 / 0.8660254 = 0.5773503 and -1.5 / 0.8660254 = -1.7320508
    advantages = group_advantages(np.array([1.0, 1.0, 1.0, -1.0]), ALL)
    np.testing.assert_allclose(advantages, [0.5773503, 0.5773503, 0.5773503, -1.7320508], rtol=3e-6)
    assert advantages.dtype == np.float32


def test_without_the_deviation_advantages_are_differences_to_the_mean() -> None:
    advantages = group_advantages(np.array([1.0, 1.0, 1.0, -1.0]), ALL, normalize_std=False)
    np.testing.assert_array_equal(advantages, np.array([0.5, 0.5, 0.5, -1.5], np.float32))


def test_an_excluded_member_gets_zero_and_leaves_the_baseline() -> None:
    # Counted: 1 and -1, mean 0, deviation 1. With the excluded -1 in it the mean would be -1/3.
    counts = np.array([True, False, True])
    advantages = group_advantages(np.array([1.0, -1.0, -1.0]), counts, eps=0.0)
    np.testing.assert_array_equal(advantages, np.array([1.0, 0.0, -1.0], np.float32))


def test_the_reward_of_an_excluded_member_may_be_nan() -> None:
    advantages = group_advantages(np.array([1.0, np.nan, -1.0]), np.array([True, False, True]), eps=0.0)
    np.testing.assert_array_equal(advantages, np.array([1.0, 0.0, -1.0], np.float32))


@pytest.mark.parametrize("reward", [1.0, -1.0, 0.1])
def test_equal_rewards_give_exactly_zero(reward: float) -> None:
    assert not group_advantages(np.full(7, reward), np.ones(7, bool)).any()


def test_a_single_counted_member_has_nothing_to_be_compared_with() -> None:
    assert not group_advantages(np.array([1.0, -1.0]), np.array([True, False])).any()


def test_a_counted_reward_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="must be finite"):
        group_advantages(np.array([1.0, np.nan]), np.ones(2, bool))


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Received \(3,\) and \(2,\)"):
        group_advantages(np.zeros(3), np.ones(2, bool))
