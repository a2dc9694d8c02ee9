"""Many episodes at once over one engine, each at its own pace: the asyncio core of the sampler. No Ray, no vLLM.

Every episode is a coroutine: reset, then turns of generate -> begin -> sandbox -> finish, until the env ends it or a
token limit does. While one waits for its tool the engine decodes the others, and a finished tool call joins the
running batch at the next engine step; there is no barrier before the end of the batch.

Limits: `max_response_tokens` counts everything after the prompt, responses and observations (the paper's 3072
    response tokens
include tool output). A turn that reaches it is graded as it stands; an observation that leaves no room for a further
token is dropped and the episode graded without it. Either way the episode is `truncated` with stop_reason
"max_response_tokens".
"""

import asyncio
import hashlib
import struct
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import gymnasium

from learners.episode_draft import EpisodeDraft
from learners.episodes import (
    STOP_ENGINE_ERROR,
    STOP_MAX_RESPONSE_TOKENS,
    STOP_PROMPT_TOO_LONG,
    EpisodeRecord,
    TokenEpisode,
    ToolCall,
)
from learners.generation import EngineStats, Generation, GenerationRequest
from learners.sampler_clock import SamplerClock
from torl_env.problems import Problem
from torl_env.sandbox.types import SandboxClient

Episode = tuple[EpisodeRecord, TokenEpisode]

# Episodes that `sample_each` has running at once: several times what an engine decodes at a time, so it never waits,
# and a bound on the environments alive.
_MAX_AT_ONCE = 1024
# Envs finish a turn in these, since grading blocks. The threads only wait for the grader's processes.
_NUM_FINISH_THREADS = 16


class TokenEngine(Protocol):
    """What the sampler needs of an engine (`learners.engine.Engine`)."""

    @property
    def policy_version(self) -> int:
        """Version of the weights in use."""

    def submit(self, request: GenerationRequest) -> "Future[Generation]":
        """Sample one turn."""

    def stats(self) -> EngineStats:
        """Counters so far."""


class Tokenizer(Protocol):
    """What the sampler needs of a tokenizer (`transformers`)."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the ids of a text."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        """Return the text of ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerConfig:
    """Limits and the base of all seeds.

    Args:
        max_prompt_tokens: A longer prompt is not sampled from: stop_reason "prompt_too_long".
        max_response_tokens: Most tokens after the prompt, observations included.
        tool_timeout_s: Seconds a program may run.
        seed: Base of the seeds of all requests.
    """

    max_prompt_tokens: int
    max_response_tokens: int
    tool_timeout_s: float
    seed: int


@dataclass(frozen=True, slots=True)
class EpisodeRequest:
    """One episode to sample; its tokens depend on these, the seed, the iteration and the weights alone.

    Args:
        problem: Where it starts.
        group_id: The problem's group.
        sample_index: Which of the group's episodes.
    """

    problem: Problem
    group_id: int
    sample_index: int


def request_seed(seed: int, iteration: int, group: int, sample: int, turn: int) -> int:
    """Return a 63-bit seed that depends on nothing else: not on timing, batch, process or Python's hash seed."""
    packed = struct.pack("<5q", seed, iteration, group, sample, turn)
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little") >> 1


class Sampler:
    """Runs batches of episodes on the event loop it is awaited on; one batch at a time.

    Args:
        engine: Samples turns.
        tokenizer: Of the same model.
        sandbox: Runs the programs.
        make_env: Makes one env; as many are made as episodes run at once, and kept.
        config: Limits and seed.

    Attributes:
        tokenizer: See above.

    Raises:
        ValueError: if the env has no `begin` and `finish`.
    """

    def __init__(
        self,
        engine: TokenEngine,
        tokenizer: Tokenizer,
        sandbox: SandboxClient,
        make_env: Callable[[], gymnasium.Env],
        config: SamplerConfig,
    ) -> None:
        self._engine = engine
        self.tokenizer = tokenizer
        self._sandbox = sandbox
        self._make_env = make_env
        self._config = config
        self._envs = [check_env_is_split(make_env())]
        self._free_envs = list(self._envs)
        self._threads = ThreadPoolExecutor(_NUM_FINISH_THREADS, thread_name_prefix="finish")
        self._clock = SamplerClock(engine.stats)

    async def sample(
        self, problems: Sequence[Problem], group_ids: Sequence[int], group_size: int, iteration: int, temperature: float
    ) -> tuple[list[Episode], dict[str, float]]:
        """Run `group_size` episodes per problem.

        Args:
            problems: One per group.
            group_ids: Their ids; they enter the seeds.
            group_size: G.
            iteration: Enters the seeds.
            temperature: 0 is greedy.

        Returns:
            All episodes, group by group, and the batch's figures (`SamplerClock.metrics`).

        Raises:
            ExceptionGroup: of what an env raised; the other episodes are cancelled then.
            ValueError: if the prompts of a group differ, so that their rewards do not compare.
        """
        self._clock.start()
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(self._episode(problem, group, sample, iteration, temperature))
                for problem, group in zip(problems, group_ids, strict=True)
                for sample in range(group_size)
            ]
        episodes = [task.result() for task in running]
        for first in range(0, len(episodes), group_size):
            _check_same_prompt(episodes[first : first + group_size])
        return episodes, self._clock.metrics([record for record, _ in episodes])

    async def sample_each(
        self,
        requests: Sequence[EpisodeRequest],
        iteration: int,
        temperature: float,
        on_episode: Callable[[Episode], None],
    ) -> None:
        """Run single episodes and hand each over as it ends; the arguments and errors are those of `sample`."""
        self._clock.start()
        free = asyncio.Semaphore(_MAX_AT_ONCE)

        async def run(request: EpisodeRequest) -> None:
            async with free:
                ids = (request.group_id, request.sample_index)
                on_episode(await self._episode(request.problem, *ids, iteration, temperature))

        async with asyncio.TaskGroup() as tasks:
            for request in requests:
                tasks.create_task(run(request))

    async def _episode(self, problem: Problem, group: int, sample: int, iteration: int, temperature: float) -> Episode:
        start = time.perf_counter()
        seeds = (self._config.seed, iteration, group, sample)
        env = self._take_env()
        try:
            draft = await self._played(env, problem, seeds, temperature)
        except BaseException:
            self._envs.remove(env)  # in the middle of a step perhaps, so not to be used again
            raise
        self._free_envs.append(env)
        duration_s = time.perf_counter() - start
        return draft.record(problem, group_id=group, sample_index=sample, duration_s=duration_s), draft.tokens()

    async def _played(
        self, env: gymnasium.Env, problem: Problem, seeds: tuple[int, int, int, int], temperature: float
    ) -> EpisodeDraft:
        # Envs take seeds below 2^31; turn 0 is the env's own, requests count from 1.
        prompt, info = env.reset(seed=request_seed(*seeds, 0) % 2**31, options={"problem": problem})
        prompt_ids = self.tokenizer.encode(prompt, add_special_tokens=False)
        draft = EpisodeDraft(prompt, prompt_ids, self._engine.policy_version, info)
        if len(prompt_ids) <= self._config.max_prompt_tokens:
            await self._turns(draft, env, seeds, temperature)
        else:
            limit = self._config.max_prompt_tokens
            draft.end(
                STOP_PROMPT_TOO_LONG,
                f"The prompt of problem {problem.id!r} has {len(prompt_ids)} tokens; `max_prompt_tokens` is {limit}.",
            )
        return draft

    def _take_env(self) -> gymnasium.Env:
        if not self._free_envs:
            self._envs.append(self._make_env())
            return self._envs[-1]
        return self._free_envs.pop()

    async def _turns(
        self, draft: EpisodeDraft, env: gymnasium.Env, seeds: tuple[int, int, int, int], temperature: float
    ) -> None:
        budget = len(draft.prompt_ids) + self._config.max_response_tokens
        turn = 0
        while True:
            turn += 1
            request = GenerationRequest(
                prompt_ids=list(draft.token_ids),
                max_tokens=budget - len(draft.token_ids),
                temperature=temperature,
                stop=tuple(draft.info.get("stop", ())),
                seed=request_seed(*seeds, turn),
            )
            generation = await asyncio.wrap_future(self._engine.submit(request))
            if (error := _generation_error(generation, draft.policy_version)) is not None:
                draft.end(STOP_ENGINE_ERROR, error)
                return
            text = self.tokenizer.decode(
                generation.token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
            draft.append_response(text, generation.token_ids, generation.logprobs.tolist())
            observation = await self._step(draft, env, text)
            if observation is None:
                if generation.finish_reason == "length" and draft.terminated:
                    draft.end(STOP_MAX_RESPONSE_TOKENS)
                return
            observation_ids = self.tokenizer.encode(observation, add_special_tokens=False)
            if len(draft.token_ids) + len(observation_ids) >= budget:
                # An empty turn asks for nothing, so the env grades what there is; its verdict stands unless it could
                # not judge.
                await self._step(draft, env, "")
                if draft.terminated or not draft.stop_reason:
                    draft.end(STOP_MAX_RESPONSE_TOKENS)
                return
            draft.append_observation(observation, observation_ids)

    async def _step(self, draft: EpisodeDraft, env: gymnasium.Env, action: str) -> str | None:
        """Make one step of the env; return the observation, None if the episode is over."""
        program = env.get_wrapper_attr("begin")(action)
        result = None
        if program is not None:
            with self._clock.tool() as timing:
                result = await self._sandbox.run(program, self._config.tool_timeout_s)
            draft.tool_calls.append(ToolCall(str(result.status), result.run_s, result.queue_s, timing.seconds))
        with self._clock.finish(is_answer=program is None):
            observation, reward, terminated, truncated, draft.info = await asyncio.get_running_loop().run_in_executor(
                self._threads, env.get_wrapper_attr("finish"), result
            )
        draft.reward += float(reward)
        if not (terminated or truncated):
            return observation
        draft.terminated = bool(terminated)
        draft.stop_reason = draft.info.get("stop_reason", "answered" if terminated else "truncated")
        return None

    def close(self) -> None:
        """Close the envs and end the threads; no batch may be running."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for env in self._envs:
            env.close()


def check_env_is_split(env: gymnasium.Env) -> gymnasium.Env:
    """Return the env if a step of it can be made around an awaited sandbox call.

    Raises:
        ValueError: if it has no `begin` and `finish`.
    """
    for name in ("begin", "finish"):
        if not env.has_wrapper_attr(name):
            raise ValueError(
                f"The environment {env} has no `{name}`. The sampler waits for thousands of programs at once, so it "
                f"needs `step` in two halves: `begin(action) -> program or None` and `finish(result) -> "
                f"(observation, reward, terminated, truncated, info)`. See `torl_env.env.MathToolEnv`."
            )
    return env


def _generation_error(generation: Generation, policy_version: int) -> str | None:
    if generation.finish_reason == "error":
        return generation.error
    if generation.policy_version != policy_version:
        return f"The weights changed in mid-episode, from version {policy_version} to {generation.policy_version}."
    return None


def _check_same_prompt(group: Sequence[Episode]) -> None:
    prompts = {tuple(tokens.token_ids[: tokens.prompt_length]) for _, tokens in group}
    if len(prompts) > 1:
        raise ValueError(
            f"The {len(group)} episodes of problem {group[0][0].problem_id!r} have {len(prompts)} different prompts. "
            f"A group's rewards are compared with each other, so `reset` must return the same prompt for the same "
            f"problem, whatever the seed."
        )
