"""What the sampler returns: one episode as token arrays for the learner, as a small record for the driver.

The token arrays stay in the object store (one object per group) and are fetched by the learner that trains on them;
the driver computes advantages, metrics and the records on disk from `EpisodeRecord`s alone. Importable without Ray:
only `to_single_agent_episode` needs RLlib.

Shapes: T tokens of one episode (prompt, responses and observations), G episodes of one group.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import gymnasium
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

# Why an episode says nothing about the policy; such episodes leave the loss and the group baseline. Everything else
# counts.
STOP_PROMPT_TOO_LONG = "prompt_too_long"
STOP_ENGINE_ERROR = "engine_error"
EXCLUDED_STOP_REASONS = frozenset({STOP_PROMPT_TOO_LONG, STOP_ENGINE_ERROR, "sandbox_error", "grader_unknown"})

# The sampler's own limit: an episode that hit it is graded like any other and is `truncated`.
STOP_MAX_RESPONSE_TOKENS = "max_response_tokens"


@dataclass(frozen=True, slots=True, eq=False)
class TokenEpisode:
    """One episode exactly as it was sampled; text is decoded from it, never the other way round.

    Worked example, prompt P, two responses R with an observation O of the tool between them:

        token_ids      P0 P1 P2 R0 R1 R2 O0 O1 R3 R4     T = 10, prompt_length = 3
        loss_mask       0  0  0  1  1  1  0  0  1  1     R2 is the last token of the marker that stopped the first turn
        action_logp     0  0  0 a3 a4 a5  0  0 a8 a9     a5 = log p(token_ids[5] | token_ids[:5])

    Row t describes token t; a learner that predicts token t+1 at position t shifts by one itself. An end-of-sequence
    token is a response token like any other: it was sampled.

    Args:
        token_ids: (T,) int32.
        loss_mask: (T,) bool, True on response tokens; False on prompt and observation tokens.
        action_logp: (T,) float32, natural log-probability under the distribution sampled from (temperature included);
            0 where `loss_mask` is False.
        prompt_length: Number of prompt tokens, 1 <= prompt_length <= T.
        policy_version: Version of the weights all response tokens were sampled with.

    Raises:
        ValueError: if lengths, types or values contradict each other.
    """

    token_ids: np.ndarray
    loss_mask: np.ndarray
    action_logp: np.ndarray
    prompt_length: int
    policy_version: int

    def __post_init__(self) -> None:
        for name, dtype in (("token_ids", np.int32), ("loss_mask", np.bool_), ("action_logp", np.float32)):
            array = getattr(self, name)
            if array.dtype != dtype or array.shape != (len(self.token_ids),):
                raise ValueError(
                    f"`{name}` must be {np.dtype(dtype).name} of shape ({len(self.token_ids)},), one entry per token. "
                    f"Received {array.dtype} of shape {array.shape}."
                )
        if not 1 <= self.prompt_length <= len(self.token_ids):
            raise ValueError(
                f"`prompt_length` must lie in [1, {len(self.token_ids)}], the number of tokens. "
                f"Received {self.prompt_length}."
            )
        if self.loss_mask[: self.prompt_length].any():
            raise ValueError(
                f"`loss_mask` must be False on the {self.prompt_length} prompt tokens: they were not sampled."
            )
        if not np.isfinite(self.action_logp).all():
            bad = int(np.flatnonzero(~np.isfinite(self.action_logp))[0])
            raise ValueError(f"`action_logp` must be finite. Received {self.action_logp[bad]} at token {bad}.")
        if self.action_logp[~self.loss_mask].any():
            raise ValueError("`action_logp` must be 0 where `loss_mask` is False.")

    @property
    def num_tokens(self) -> int:
        """T, prompt included."""
        return len(self.token_ids)

    @property
    def num_response_tokens(self) -> int:
        """Number of sampled tokens, the ones trained on."""
        return int(self.loss_mask.sum())


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One program run in the sandbox, without its output (that is in the observation's text).

    Args:
        status: `ExecutionResult.status` as text: "success", "failed", "time_limit", "memory_limit" or "sandbox_error".
        run_s: Seconds the program ran.
        queue_s: Seconds it waited for a free slot.
        wait_s: Seconds the episode waited for the result, transport included.
    """

    status: str
    run_s: float
    queue_s: float
    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRecord:
    """What the driver knows of one episode; its tokens are `refs[group][sample_index]` of the same `SampleResult`.

    Args:
        group_id: The group's id as given to `sample()`.
        sample_index: 0..G-1 within the group, and the index of the tokens in the group's object.
        problem_id: `Problem.id`.
        kind: `Problem.kind`, may be empty.
        reward: Return of the episode: the terminal step's reward.
        reward_terms: The reward's summands, empty where the episode was not graded.
        verdict: "correct", "incorrect" or "unknown" (not graded, or the grader gave up).
        terminated: The model ended its answer.
        truncated: A limit was hit, or the episode could not be judged.
        stop_reason: The env's ("answered", "grader_unknown", "sandbox_error") or the sampler's ("max_response_tokens",
            "prompt_too_long", "engine_error").
        error: What went wrong, for "engine_error" and "prompt_too_long"; otherwise None.
        policy_version: Version of the weights it was sampled with.
        num_prompt_tokens: Prompt tokens.
        num_tokens: All tokens, prompt included.
        num_response_tokens: Sampled tokens.
        turns: (role, text) in order; roles "prompt", "response", "observation". Text is decoded from the tokens,
            special tokens left out.
        tool_calls: One per program executed, in order.
        duration_s: Seconds from reset to the last token graded.
        source: `Problem.source`, may be empty.
    """

    group_id: int
    sample_index: int
    problem_id: str
    kind: str
    reward: float
    verdict: str
    terminated: bool
    truncated: bool
    stop_reason: str
    policy_version: int
    num_prompt_tokens: int
    num_tokens: int
    num_response_tokens: int
    turns: tuple[tuple[str, str], ...]
    tool_calls: tuple[ToolCall, ...] = ()
    reward_terms: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None
    duration_s: float = 0.0
    source: str = ""

    @property
    def counts(self) -> bool:
        """False if the episode says nothing about the policy: it leaves the loss and the group baseline."""
        return self.stop_reason not in EXCLUDED_STOP_REASONS

    @property
    def num_turns(self) -> int:
        """Number of responses, the env's steps."""
        return sum(role == "response" for role, _ in self.turns)


@dataclass(frozen=True, slots=True)
class SampleResult:
    """What one `sample()` call returns; an error is a value here, because RLlib restarts a runner that raises.

    Args:
        records: One per episode, group by group in the order asked for, `sample_index` ascending.
        refs: One object reference per group, to its `list[TokenEpisode]` in order of `sample_index`.
        metrics: Figures of this call, units in the names.
        error: Traceback text if the call failed; then the other fields are empty.
    """

    records: list[EpisodeRecord] = field(default_factory=list)
    refs: list[Any] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    error: str | None = None


def to_single_agent_episode(
    record: EpisodeRecord,
    observation_space: "gymnasium.Space | None" = None,
    action_space: "gymnasium.Space | None" = None,
    on_event: "Callable[[str, SingleAgentEpisode], None]" = lambda name, episode: None,
) -> "SingleAgentEpisode":
    """Return the episode as RLlib's callbacks know it: text observations, text actions, one step per response.

    Code steps have reward 0, the last step has the episode's. A response without an observation after it (the final
    answer, or a limit) is followed by the empty observation. The last info carries the record as `info["record"]`.

    Args:
        record: The episode.
        observation_space: The env's.
        action_space: The env's.
        on_event: Called with "on_episode_created", "on_episode_start", "on_episode_step" (once per response) and
            "on_episode_end" and the episode as it is then.
    """
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    episode = SingleAgentEpisode(observation_space=observation_space, action_space=action_space)
    on_event("on_episode_created", episode)
    texts = list(record.turns)
    responses = [i for i, (role, _) in enumerate(texts) if role == "response"]
    # An episode that never got to its first response (prompt too long) ends with the reset's info.
    info = {"problem_id": record.problem_id} | ({} if responses else {"record": record})
    episode.add_env_reset(observation=texts[0][1], infos=info)
    episode.is_truncated = not responses
    on_event("on_episode_start", episode)
    for i in responses:
        is_last = i == responses[-1]
        followed = i + 1 < len(texts) and texts[i + 1][0] == "observation"
        episode.add_env_step(
            observation=texts[i + 1][1] if followed else "",
            action=texts[i][1],
            reward=record.reward if is_last else 0.0,
            infos={"record": record} if is_last else {},
            terminated=is_last and record.terminated,
            truncated=is_last and record.truncated,
        )
        on_event("on_episode_step", episode)
    on_event("on_episode_end", episode)
    return episode
