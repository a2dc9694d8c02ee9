"""The objective: a clipped policy gradient per response token, an optional KL to the base model, an optional entropy
bonus.

Everything is returned as a *sum* over response tokens. Whoever has all micro-batches of a mini-batch, on all ranks,
divides by their number of response tokens, so that gradient and figures do not depend on how the mini-batch was split
(SkyRL#1296 did). Pure torch. Shapes: B rows, T tokens, N tokens in a chunk, D hidden size, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

# Names of a policy's outputs; what else the objective needs has RLlib's names (`learners.batching`).
LOGP = "logp"
ENTROPY = "entropy"
REF_LOGP = "ref_logp"

# Logits held at once, in elements: 256 MB in float32. One chunk is enough for small vocabularies.
MAX_LOGITS = 1 << 26


@dataclass(frozen=True, slots=True)
class LossSums:
    """Sums over the response tokens of a micro-batch, scalars.

    Args:
        total: The objective to minimise; carries the gradient.
        policy: The clipped policy-gradient term.
        kl: k3 estimate of KL(policy || base), 0 without `ref_logp`.
        entropy: Entropy of the policy's distribution.
        clipped: Number of tokens whose gradient the clip removed.
    """

    total: torch.Tensor
    policy: torch.Tensor
    kl: torch.Tensor
    entropy: torch.Tensor
    clipped: torch.Tensor


def loss_sums(
    *,
    logp: torch.Tensor,
    entropy: torch.Tensor,
    action_logp: torch.Tensor,
    advantages: torch.Tensor,
    loss_mask: torch.Tensor,
    clip_param: float,
    clip_param_high: float,
    ref_logp: torch.Tensor | None = None,
    kl_coeff: float = 0.0,
    entropy_coeff: float = 0.0,
) -> LossSums:
    """Return the objective of a micro-batch.

    With r = exp(logp - action_logp) and clip(r) = min(max(r, 1 - clip_param), 1 + clip_param_high), per response token

        - min(r A, clip(r) A) + kl_coeff k3 - entropy_coeff H

    (PPO, arXiv 1707.06347, eq. 7; GRPO, arXiv 2402.03300, eq. 3 and for k3 eq. 4; two clip ranges: DAPO, arXiv
    2503.14476, section 3.1; summed over tokens rather than averaged per episode first: DAPO, section 3.3). Differs:
    the old policy's log-probs are the sampler's own, not recomputed by the learner, so that r corrects for whatever
    differs between the two.

    What lies outside the mask never enters, not even as 0 * NaN (SkyRL#1635).

    Args:
        logp: (B, T) the learner's log-probs, with gradient.
        entropy: (B, T) of the distribution each token was drawn from.
        action_logp: (B, T) the sampler's log-probs.
        advantages: (B, 1) or (B, T).
        loss_mask: (B, T) bool, True on response tokens.
        clip_param: How far below 1 the ratio may go.
        clip_param_high: How far above 1 the ratio may go.
        ref_logp: (B, T) the frozen base model's log-probs.
        kl_coeff: Weight of k3; above 0 it needs `ref_logp`.
        entropy_coeff: Weight of the entropy bonus; above 0 `entropy` must carry gradient.
    """
    log_ratio = torch.where(loss_mask, logp - action_logp, 0.0)
    ratio = log_ratio.exp()
    unclipped = ratio * advantages
    clipped = ratio.clamp(1 - clip_param, 1 + clip_param_high) * advantages
    policy = _masked_sum(-torch.minimum(unclipped, clipped), loss_mask)
    entropy_sum = _masked_sum(entropy, loss_mask)
    kl = policy.new_zeros(())
    if ref_logp is not None:
        kl = _masked_sum(k3(torch.where(loss_mask, logp - ref_logp, 0.0)), loss_mask)
    total = policy
    if kl_coeff > 0:
        if ref_logp is None:
            raise ValueError(f"`kl_coeff` ({kl_coeff}) needs `ref_logp`, the base model's log-probs.")
        total = total + kl_coeff * kl
    if entropy_coeff > 0:
        total = total - entropy_coeff * entropy_sum
    return LossSums(
        total=total,
        policy=policy.detach(),
        kl=kl.detach(),
        entropy=entropy_sum.detach(),
        clipped=_masked_sum((clipped < unclipped).float(), loss_mask).detach(),
    )


def k3(log_ratio: torch.Tensor) -> torch.Tensor:
    """Return the k3 estimate of KL(policy || base) per token, which no token makes negative.

    k3 = exp(-d) + d - 1 with d = logp - ref_logp (J. Schulman, "Approximating KL Divergence", 2020; arXiv 2402.03300,
    eq. 4).
    """
    return torch.expm1(-log_ratio) + log_ratio


def token_logp(
    hidden_ND: torch.Tensor,
    head_VD: torch.Tensor,
    targets_N: torch.Tensor,
    *,
    temperature: float,
    with_entropy_grad: bool = False,
    max_logits: int = MAX_LOGITS,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-prob of each target and entropy of each distribution, softmax(hidden head^T / temperature).

    Logits of a 150,000-token vocabulary are larger than everything else in a training step, so they are made chunk by
    chunk and, where there is more than one, made again in the backward pass instead of kept.

    Args:
        hidden_ND: (N, D) last hidden states, each at the position before its target.
        head_VD: (V, D) output embedding.
        targets_N: (N,) int64.
        temperature: The sampler's, so that `logp` is that of the distribution really sampled from.
        with_entropy_grad: Let the entropy carry gradient.
        max_logits: Most logits in memory at once, in elements.

    Returns:
        Two (N,) float32 tensors.
    """
    size = max(1, max_logits // len(head_VD))
    if len(hidden_ND) <= size:
        return _chunk_logp(hidden_ND, head_VD, targets_N, temperature, with_entropy_grad)
    parts = [
        checkpoint(_chunk_logp, hidden, head_VD, targets, temperature, with_entropy_grad, use_reentrant=False)
        for hidden, targets in zip(hidden_ND.split(size), targets_N.split(size), strict=True)
    ]
    return torch.cat([logp for logp, _ in parts]), torch.cat([entropy for _, entropy in parts])


def _chunk_logp(
    hidden_ND: torch.Tensor, head_VD: torch.Tensor, targets_N: torch.Tensor, temperature: float, entropy_grad: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    logits_NV = functional.linear(hidden_ND, head_VD).float() / temperature
    logp_NV = logits_NV.log_softmax(dim=-1)
    with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
        entropy_N = -(logp_NV.exp() * logp_NV).sum(dim=-1)
    return logp_NV.gather(1, targets_N.unsqueeze(1)).squeeze(1), entropy_N


def _masked_sum(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.where(mask, values, 0.0).sum()
