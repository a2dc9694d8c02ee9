"""The sampler as an RLlib `EnvRunner` actor: one vLLM engine, many concurrent episodes, small records back.

The actor is thin: the engine has its thread (`learners.engine`), the episodes their event loop on another
(`learners.sampler`), and methods submit and wait. An error is a value (`SampleResult.error`, or a returned text),
because RLlib answers a runner that raises with a silent restart and empty samples.
"""

import asyncio
import os
import queue
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import ray
from ray.rllib.callbacks.utils import make_callback
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.env import INPUT_ENV_SINGLE_SPACES, INPUT_ENV_SPACES
from ray.rllib.env.env_context import EnvContext
from ray.rllib.env.env_runner import EnvRunner
from ray.rllib.utils import force_list
from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME, SAMPLE_TIMER
from ray.tune.registry import ENV_CREATOR, _global_registry

from learners.engine import Engine
from learners.episodes import EpisodeRecord, SampleResult, to_single_agent_episode
from learners.generation import EngineConfig, EngineStats
from learners.runner_metrics import log_episodes
from learners.sampler import Episode, EpisodeRequest, Sampler, SamplerConfig, check_env_is_split
from torl_env.problems import Problem, ProblemSet

if TYPE_CHECKING:
    import torch

    from learners.config import ToRLConfig


class LLMEnvRunner(EnvRunner):
    """Samples groups of episodes with a language model.

    The constructor returns at once; the engine is built meanwhile, on its own thread, and whatever needs it waits.

    Args:
        config: A `ToRLConfig`.
        kwargs: What RLlib gives every runner (`worker_index`, `num_workers`, ...).
    """

    config: "ToRLConfig"
    num_env_steps_sampled_lifetime: int

    @override(EnvRunner)
    def __init__(self, *, config: "ToRLConfig", **kwargs: Any) -> None:
        self._engine = Engine(_engine_config(config))  # first: it takes longest
        super().__init__(config=config, **kwargs)
        self._callbacks = [callback_class() for callback_class in force_list(self.config.callbacks_class)]
        self._sandbox: Any = self.config.env_config.get("sandbox")  # a `SandboxClient`, or None so far
        self._sampler: Sampler | None = None
        self._stopped = False
        self._loop = asyncio.new_event_loop()
        self._loop_thread = threading.Thread(target=self._loop.run_forever, name="episodes", daemon=True)
        self._loop_thread.start()
        self.make_env()

    @override(EnvRunner)
    def make_env(self) -> None:
        """Find out how envs are made and make the first one.

        Raises:
            ValueError: if it cannot be stepped in two halves.
        """
        context = EnvContext(self.config.env_config, worker_index=self.worker_index or 0, num_workers=self.num_workers)
        self._make_one_env = _env_maker(self.config.env, context)
        self.env = check_env_is_split(self._make_one_env())
        self._callback("on_environment_created", env=self.env.unwrapped, env_context=context)

    def connect_sandbox(self, app: str) -> None:
        """Run programs in the Serve application `app` from now on; `env_config["sandbox"]` wins over it."""
        from torl_env.sandbox.deployment import ServeSandbox

        if "sandbox" not in self.config.env_config:
            self._sandbox = ServeSandbox(app)
            if self._sampler is not None:
                self._sampler.close()
                self._sampler = None

    @override(EnvRunner)
    def sample(
        self,
        *,
        problems: Sequence[Problem],
        group_ids: Sequence[int],
        group_size: int,
        iteration: int,
        temperature: float | None = None,
        **kwargs: Any,
    ) -> SampleResult:
        """Sample `group_size` episodes per problem and wait for all.

        Args:
            problems: One per group.
            group_ids: The groups' ids, distinct within an iteration over all runners; they enter the seeds.
            group_size: G.
            iteration: Enters the seeds: the same arguments and weights give the same tokens.
            temperature: None for the configured one; 0 is greedy, which is evaluation and leaves RLlib's counters
                alone.
            kwargs: RLlib's forward compatibility.
        """
        if temperature is None:
            temperature = self.config.temperature
        try:
            with self.metrics.log_time(SAMPLE_TIMER):
                run = self._ready_sampler().sample(problems, group_ids, group_size, iteration, temperature)
                episodes, metrics = self._await(run)
            if self._engine.failure is not None:
                return SampleResult(error=self._engine.failure)
            records = [record for record, _ in episodes]
            self._report(records, is_evaluation=temperature == 0)
            return SampleResult(records, _put_groups(episodes, group_size), metrics)
        except Exception:
            return SampleResult(error=traceback.format_exc())

    def sample_each(
        self, *, requests: Sequence[EpisodeRequest], iteration: int, temperature: float
    ) -> Iterator[Episode | str]:
        """Sample single episodes and yield each as it ends; RLlib's counters and callbacks are left alone.

        Args:
            requests: What to sample.
            iteration: Enters the seeds.
            temperature: 0 is greedy.

        Yields:
            Episodes; a text is what went wrong, and the last item.
        """
        ended: queue.SimpleQueue[Episode | None] = queue.SimpleQueue()
        try:
            run = self._ready_sampler().sample_each(requests, iteration, temperature, ended.put)
            future = asyncio.run_coroutine_threadsafe(run, self._loop)
            future.add_done_callback(lambda _: ended.put(None))
            while (episode := ended.get()) is not None:
                if self._engine.failure is not None:
                    yield self._engine.failure
                    return
                yield episode
            future.result()
        except Exception:
            yield traceback.format_exc()

    def wait_until_ready(self) -> str | None:
        """Wait until the engine serves requests; return what went wrong, or None."""
        return _error_of(self._engine.ready)

    def _ready_sampler(self) -> Sampler:
        self._engine.ready.result()
        if self._sampler is None:
            from transformers import AutoTokenizer

            if self._sandbox is None:
                from torl_env.sandbox.local import LocalSandbox

                self._sandbox = LocalSandbox(memory_mb=self.config.sandbox_memory_mb)
            self._sampler = Sampler(
                self._engine,
                AutoTokenizer.from_pretrained(self.config.tokenizer_path or self.config.model_path),
                self._sandbox,
                self._make_one_env,
                SamplerConfig(
                    max_prompt_tokens=self.config.max_prompt_tokens,
                    max_response_tokens=self.config.max_response_tokens,
                    tool_timeout_s=self.config.sandbox_timeout_s,
                    seed=self.config.seed or 0,
                ),
            )
        return self._sampler

    def tokenizer_json(self) -> str | None:
        """Return the tokenizer as the `tokenizers` library saves it; None if it is not one of that library's."""
        backend = getattr(self._ready_sampler().tokenizer, "backend_tokenizer", None)
        return None if backend is None else backend.to_str()

    def _await(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def load_weights(self, weights: "Mapping[str, torch.Tensor] | ray.ObjectRef", version: int) -> str | None:
        """Take the learner's weights; the prefix cache is reset with them.

        Args:
            weights: Every parameter under its `transformers` name, or a reference to such a mapping.
            version: The new `policy_version`.

        Returns:
            What went wrong, or None.
        """
        try:
            if isinstance(weights, ray.ObjectRef):
                weights = ray.get(weights)
        except Exception:
            return traceback.format_exc()
        return _error_of(self._engine.load_weights(weights, version))

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> str | None:
        """Join vLLM's weight transfer (`vllm.distributed.weight_transfer`); return what went wrong, or None."""
        return _error_of(self._engine.call_workers("init_weight_transfer_engine", init_info=init_info))

    def start_weight_update(self) -> str | None:
        """Prepare for new weights; return what went wrong, or None."""
        return _error_of(self._engine.call_workers("start_weight_update"))

    def update_weights(self, update_info: Any) -> str | None:
        """Receive weights; return what went wrong, or None."""
        return _error_of(self._engine.call_workers("update_weights", update_info=update_info))

    def finish_weight_update(self, version: int) -> str | None:
        """Sample with the new weights, as `version`, from now on; return what went wrong, or None."""
        return _error_of(self._engine.finish_weight_update(version))

    def stats(self) -> EngineStats:
        """Return the engine's counters since it was built."""
        return self._engine.stats()

    def _report(self, records: Sequence[EpisodeRecord], is_evaluation: bool) -> None:
        """Let callbacks see every episode, and RLlib's metrics every training episode."""
        self.config.in_evaluation = is_evaluation  # how RLlib's callbacks tell the two apart
        episodes = [
            to_single_agent_episode(
                record,
                self.env.observation_space,
                self.env.action_space,
                on_event=partial(self._episode_callback, env_index),
            )
            for env_index, record in enumerate(records)
        ]
        self._callback("on_sample_end", samples=episodes)
        if is_evaluation:
            return
        self.num_env_steps_sampled_lifetime += sum(record.num_turns for record in records)
        smoothing = self.config.metrics_num_episodes_for_smoothing // max(1, self.config.num_env_runners)
        log_episodes(self.metrics, records, policy_version=self._engine.policy_version, smoothing=smoothing)

    def _episode_callback(self, env_index: int, name: str, episode: Any) -> None:
        more: dict[str, Any] = {"prev_episode_chunks": []} if name == "on_episode_end" else {}
        self._callback(name, episode=episode, env=self.env.unwrapped, env_index=env_index, rl_module=None, **more)

    def _callback(self, name: str, **kwargs: Any) -> None:
        make_callback(
            name,
            callbacks_objects=self._callbacks,
            callbacks_functions=getattr(self.config, f"callbacks_{name}"),
            kwargs={"env_runner": self, "metrics_logger": self.metrics, **kwargs},
        )

    @override(EnvRunner)
    def get_metrics(self) -> Any:
        """Return what was logged since the last call."""
        return self.metrics.reduce()

    @override(EnvRunner)
    def get_spaces(self) -> dict[str, tuple[gymnasium.Space, gymnasium.Space]]:
        """Return the env's text spaces under RLlib's keys."""
        spaces = (self.env.observation_space, self.env.action_space)
        return {INPUT_ENV_SPACES: spaces, INPUT_ENV_SINGLE_SPACES: spaces, DEFAULT_MODULE_ID: spaces}

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """Return the lifetime counter, all the state there is: seeds and weights come with each call."""
        return {NUM_ENV_STEPS_SAMPLED_LIFETIME: self.num_env_steps_sampled_lifetime}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore `get_state`'s; weights in the state are ignored, they come through `load_weights`."""
        self.num_env_steps_sampled_lifetime = state.get(
            NUM_ENV_STEPS_SAMPLED_LIFETIME, self.num_env_steps_sampled_lifetime
        )

    @override(EnvRunner)
    def assert_healthy(self) -> None:
        """Check what is known without waiting: an env there is, and no failure of the engine so far."""
        assert self.env is not None
        assert self._engine.failure is None, self._engine.failure

    @override(EnvRunner)
    def stop(self) -> None:
        """End the engine, the episodes' loop, the envs and the sandbox client. May be called twice."""
        if self._stopped:
            return
        self._stopped = True
        self._engine.stop()
        if self._sampler is not None:
            self._sampler.close()
        if self._sandbox is not None:
            self._await(self._sandbox.close())
        self.env.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._loop_thread.join()
        self._loop.close()


def _engine_config(config: "ToRLConfig") -> EngineConfig:
    assert config.model_path is not None, "ToRLConfig.validate() asks for a model"
    num_cores = len(os.sched_getaffinity(0))
    engine_kwargs = dict(config.engine_kwargs)
    if config.num_gpus_per_env_runner > 0:
        engine_kwargs.setdefault("weight_transfer_config", {"backend": "nccl"})
    return EngineConfig(
        model=config.model_path,
        tokenizer=config.tokenizer_path or config.model_path,
        dtype=config.dtype,
        max_model_len=config.max_prompt_tokens + config.max_response_tokens,
        num_threads=config.engine_threads or max(1, num_cores // max(1, config.num_env_runners)),
        engine_kwargs=engine_kwargs,
    )


def _env_maker(env: Any, context: EnvContext) -> Callable[[], gymnasium.Env]:
    """Return how to make one env, by RLlib's rules.

    A Gymnasium id gets the context's items as keywords; a name registered with Tune, or a callable, gets the context.
    """
    if isinstance(env, str) and not _global_registry.contains(ENV_CREATOR, env):
        settings = dict(context)
        if isinstance(settings.get("problems"), str | Path):
            # Read once for thousands of envs, which get each episode's problem anyway.
            settings["problems"] = ProblemSet.load(settings["problems"])
        return partial(gymnasium.make, env, disable_env_checker=True, **settings)
    creator = _global_registry.get(ENV_CREATOR, env) if isinstance(env, str) else env
    return partial(creator, context)


def _put_groups(episodes: Sequence[Episode], group_size: int) -> list[ray.ObjectRef]:
    tokens = [tokens for _, tokens in episodes]
    return [ray.put(tokens[first : first + group_size]) for first in range(0, len(tokens), group_size)]


def _error_of(future: "Future[Any]") -> str | None:
    try:
        future.result()
    except Exception as error:
        return "".join(traceback.format_exception(error))
    return None
