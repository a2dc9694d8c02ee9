"""What goes into the sampler's engine and what comes out, and the interface of what it drives."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

if TYPE_CHECKING:
    import torch

FinishReason = Literal["stop", "length", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What the engine needs to know.

    Args:
        model: Hugging Face folder or hub name.
        tokenizer: The same; stop strings are found in its text.
        dtype: "float32" or "bfloat16".
        max_model_len: Most tokens of one episode, prompt included.
        num_threads: CPU threads of the engine on a machine without GPU; None leaves torch's choice.
        engine_kwargs: Given to vLLM's `EngineArgs` as they are; they win over everything chosen here.
    """

    model: str
    tokenizer: str
    dtype: str
    max_model_len: int
    num_threads: int | None = None
    engine_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One turn to sample.

    Args:
        prompt_ids: All tokens of the episode so far.
        max_tokens: Most tokens to sample, at least 1.
        temperature: Softmax temperature; 0 is greedy.
        stop: Strings that end the turn; they are part of it.
        seed: Of this request alone, so that a result does not depend on what else is running.
    """

    prompt_ids: list[int]
    max_tokens: int
    temperature: float
    stop: tuple[str, ...]
    seed: int


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """What was sampled for one request.

    Args:
        token_ids: Sampled ids, exactly; an end-of-sequence token or the tokens of the stop string are the last ones.
        logprobs: One float32 per id: log-prob under the distribution sampled from, temperature included.
        finish_reason: "stop" (end of sequence or stop string), "length" (`max_tokens`) or "error".
        stop_reason: The stop string found; None at the end of sequence (an int where the model has several such
            tokens).
        policy_version: Version of the weights.
        error: Set if `finish_reason` is "error"; then there are no tokens.
    """

    token_ids: list[int]
    logprobs: np.ndarray
    finish_reason: FinishReason
    stop_reason: str | int | None
    policy_version: int
    error: str | None = None

    @classmethod
    def failed(cls, error: str, policy_version: int) -> "Generation":
        """Return the generation that an error ended."""
        return cls([], np.zeros(0, np.float32), "error", None, policy_version, error)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters since the engine was built.

    Args:
        num_generated_tokens: Sampled tokens as vLLM itself counts them.
        num_prompt_tokens: Prompt tokens vLLM was given, those found in the prefix cache included.
        num_cached_tokens: Prompt tokens found in the prefix cache.
        num_steps: Engine steps.
        busy_s: Seconds inside engine steps.
        num_threads: CPU threads the engine really uses.
    """

    num_generated_tokens: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_steps: int = 0
    busy_s: float = 0.0
    num_threads: int = 0


class Backend(Protocol):
    """What the engine's thread drives, alone: vLLM (`learners.vllm_backend`), or a stand-in in tests."""

    policy_version: int
    num_threads: int

    def add(self, request_id: str, request: GenerationRequest) -> None:
        """Queue a request; raises ValueError if it cannot be served."""

    def abort(self, request_id: str) -> None:
        """Forget a request."""

    def step(self) -> list[tuple[str, Generation]]:
        """Make one step and return what finished."""

    def load_weights(self, weights: "Mapping[str, torch.Tensor]", version: int) -> None:
        """Replace all weights and forget everything computed with the old ones."""

    def call_workers(self, method: str, kwargs: Mapping[str, Any]) -> list[Any]:
        """Call a method of vLLM's worker on every worker."""

    def finish_weight_update(self, version: int) -> None:
        """End a weight transfer that `call_workers` began."""

    def token_counts(self) -> tuple[int, int, int]:
        """Generated, prompt and cached tokens so far."""

    def close(self) -> None:
        """Free everything."""
