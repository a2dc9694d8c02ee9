"""`LLMLearner`: one rank of the policy's update as RLlib's `TorchLearner`."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
import torch
from ray.rllib.core import COMPONENT_OPTIMIZER, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.core.learner.learner import Learner
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
from ray.rllib.utils.annotations import override
from ray.rllib.utils.framework import get_device
from ray.train._internal.utils import get_address_and_port
from transformers.utils import logging as transformers_logging

from learners import fsdp
from learners.batching import ACTION_LOGP, ADVANTAGES, LOSS_MASK, MiniBatch
from learners.episodes import TokenEpisode
from learners.losses import ENTROPY, LOGP, REF_LOGP, LossSums, loss_sums
from learners.rl_module import CausalLMModule, causal_lm_spec
from learners.update import Batch, PolicyUpdate, UpdateSettings
from learners.update_figures import UpdateResult
from learners.weight_sync import TransferGroup, WeightSender

NUM_OPTIMIZER_STEPS = "num_optimizer_steps"

# Largest accepted difference between the sampler's and the learner's log-prob of a token, where the user sets none.
# Both agree to 1e-5 in float32; in bfloat16 they differ by design, and by how much depends on the model.
_LOGP_DIFF_LIMIT = {"float32": 1e-4, "bfloat16": float("inf")}


class LLMLearner(TorchLearner):
    """RLlib's torch learner for a causal language model trained on token rows.

    `update_rows` takes the place of `update`, whose episode path slices and re-groups what it is given. Methods marked
    collective run on all learners at once (`LLMLearnerGroup` sees to it), or hang.
    """

    _sender: WeightSender | None = None

    @override(TorchLearner)
    def build(self) -> None:
        """Load, shard, set up the optimizer. Collective.

        Raises:
            ValueError: for bfloat16 without a process group.
        """
        config = self.config
        transformers_logging.disable_progress_bar()
        torch.set_num_threads(
            config.learner_threads or max(1, len(os.sched_getaffinity(0)) // max(1, config.num_learners))
        )
        self._mesh = fsdp.make_mesh(get_device(config, config.num_gpus_per_learner))
        if self._mesh is None and config.dtype == "bfloat16":
            raise ValueError(
                "`dtype` 'bfloat16' needs `num_learners` >= 1: mixed precision comes with FSDP, which a learner in the "
                "driver's own process does not have."
            )
        super().build()
        self._reference = self._make_reference()
        limit = config.logp_diff_limit
        self._policy_update = PolicyUpdate(
            policy=self._lm,
            ref_logp=self._ref_logp,
            loss=self.loss_sums,
            optimizer=self._optimizer,
            device=self._device,
            settings=UpdateSettings(
                lr=config.lr,
                warmup_steps=config.warmup_steps,
                grad_clip=config.grad_clip,
                logp_diff_limit=_LOGP_DIFF_LIMIT[config.dtype] if limit is None else limit,
                measures_kl=self._measures_kl,
            ),
        )

    @override(Learner)
    def shutdown(self) -> None:
        """Leave the process groups. Collective."""
        if self._sender is not None:
            self._sender.close()
        fsdp.leave_group()

    @override(TorchLearner)
    def _make_module(self) -> MultiRLModule:
        # The algorithm's config describes the policy; a spec of the user's may add to it.
        spec = self._module_spec.rl_module_specs[DEFAULT_MODULE_ID]
        spec.model_config = {**(spec.model_config or {}), **causal_lm_spec(self.config).model_config}
        return super()._make_module()

    @override(TorchLearner)
    def _map_module_to_device(self, module: MultiRLModule) -> None:
        """Shard instead of moving: the optimizer, made next, must see the sharded parameters."""
        if self._mesh is None:
            super()._map_module_to_device(module)
        else:
            fsdp.shard(module[DEFAULT_MODULE_ID], self._mesh, self.config.dtype)

    @override(TorchLearner)
    def _make_modules_ddp_if_necessary(self) -> None:
        """Nothing: FSDP takes the place of DDP."""

    @override(TorchLearner)
    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        """Register AdamW over the trained parameters."""
        parameters = [p for p in self.module[module_id].parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(
            parameters, lr=config.lr, betas=config.adam_betas, weight_decay=config.weight_decay
        )
        self.register_optimizer(module_id=module_id, optimizer=optimizer, params=parameters)

    def _make_reference(self) -> CausalLMModule | None:
        """Return a frozen copy of the base model; None where no KL is measured, or LoRA's own base serves."""
        if not self._measures_kl or self.config.lora_rank:
            return None
        spec = causal_lm_spec(self.config)
        spec.observation_space, spec.action_space = self._lm.observation_space, self._lm.action_space
        reference = spec.build().requires_grad_(False)
        if self._mesh is None:
            return reference.to(self._device)
        fsdp.shard(reference, self._mesh, self.config.dtype, trains=False)
        return reference

    @property
    def _lm(self) -> CausalLMModule:
        return self.module[DEFAULT_MODULE_ID]

    @property
    def _optimizer(self) -> torch.optim.Optimizer:
        return self.get_optimizer(DEFAULT_MODULE_ID)

    @property
    def _measures_kl(self) -> bool:
        return self.config.kl_coeff > 0 or self.config.measure_kl

    def update_rows(self, minibatches: Sequence[MiniBatch]) -> UpdateResult:
        """Take one optimizer step per mini-batch: see `PolicyUpdate.run`. Collective.

        Raises:
            ValueError: if a row is not what the driver says it is.
        """
        result = self._policy_update.run(minibatches, _fetch(minibatches))
        self._weights_seq_no += 1
        return result

    def loss_sums(self, batch: Batch, forward: Batch) -> LossSums:
        """Return the objective of a micro-batch, summed over response tokens: see `learners.losses`."""
        config = self.config
        return loss_sums(
            logp=forward[LOGP],
            entropy=forward[ENTROPY],
            action_logp=batch[ACTION_LOGP],
            advantages=batch[ADVANTAGES],
            loss_mask=batch[LOSS_MASK],
            clip_param=config.clip_param,
            clip_param_high=config.clip_param if config.clip_param_high is None else config.clip_param_high,
            ref_logp=batch.get(REF_LOGP),
            kl_coeff=config.kl_coeff,
            entropy_coeff=config.entropy_coeff,
        )

    @override(Learner)
    def compute_loss_for_module(self, *, module_id: str, config: Any, batch: Batch, fwd_out: Batch) -> torch.Tensor:
        """Return the total of `loss_sums`, the method to override: `update_rows` calls that one, not RLlib's hook."""
        return self.loss_sums(batch, fwd_out).total

    def _ref_logp(self, batch: Batch) -> torch.Tensor:
        if self._reference is not None:
            return self._reference(batch)[LOGP]
        with self._lm.base_model():
            return self._lm(batch)[LOGP]

    def weights(self) -> list[ray.ObjectRef]:
        """Return, on rank 0 alone, a reference to `{transformers name: tensor}`, whole and in `dtype`. Collective."""
        dtype = getattr(torch, self.config.dtype)
        # Every rank has to gather, only rank 0 keeps.
        weights = {name: weight.cpu() for name, weight in self._lm.named_weights(dtype) if fsdp.rank() == 0}
        return [ray.put(weights)] if fsdp.rank() == 0 else []

    def free_address(self) -> tuple[str, int]:
        """Return this learner's host and a port that is free there."""
        return get_address_and_port()

    def open_weight_transfer(self, group: TransferGroup) -> None:
        """Join the NCCL group of the engines. Collective."""
        self._sender = WeightSender(self._lm, getattr(torch, self.config.dtype), fsdp.rank(), group)

    def send_weights(self, version: int) -> None:
        """Broadcast the weights to the engines as `version`. Collective."""
        assert self._sender is not None, "`open_weight_transfer` comes first"
        self._sender.send(version)

    def export_hf(self, path: str) -> None:
        """Write the policy as a Hugging Face folder; see `CausalLMModule.export_hf`. Collective."""
        self._lm.export_hf(path, write=fsdp.rank() == 0)

    @override(Learner)
    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """Return trained parameters and Adam state by name, whole, on the CPU of rank 0 alone. Collective."""
        state: dict[str, Any] = self._counters()
        if self._check_component(COMPONENT_RL_MODULE, components, not_components):
            state[COMPONENT_RL_MODULE] = {DEFAULT_MODULE_ID: fsdp.full_state(self._parameters())}
        if self._check_component(COMPONENT_OPTIMIZER, components, not_components):
            state[COMPONENT_OPTIMIZER] = fsdp.full_state(self._adam())
        return state

    @override(Learner)
    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned, or the parts of it that are there."""
        if new := state.get(COMPONENT_RL_MODULE, {}).get(DEFAULT_MODULE_ID):
            fsdp.load_full_state(self._parameters(), new)
        if new := state.get(COMPONENT_OPTIMIZER):
            fsdp.load_full_state(self._adam(), new)
        self._set_counters(state)

    @override(Learner)
    def save_to_path(self, path: Any = None, **kwargs: Any) -> str:
        """Write a checkpoint that any number of learners can restore, each rank its own shards. Collective.

        Args:
            path: Folder that all learners see.
            kwargs: RLlib's. A `state` to write instead of the learner's own is refused: it has been gathered already.

        Raises:
            ValueError: if a `state` is given.
        """
        if kwargs.get("state") is not None:
            raise ValueError("`state` cannot be given: each learner writes its own shards. Call `set_state` first.")
        fsdp.save_sharded(self._checkpoint(), Path(path).absolute())
        return str(path)

    @override(Learner)
    def restore_from_path(self, path: Any, **kwargs: Any) -> None:
        """Restore what `save_to_path` wrote. Collective."""
        checkpoint = self._checkpoint()
        fsdp.load_sharded(checkpoint, Path(path).absolute())
        self._set_counters(checkpoint)

    def _checkpoint(self) -> dict[str, Any]:
        return {"parameters": self._parameters(), "adam": self._adam(), **self._counters()}

    def _parameters(self) -> dict[str, torch.Tensor]:
        return fsdp.trained_parameters(self._lm)

    def _adam(self) -> dict[str, torch.Tensor]:
        return fsdp.adam_state(self._lm, self._optimizer)

    def _counters(self) -> dict[str, int]:
        return {NUM_OPTIMIZER_STEPS: self._policy_update.num_steps}

    def _set_counters(self, state: Mapping[str, Any]) -> None:
        self._policy_update.num_steps = state.get(NUM_OPTIMIZER_STEPS, self._policy_update.num_steps)


def _fetch(minibatches: Sequence[MiniBatch]) -> dict[int, TokenEpisode]:
    """Return the episodes by row id, getting each object once."""
    rows = [row for minibatch in minibatches for micro_batch in minibatch.micro_batches for row in micro_batch.rows]
    refs = list({row.ref for row in rows})
    groups = dict(zip(refs, ray.get(refs), strict=True))
    episodes = {row.row_id: groups[row.ref][row.index] for row in rows}
    for row in rows:
        found = episodes[row.row_id].num_tokens, episodes[row.row_id].num_response_tokens
        if found != (row.num_tokens, row.num_response_tokens):
            raise ValueError(
                f"Row {row.row_id} should have {row.num_tokens} tokens, {row.num_response_tokens} of them sampled. The "
                f"object store has {found[0]} and {found[1]}: record and tokens are not of the same episode."
            )
    return episodes
