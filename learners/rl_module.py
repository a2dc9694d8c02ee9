"""The policy: a causal language model of `transformers` as RLlib's `TorchRLModule`, optionally with LoRA adapters.

Shapes: B rows, T tokens, N response tokens of a micro-batch, D hidden size.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from ray.rllib.utils.annotations import override
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from learners.batching import INPUT_IDS, LOSS_MASK
from learners.fsdp import gathered
from learners.losses import ENTROPY, LOGP, token_logp

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig


def causal_lm_spec(config: "AlgorithmConfig") -> RLModuleSpec:
    """Return the spec of the policy `config` (a `ToRLConfig`) describes."""
    return RLModuleSpec(
        module_class=CausalLMModule,
        model_config={
            "model_path": config.model_path,
            "tokenizer_path": config.tokenizer_path or config.model_path,
            "dtype": config.dtype,
            "temperature": config.temperature,
            "gradient_checkpointing": config.gradient_checkpointing,
            "lora_rank": config.lora_rank,
            "lora_alpha": config.lora_alpha,
            "entropy_grad": config.entropy_coeff > 0,
        },
    )


class CausalLMModule(TorchRLModule):
    """Log-probs of response tokens under a causal LM; built from `causal_lm_spec`.

    Parameters are float32 whatever `dtype` says, since an optimizer needs them so; `learners.fsdp` computes in `dtype`.
    A learner calls the module itself (`module(batch)`): that is where FSDP's hooks are. An `inference_only` copy
    (RLlib makes them for EnvRunners) loads nothing: there vLLM is the policy.
    """

    model: Any

    @override(TorchRLModule)
    def setup(self) -> None:
        """Load the model."""
        if self.inference_only:
            return
        settings = self.model_config
        self.model = _load(settings["model_path"])
        if settings["lora_rank"]:
            add_adapters(self.model, settings["lora_rank"], settings["lora_alpha"])
        if settings["gradient_checkpointing"]:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})

    @override(TorchRLModule)
    def _forward(self, batch: dict[str, torch.Tensor], **kwargs: Any) -> dict[str, torch.Tensor]:
        """Return log-prob and entropy of the response tokens.

        Args:
            batch: `input_ids` and `loss_mask`, each (B, T).

        Returns:
            `logp` and `entropy`, each (B, T) float32, 0 outside the mask. Column t describes token t, predicted at t
            - 1; the output layer is computed at response tokens only.
        """
        input_ids, mask_BT = batch[INPUT_IDS], batch[LOSS_MASK][:, 1:]
        hidden_BTD = self.model.get_decoder()(input_ids=input_ids, use_cache=False).last_hidden_state
        logp_N, entropy_N = token_logp(
            hidden_BTD[:, :-1][mask_BT],
            self.model.get_output_embeddings().weight,
            input_ids[:, 1:][mask_BT],
            temperature=self.model_config["temperature"],
            with_entropy_grad=self.model_config["entropy_grad"],
        )
        return {LOGP: _scatter(logp_N, mask_BT), ENTROPY: _scatter(entropy_N, mask_BT)}

    def named_weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every parameter, whole, under its `transformers` name; tied ones once, adapters merged in.

        Collective: each shard is gathered from all learners, so all of them iterate, to the end and in step.

        Args:
            dtype: Cast to this; None leaves float32.
        """
        layers = dict(self.model.named_modules())
        for name, parameter in self.model.named_parameters():
            if ".lora_" in name:
                continue
            # peft moves a layer's own weight to `base_layer`.
            layer_name, is_adapted, kind = name.partition(".base_layer.")
            weight = gathered(parameter.detach())
            if is_adapted and kind == "weight":
                layer = layers[layer_name]
                lora_a, lora_b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
                weight = weight + layer.scaling["default"] * gathered(lora_b.detach()) @ gathered(lora_a.detach())
            yield name.replace(".base_layer.", "."), weight.to(dtype) if dtype else weight

    def weight_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Return name and whole shape of what `named_weights` yields, in its order, without gathering anything."""
        return [
            (name.replace(".base_layer.", "."), tuple(parameter.shape))
            for name, parameter in self.model.named_parameters()
            if ".lora_" not in name
        ]

    @contextmanager
    def base_model(self) -> Iterator[None]:
        """Switch the adapters off: inside, the module is the frozen base model. Needs `lora_rank` > 0."""
        self.model.disable_adapters()
        try:
            yield
        finally:
            self.model.enable_adapters()

    def export_hf(self, path: str | os.PathLike[str], *, write: bool) -> None:
        """Write a Hugging Face folder: weights in `dtype` (adapters merged), configuration and tokenizer. Collective.

        Args:
            path: Folder to write to.
            write: True on the one rank that writes; the others only give their shards.
        """
        weights = {}
        for name, weight in self.named_weights(getattr(torch, self.model_config["dtype"])):
            if write:
                weights[name] = weight.cpu()
        if not write:
            return
        Path(path).mkdir(parents=True, exist_ok=True)
        config = AutoConfig.from_pretrained(self.model_config["model_path"])
        with torch.device("meta"):  # its shapes only: the weights are given
            skeleton = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, self.model_config["dtype"]))
        skeleton.generation_config = self.model.generation_config
        skeleton.save_pretrained(path, state_dict=weights)
        for file in Path(path).glob("*.safetensors"):  # written for its owner alone, unlike all the rest
            file.chmod((Path(path) / "config.json").stat().st_mode)
        AutoTokenizer.from_pretrained(self.model_config["tokenizer_path"]).save_pretrained(path)


def _load(model_path: str) -> Any:
    config = AutoConfig.from_pretrained(model_path)
    # The sampler has no dropout, so its log-probs would not be the learner's.
    for name in config.to_dict():
        if name.endswith(("dropout", "pdrop")):
            setattr(config, name, 0.0)
    model = AutoModelForCausalLM.from_pretrained(
        model_path, config=config, dtype=torch.float32, attn_implementation="sdpa"
    )
    _check_head(model, model_path)
    return model


def _check_head(model: Any, model_path: str) -> None:
    """Check that logits are hidden states times output embedding and nothing else, as `token_logp` computes them.

    Raises:
        ValueError: if not (a bias, soft-capped or scaled logits).
    """
    ids = torch.zeros(1, 2, dtype=torch.long)
    with torch.no_grad():
        expected = model(input_ids=ids, use_cache=False).logits
        hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
        logits = functional.linear(hidden, model.get_output_embeddings().weight)
    if not torch.allclose(logits, expected, rtol=1e-3, atol=1e-3):
        raise ValueError(
            f"The logits of {model_path!r} are not its last hidden states times its output embedding, which is what "
            f"the learner computes. Models with a bias or with scaled or capped logits are not supported."
        )


def add_adapters(model: Any, rank: int, alpha: float) -> None:
    """Freeze a `transformers` model and give every linear layer but the output embedding an adapter."""
    from peft import LoraConfig

    model.add_adapter(LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear", task_type="CAUSAL_LM"))


def _scatter(values_N: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Put the values where the mask is True, zeros elsewhere and in a first column."""
    out = values_N.new_zeros(mask_BT.shape).masked_scatter(mask_BT, values_N)
    return functional.pad(out, (1, 0))
