"""Intervals in closed form, against calculations by hand."""

import math

import pytest

from experiments.intervals import mean_interval, num_judged, wilson


def test_wilson_interval_agrees_with_a_calculation_by_hand() -> None:
    # Half of 100: the centre is (0.5 + 3.8415 / 200) / 1.038415 = 0.5,
    # half the width 1.96 sqrt(0.0025 + 3.8415 / 40000) / 1.038415 = 0.09617.
    low, high = wilson(0.5, 100)
    assert (low, high) == (pytest.approx(0.40383, abs=1e-5), pytest.approx(0.59617, abs=1e-5))
    # All correct: the upper end is 1, the lower 1 / (1 + z^2/n) = 100 / 103.8415.
    assert wilson(1.0, 100) == (pytest.approx(0.96301, abs=1e-5), pytest.approx(1.0))
    assert all(math.isnan(end) for end in wilson(0.5, 0))
    assert all(wilson(0.0, num)[0] <= 0.0 and wilson(1.0, num)[1] >= 1.0 for num in range(1, 1000))


def test_interval_of_a_mean_agrees_with_a_calculation_by_hand() -> None:
    # mean 0.5, standard deviation 0.1, t(0.975, 2) = 4.30265: half = 0.430265 / sqrt(3) = 0.248414
    assert mean_interval([0.4, 0.5, 0.6]) == (pytest.approx(0.251586, abs=1e-6), pytest.approx(0.748414, abs=1e-6))
    assert mean_interval([0.125, 0.5]) == (0.0, 1.0)
    assert all(math.isnan(end) for end in mean_interval([0.5, math.nan]))
    assert all(math.isnan(end) for end in mean_interval([1.0]))
    assert all(math.isnan(end) for end in mean_interval([0.125, 0.125]))


def test_answers_that_were_not_judged_are_no_part_of_the_share() -> None:
    assert num_judged({"num_episodes": 200.0, "excluded_ratio": 0.015}) == 197
    assert num_judged({"num_episodes": 200.0}) == 200
    assert num_judged({"accuracy": 0.5}) == 0
