"""New weights from the learners into the samplers' engines, versioned: after `sync(v)` every engine samples with
version v.

Two ways, chosen by device. Without GPUs, or with one that both share, the first learner puts the whole state into the
object store and every runner loads it from there. With GPUs of their own vLLM's NCCL transfer broadcasts it from the
first learner straight into all engines' memory (`vllm.distributed.weight_transfer`, vllm 0.32); that way has never been
run: what can be checked without a GPU (ranks, rendezvous data, order and shapes of the weights) is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import ray
import torch

if TYPE_CHECKING:
    from ray.actor import ActorHandle
    from ray.rllib.env.env_runner_group import EnvRunnerGroup

    from learners.config import ToRLConfig
    from learners.learner_group import LLMLearnerGroup
    from learners.rl_module import CausalLMModule


class WeightSync(Protocol):
    """Brings every engine to the learners' weights."""

    def sync(self, version: int) -> None:
        """Send the weights as `policy_version` `version` and return when all engines have them.

        Raises:
            RuntimeError: naming what went wrong, if an engine could not take them.
        """


def build_weight_sync(
    config: "ToRLConfig", learner_group: "LLMLearnerGroup", env_runner_group: "EnvRunnerGroup"
) -> WeightSync:
    """Return the NCCL transfer where learners and engines have GPUs of their own, the object store otherwise.

    A part of a GPU means one that both share, and NCCL refuses two ranks on one.
    """
    if config.num_learners > 0 and config.num_gpus_per_learner >= 1 and config.num_gpus_per_env_runner >= 1:
        return NCCLSync(config, learner_group, env_runner_group)
    return ObjectStoreSync(learner_group, env_runner_group)


class ObjectStoreSync:
    """The whole state as one object; runners on the same machine share its memory."""

    def __init__(self, learner_group: "LLMLearnerGroup", env_runner_group: "EnvRunnerGroup") -> None:
        self._learner_group = learner_group
        self._env_runner_group = env_runner_group

    def sync(self, version: int) -> None:
        """See `WeightSync`."""
        reference = self._learner_group.weights()
        errors = self._env_runner_group.foreach_env_runner(
            partial(_load_weights, reference=reference, version=version), local_env_runner=False
        )
        if found := [error for error in errors if error]:
            raise RuntimeError(f"An engine could not load the weights of version {version}:\n{found[0]}")


def _load_weights(env_runner: Any, reference: ray.ObjectRef, version: int) -> str | None:
    return env_runner.load_weights(reference, version)


class NCCLSync:
    """vLLM's NCCL transfer: learner 0 is rank 0 of the group, the engines' workers are ranks 1, 2, ... Never run
    yet."""

    def __init__(
        self, config: "ToRLConfig", learner_group: "LLMLearnerGroup", env_runner_group: "EnvRunnerGroup"
    ) -> None:
        self._learner_group = learner_group
        runners = list(env_runner_group._worker_manager.actors().values())
        workers_per_engine = config.engine_kwargs.get("tensor_parallel_size", 1) * config.engine_kwargs.get(
            "pipeline_parallel_size", 1
        )
        address, port = learner_group.on_all("free_address")[0]
        group = TransferGroup(address, port, tuple(runners), workers_per_engine)
        learner_group.on_all("open_weight_transfer", group)

    def sync(self, version: int) -> None:
        """See `WeightSync`."""
        self._learner_group.on_all("send_weights", version)


@dataclass(frozen=True, slots=True)
class TransferGroup:
    """Who takes part in an NCCL transfer.

    Worked example, two engines of two workers each: learner 0 is rank 0, the engines' workers ranks 1, 2 and 3, 4, so
    the engines' offsets are 1 and 3 and the world has 5 members.

    Args:
        address: Host of rank 0.
        port: Free port there.
        runners: Actors that own the engines.
        workers_per_engine: Tensor-parallel times pipeline-parallel size.
    """

    address: str
    port: int
    runners: "tuple[ActorHandle, ...]"
    workers_per_engine: int

    @property
    def world_size(self) -> int:
        """Rank 0 and every worker of every engine."""
        return 1 + len(self.runners) * self.workers_per_engine

    def rank_offset(self, engine: int) -> int:
        """Rank of an engine's first worker."""
        return 1 + engine * self.workers_per_engine


class RunnerClient:
    """vLLM's `VLLMWeightSyncClient` protocol over our runners, driven by the transfer engine on learner 0.

    vLLM's own Ray client sends all engines one and the same `rank_offset`: several independent engines then claim the
    same ranks and never meet.
    """

    def __init__(self, group: TransferGroup) -> None:
        self._group = group
        self.version = 0

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Let every engine join, each at ranks of its own."""
        self._on_all(
            "init_weight_transfer_engine",
            [{**init_info, "rank_offset": self._group.rank_offset(i)} for i in range(len(self._group.runners))],
        )

    def start_weight_update(self) -> None:
        """Let every engine prepare."""
        self._on_all("start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        """Let every engine receive; returns when all have."""
        self._on_all("update_weights", [update_info] * len(self._group.runners))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Let every engine finish and take the new version."""
        self._on_all("finish_weight_update", [self.version] * len(self._group.runners))

    def _on_all(self, method: str, arguments: Sequence[Any] | None = None) -> None:
        calls = [
            getattr(runner, method).remote(*(() if arguments is None else (arguments[i],)))
            for i, runner in enumerate(self._group.runners)
        ]
        if found := [error for error in ray.get(calls) if error]:
            raise RuntimeError(f"An engine failed in `{method}`:\n{found[0]}")


@dataclass(frozen=True, slots=True)
class ParameterInfo:
    """vLLM's `ParamMeta`, whose module imports all of vLLM."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class PolicySource:
    """vLLM's `WeightSource` protocol over the sharded policy, in the order and with the names of `named_weights`."""

    def __init__(self, module: "CausalLMModule", dtype: torch.dtype) -> None:
        self._module = module
        self._dtype = dtype

    def metadata(self) -> list[ParameterInfo]:
        """Return what iteration yields, without gathering."""
        return [ParameterInfo(name, self._dtype, shape) for name, shape in self._module.weight_shapes()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Gather and yield one whole parameter after the other. Collective."""
        return self._module.named_weights(self._dtype)


class WeightSender:
    """One learner's side of the NCCL transfer. Collective: every learner makes one and sends, rank 0 also
    broadcasts."""

    def __init__(self, module: "CausalLMModule", dtype: torch.dtype, rank: int, group: TransferGroup) -> None:
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        self._client = RunnerClient(group)
        self._engine = WeightTransferTrainerFactory.trainer_init(
            NCCLTrainerInitInfo(
                rank=rank, master_address=group.address, master_port=group.port, world_size=group.world_size
            ),
            client=self._client,
            source=PolicySource(module, dtype),
        )

    def send(self, version: int) -> None:
        """Send the weights as `version`."""
        self._client.version = version
        self._engine.send_weights()

    def close(self) -> None:
        """Leave the group."""
        self._engine.shutdown()
