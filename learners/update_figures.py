"""What is measured while an update runs, on one rank, as sums; and what the whole update returns."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from learners.batching import RowRef
from learners.episodes import TokenEpisode
from learners.losses import LossSums


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What one update did.

    Args:
        metrics: Figures over all ranks: `policy_loss`, `entropy`, `clip_fraction`, and `kl` where it is measured, are
            means per response token over all mini-batches; `grad_norm` the mean over optimizer steps, before clipping;
            `logp_diff_max` and `logp_diff_mean` compare sampler and learner before the first step;
            `num_optimizer_steps` counts from the start of training; `lr` is the last step's.
        logp: Row id to the learner's log-probs of its response tokens (float32), taken just before the step it was
            used in.
    """

    metrics: dict[str, float]
    logp: dict[int, np.ndarray]


@dataclass(slots=True)
class UpdateFigures:
    """Sums over the response tokens one rank has seen.

    Args:
        policy, entropy, kl, clipped: As in `LossSums`.
        logp_diff: Sum of |logp - action_logp|; `logp_diff_max` its largest term.
        bad_rows: Ids of rows whose log-probs or loss are not finite.
        logp: As in `UpdateResult`.
    """

    policy: float = 0.0
    entropy: float = 0.0
    kl: float = 0.0
    clipped: float = 0.0
    logp_diff: float = 0.0
    logp_diff_max: float = 0.0
    bad_rows: list[int] = field(default_factory=list)
    logp: dict[int, np.ndarray] = field(default_factory=dict)

    def add_micro_batch(
        self, rows: Sequence[RowRef], episodes: Sequence[TokenEpisode], logp_BT: torch.Tensor, sums: LossSums
    ) -> None:
        """Add what a forward pass gave."""
        # One transfer for all of them: each would wait for the GPU.
        total, policy, entropy, kl, clipped = torch.stack(
            [sums.total.detach(), sums.policy, sums.entropy, sums.kl, sums.clipped]
        ).tolist()
        self.policy += policy
        self.entropy += entropy
        self.kl += kl
        self.clipped += clipped
        logp = logp_BT.cpu().numpy()
        for i, (row, episode) in enumerate(zip(rows, episodes, strict=True)):
            mask = episode.loss_mask
            row_logp = logp[i, : episode.num_tokens][mask]
            difference = np.abs(row_logp - episode.action_logp[mask])
            self.logp[row.row_id] = row_logp
            self.logp_diff += float(difference.sum(dtype=np.float64))
            self.logp_diff_max = max(self.logp_diff_max, float(difference.max()))
            if not np.isfinite(row_logp).all():
                self.bad_rows.append(row.row_id)
        if not np.isfinite(total) and not self.bad_rows:
            # A ratio that overflowed: one of these, the sum no longer tells which.
            self.bad_rows.extend(row.row_id for row in rows)

    def add(self, other: "UpdateFigures") -> None:
        """Add another mini-batch's figures; the comparison of log-probs is the first one's alone."""
        self.policy += other.policy
        self.entropy += other.entropy
        self.kl += other.kl
        self.clipped += other.clipped
        self.logp.update(other.logp)
