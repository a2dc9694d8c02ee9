"""The update on one rank: accumulate a mini-batch's gradient over micro-batches, check it, clip, step. Torch, no
Ray."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from learners import fsdp
from learners.batching import MicroBatch, MiniBatch, collate
from learners.episodes import TokenEpisode
from learners.losses import LOGP, REF_LOGP, LossSums
from learners.update_figures import UpdateFigures, UpdateResult

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSettings:
    """What an update needs to know, as named in `ToRLConfig`.

    Args:
        lr: Learning rate after the warm-up.
        warmup_steps: Optimizer steps over which the rate rises linearly from 0.
        grad_clip: Largest norm of the gradient; None does not clip.
        logp_diff_limit: Largest accepted |logp - action_logp| before the first step.
        measures_kl: Whether `ref_logp` is computed.
    """

    lr: float
    warmup_steps: int
    grad_clip: float | None
    logp_diff_limit: float
    measures_kl: bool


class PolicyUpdate:
    """Optimizer steps of one policy; every rank has one, and they run it together.

    Args:
        policy: (batch) -> {"logp", "entropy"}, each (B, T), with gradient.
        ref_logp: (batch) -> (B, T) log-probs of the base model; called if `settings.measures_kl`.
        loss: (batch, forward) -> sums over response tokens.
        optimizer: Over the trained parameters, in one group.
        device: Where the tensors go.
        settings: See there.

    Attributes:
        num_steps: Optimizer steps taken since the start of training.
    """

    def __init__(
        self,
        *,
        policy: Callable[[Batch], Batch],
        ref_logp: Callable[[Batch], torch.Tensor],
        loss: Callable[[Batch, Batch], LossSums],
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        settings: UpdateSettings,
    ) -> None:
        self.num_steps = 0
        self._policy = policy
        self._ref_logp = ref_logp
        self._loss = loss
        self._optimizer = optimizer
        self._device = device
        self._settings = settings

    def run(self, minibatches: Sequence[MiniBatch], episodes: Mapping[int, TokenEpisode]) -> UpdateResult:
        """Take one optimizer step per mini-batch. Collective.

        Args:
            minibatches: This rank's part of `learners.batching.plan_update`.
            episodes: This rank's rows by id.

        Returns:
            Metrics of all ranks, log-probs of this rank's rows.

        Raises:
            FloatingPointError: on all ranks, naming the rows, if a log-prob or the loss is not finite, or if the
                gradient is not; no step is taken from that mini-batch.
            RuntimeError: on all ranks, if the learner's log-probs are not the sampler's.
        """
        total = UpdateFigures()
        grad_norms = []
        logp_diff_max = None
        for minibatch in minibatches:
            figures = UpdateFigures()
            try:
                for micro_batch in minibatch.micro_batches:
                    self._accumulate(micro_batch, episodes, minibatch.num_tokens, figures)
                largest = self._checked(figures)
                if logp_diff_max is None:
                    logp_diff_max = self._agreeing(largest)
                    total.logp_diff = figures.logp_diff
                grad_norms.append(self._step())
            finally:
                self._optimizer.zero_grad(set_to_none=True)
            total.add(figures)
        policy, entropy, clipped, kl, logp_diff = fsdp.reduced(
            [total.policy, total.entropy, total.clipped, total.kl, total.logp_diff], self._device
        )
        num_tokens = sum(minibatch.num_tokens for minibatch in minibatches)
        metrics = {
            "policy_loss": policy / num_tokens,
            "entropy": entropy / num_tokens,
            "clip_fraction": clipped / num_tokens,
            "logp_diff_max": logp_diff_max or 0.0,
            "logp_diff_mean": logp_diff / minibatches[0].num_tokens,
            "grad_norm": float(np.mean(grad_norms)),
            "num_optimizer_steps": float(self.num_steps),
            "lr": self._optimizer.param_groups[0]["lr"],
        }
        if self._settings.measures_kl:
            metrics["kl"] = kl / num_tokens
        return UpdateResult(metrics, total.logp)

    def _accumulate(
        self, micro_batch: MicroBatch, episodes: Mapping[int, TokenEpisode], num_tokens: int, figures: UpdateFigures
    ) -> None:
        """Add a micro-batch's gradient and figures."""
        rows = micro_batch.rows
        row_episodes = [episodes[row.row_id] for row in rows]
        batch = collate(row_episodes, [row.advantage for row in rows])
        batch = {name: tensor.to(self._device) for name, tensor in batch.items()}
        with torch.set_grad_enabled(micro_batch.trains):
            forward = self._policy(batch)
            if self._settings.measures_kl:
                with torch.no_grad():
                    batch[REF_LOGP] = self._ref_logp(batch)
            sums = self._loss(batch, forward)
        if micro_batch.trains:
            # FSDP averages gradients over ranks, while the token-mean is over all of them.
            (sums.total * (fsdp.world_size() / num_tokens)).backward()
        figures.add_micro_batch(rows, row_episodes, forward[LOGP].detach(), sums)

    def _checked(self, figures: UpdateFigures) -> float:
        """Return the largest |logp - action_logp| of all ranks, if all numbers are finite on all of them."""
        any_bad, logp_diff_max = fsdp.reduced(
            [float(bool(figures.bad_rows)), figures.logp_diff_max], self._device, largest=True
        )
        if any_bad:
            raise FloatingPointError(
                f"Log-probs or loss are not finite in rows {sorted(fsdp.all_gathered(figures.bad_rows))}; no step was "
                f"taken from their mini-batch. Look at the rows' `action_logp`, at `lr` and at `grad_clip`."
            )
        return logp_diff_max

    def _agreeing(self, logp_diff_max: float) -> float:
        """Return the difference if it is within the limit: before the first step both sides have the same weights."""
        limit = self._settings.logp_diff_limit
        if logp_diff_max > limit:
            raise RuntimeError(
                f"The sampler's log-probs are not the learner's: they differ by up to {logp_diff_max:.3g} "
                f"(`logp_diff_limit` is {limit:.3g}). The engine samples with other weights (a weight sync that did "
                f"not arrive?), at another temperature, or with settings that change its distribution."
            )
        return logp_diff_max

    def _step(self) -> float:
        """Clip, step and return the gradient's norm before clipping."""
        settings, group = self._settings, self._optimizer.param_groups[0]
        grad_norm = fsdp.clip_grad_norm(group["params"], settings.grad_clip)
        if not np.isfinite(grad_norm):
            raise FloatingPointError(f"The gradient's norm is {grad_norm}; no step was taken. Try a lower `lr`.")
        self.num_steps += 1
        group["lr"] = settings.lr * min(1.0, self.num_steps / max(1, settings.warmup_steps))
        self._optimizer.step()
        return grad_norm
