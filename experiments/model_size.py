"""How large a model is, from its config.json alone: no weights, no GPU, and for the recipes' models no network."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from learners.rl_module import add_adapters

_QWEN25_MATH = {
    "model_type": "qwen2",
    "dtype": "bfloat16",
    "num_hidden_layers": 28,
    "max_position_embeddings": 4096,
}
# From each model's config.json on the Hugging Face hub; read only where that file is not to be had.
_PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen/Qwen2.5-Math-1.5B": _QWEN25_MATH
    | {
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "Qwen/Qwen2.5-Math-7B": _QWEN25_MATH
    | {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "tie_word_embeddings": False,
    },
    "Qwen/Qwen2.5-0.5B": {
        "model_type": "qwen2",
        "dtype": "bfloat16",
        "num_hidden_layers": 24,
        "max_position_embeddings": 32768,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
}


@dataclass(frozen=True, slots=True)
class ModelSize:
    """What the memory formulas need of a model.

    Args:
        source: Where the numbers come from, for people.
        hf_config: The model's config.
        num_parameters: P, tied ones once.
        num_trained: P_t: all of them, or the adapters'.
        num_in_layer: Of one decoder layer, the unit that is gathered at once.
        download_bytes: Size of the published weights; 0 for a folder.
    """

    source: str
    hf_config: Any
    num_parameters: int
    num_trained: int
    num_in_layer: int
    download_bytes: int

    @property
    def num_elsewhere(self) -> int:
        """Parameters outside of decoder layers: embeddings, output layer, last norm."""
        return self.num_parameters - self.hf_config.num_hidden_layers * self.num_in_layer


@cache
def model_size(model: str, lora_rank: int) -> ModelSize:
    """Return the size of a Hugging Face folder or hub name; the model is built without memory ("meta" device).

    Raises:
        ValueError: if its config.json is not to be had.
    """
    config, source = _read_config(model)
    published = getattr(torch, str(config.dtype or "float32").removeprefix("torch."))  # before the next call changes it
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        num_parameters = sum(p.numel() for p in skeleton.parameters())
        layers = [m for m in skeleton.modules() if type(m).__name__ in skeleton._no_split_modules]
        num_in_layer = max(sum(p.numel() for p in layer.parameters()) for layer in layers)
        if lora_rank:
            add_adapters(skeleton, lora_rank, alpha=1.0)
    return ModelSize(
        source=source,
        hf_config=config,
        num_parameters=num_parameters,
        num_trained=sum(p.numel() for p in skeleton.parameters() if p.requires_grad),
        num_in_layer=num_in_layer,
        download_bytes=0 if Path(model).is_dir() else num_parameters * published.itemsize,
    )


def _read_config(model: str) -> tuple[Any, str]:
    if Path(model).is_dir():
        return AutoConfig.from_pretrained(model), str(Path(model) / "config.json")
    try:
        return AutoConfig.from_pretrained(model, local_files_only=True), "its config.json in this machine's hub cache"
    except OSError:
        pass
    if model in _PUBLISHED:
        return AutoConfig.for_model(**_PUBLISHED[model]), "the published config.json, as copied in model_size.py"
    try:
        return AutoConfig.from_pretrained(model), "its config.json on the hub"
    except OSError as error:
        raise ValueError(
            f"`model` {model!r} is no folder here and its config.json is not to be had from the hub "
            f"({type(error).__name__}). Name a folder, or go online."
        ) from error
