"""avg@k and pass@k of several samples per problem, with bootstrap intervals. Pure numpy.

P problems; problem i has n_i samples of which c_i are correct.
"""

import math
from collections.abc import Sequence

import numpy as np

_NUM_RESAMPLES = 2000
_CONFIDENCE = 0.95


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Return the unbiased estimate of the chance that one of k samples is correct.

    pass@k = 1 - C(n - c, k) / C(n, k)   (Chen et al. 2021, arXiv 2107.03374, eq. 1)

    Args:
        num_samples: n.
        num_correct: c.
        k: samples drawn without replacement.

    Raises:
        ValueError: unless 0 <= c <= n and 1 <= k <= n: with fewer samples than k there is no unbiased estimate.
    """
    if not 0 <= num_correct <= num_samples:
        raise ValueError(f"`num_correct` ({num_correct}) should be within [0, {num_samples}], the number of samples.")
    if not 1 <= k <= num_samples:
        raise ValueError(f"`k` ({k}) should be within [1, {num_samples}], the number of samples.")
    return 1 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def powers_up_to(k: int) -> list[int]:
    """Return 1, 2, 4, ... below k, and k: the k of the pass@k that are reported."""
    return [*(2**i for i in range(k.bit_length()) if 2**i < k), k]


def bootstrap_interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Return the 95% percentile bootstrap interval of the mean, problems drawn with replacement.

    Args:
        values: (P,) one figure per problem.
        seed: of the draws: the same values give the same interval.

    Returns:
        Lower and upper end; NaN without values.
    """
    if not len(values):
        return math.nan, math.nan
    drawn = np.random.default_rng(seed).integers(len(values), size=(_NUM_RESAMPLES, len(values)))
    means = np.asarray(values, np.float64)[drawn].mean(axis=1)  # (resamples,)
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)
