"""The RLlib actor around the sampler, with a stand-in engine: errors as values, metrics, callbacks, state."""

from concurrent.futures import Future

import gymnasium
import numpy as np
import pytest
import ray
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.env import INPUT_ENV_SPACES
from ray.tune.registry import register_env

from learners.config import ToRLConfig
from learners.env_runner import LLMEnvRunner
from learners.generation import EngineConfig, Generation
from learners.sampler import EpisodeRequest
from tests.fake_engine import CharTokenizer, FakeEngine
from tests.fakes import FakeSandbox
from torl_env import Dialect, ExecutionResult, MathToolEnv, Problem

PROBLEMS = [Problem("p1", "6*7?", "42", kind="product"), Problem("p2", "1+1?", "2", kind="sum")]
CODE = "```python\nprint(42)\n```\n```output"
ANSWER = "\\boxed{42}"


class ScriptedRunnerEngine(FakeEngine):
    """Uses the tool once, then answers 42; what the runner needs of `Engine` besides."""

    failure = None
    build_error = None

    def __init__(self, config: EngineConfig):
        super().__init__(lambda request: ANSWER if "```output\n" in text(request) else CODE)
        self.config = config
        self.ready: Future[None] = Future()
        self.stopped = False
        self.loaded = None
        if self.build_error:
            self.ready.set_exception(self.build_error)
        else:
            self.ready.set_result(None)

    def load_weights(self, weights, version):
        future = Future()
        if weights:
            self.loaded, self.policy_version = weights, version
            future.set_result(None)
        else:
            future.set_exception(ValueError("The new weights lack everything."))
        return future

    def stop(self):
        self.stopped = True


class SharedSandbox(FakeSandbox):
    """Survives the copies RLlib makes of a config."""

    def __deepcopy__(self, memo):
        return self


def text(request):
    return "".join(map(chr, request.prompt_ids))


@pytest.fixture
def make_runner(monkeypatch):
    runners = []
    monkeypatch.setattr("learners.env_runner.Engine", ScriptedRunnerEngine)
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda path: CharTokenizer())
    monkeypatch.setattr(ray, "put", lambda value: value)

    def make(env="torl/MathTool-v0", callbacks=None, sandbox=None, **sampling):
        env_config = {"problems": PROBLEMS, "dialect": Dialect("Q{problem}A"), "sandbox": sandbox or SharedSandbox()}
        config = ToRLConfig().environment(env, env_config=env_config).language_model("a-model", dtype="float32")
        config.sampling(**{"max_prompt_tokens": 20, "max_response_tokens": 100} | sampling).debugging(seed=3)
        if callbacks:
            config.callbacks(callbacks)
        runner = LLMEnvRunner(config=config, worker_index=1, num_workers=1)
        runners.append(runner)
        return runner

    yield make
    for runner in runners:
        runner.stop()


def sample(runner, **changes):
    return runner.sample(**{"problems": PROBLEMS, "group_ids": [0, 1], "group_size": 2, "iteration": 1} | changes)


def test_a_sample_is_records_in_order_and_one_object_of_tokens_per_group(make_runner):
    result = sample(make_runner())
    assert result.error is None
    assert [(r.problem_id, r.group_id, r.sample_index) for r in result.records] == [
        ("p1", 0, 0),
        ("p1", 0, 1),
        ("p2", 1, 0),
        ("p2", 1, 1),
    ]
    assert [r.verdict for r in result.records] == ["correct", "correct", "incorrect", "incorrect"]
    assert len(result.refs) == 2
    for group, tokens in enumerate(result.refs):
        assert [t.num_tokens for t in tokens] == [r.num_tokens for r in result.records if r.group_id == group]
    assert result.metrics["num_tool_calls"] == 4
    assert result.metrics["num_generated_tokens"] == sum(r.num_response_tokens for r in result.records)


def test_a_tokenizer_of_another_kind_is_not_recorded(make_runner):
    assert make_runner().tokenizer_json() is None


def test_what_an_env_raises_is_an_error_value_with_its_traceback(make_runner):
    def broken(code):
        raise ZeroDivisionError("in the sandbox client")

    result = sample(make_runner(sandbox=SharedSandbox(broken)))
    assert "ZeroDivisionError: in the sandbox client" in result.error
    assert (result.records, result.refs) == ([], [])


def test_an_engine_that_failed_is_an_error_value(make_runner, monkeypatch):
    runner = make_runner()
    monkeypatch.setattr(runner._engine, "_answer", lambda request: Generation.failed("a step failed", 7))
    monkeypatch.setattr(runner._engine, "failure", "a step failed")
    assert sample(runner).error == "a step failed"
    with pytest.raises(AssertionError, match="a step failed"):
        runner.assert_healthy()


def test_an_engine_that_could_not_be_built_is_an_error_value(make_runner, monkeypatch):
    monkeypatch.setattr(ScriptedRunnerEngine, "build_error", OSError("no such model"))
    assert "OSError: no such model" in sample(make_runner()).error


def test_errors_of_weight_loading_are_returned_not_raised(make_runner):
    runner = make_runner()
    assert runner.load_weights({"w": np.zeros(1)}, 5) is None
    assert runner._engine.policy_version == 5
    assert "lack everything" in runner.load_weights({}, 6)


def test_the_engine_is_sized_for_prompt_and_response_and_told_its_threads(make_runner):
    config = make_runner(engine_threads=2, engine_kwargs={"max_num_seqs": 8})._engine.config
    assert config.max_model_len == 120
    assert config.num_threads == 2
    assert config.engine_kwargs == {"max_num_seqs": 8}


def test_rllibs_standard_metrics_count_training_episodes(make_runner):
    runner = make_runner()
    sample(runner)
    metrics = {name: stats.peek() for name, stats in runner.get_metrics().items() if hasattr(stats, "peek")}
    # 4 episodes of 2 turns; rewards 1, 1, -1, -1.
    assert metrics["num_env_steps_sampled"] == metrics["num_env_steps_sampled_lifetime"] == 8
    assert metrics["num_episodes"] == metrics["num_episodes_lifetime"] == 4
    assert metrics["episode_return_mean"] == 0
    assert (metrics["episode_return_min"], metrics["episode_return_max"]) == (-1, 1)
    assert metrics["episode_len_mean"] == 2
    assert metrics["weights_seq_no"] == 7


def test_greedy_sampling_is_evaluation_and_leaves_the_counters_alone(make_runner):
    runner = make_runner()
    result = sample(runner, temperature=0.0, group_size=1)
    assert len(result.records) == 2
    assert {request.temperature for request in runner._engine.requests} == {0.0}
    assert "num_episodes" not in runner.get_metrics()
    assert runner.get_state() == {"num_env_steps_sampled_lifetime": 0}


def test_the_configured_temperature_and_seed_are_used(make_runner):
    first, again, other = make_runner(temperature=0.5), make_runner(), make_runner()
    other.config.seed = 4
    for runner in (first, again, other):
        sample(runner)
    seeds = [sorted(request.seed for request in runner._engine.requests) for runner in (first, again, other)]
    assert seeds[0] == seeds[1]
    assert not set(seeds[0]) & set(seeds[2])
    assert {request.temperature for request in first._engine.requests} == {0.5}


def test_episodes_that_do_not_count_are_in_no_mean(make_runner):
    runner = make_runner(sandbox=SharedSandbox(lambda code: ExecutionResult.sandbox_error("unreachable")))
    result = sample(runner)
    assert not any(record.counts for record in result.records)
    metrics = runner.get_metrics()
    assert metrics["num_episodes"].peek() == 4
    assert "episode_return_mean" not in metrics


class RecordingCallback(RLlibCallback):
    events = ()

    def _note(self, name, episode, env_runner):
        type(self).events += ((name, len(episode), env_runner.config.in_evaluation),)

    def on_episode_created(self, *, episode, env_runner, **kwargs):
        self._note("created", episode, env_runner)

    def on_episode_start(self, *, episode, env_runner, **kwargs):
        self._note("start", episode, env_runner)

    def on_episode_step(self, *, episode, env_runner, **kwargs):
        self._note("step", episode, env_runner)

    def on_episode_end(self, *, episode, env_runner, metrics_logger, prev_episode_chunks, **kwargs):
        self._note("end", episode, env_runner)
        metrics_logger.log_value("my_return", episode.get_return(), window=10)
        type(self).last = episode


def test_a_users_callback_sees_every_episode_as_rllib_would_show_it(make_runner):
    RecordingCallback.events = ()
    runner = make_runner(callbacks=RecordingCallback)
    sample(runner)
    one_episode = [("created", 0), ("start", 0), ("step", 1), ("step", 2), ("end", 2)]
    assert [event[:2] for event in RecordingCallback.events] == one_episode * 4
    last = RecordingCallback.last
    assert last.get_observations(0) == "Q1+1?A"
    assert list(last.get_actions()) == [CODE, ANSWER]
    assert last.is_terminated
    assert runner.get_metrics()["my_return"].peek() == 0
    RecordingCallback.events = ()
    sample(runner, temperature=0.0, group_size=1)
    assert {event[2] for event in RecordingCallback.events} == {True}


def test_spaces_are_the_envs_text_spaces(make_runner):
    spaces = make_runner().get_spaces()
    assert "any text\n" in spaces[INPUT_ENV_SPACES][0]
    assert "" in spaces[DEFAULT_MODULE_ID][1]


def test_state_is_the_lifetime_counter_and_weights_in_it_are_ignored(make_runner):
    runner = make_runner()
    runner.set_state(state={"num_env_steps_sampled_lifetime": 12, "rl_module": {}})
    assert runner.get_state() == {"num_env_steps_sampled_lifetime": 12}


def test_an_env_registered_with_tune_or_given_as_a_callable_gets_the_context(make_runner):
    def creator(context):
        assert context.worker_index == 1
        return MathToolEnv(context["problems"], dialect=context["dialect"], sandbox=context["sandbox"])

    register_env("my-math", creator)
    assert sample(make_runner(env="my-math")).error is None
    assert sample(make_runner(env=creator)).error is None


def test_an_env_that_cannot_wait_for_its_tool_is_rejected_at_set_up(make_runner):
    with pytest.raises(ValueError, match="has no `begin`"):
        make_runner(env=lambda context: gymnasium.make("CartPole-v1"))


def test_stop_ends_engine_loop_and_sandbox_client(make_runner):
    runner = make_runner()
    sample(runner)
    runner.stop()
    assert runner._engine.stopped
    assert runner._sandbox.closed
    assert not runner._loop_thread.is_alive()


def sample_each(runner):
    requests = [EpisodeRequest(problem, group, 0) for group, problem in enumerate(PROBLEMS)]
    return list(runner.sample_each(requests=requests, iteration=0, temperature=0.0))


def test_single_episodes_are_yielded_with_their_tokens_and_leave_rllibs_counters_alone(make_runner):
    runner = make_runner()
    episodes = sample_each(runner)
    assert sorted((record.problem_id, record.verdict) for record, _ in episodes) == [
        ("p1", "correct"),
        ("p2", "incorrect"),
    ]
    assert all(tokens.num_tokens == record.num_tokens for record, tokens in episodes)
    assert runner.num_env_steps_sampled_lifetime == 0


def test_what_goes_wrong_with_single_episodes_is_the_last_item(make_runner, monkeypatch):
    monkeypatch.setattr(ScriptedRunnerEngine, "failure", "An engine step failed: out of memory")
    assert sample_each(make_runner()) == ["An engine step failed: out of memory"]
    monkeypatch.setattr(ScriptedRunnerEngine, "failure", None)
    monkeypatch.setattr(ScriptedRunnerEngine, "build_error", ValueError("no such model"))
    [error] = sample_each(make_runner())
    assert "no such model" in error


def test_waiting_for_the_engine_returns_why_it_could_not_be_built(make_runner, monkeypatch):
    assert make_runner().wait_until_ready() is None
    monkeypatch.setattr(ScriptedRunnerEngine, "build_error", ValueError("no such model"))
    assert "no such model" in make_runner().wait_until_ready()
