"""95% intervals in closed form: of a share, and of a mean of a few independent runs."""

import math
from collections.abc import Mapping, Sequence

_Z_95 = 1.959964


def wilson(share: float, num: int) -> tuple[float, float]:
    """Return the 95% interval of a share of `num` independent answers (Wilson, 1927); NaNs if there are none."""
    if num == 0 or math.isnan(share):
        return math.nan, math.nan
    z2 = _Z_95**2
    middle = share + z2 / (2 * num)
    half = _Z_95 * math.sqrt(share * (1 - share) / num + z2 / (4 * num**2))
    low, high = (middle - half) / (1 + z2 / num), (middle + half) / (1 + z2 / num)
    return min(low, share), max(high, share)  # at 0 and 1 an end is the share itself, and rounding may miss it


def num_judged(evaluation: Mapping[str, float]) -> int:
    """Return how many episodes of an evaluation its accuracy is a share of, 0 if its figures do not say."""
    return round(evaluation.get("num_episodes", 0) * (1 - evaluation.get("excluded_ratio", 0)))


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95% interval of the mean of independent shares (Student's t); NaNs if they do not show their spread.

    Fewer than two do not, and equal ones: two runs that happen to agree leave the next one open.
    The interval stays within [0, 1], as the mean does: that of two runs would mostly go beyond.
    """
    if len(set(values)) < 2:
        return math.nan, math.nan
    from scipy.stats import t

    middle = sum(values) / len(values)
    variance = sum((value - middle) ** 2 for value in values) / (len(values) - 1)
    half = t.ppf(0.975, len(values) - 1) * math.sqrt(variance / len(values))
    return max(middle - half, 0.0), min(middle + half, 1.0)  # in this order NaN stays NaN
