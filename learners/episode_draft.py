"""An episode while it grows: the sampler appends responses and observations, then takes tokens and record."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from learners.episodes import EpisodeRecord, TokenEpisode, ToolCall
from torl_env.problems import Problem


@dataclass(slots=True)
class EpisodeDraft:
    """Mutable; one per running episode.

    Args:
        prompt: The prompt's text.
        prompt_ids: Its tokens.
        policy_version: Version of the weights the episode is sampled with.
        info: The env's latest info.
    """

    prompt: str
    prompt_ids: list[int]
    policy_version: int
    info: dict[str, Any]
    token_ids: list[int] = field(init=False)
    loss_mask: list[bool] = field(init=False)
    action_logp: list[float] = field(init=False)
    turns: list[tuple[str, str]] = field(init=False)
    tool_calls: list[ToolCall] = field(default_factory=list)
    reward: float = 0.0
    terminated: bool = False
    stop_reason: str = ""
    error: str | None = None

    def __post_init__(self) -> None:
        self.token_ids, self.loss_mask, self.action_logp, self.turns = [], [], [], []
        self._append("prompt", self.prompt, self.prompt_ids, None)

    def append_response(self, text: str, token_ids: list[int], logprobs: Sequence[float]) -> None:
        """Append what the policy sampled, one log-prob per token."""
        self._append("response", text, token_ids, logprobs)

    def append_observation(self, text: str, token_ids: list[int]) -> None:
        """Append what the tool said: not trained on."""
        self._append("observation", text, token_ids, None)

    def _append(self, role: str, text: str, token_ids: list[int], logprobs: Sequence[float] | None) -> None:
        self.turns.append((role, text))
        self.token_ids.extend(token_ids)
        self.loss_mask.extend([logprobs is not None] * len(token_ids))
        self.action_logp.extend([0.0] * len(token_ids) if logprobs is None else logprobs)

    def end(self, stop_reason: str, error: str | None = None) -> None:
        """End the episode for a reason of the sampler's own: it is truncated."""
        self.stop_reason, self.terminated, self.error = stop_reason, False, error

    def tokens(self) -> TokenEpisode:
        """Return the token arrays."""
        return TokenEpisode(
            token_ids=np.array(self.token_ids, np.int32),
            loss_mask=np.array(self.loss_mask, np.bool_),
            action_logp=np.array(self.action_logp, np.float32),
            prompt_length=len(self.prompt_ids),
            policy_version=self.policy_version,
        )

    def record(self, problem: Problem, *, group_id: int, sample_index: int, duration_s: float) -> EpisodeRecord:
        """Return what the driver is told."""
        return EpisodeRecord(
            group_id=group_id,
            sample_index=sample_index,
            problem_id=problem.id,
            kind=problem.kind,
            reward=self.reward,
            reward_terms=dict(self.info.get("reward_terms", {})),
            verdict=str(self.info.get("verdict", "unknown")),
            terminated=self.terminated,
            truncated=not self.terminated,
            stop_reason=self.stop_reason,
            error=self.error,
            policy_version=self.policy_version,
            num_prompt_tokens=len(self.prompt_ids),
            num_tokens=len(self.token_ids),
            num_response_tokens=sum(self.loss_mask),
            turns=tuple(self.turns),
            tool_calls=tuple(self.tool_calls),
            duration_s=duration_s,
            source=problem.source,
        )
