"""Sharding itself, in one process that is a process group of its own. Two ranks are in `test_learner_group.py`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from learners import fsdp
from learners.batching import collate
from learners.config import ToRLConfig
from learners.rl_module import CausalLMModule
from tests.rows import learner_config, make_policy, random_episodes
from tests.tiny_model import make_tiny_model

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_tiny_model(path, tie_word_embeddings=True)
    return path


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    fsdp.leave_group()


@pytest.fixture(scope="module")
def batch() -> dict[str, torch.Tensor]:
    return collate(random_episodes(3), [1.0] * 3)


def sharded(config: ToRLConfig, trains: bool = True) -> CausalLMModule:
    policy = make_policy(config)
    mesh = fsdp.make_mesh(CPU)
    assert mesh is not None
    fsdp.shard(policy, mesh, config.dtype, trains=trains)
    return policy


def live_state(policy: CausalLMModule, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    return fsdp.trained_parameters(policy) | fsdp.adam_state(policy, optimizer)


def gradients(policy: CausalLMModule, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    policy(batch)["logp"].sum().backward()
    return {name: fsdp.gathered(p.grad) for name, p in policy.named_parameters() if p.grad is not None}


def test_without_a_process_group_nothing_is_sharded_or_reduced() -> None:
    assert fsdp.make_mesh(CPU) is None
    assert (fsdp.world_size(), fsdp.rank()) == (1, 0)
    assert fsdp.reduced([1.0, 2.0], CPU) == [1.0, 2.0]
    assert fsdp.all_gathered([3]) == [3]


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_sharded_policy_computes_what_the_whole_one_does(
    group: None, folder: Path, batch: dict[str, torch.Tensor], checkpointing: bool
) -> None:
    config = learner_config(folder).language_model(gradient_checkpointing=checkpointing)
    whole, policy = make_policy(config), sharded(config)
    assert all(isinstance(p, DTensor) for p in policy.parameters())
    torch.testing.assert_close(policy(batch)["logp"], whole(batch)["logp"])
    ours, expected = gradients(policy, batch), gradients(whole, batch)
    assert ours.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-4, atol=1e-5)


def test_bfloat16_computes_in_it_while_parameters_and_gradients_stay_float32(
    group: None, folder: Path, batch: dict[str, torch.Tensor]
) -> None:
    precise = make_policy(learner_config(folder))(batch)["logp"]
    policy = sharded(learner_config(folder).language_model(dtype="bfloat16"))
    rough = policy(batch)["logp"]
    assert rough.dtype == torch.float32
    assert 1e-4 < (rough - precise).abs().max() < 0.5
    assert {g.dtype for g in gradients(policy, batch).values()} == {torch.float32}
    assert {p.dtype for p in policy.parameters()} == {torch.float32}


def test_sharded_adapters_train_alone_merge_and_can_be_switched_off(
    group: None, folder: Path, batch: dict[str, torch.Tensor]
) -> None:
    base, policy = make_policy(learner_config(folder)), sharded(learner_config(folder).language_model(lora_rank=4))
    optimizer = torch.optim.AdamW([p for p in policy.parameters() if p.requires_grad], lr=0.05)
    for _ in range(2):  # the gradient of A is zero while B is
        assert all(".lora_" in name for name in gradients(policy, batch))
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        before, after = base(batch)["logp"], policy(batch)["logp"]
        assert (after - before).abs().max() > 0.01
        with policy.base_model():
            torch.testing.assert_close(policy(batch)["logp"], before)
        base.model.load_state_dict(dict(policy.named_weights()), strict=False)
        torch.testing.assert_close(base(batch)["logp"], after, rtol=1e-4, atol=1e-5)
    assert all(".lora_" in name for name in fsdp.trained_parameters(policy) | fsdp.adam_state(policy, optimizer))


def test_a_module_that_does_not_train_keeps_only_its_shards_after_a_forward_pass(
    group: None, folder: Path, batch: dict[str, torch.Tensor]
) -> None:
    frozen = sharded(learner_config(folder), trains=False).requires_grad_(False)
    with torch.no_grad():
        frozen(batch)
    assert all(isinstance(p, DTensor) for p in frozen.parameters())


@pytest.mark.parametrize("max_norm", [None, 0.5, 1e6])
def test_the_gradients_norm_is_over_all_parameters(
    group: None, folder: Path, batch: dict[str, torch.Tensor], max_norm: float | None
) -> None:
    policy = sharded(learner_config(folder))
    norm = torch.cat([g.flatten() for g in gradients(policy, batch).values()]).norm().item()
    assert fsdp.clip_grad_norm(list(policy.parameters()), max_norm) == pytest.approx(norm, rel=1e-5)
    clipped = torch.cat([fsdp.gathered(p.grad).flatten() for p in policy.parameters() if p.grad is not None]).norm()
    assert clipped.item() == pytest.approx(min(norm, max_norm or norm), rel=1e-4)


def test_whole_state_survives_the_way_out_and_back_in(
    group: None, folder: Path, batch: dict[str, torch.Tensor]
) -> None:
    policy = sharded(learner_config(folder))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=0.01)
    gradients(policy, batch)
    optimizer.step()
    optimizer.zero_grad()
    saved = fsdp.full_state(live_state(policy, optimizer))
    assert not any(isinstance(t, DTensor) for t in saved.values())
    gradients(policy, batch)
    optimizer.step()
    fsdp.load_full_state(live_state(policy, optimizer), saved)
    again = fsdp.full_state(live_state(policy, optimizer))
    for name, tensor in saved.items():
        torch.testing.assert_close(again[name], tensor, rtol=0, atol=0)


def test_the_state_of_another_model_is_refused(folder: Path) -> None:
    policy = make_policy(learner_config(folder))
    state = fsdp.trained_parameters(policy)
    other = {f"other.{name}": tensor for name, tensor in state.items()}
    with pytest.raises(ValueError, match=r"names differ.*Restore with the same `model`"):
        fsdp.load_full_state(state, other)
