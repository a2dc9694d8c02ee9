"""Stand-ins for vLLM: an engine that answers from a script, a backend that counts, a tokenizer of characters."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np

from learners.generation import EngineStats, Generation, GenerationRequest

EOS = 0


class CharTokenizer:
    """One id per character, its code point; adding 1,000,000 gives a second spelling of the same character."""

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return code points."""
        assert not add_special_tokens
        return [ord(char) for char in text]

    def decode(
        self, token_ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool = False
    ) -> str:
        """Return the text; id 0 ends a sequence and has none."""
        assert skip_special_tokens
        assert not clean_up_tokenization_spaces
        return "".join(chr(token_id % 1_000_000) for token_id in token_ids if token_id != EOS)


class FakeEngine:
    """Answers each request at once with what `answer` returns: a text, token ids, or a whole `Generation`.

    A text is cut at `max_tokens`; a longer one has finish_reason "length". One that does not end with a stop string
    of the request ends with the end-of-sequence token. Log-probs are -1, -2, -3, ... within a turn.
    """

    def __init__(self, answer: Callable[[GenerationRequest], str | list[int] | Generation]) -> None:
        self.requests: list[GenerationRequest] = []
        self.policy_version = 7
        self.num_generated_tokens = 0
        self._answer = answer

    def submit(self, request: GenerationRequest) -> "Future[Generation]":
        """Answer at once."""
        self.requests.append(request)
        future: Future[Generation] = Future()
        future.set_result(self._generation(request))
        return future

    def _generation(self, request: GenerationRequest) -> Generation:
        answer = self._answer(request)
        if isinstance(answer, Generation):
            return answer
        stop = None
        if isinstance(answer, str):
            stop = next((stop for stop in request.stop if answer.endswith(stop)), None)
            answer = [ord(char) for char in answer] + ([] if stop else [EOS])
        token_ids = answer[: request.max_tokens]
        self.num_generated_tokens += len(token_ids)
        logprobs = -np.arange(1, len(token_ids) + 1, dtype=np.float32)
        cut = len(token_ids) < len(answer)
        return Generation(token_ids, logprobs, "length" if cut else "stop", None if cut else stop, self.policy_version)

    def stats(self) -> EngineStats:
        """Count what was generated."""
        return EngineStats(num_generated_tokens=self.num_generated_tokens)


class FakeBackend:
    """What `Engine`'s thread drives: each step adds one token to every request until it has `max_tokens`."""

    def __init__(self) -> None:
        self.policy_version = 0
        self.num_threads = 1
        self.running: dict[str, tuple[GenerationRequest, list[int]]] = {}
        self.aborted: list[str] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.num_generated_tokens = 0
        self.closed = False
        self.before_step: Callable[[], None] = lambda: None

    def add(self, request_id: str, request: GenerationRequest) -> None:
        """Queue a request; an empty prompt is refused."""
        if not request.prompt_ids:
            raise ValueError("The prompt is empty.")
        self.running[request_id] = (request, [])

    def abort(self, request_id: str) -> None:
        """Forget a request."""
        self.aborted.append(request_id)
        self.running.pop(request_id, None)

    def step(self) -> list[tuple[str, Generation]]:
        """Add a token to every request."""
        self.before_step()
        finished = []
        for request_id, (request, token_ids) in list(self.running.items()):
            token_ids.append(len(token_ids))
            self.num_generated_tokens += 1
            if len(token_ids) == request.max_tokens:
                logprobs = np.zeros(len(token_ids), np.float32)
                finished.append((request_id, Generation(token_ids, logprobs, "length", None, self.policy_version)))
                del self.running[request_id]
        return finished

    def load_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Note the version; an empty mapping fails."""
        if not weights:
            raise ValueError("No weights.")
        self.policy_version = version

    def call_workers(self, method: str, kwargs: Mapping[str, Any]) -> list[Any]:
        """Note the call."""
        self.calls.append((method, dict(kwargs)))
        return ["done"]

    def finish_weight_update(self, version: int) -> None:
        """Note the version."""
        self.policy_version = version

    def token_counts(self) -> tuple[int, int, int]:
        """Return what was generated."""
        return self.num_generated_tokens, 0, 0

    def close(self) -> None:
        """Note it."""
        self.closed = True
