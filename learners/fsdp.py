"""Fully sharded data parallelism (FSDP2): each learner holds a slice of every parameter, its gradient and its Adam
state.

Everything here also works without a process group (a learner in the driver's own process), where it does nothing to
the model. "Collective" functions are called by all ranks, in the same order.
"""

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

_ADAM_STATE = ("exp_avg", "exp_avg_sq", "step")


def world_size() -> int:
    """Return the number of learners."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """Return this learner's number, 0 without a process group."""
    return dist.get_rank() if dist.is_initialized() else 0


def leave_group() -> None:
    """Leave the process group, if there is one. Collective."""
    if dist.is_initialized():
        dist.destroy_process_group()


def make_mesh(device: torch.device) -> DeviceMesh | None:
    """Return the one-dimensional mesh over all learners, None without a process group."""
    return init_device_mesh(device.type, (world_size(),)) if dist.is_initialized() else None


def shard(module: nn.Module, mesh: DeviceMesh, dtype: str, *, trains: bool = True) -> None:
    """Shard a module that has a `transformers` model as `module.model`: each decoder layer, then all that remains.

    Parameters stay float32. With `dtype="bfloat16"` they are gathered and used in bfloat16 while gradients are
    reduced in float32. The module moves to the mesh's device layer by layer, so that no device ever holds it whole.

    Args:
        module: Call it as a whole (`module(...)`), for that is where the root's hooks are.
        mesh: From `make_mesh`.
        dtype: "float32" or "bfloat16".
        trains: False for a module without backward passes: it then frees the root's gathered parameters after each
            forward.
    """
    policy = MixedPrecisionPolicy()
    if dtype == "bfloat16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model: Any = module.model
    for layer in [m for m in model.modules() if type(m).__name__ in model._no_split_modules]:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=None if trains else True)


def gathered(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole tensor of which this rank holds a shard. Collective if it is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def clip_grad_norm(parameters: list[nn.Parameter], max_norm: float | None) -> float:
    """Scale the gradients to a norm of at most `max_norm`, over all parameters and ranks, and return their norm before.

    Collective. A norm that is not finite leaves the gradients alone.
    """
    norm = gathered(nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
    if max_norm is not None and torch.isfinite(norm):
        nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm.item()


def reduced(values: list[float], device: torch.device, *, largest: bool = False) -> list[float]:
    """Return the sums of the values over all ranks, or their maxima. Collective."""
    if world_size() == 1:
        return values
    tensor = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(tensor, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM)
    return tensor.tolist()


def all_gathered(value: list[Any]) -> list[Any]:
    """Return the lists of all ranks, concatenated. Collective."""
    if world_size() == 1:
        return value
    parts: list[list[Any]] = [[] for _ in range(world_size())]
    dist.all_gather_object(parts, value)
    return [item for part in parts for item in part]


def trained_parameters(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the trained parameters by name: the live tensors (this rank's shards), to read or to write into.

    Frozen ones are left out: they are the base model's.
    """
    return {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}


def adam_state(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return AdamW's state by "<parameter>.<kind>": the live tensors, made now if no step has been taken."""
    state = {}
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        adam = optimizer.state[parameter]
        if not adam:  # as AdamW itself does at its first step
            adam["step"] = torch.tensor(0.0)
            adam["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            adam["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        state.update({f"{name}.{kind}": adam[kind] for kind in _ADAM_STATE})
    return state


def full_state(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return copies of the whole tensors, on the CPU, on rank 0; nothing on the others. Collective."""
    full = {}
    for name, tensor in state.items():
        whole = gathered(tensor)
        if rank() == 0:
            full[name] = whole.cpu().clone()
    return full


def load_full_state(state: Mapping[str, torch.Tensor], full: Mapping[str, torch.Tensor]) -> None:
    """Write whole tensors into the live ones; each rank takes its own shard, nothing is sent.

    Raises:
        ValueError: if names differ.
    """
    if different := sorted(state.keys() ^ full.keys()):
        raise ValueError(
            f"The state is not of this model: {len(different)} names differ, e.g. {different[:3]}. Restore with the "
            f"same `model` and `lora_rank`."
        )
    for name, tensor in state.items():
        value = full[name].to(tensor.device)
        if isinstance(tensor, DTensor):
            value = distribute_tensor(value, tensor.device_mesh, tensor.placements, src_data_rank=None)
        tensor.copy_(value)


def save_sharded(state: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write the state to a folder that all learners see, each rank its own shards. Collective.

    The folder may be read by any number of learners (`torch.distributed.checkpoint` reshards).
    """
    from torch.distributed import checkpoint  # a second of import, at the first checkpoint rather than at start-up

    with _quiet():
        checkpoint.save(state, checkpoint_id=path, no_dist=not dist.is_initialized())


def load_sharded(state: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write what `save_sharded` wrote into the live tensors. Collective."""
    from torch.distributed import checkpoint

    with _quiet():
        checkpoint.load(state, checkpoint_id=path, no_dist=not dist.is_initialized())


@contextmanager
def _quiet() -> Iterator[None]:
    """Without a process group torch warns that it takes this for a single process, which it is."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield
