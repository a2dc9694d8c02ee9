"""What a run needs in memory, on disk and in time, as formulas over its config and its model.

P parameters, P_t trained ones (all, or the adapters'), n learners, b bytes an item (bfloat16 2, float32 4), L layers,
D hidden size, Q = heads x head size, K = key/value heads x head size, F width of the feed-forward part, H heads, V
vocabulary, t tokens of a micro-batch (padding included).

A learner, float32 weights whatever b (`learners/fsdp.py`):
    weights 4 P/n, gradients 4 P_t/n, Adam 8 P_t/n, frozen base for the KL 4 P/n (none with adapters: they are
    switched off)
    gathered: what FSDP holds unsharded, b bytes each: what is outside of decoder layers, and two layers (one is
    fetched ahead); while training the whole model also their gradients and the float32 copy that is reduced
    activations: t x a a layer with a = (8 + 4b) D + 2b Q + 2b K + 4b F + 4 H + 8, which is what a Llama-like layer
    keeps for its backward pass (8: two norms in float32); with gradient checkpointing that for one layer, and b D for
    each; (4 + b) D for the last norm
    in flight: gradients of one layer's widest activations, t x 4 b (F + D)
    logits: 20 bytes each (five float32 copies) for at most 2^26 of them
An engine, one GPU: weights b P / w for w GPUs an engine; keys and values 2 b L K / w a token; vLLM takes its share
(`gpu_memory_utilization`) of the card and fills it with as many of them as fit. On a CPU: `learners/vllm_backend.py`.
A checkpoint: 12 P_t (float32 weights and Adam's two moments).

Compared with the growth of a process's resident memory over three updates on a CPU, float32, one learner without FSDP:
the quickstart's batch 175 MB measured, 142 MB computed; a model of 72 million parameters 2,758 and 2,707 MB, with
gradient checkpointing 1,821 and 1,670 MB. So allow for a tenth more. No GPU was measured.
"""

from dataclasses import dataclass

from experiments.model_size import ModelSize, model_size
from learners.config import ToRLConfig
from learners.losses import MAX_LOGITS
from learners.vllm_backend import cpu_cache_bytes, kv_bytes_per_token

CARD_GB = 80  # the card the plan speaks of: A100, A800 or H100
_RUNTIME_BYTES = 2_000_000_000  # CUDA, NCCL and the allocator's rounding: an assumption
_VLLM_SHARE, _VLLM_NUM_SEQS = 0.92, 256  # vLLM's own defaults
_VLLM_BATCHED_TOKENS = 8192
# Assumed, for the time of a step: A100 with 312 TFLOP/s in bfloat16, of which 40% are had, and 2.0 TB/s; episodes of a
# third of the token limit.
_FLOPS, _BYTES_PER_S, _MEAN_SHARE = 0.4 * 312e12, 2.0e12, 1 / 3


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes by part, in order."""

    parts: dict[str, float]

    @property
    def total(self) -> float:
        """The sum of the parts."""
        return sum(self.parts.values())


def size_of(config: ToRLConfig) -> ModelSize:
    """Return the size of the config's model."""
    assert config.model_path is not None
    return model_size(config.model_path, config.lora_rank)


def item_bytes(config: ToRLConfig) -> int:
    """Return b."""
    return 4 if config.dtype == "float32" else 2


def layer_bytes_per_token(config: ToRLConfig, model: ModelSize) -> int:
    """Return a, what one layer keeps of a token for its backward pass."""
    hf, b = model.hf_config, item_bytes(config)
    head_dim = getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads
    q, k = hf.num_attention_heads * head_dim, hf.num_key_value_heads * head_dim
    widths = (8 + 4 * b) * hf.hidden_size + 2 * b * (q + k) + 4 * b * hf.intermediate_size
    return widths + 4 * hf.num_attention_heads + 8


def activation_bytes(config: ToRLConfig, model: ModelSize) -> int:
    """Return what the decoder keeps of one micro-batch for its backward pass, at the most."""
    hf, b, a = model.hf_config, item_bytes(config), layer_bytes_per_token(config, model)
    layers = (
        a + hf.num_hidden_layers * b * hf.hidden_size if config.gradient_checkpointing else hf.num_hidden_layers * a
    )
    return micro_batch_tokens(config) * (layers + (4 + b) * hf.hidden_size)


def micro_batch_tokens(config: ToRLConfig) -> int:
    """Return t: the budget, or one longest episode where that is more."""
    return max(config.max_tokens_per_micro_batch, config.max_prompt_tokens + config.max_response_tokens)


def learner_need(config: ToRLConfig) -> Need:
    """Return what one learner holds at the peak of an update, without what Python and the libraries take."""
    model, b, n = size_of(config), item_bytes(config), max(1, config.num_learners)
    measures_kl = config.kl_coeff > 0 or config.measure_kl
    gathered = 0
    if config.num_learners:
        at_once = model.num_elsewhere + model.num_in_layer
        gathered = b * (at_once + model.num_in_layer) + (0 if config.lora_rank else (b + 4) * at_once)
    return Need(
        {
            "weights": 4 * model.num_parameters / n,
            "gradients": 4 * model.num_trained / n,
            "optimizer": 8 * model.num_trained / n,
            "frozen base": 4 * model.num_parameters / n if measures_kl and not config.lora_rank else 0,
            "gathered": gathered,
            "activations": activation_bytes(config, model),
            "in flight": micro_batch_tokens(config)
            * 4
            * b
            * (model.hf_config.intermediate_size + model.hf_config.hidden_size),
            "logits": 20 * min(MAX_LOGITS, micro_batch_tokens(config) * model.hf_config.vocab_size),
            "CUDA, NCCL": _RUNTIME_BYTES if config.num_gpus_per_learner else 0,
        }
    )


def engine_need(config: ToRLConfig) -> Need:
    """Return what one GPU of an engine, or an engine on a CPU, holds with all its episodes at full length."""
    model, b = size_of(config), item_bytes(config)
    width = gpus_per_engine(config)
    episodes, length = num_seqs(config), config.max_prompt_tokens + config.max_response_tokens
    per_token = kv_bytes_per_token(model.hf_config, config.dtype)
    weights = b * model.num_parameters / width
    if not config.num_gpus_per_env_runner:
        return Need({"weights": weights, "keys and values": cpu_cache_bytes(episodes, length, per_token)})
    hf = model.hf_config
    # A prefill's widest tensors, and the sampled tokens' logits in three float32 copies.
    working = b * _VLLM_BATCHED_TOKENS * (2 * hf.intermediate_size + 4 * hf.hidden_size) + 12 * episodes * hf.vocab_size
    return Need(
        {
            "weights": weights,
            "activations": working / width,
            "keys and values": episodes * length * per_token / width,
            "CUDA": _RUNTIME_BYTES / 2,
        }
    )


def full_episodes_that_fit(config: ToRLConfig) -> int:
    """Return how many of an engine's episodes fit its share of the card at full length; the others wait."""
    need, model = engine_need(config), size_of(config)
    length = config.max_prompt_tokens + config.max_response_tokens
    left = engine_share(config) - (need.total - need.parts["keys and values"])
    per_episode = length * kv_bytes_per_token(model.hf_config, config.dtype) / gpus_per_engine(config)
    return max(0, min(num_seqs(config), int(left / per_episode)))


def engine_share(config: ToRLConfig) -> float:
    """Return the bytes of the card vLLM takes, whatever it needs."""
    return config.engine_kwargs.get("gpu_memory_utilization", _VLLM_SHARE) * CARD_GB * 1e9


def checkpoint_bytes(config: ToRLConfig) -> int:
    """Return the size of one checkpoint."""
    return 12 * size_of(config).num_trained


def step_seconds(config: ToRLConfig) -> tuple[float, float]:
    """Return the seconds of sampling and of the update of one step on GPUs, without tool and grader.

    Sampling: 2 P operations a token, and b P bytes read for each token of the longest episode, one after the other.
    Update: 6 P operations a token, 8 P where the forward pass is made twice.
    """
    p, b = size_of(config).num_parameters, item_bytes(config)
    # Learner and engine on one card take turns: each has all of it while it works.
    shared = config.num_gpus_per_learner < 1
    engines = 1 if shared else config.num_env_runners * gpus_per_engine(config)
    learners = 1 if shared else max(1, config.num_learners)
    tokens = config.num_problems_per_step * config.group_size * config.max_response_tokens * _MEAN_SHARE
    reads = b * p * config.max_response_tokens / _BYTES_PER_S / gpus_per_engine(config)
    sampling = reads + 2 * p * tokens / _FLOPS / engines
    update = (8 if config.gradient_checkpointing else 6) * p * tokens / _FLOPS / learners
    return sampling, update


def gpus_per_engine(config: ToRLConfig) -> int:
    """Return w."""
    kwargs = config.engine_kwargs
    return kwargs.get("tensor_parallel_size", 1) * kwargs.get("pipeline_parallel_size", 1)


def num_seqs(config: ToRLConfig) -> int:
    """Return how many episodes an engine may run at once."""
    return config.engine_kwargs.get("max_num_seqs", _VLLM_NUM_SEQS)
