"""pass@k by hand and by brute force; intervals over problems."""

import itertools
import math

import numpy as np
import pytest

from experiments.pass_at_k import interval_of_mean, pass_at_k, powers_up_to


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [
        (4, 0, 2, 0.0),
        (4, 1, 1, 0.25),  # pass@1 is the share that is correct
        (4, 1, 2, 0.5),  # 1 - C(3, 2) / C(4, 2) = 1 - 3/6
        (4, 2, 2, 5 / 6),  # 1 - C(2, 2) / C(4, 2) = 1 - 1/6
        (4, 3, 2, 1.0),  # two of four always include one of the three
        (10, 3, 5, 1 - 21 / 252),  # 1 - C(7, 5) / C(10, 5)
    ],
)
def test_pass_at_k_by_hand(n: int, c: int, k: int, expected: float) -> None:
    assert pass_at_k(n, c, k) == pytest.approx(expected)


def test_pass_at_k_is_the_share_of_draws_with_a_correct_sample() -> None:
    for n, c, k in itertools.product(range(1, 7), range(7), range(1, 7)):
        if c <= n and k <= n:
            draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
            assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 1, 5), (4, 1, 0)])
def test_what_cannot_be_estimated_is_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="should be within"):
        pass_at_k(n, c, k)


def test_reported_ks_are_powers_of_two_and_k_itself() -> None:
    assert [powers_up_to(k) for k in (1, 2, 3, 4, 6)] == [[1], [1, 2], [1, 2, 3], [1, 2, 4], [1, 2, 4, 6]]


def test_the_interval_holds_the_mean_shrinks_with_the_problems_and_is_the_seeds() -> None:
    few, many = [0.0, 1.0] * 10, [0.0, 1.0] * 1000
    assert interval_of_mean(few) == interval_of_mean(few) != interval_of_mean(few, seed=1)
    low, high = interval_of_mean(many)
    # The standard error of 2,000 fair coins is 0.5 / sqrt(2000) = 0.0112; 1.96 of them on each side.
    assert (low, high) == (pytest.approx(0.5 - 0.0219, abs=0.002), pytest.approx(0.5 + 0.0219, abs=0.002))
    assert np.diff(interval_of_mean(few)) > 5 * (high - low)


def test_equal_values_are_no_certainty() -> None:
    # None of 40 solved. By hand, Wilson's upper end is z^2 / (n + z^2) = 3.8415 / 43.8415.
    assert interval_of_mean([0.0] * 40) == (0.0, pytest.approx(0.08762, abs=1e-5))
    assert interval_of_mean([1.0] * 40) == (pytest.approx(1 - 0.08762, abs=1e-5), 1.0)
    low, high = interval_of_mean([0.25] * 5)  # one of four samples of each problem
    assert low < 0.25 < high


def test_the_interval_of_no_problems_is_unknown() -> None:
    assert all(map(math.isnan, interval_of_mean([])))
