"""The policy: its log-probs are those of `transformers`, its weights and exports carry `transformers` names."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GraniteConfig, GraniteForCausalLM, Qwen2Config

from learners.batching import collate
from learners.losses import loss_sums
from learners.rl_module import CausalLMModule, causal_lm_spec
from tests.rows import SPACE, learner_config, make_policy, random_episodes
from tests.tiny_model import make_tiny_model, make_tokenizer


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_tiny_model(path, tie_word_embeddings=request.param)
    return path


def lora_policy(folder: Path) -> CausalLMModule:
    """A policy whose adapters no longer are the identity."""
    policy = make_policy(learner_config(folder).language_model(lora_rank=4, lora_alpha=8.0))
    generator = torch.Generator().manual_seed(0)
    for name, parameter in policy.named_parameters():
        if ".lora_B." in name:
            parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)
    return policy


def logp(policy: CausalLMModule, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        return policy(batch)["logp"]


def test_logp_is_that_of_transformers_at_the_temperature(folder: Path) -> None:
    policy = make_policy(learner_config(folder).sampling(temperature=0.7))
    batch = collate(random_episodes(3), [0.0] * 3)
    ids, mask = batch["input_ids"], batch["loss_mask"]
    with torch.no_grad():
        all_logp = (policy.model(input_ids=ids).logits / 0.7).log_softmax(-1)[:, :-1]
    expected = all_logp.gather(2, ids[:, 1:, None]).squeeze(2)
    entropy = -(all_logp.exp() * all_logp).sum(-1)
    forward = policy(batch)
    torch.testing.assert_close(forward["logp"][:, 1:], torch.where(mask[:, 1:], expected, 0.0))
    torch.testing.assert_close(forward["entropy"][:, 1:], torch.where(mask[:, 1:], entropy, 0.0))
    assert not forward["logp"][:, 0].any()


def test_padding_does_not_change_a_row(folder: Path) -> None:
    policy = make_policy(learner_config(folder))
    short, long = sorted(random_episodes(2), key=lambda e: e.num_tokens)
    assert short.num_tokens < long.num_tokens
    alone = logp(policy, collate([short], [0.0]))
    padded = logp(policy, collate([long, short], [0.0, 0.0]))[1:, : short.num_tokens]
    torch.testing.assert_close(alone, padded)


def test_observation_tokens_carry_no_gradient(folder: Path) -> None:
    policy = make_policy(learner_config(folder))
    [episode] = random_episodes(1, seed=3)
    batch = collate([episode], [1.0])
    ids = batch["input_ids"]

    def gradient(tokens: torch.Tensor) -> torch.Tensor:
        """Gradient of minus the log-probs of the given tokens, by transformers' own forward pass."""
        policy.zero_grad()
        all_logp = policy.model(input_ids=ids).logits.log_softmax(-1)[:, :-1]
        (-all_logp.gather(2, ids[:, 1:, None]).squeeze(2)[tokens[:, 1:]].sum()).backward()
        return torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])

    mask = batch["loss_mask"]
    after_prompt = (torch.arange(ids.shape[1]) >= episode.prompt_length).unsqueeze(0)
    assert (after_prompt & ~mask).any()  # there is an observation
    responses, observations_too = gradient(mask), gradient(after_prompt)
    policy.zero_grad()
    forward = policy(batch)
    loss_sums(
        logp=forward["logp"],
        entropy=forward["entropy"],
        action_logp=forward["logp"].detach(),
        advantages=batch["advantages"],
        loss_mask=mask,
        clip_param=0.2,
        clip_param_high=0.2,
    ).total.backward()
    ours = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
    torch.testing.assert_close(ours, responses, rtol=1e-4, atol=1e-5)
    assert (ours - observations_too).norm() > 0.1 * ours.norm()


def test_gradient_checkpointing_changes_no_gradient(folder: Path) -> None:
    batch = collate(random_episodes(2), [1.0, 1.0])
    gradients = []
    for checkpointing in (False, True):
        policy = make_policy(learner_config(folder).language_model(gradient_checkpointing=checkpointing))
        policy(batch)["logp"].sum().backward()
        gradients.append([p.grad for p in policy.parameters()])
    for plain, checkpointed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, checkpointed)


def test_weights_have_transformers_names_and_tied_ones_come_once(folder: Path) -> None:
    policy = make_policy(learner_config(folder))
    saved = AutoModelForCausalLM.from_pretrained(folder)
    weights = dict(policy.named_weights())
    assert weights.keys() == dict(saved.named_parameters()).keys()
    assert ("lm_head.weight" in weights) is not saved.config.tie_word_embeddings
    for name, parameter in saved.named_parameters():
        torch.testing.assert_close(weights[name], parameter.detach())


@pytest.mark.parametrize("lora", [False, True])
def test_shapes_declared_are_the_shapes_yielded_in_the_same_order(folder: Path, lora: bool) -> None:
    policy = lora_policy(folder) if lora else make_policy(learner_config(folder))
    yielded = [(name, tuple(weight.shape)) for name, weight in policy.named_weights(torch.bfloat16)]
    assert policy.weight_shapes() == yielded


def test_only_adapters_are_trained_and_they_start_as_the_base_model(folder: Path) -> None:
    base = make_policy(learner_config(folder))
    policy = make_policy(learner_config(folder).language_model(lora_rank=4))
    trained = [name for name, parameter in policy.named_parameters() if parameter.requires_grad]
    assert trained and all(".lora_" in name for name in trained)
    batch = collate(random_episodes(2), [0.0] * 2)
    torch.testing.assert_close(logp(policy, batch), logp(base, batch))


def test_merged_adapters_are_the_adapted_model_and_switched_off_they_are_the_base(folder: Path) -> None:
    policy, batch = lora_policy(folder), collate(random_episodes(2), [0.0] * 2)
    merged = make_policy(learner_config(folder))
    base_logp, adapted_logp = logp(merged, batch), logp(policy, batch)
    with policy.base_model():
        torch.testing.assert_close(logp(policy, batch), base_logp)
    torch.testing.assert_close(logp(policy, batch), adapted_logp)
    assert (adapted_logp - base_logp).abs().max() > 0.01
    merged.model.load_state_dict(dict(policy.named_weights()), strict=False)
    torch.testing.assert_close(logp(merged, batch), adapted_logp, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lora", [False, True])
def test_an_exported_folder_loads_and_agrees(folder: Path, tmp_path: Path, lora: bool) -> None:
    policy = lora_policy(folder) if lora else make_policy(learner_config(folder))
    policy.model.model.norm.weight.data += 0.1  # not what was loaded
    policy.export_hf(tmp_path, write=True)
    exported = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.arange(10).unsqueeze(0)
    with torch.no_grad():
        torch.testing.assert_close(exported(ids).logits, policy.model(input_ids=ids).logits, rtol=1e-4, atol=1e-5)
    assert exported.config.tie_word_embeddings == policy.model.config.tie_word_embeddings
    assert AutoTokenizer.from_pretrained(tmp_path).encode("about") == make_tokenizer().encode("about")


def test_an_export_has_the_configured_dtype(folder: Path, tmp_path: Path) -> None:
    make_policy(learner_config(folder).language_model(dtype="bfloat16")).export_hf(tmp_path, write=True)
    exported = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
    assert {p.dtype for p in exported.parameters()} == {torch.bfloat16}


def test_a_runners_copy_loads_nothing(tmp_path: Path) -> None:
    spec = causal_lm_spec(learner_config(tmp_path / "no such model"))
    spec.observation_space = spec.action_space = SPACE
    spec.inference_only = True
    assert not list(spec.build().parameters())


def test_dropout_of_the_models_configuration_is_switched_off(folder: Path, tmp_path: Path) -> None:
    config = Qwen2Config.from_pretrained(folder, attention_dropout=0.5)
    AutoModelForCausalLM.from_pretrained(folder, config=config).save_pretrained(tmp_path)
    assert Qwen2Config.from_pretrained(tmp_path).attention_dropout == 0.5
    policy, batch = make_policy(learner_config(tmp_path)), collate(random_episodes(1), [0.0])
    torch.testing.assert_close(policy(batch)["logp"], policy(batch)["logp"], rtol=0, atol=0)


def test_a_model_that_scales_its_logits_is_refused(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = GraniteConfig(**sizes, num_key_value_heads=1, vocab_size=32, logits_scaling=8.0, initializer_range=1.0)
    GraniteForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="are not its last hidden states times its output embedding"):
        make_policy(learner_config(tmp_path))
