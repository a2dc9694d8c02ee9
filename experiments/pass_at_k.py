"""avg@k and pass@k of several samples per problem, with 95% intervals over problems. Pure numpy.

P problems; problem i has n_i samples of which c_i are correct.
"""

import math
from collections.abc import Sequence

import numpy as np

from experiments.intervals import wilson

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


def interval_of_mean(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Return the 95% interval of the mean: the percentile bootstrap's, problems drawn with replacement.

    Where all values are equal, such as no problem solved, every draw is alike and the bootstrap would claim certainty:
    0 to 0 from 40 problems. There it is Wilson's interval for P yes-or-no answers instead, which is at least as wide
    as it need be for values within [0, 1]: their variance is at most that of such answers with the same mean.

    Args:
        values: (P,) one figure per problem, within [0, 1].
        seed: of the draws: the same values give the same interval.

    Returns:
        Lower and upper end; NaN without values.
    """
    if not len(values):
        return math.nan, math.nan
    if min(values) == max(values):
        return wilson(values[0], len(values))
    drawn = np.random.default_rng(seed).integers(len(values), size=(_NUM_RESAMPLES, len(values)))
    means = np.asarray(values, np.float64)[drawn].mean(axis=1)  # (resamples,)
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)
