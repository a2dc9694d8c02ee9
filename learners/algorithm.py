"""`ToRL`: the training loop as an RLlib `Algorithm`; `training_step` reads as sample, advantage, update, sync."""

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.fs
import ray
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.callbacks.utils import make_callback
from ray.rllib.core import ALL_MODULES, COMPONENT_LEARNER_GROUP, DEFAULT_MODULE_ID
from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import (
    ENV_RUNNER_RESULTS,
    ENV_RUNNER_SAMPLING_TIMER,
    EPISODE_RETURN_MEAN,
    LEARNER_RESULTS,
    LEARNER_UPDATE_TIMER,
    NUM_ENV_STEPS_TRAINED_LIFETIME,
    NUM_EPISODES,
    SYNCH_WORKER_WEIGHTS_TIMER,
    TIMERS,
)

from learners import records, runners
from learners.batch import Batch
from learners.config import ToRLConfig
from learners.episodes import SampleResult
from learners.metrics import episode_metrics
from learners.sandbox_app import SandboxApp
from learners.weight_sync import build_weight_sync
from torl_env.problems import Problem, ProblemSet, ProblemStream
from torl_env.sandbox.stats import SandboxStats

ADVANTAGE_TIMER = "advantage_timer"
_STATE_KEY = "torl"


class ToRL(Algorithm):
    """Tool-integrated RL of a language model (arXiv 2503.23383) with GRPO (arXiv 2402.03300).

    vLLM actors (`LLMEnvRunner`) sample groups of episodes in which the model may run code in the sandbox; the driver
    turns rewards into group-relative advantages; FSDP2 workers (`LLMLearner`) fetch the tokens and update; the new
    weights go back into the engines. Small records reach the driver, tokens stay in the object store.
    """

    @classmethod
    @override(Algorithm)
    def get_default_config(cls) -> ToRLConfig:
        """Return the paper's settings."""
        return ToRLConfig()

    @override(Algorithm)
    def setup(self, config: AlgorithmConfig) -> None:
        """Start sandbox, engines and learners at the same time; on a failure stop what was started."""
        self.policy_version = 0
        self._has_unsent_weights = False
        self.num_programs_executed = 0
        self.num_response_tokens = 0
        self.last_batch: Batch | None = None
        self.last_evaluation: Batch | None = None
        self._sandbox = SandboxApp(self.config)
        self._stream = ProblemStream(_load_problems(self.config, "train"), seed=self.config.seed or 0)
        try:
            self._sandbox.start()
            super().setup(config)
            self._evaluation_problems = _load_problems(self.evaluation_config, "test")
            self._sandbox.wait()
            runners.connect_sandbox(self.env_runner_group, self._sandbox.name)
            self._weight_sync = build_weight_sync(self.config, self.learner_group, self.env_runner_group)
        except BaseException:
            self.cleanup()
            raise

    @override(Algorithm)
    def training_step(self) -> None:
        """Sample, advantage, update, sync.

        Raises:
            RuntimeError: if a runner or learner failed, or if no episode of the batch counts.
        """
        iteration = self.iteration + 1
        start = time.perf_counter()
        stream_state = self._stream.get_state()
        try:
            with self._timed("sample_s", ENV_RUNNER_SAMPLING_TIMER):
                batch = self.sample_batch(
                    self._stream.next_batch(self.config.num_problems_per_step),
                    group_size=self.config.group_size,
                    temperature=self.config.temperature,
                    iteration=iteration,
                )
            with self._timed("advantage_s", ADVANTAGE_TIMER):
                advantages = batch.advantages(normalize_std=self.config.normalize_advantages)
            with self._timed("update_s", LEARNER_UPDATE_TIMER):
                self._has_unsent_weights = True
                update = self.learner_group.update_rows(
                    batch.rows(advantages),
                    minibatch_size=self.config.minibatch_size,
                    seed=(self.config.seed or 0, iteration),
                )
            with self._timed("sync_s", SYNCH_WORKER_WEIGHTS_TIMER):
                self._send_weights(self.policy_version + 1)
        except BaseException:
            # A step that did not end is done again from the same problems.
            self._stream.set_state(stream_state)
            raise
        step_s = time.perf_counter() - start
        self.metrics.log_value(("timings", "step_s"), step_s, window=1)
        self.metrics.log_value(("timings", "tool_idle_share"), batch.metrics["tool_idle_s"] / step_s, window=1)
        self.last_batch = batch
        self._log_step(batch, update.metrics)
        start = time.perf_counter()
        if self._iterations_since_restore == 0:
            # Tune restores a trial in its own folder, which may hold what this run does again.
            records.truncate_after(self._record_dir, self.iteration)
        records.append(self._record_dir, [batch.groups_line(iteration)], records.GROUPS_NAME)
        if records.is_recorded(iteration):
            lines = batch.lines(
                iteration=iteration,
                split="train",
                max_episodes=records.MAX_EPISODES_PER_ITERATION,
                advantages=advantages,
                logp=update.logp,
            )
            self._record(lines)
        self.metrics.log_value(("timings", "record_s"), time.perf_counter() - start, window=1)

    def wait_until_ready(self) -> None:
        """Wait until the samplers' engines have loaded the model: `build_algo` returns before, while they do.

        Raises:
            RuntimeError: with the traceback of one that could not be built.
        """
        runners.wait_until_ready(self.env_runner_group)

    @override(Algorithm)
    def evaluate(self, parallel_train_future: Any = None) -> dict[str, Any]:
        """Answer the evaluation problems greedily, on the samplers' own engines.

        Returns:
            `{"env_runners": {...}}` with the figures of `learners.metrics.episode_metrics`.
        """
        make_callback("on_evaluate_start", self.callbacks, kwargs={"algorithm": self, "metrics_logger": self.metrics})
        # `policy_version` counts the iterations done; RLlib, evaluating on an interval, has yet to count the last.
        iteration = self.policy_version
        batch = self.sample_batch(
            self._evaluation_problems[: self.config.evaluation_duration],
            group_size=1,
            temperature=0.0,
            iteration=iteration,
        )
        self.last_evaluation = batch
        figures = episode_metrics(batch.records)
        standard = {NUM_EPISODES: len(batch.records), EPISODE_RETURN_MEAN: figures["reward_mean"]}
        results = {ENV_RUNNER_RESULTS: {**figures, **batch.metrics, **standard}}
        self._record(
            batch.lines(iteration=iteration, split="evaluation", max_episodes=records.MAX_EPISODES_PER_EVALUATION)
        )
        make_callback(
            "on_evaluate_end",
            self.callbacks,
            kwargs={"algorithm": self, "metrics_logger": self.metrics, "evaluation_metrics": results},
        )
        return results

    def sample_batch(
        self, problems: Sequence[Problem], *, group_size: int, temperature: float, iteration: int
    ) -> Batch:
        """Sample one group of episodes per problem, spread over all runners.

        Args:
            problems: (P,) problems.
            group_size: episodes per problem.
            temperature: 0 is greedy.
            iteration: enters the seeds of the requests, so that the same call samples the same tokens.

        Raises:
            RuntimeError: with the runner's traceback, if one failed; if one is gone; if one sampled with other weights
                than the learners' last ones.
        """
        if self._has_unsent_weights:  # a step before failed between its update and its sync
            self._send_weights(self.policy_version)
        runner_ids = self.env_runner_group.healthy_env_runner_ids()
        if len(runner_ids) < self.config.num_env_runners:
            raise RuntimeError(
                f"{self.config.num_env_runners - len(runner_ids)} of {self.config.num_env_runners} samplers died; see "
                f"their logs. Go on from a checkpoint."
            )
        shares = [list(range(i, len(problems), len(runner_ids))) for i in range(len(runner_ids))]
        results = self.env_runner_group.foreach_env_runner(
            [
                partial(
                    _sample,
                    problems=[problems[i] for i in share],
                    group_ids=share,
                    group_size=group_size,
                    temperature=temperature,
                    iteration=iteration,
                )
                for share in shares
            ],
            remote_worker_ids=runner_ids,
            local_env_runner=False,
        )
        for result in results:
            if result.error:
                raise RuntimeError(f"A sampler failed:\n{result.error}")
        batch = Batch.gather(problems, shares, results, group_size)
        if others := {record.policy_version for record in batch.records} - {self.policy_version}:
            raise RuntimeError(
                f"Episodes were sampled with the weights of version {', '.join(map(str, sorted(others)))}, the "
                f"learners' are of version {self.policy_version}: a weight sync did not reach every engine."
            )
        self.num_programs_executed += sum(len(record.tool_calls) for record in batch.records)
        self.num_response_tokens += sum(record.num_response_tokens for record in batch.records)
        return batch

    def _send_weights(self, version: int) -> None:
        self._weight_sync.sync(version)
        self.policy_version = version
        self._has_unsent_weights = False

    def sandbox_stats(self) -> SandboxStats | None:
        """Return what the replicas of the sandbox application counted; None if the env has a sandbox of its own."""
        return self._sandbox.stats()

    @contextlib.contextmanager
    def _timed(self, name: str, timer: str) -> Iterator[None]:
        """Log the block's seconds: this step's as `timings/<name>`, RLlib's moving average under its own timer key."""
        start = time.perf_counter()
        with self.metrics.log_time((TIMERS, timer)):
            yield
        self.metrics.log_value(("timings", name), time.perf_counter() - start, window=1)

    def _log_step(self, batch: Batch, update: dict[str, float]) -> None:
        self.metrics.aggregate(
            self.env_runner_group.foreach_env_runner("get_metrics", local_env_runner=False), key=ENV_RUNNER_RESULTS
        )
        figures = {**episode_metrics(batch.records), **batch.metrics, "policy_version": self.policy_version}
        for name, value in figures.items():
            # Kinds and sources may have slashes of their own: `a` beside `a/b` would be a figure and a dict of figures.
            self.metrics.log_value((ENV_RUNNER_RESULTS, *name.split("/", 1)), value, window=1)
        for name, value in update.items():
            self.metrics.log_value((LEARNER_RESULTS, DEFAULT_MODULE_ID, name), value, window=1)
        if (sandbox := self.sandbox_stats()) is not None:
            for name, value in sandbox.as_metrics().items():
                self.metrics.log_value(("sandbox", name), value, window=1)
        num_steps = sum(record.num_turns for record in batch.records if record.counts)
        self.metrics.log_value(
            (LEARNER_RESULTS, ALL_MODULES, NUM_ENV_STEPS_TRAINED_LIFETIME), num_steps, reduce="lifetime_sum"
        )

    def _record(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Append to the records; behind the first goes the tokenizer, once a run."""
        records.append(self._record_dir, lines)
        tokenizer = self._record_dir / records.TOKENIZER_NAME
        if not tokenizer.exists():
            runner_id = self.env_runner_group.healthy_env_runner_ids()[0]
            (text,) = self.env_runner_group.foreach_env_runner(
                "tokenizer_json", remote_worker_ids=[runner_id], local_env_runner=False
            )
            if text is not None:
                tokenizer.write_text(text, encoding="utf-8")

    @property
    def _record_dir(self) -> Path:
        """The run folder; under Tune the trial's own, where that is a local one (its log directory is temporary)."""
        if self._storage is not None and isinstance(self._storage.storage_filesystem, pyarrow.fs.LocalFileSystem):
            return Path(self._storage.trial_fs_path)
        return Path(self.logdir)

    @override(Algorithm)
    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return RLlib's state plus the position in the problem stream and the policy version."""
        state = super().get_state(*args, **kwargs)
        state[_STATE_KEY] = {"stream": self._stream.get_state(), "policy_version": self.policy_version}
        return state

    @override(Algorithm)
    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned and bring the engines to the restored weights."""
        super().set_state(state)
        if _STATE_KEY in state:
            self._stream.set_state(state[_STATE_KEY]["stream"])
            self.policy_version = state[_STATE_KEY]["policy_version"]
        if COMPONENT_LEARNER_GROUP in state:
            self._send_weights(self.policy_version)

    @override(Algorithm)
    def save_to_path(self, path: Any = None, *, state: Any = None, **kwargs: Any) -> str:
        """Save a checkpoint to a folder or, as in RLlib, to `filesystem`.

        Learners on this machine write their own shards to a folder of it; otherwise the state is gathered first.
        """
        here = ray.get_runtime_context().get_node_id()
        nodes = self.learner_group.foreach_learner(lambda _: ray.get_runtime_context().get_node_id())
        is_remote = kwargs.get("filesystem") is not None or "://" in str(path)
        if path is None or state is not None or is_remote or any(node.get() != here for node in nodes):
            return super().save_to_path(path, state=state, **kwargs)
        saved = super().save_to_path(path, state=self.get_state(not_components=[COMPONENT_LEARNER_GROUP]), **kwargs)
        self.learner_group.save_to_path(Path(saved) / COMPONENT_LEARNER_GROUP)
        return saved

    @override(Algorithm)
    def restore_from_path(self, path: Any, *args: Any, filesystem: Any = None, **kwargs: Any) -> None:
        """Restore a checkpoint; afterwards the engines sample with its weights.

        Raises:
            ValueError: if the checkpoint lacks the learners' state, which RLlib would pass over.
        """
        if not _exists(f"{path}/{COMPONENT_LEARNER_GROUP}", filesystem):
            raise ValueError(
                f"{path} is no complete checkpoint of {type(self).__name__}: `{COMPONENT_LEARNER_GROUP}` is missing."
            )
        super().restore_from_path(path, *args, filesystem=filesystem, **kwargs)
        self._send_weights(self.policy_version)

    @override(Algorithm)
    def cleanup(self) -> None:
        """Stop engines and learners, and remove the sandbox application if this algorithm started it."""
        try:
            super().cleanup()
        finally:
            self._sandbox.stop()

    @classmethod
    @override(Algorithm)
    def _should_create_evaluation_env_runners(cls, eval_config: AlgorithmConfig) -> bool:
        """Evaluation uses the samplers' engines: a second runner would hold a second copy of the model."""
        return False

    def _setup_logdir(self) -> None:
        """Write to `config.run_dir` where one is set (and no Tune storage), else where RLlib would."""
        if self._storage is None and self.config.run_dir is not None:
            self._logdir = str(self.config.run_dir)
            Path(self._logdir).mkdir(parents=True, exist_ok=True)
        else:
            super()._setup_logdir()


def _exists(path: str, filesystem: pyarrow.fs.FileSystem | None) -> bool:
    if filesystem is None:
        filesystem, path = pyarrow.fs.FileSystem.from_uri(path if "://" in path else str(Path(path).absolute()))
    return filesystem.get_file_info(path).type is not pyarrow.fs.FileType.NotFound


def _load_problems(config: AlgorithmConfig, split: str) -> ProblemSet:
    problems = config.env_config.get("problems", "arithmetic")
    if isinstance(problems, str | Path):
        return ProblemSet.load(problems, split=split)
    return problems if isinstance(problems, ProblemSet) else ProblemSet(problems)


def _sample(env_runner: Any, **kwargs: Any) -> SampleResult:
    return env_runner.sample(**kwargs)
