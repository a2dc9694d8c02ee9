"""Where the time of a batch goes: the sampler's own figures, as plain numbers."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from learners.episodes import EpisodeRecord
from learners.generation import EngineStats


@dataclass(slots=True)
class Timing:
    """Seconds a block took, known at its end."""

    seconds: float = 0.0


class SamplerClock:
    """Measures one batch at a time; used from one event loop.

    Args:
        engine_stats: Reads the engine's counters.
    """

    def __init__(self, engine_stats: Callable[[], EngineStats]) -> None:
        self._engine_stats = engine_stats
        self.start()

    def start(self) -> None:
        """Begin a batch."""
        self._start_s = time.perf_counter()
        self._before = self._engine_stats()
        self._num_pending = 0
        self._pending_s = 0.0
        self._busy_while_pending_s = 0.0
        self._grade_s = 0.0

    @contextlib.contextmanager
    def tool(self) -> Iterator[Timing]:
        """Time one awaited program; any number may be pending at once."""
        timing, start = Timing(), time.perf_counter()
        if self._num_pending == 0:
            self._pending_since_s, self._busy_since_s = start, self._engine_stats().busy_s
        self._num_pending += 1
        try:
            yield timing
        finally:
            end = time.perf_counter()
            timing.seconds = end - start
            self._num_pending -= 1
            if self._num_pending == 0:
                self._pending_s += end - self._pending_since_s
                self._busy_while_pending_s += self._engine_stats().busy_s - self._busy_since_s

    @contextlib.contextmanager
    def finish(self, is_answer: bool) -> Iterator[None]:
        """Time the end of a turn; that of an answer is grading."""
        start = time.perf_counter()
        try:
            yield
        finally:
            if is_answer:
                self._grade_s += time.perf_counter() - start

    def metrics(self, records: Sequence[EpisodeRecord]) -> dict[str, float]:
        """Return the figures of the batch that ends now.

        sample_s                  seconds of the whole batch
        num_prompt_tokens, num_response_tokens, num_observation_tokens, num_tool_calls
        num_generated_tokens      sampled tokens by vLLM's own count; equals num_response_tokens
        num_engine_prompt_tokens  prompt tokens vLLM was given, of which it found num_cached_prompt_tokens in its cache
        response_tokens_per_s     num_response_tokens / sample_s
        engine_steps, engine_busy_s, engine_busy_share (of sample_s), engine_threads
        tool_pending_s            seconds during which at least one program was awaited
        tool_busy_s               seconds of those that the engine spent in steps; tool_overlap_share is the quotient
                                  (1: waiting for tools cost nothing; absent without tool calls)
        tool_idle_s               the other seconds of tool_pending_s: with nothing to do but to wait for programs
        tool_wait_s_sum           seconds waited for programs, summed over episodes
        grade_s_sum               seconds waited for grading, summed over episodes
        """
        wall_s = time.perf_counter() - self._start_s
        before, after = self._before, self._engine_stats()
        num_response = sum(record.num_response_tokens for record in records)
        num_prompt = sum(record.num_prompt_tokens for record in records)
        busy_s = after.busy_s - before.busy_s
        metrics: dict[str, float] = {
            "sample_s": wall_s,
            "num_prompt_tokens": num_prompt,
            "num_response_tokens": num_response,
            "num_observation_tokens": sum(record.num_tokens for record in records) - num_prompt - num_response,
            "num_tool_calls": sum(len(record.tool_calls) for record in records),
            "num_generated_tokens": after.num_generated_tokens - before.num_generated_tokens,
            "num_engine_prompt_tokens": after.num_prompt_tokens - before.num_prompt_tokens,
            "num_cached_prompt_tokens": after.num_cached_tokens - before.num_cached_tokens,
            "response_tokens_per_s": num_response / wall_s,
            "engine_steps": after.num_steps - before.num_steps,
            "engine_busy_s": busy_s,
            "engine_busy_share": busy_s / wall_s,
            "engine_threads": after.num_threads,
            "tool_pending_s": self._pending_s,
            "tool_busy_s": self._busy_while_pending_s,
            # The engine counts a step when it ends: one that was under way when the first program came counts whole.
            "tool_idle_s": max(0.0, self._pending_s - self._busy_while_pending_s),
            "tool_wait_s_sum": sum(call.wait_s for record in records for call in record.tool_calls),
            "grade_s_sum": self._grade_s,
        }
        if self._pending_s > 0:
            metrics["tool_overlap_share"] = self._busy_while_pending_s / self._pending_s
        return metrics
