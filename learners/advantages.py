"""Group-relative advantages: what an episode won compared with the other episodes of the same problem. Pure numpy."""

import numpy as np


def group_advantages(
    rewards_G: np.ndarray, counts_G: np.ndarray, *, normalize_std: bool = True, eps: float = 1e-6
) -> np.ndarray:
    """Return the advantage of each episode of one group.

    A_i = (r_i - mean(r)) / (std(r) + eps) over the members that count (GRPO: DeepSeekMath, arXiv 2402.03300, section
    4.1.2; population standard deviation). Without the division this is Dr. GRPO (arXiv 2503.20783), which does not
    favour problems whose rewards hardly vary. Differs: an episode that says nothing about the policy (sandbox or
    grader failed) gets 0 and leaves mean and deviation, so that it pulls no other member's advantage.

    Args:
        rewards_G: (G,) undiscounted returns of one group's episodes.
        counts_G: (G,) bool, False where an episode is excluded; its reward is not looked at and may be NaN.
        normalize_std: Divide by the standard deviation.
        eps: Added to the standard deviation.

    Returns:
        (G,) float32; all zeros if fewer than two members count or all their rewards are equal.

    Raises:
        ValueError: if the shapes differ, or a counted reward is not finite.
    """
    if rewards_G.shape != counts_G.shape or rewards_G.ndim != 1:
        raise ValueError(
            f"`rewards_G` and `counts_G` must both be (G,), one entry per episode. "
            f"Received {rewards_G.shape} and {counts_G.shape}."
        )
    advantages_G = np.zeros(len(rewards_G), np.float32)
    counts_G = counts_G.astype(bool)
    rewards = rewards_G[counts_G].astype(np.float64)
    if not np.isfinite(rewards).all():
        raise ValueError(f"Rewards of episodes that count must be finite. Received {rewards_G.tolist()}.")
    # Equal rewards are compared, not subtracted: rounding in the mean would turn 0 / eps into a visible number.
    if len(rewards) < 2 or (rewards == rewards[0]).all():
        return advantages_G
    advantages = rewards - rewards.mean()
    if normalize_std:
        advantages /= rewards.std() + eps
    advantages_G[counts_G] = advantages
    return advantages_G
