"""What the paper reports (arXiv 2503.23383), to stand beside our own figures."""

# Accuracy in percent as printed in Table 3, in the order of `suites.SUITES`, and the average printed beside it. Two of
# the averages are not the mean of their rows: that of Qwen2.5-Math-1.5B-Instruct-TIR is 39.3, ToRL-7B's 56.1.
PUBLISHED: dict[str, tuple[tuple[float, float, float, float, float], float]] = {
    "Qwen2.5-Math-1.5B-Instruct": ((10.0, 10.0, 66.0, 31.0, 62.5), 35.9),
    "Qwen2.5-Math-1.5B-Instruct-TIR": ((13.3, 13.3, 73.8, 41.3, 55.0), 41.3),
    "ToRL-1.5B": ((26.7, 26.7, 77.8, 44.0, 67.5), 48.5),
    "Qwen2.5-Math-7B-Instruct": ((10.0, 16.7, 74.8, 32.4, 65.0), 39.8),
    "Qwen2.5-Math-7B-Instruct-TIR": ((26.7, 16.7, 78.8, 45.0, 70.0), 47.4),
    "ToRL-7B": ((43.3, 30.0, 82.2, 49.9, 75.0), 62.1),
}

_STEP_S = {0: 118.0, 1: 237.0, 2: 288.0}  # Table 4: mean seconds per step on 8 A800 GPUs, by C


def step_time(calls: float, lowest: float) -> str | None:
    """Return the step time at C = `calls` and its ratio to that at C = `lowest`; None where the paper has not both."""
    if calls not in _STEP_S or lowest not in _STEP_S:
        return None
    return f"{_STEP_S[int(calls)]:.0f} s, {_STEP_S[int(calls)] / _STEP_S[int(lowest)]:.2f} x"
