"""The plan's formulas: by hand for the 7B recipe, and against what torch really keeps and writes."""

from pathlib import Path

import pytest
import torch

from experiments import memory, model_size
from experiments.quickstart import TINY_BASE, quickstart
from experiments.torl_math import torl_math_1_5b, torl_math_7b, torl_math_lora
from learners import fsdp
from learners.rl_module import CausalLMModule
from tests.rows import make_policy

P_7B = 7_615_616_512  # as the model's card says: 7.61 billion


def test_the_7b_recipe_by_hand() -> None:
    config = torl_math_7b()
    size = memory.size_of(config)
    # A layer: q, k, v with bias 3584 x 4608 + 4608, o 3584 x 3584, the feed-forward part 3 x 3584 x 18944, two norms.
    layer = 3584 * 4608 + 4608 + 3584 * 3584 + 3 * 3584 * 18944 + 2 * 3584
    assert (size.num_parameters, size.num_trained, size.num_in_layer) == (P_7B, P_7B, layer)
    elsewhere = 2 * 152064 * 3584 + 3584  # embedding, output layer (not tied), last norm
    assert size.num_elsewhere == elsewhere
    assert size.download_bytes == 2 * P_7B

    learner = memory.learner_need(config).parts
    assert learner["weights"] == P_7B == learner["gradients"]  # 4 bytes on each of 4 learners
    assert learner["optimizer"] == 2 * P_7B
    assert learner["frozen base"] == 0  # no KL
    assert learner["gathered"] == 2 * (elsewhere + 2 * layer) + 6 * (elsewhere + layer)
    # A token: 16 x 3584 + 4 x (3584 + 512) + 8 x 18944 + 4 x 28 + 8 = 225,400 bytes in one layer, 2 x 3584 in each,
    # 6 x 3584 for the last norm
    assert learner["activations"] == 16384 * (225_400 + 28 * 2 * 3584 + 6 * 3584)
    assert learner["in flight"] == 16384 * 4 * 2 * (18944 + 3584)
    assert learner["logits"] == 20 * 2**26
    # 7.6 + 7.6 + 15.2 + 11.1 + 7.3 + 3.0 + 1.3 + 2 for CUDA and NCCL
    assert memory.learner_need(config).total == pytest.approx(55.1e9, rel=0.005)

    engine = memory.engine_need(config).parts
    assert engine["weights"] == 2 * P_7B
    assert engine["keys and values"] == 512 * (400 + 3072) * (2 * 2 * 28 * 4 * 128)
    assert memory.engine_share(config) == pytest.approx(68e9)
    # 68 GB - 15.2 weights - 1.8 working - 1.0 CUDA = 50 GB, at 57,344 bytes a token of 3472: 251 episodes
    assert memory.full_episodes_that_fit(config) == 251
    assert memory.checkpoint_bytes(config) == 12 * P_7B  # 91.4 GB


def test_the_seconds_of_a_step_by_hand() -> None:
    sampling, update = memory.step_seconds(torl_math_7b())
    tokens = 128 * 16 * 1024  # a third of 3072 each
    rate = 4 * 0.4 * 312e12
    assert sampling == pytest.approx(2 * P_7B * tokens / rate + 2 * P_7B * 3072 / 2e12)
    assert update == pytest.approx(8 * P_7B * tokens / rate)


def test_measuring_the_kl_adds_the_frozen_base_and_adapters_do_not_need_one() -> None:
    measured = torl_math_7b().training(measure_kl=True)
    assert memory.learner_need(measured).parts["frozen base"] == P_7B
    assert memory.learner_need(torl_math_lora().training(kl_coeff=0.1)).parts["frozen base"] == 0


def test_adapters_alone_have_gradients_and_a_checkpoint() -> None:
    config = torl_math_lora()
    size = memory.size_of(config)
    # Rank 32 x (in + out) of the seven linear layers of 28: q, o 1536 + 1536, k, v 1536 + 256, three of 1536 + 8960
    adapters = 28 * 32 * (2 * 3072 + 2 * 1792 + 3 * 10496)
    assert size.num_trained == adapters
    assert size.num_parameters == memory.size_of(torl_math_1_5b()).num_parameters == 1_543_714_304
    assert memory.learner_need(config).parts["gradients"] == 4 * adapters
    assert memory.checkpoint_bytes(config) == 12 * adapters
    assert memory.learner_need(config).total + memory.engine_share(config) < 80e9  # on the one card


def saved_for_backward(policy: CausalLMModule, input_ids: torch.Tensor) -> int:
    """Return the bytes of what autograd keeps of the decoder's forward pass, each piece of memory once."""
    weights = {p.untyped_storage().data_ptr() for p in policy.parameters()}
    kept: dict[int, tuple[int, torch.Tensor]] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes(), tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = policy.model.get_decoder()(input_ids=input_ids, use_cache=False)
    assert output.last_hidden_state.requires_grad
    return sum(size for size, _ in kept.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_activations_are_what_autograd_keeps(dtype: str, checkpointing: bool) -> None:
    config = quickstart().language_model(dtype=dtype, gradient_checkpointing=checkpointing)
    policy = make_policy(config)
    policy.model.to(getattr(torch, dtype)).train()
    input_ids = torch.zeros(8, config.max_tokens_per_micro_batch // 8, dtype=torch.int64)
    expected = memory.activation_bytes(config, memory.size_of(config))
    kept = saved_for_backward(policy, input_ids)
    if checkpointing:  # one layer's share is made again in the backward pass, so it is not among what is kept
        expected -= input_ids.numel() * memory.layer_bytes_per_token(config, memory.size_of(config))
    assert kept == pytest.approx(expected, rel=0.02)


def test_a_checkpoint_on_disk_has_the_size_the_plan_says(tmp_path: Path) -> None:
    config = quickstart()
    policy = make_policy(config)
    optimizer = torch.optim.AdamW(policy.parameters())
    state = {"parameters": fsdp.trained_parameters(policy), "adam": fsdp.adam_state(policy, optimizer)}
    fsdp.save_sharded(state, tmp_path)
    written = sum(path.stat().st_size for path in tmp_path.iterdir())
    # Beside the numbers themselves 0.4 MB for the 150 tensors' names and shapes.
    assert memory.checkpoint_bytes(config) < written < memory.checkpoint_bytes(config) + 0.5e6


def test_a_folder_needs_no_download_and_names_its_config() -> None:
    size = model_size.model_size(str(TINY_BASE), 0)
    assert size.download_bytes == 0 and size.source == str(TINY_BASE / "config.json")


def test_a_model_nothing_is_known_of_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise OSError

    monkeypatch.setattr(model_size.AutoConfig, "from_pretrained", offline)
    with pytest.raises(ValueError, match=r"'some/model' is no folder here and its config.json is not to be had"):
        model_size.model_size("some/model", 0)
