"""The engine's thread with a stand-in for vLLM: what blocks whom, what is refused, what an error leaves behind."""

import threading

import pytest

from learners.engine import Engine
from learners.generation import EngineConfig, GenerationRequest
from tests.fake_engine import FakeBackend

CONFIG = EngineConfig(model="m", tokenizer="m", dtype="float32", max_model_len=100)


def request(max_tokens=3, prompt_ids=(1, 2)):
    return GenerationRequest(prompt_ids=list(prompt_ids), max_tokens=max_tokens, temperature=1.0, stop=(), seed=0)


@pytest.fixture
def backend():
    return FakeBackend()


@pytest.fixture
def engine(backend):
    engine = Engine(CONFIG, build=lambda config: backend)
    yield engine
    engine.stop()


def test_requests_run_together_and_each_gets_its_own_tokens(engine, backend):
    engine.pause().result(5)
    futures = [engine.submit(request(max_tokens)) for max_tokens in (2, 3, 4)]
    engine.resume().result(5)
    assert [future.result(5).token_ids for future in futures] == [[0, 1], [0, 1, 2], [0, 1, 2, 3]]
    stats = engine.stats()
    assert stats.num_steps == 4  # one step serves all that run
    assert stats.num_generated_tokens == 2 + 3 + 4


def test_the_constructor_returns_while_the_engine_is_built_and_early_requests_are_served():
    built = threading.Event()

    def build(config):
        assert built.wait(5)
        return FakeBackend()

    engine = Engine(CONFIG, build=build)
    early = engine.submit(request())
    assert not engine.ready.done()
    built.set()
    assert early.result(5).token_ids == [0, 1, 2]
    assert engine.ready.result(5) is None
    engine.stop()


def test_a_failed_build_is_an_error_value_for_requests_and_raises_where_asked():
    def build(config):
        raise OSError("no such model")

    engine = Engine(CONFIG, build=build)
    assert "no such model" in engine.submit(request()).result(5).error
    with pytest.raises(OSError, match="no such model"):
        engine.ready.result(5)
    with pytest.raises(RuntimeError, match="no such model"):
        engine.load_weights({"w": 0}, 1).result(5)
    engine.stop()


def test_commands_are_taken_between_steps_of_a_running_request(engine, backend):
    in_step, go_on = threading.Event(), threading.Event()

    def hold():
        in_step.set()
        assert go_on.wait(5)

    backend.before_step = hold
    long = engine.submit(request(max_tokens=50))
    assert in_step.wait(5)
    short = engine.submit(request(max_tokens=1))  # does not block although a step is under way
    paused = engine.pause()
    go_on.set()
    paused.result(5)
    assert not long.done()
    engine.resume().result(5)
    assert len(short.result(5).token_ids) == 1
    assert len(long.result(5).token_ids) == 50


def test_weights_are_refused_while_requests_run_and_taken_afterwards(engine, backend):
    engine.pause().result(5)
    future = engine.submit(request())
    with pytest.raises(RuntimeError, match="while 1 requests were running"):
        engine.load_weights({"w": 0}, 3).result(5)
    with pytest.raises(RuntimeError, match="start_weight_update was called while 1 requests"):
        engine.call_workers("start_weight_update").result(5)
    engine.resume().result(5)
    assert future.result(5).policy_version == 0
    engine.load_weights({"w": 0}, 3).result(5)
    assert engine.policy_version == 3
    assert engine.submit(request()).result(5).policy_version == 3


def test_weights_that_fail_to_load_leave_an_engine_that_refuses_to_sample(engine):
    with pytest.raises(ValueError, match=r"No weights\."):
        engine.load_weights({}, 3).result(5)
    generation = engine.submit(request()).result(5)
    assert generation.finish_reason == "error"
    assert "load_weights(version=3) failed" in generation.error


def test_a_weight_transfer_reaches_the_workers_step_by_step(engine, backend):
    assert engine.call_workers("init_weight_transfer_engine", init_info={"rank_offset": 1}).result(5) == ["done"]
    engine.call_workers("start_weight_update").result(5)
    engine.call_workers("update_weights", update_info={"names": ["w"]}).result(5)
    engine.finish_weight_update(4).result(5)
    assert backend.calls == [
        ("init_weight_transfer_engine", {"init_info": {"rank_offset": 1}}),
        ("start_weight_update", {}),
        ("update_weights", {"update_info": {"names": ["w"]}}),
    ]
    assert engine.policy_version == 4


def test_a_request_that_cannot_be_served_fails_alone(engine):
    good, bad = engine.submit(request()), engine.submit(request(prompt_ids=()))
    assert bad.result(5).error == "ValueError: The prompt is empty."
    assert good.result(5).error is None


def test_a_step_that_raises_ends_running_requests_and_refuses_later_ones(engine, backend):
    def fail():
        raise RuntimeError("bad allocation")

    backend.before_step = fail
    assert "bad allocation" in engine.submit(request()).result(5).error
    assert "bad allocation" in engine.submit(request()).result(5).error
    assert "bad allocation" in engine.failure


@pytest.mark.parametrize("step", ["call_workers", "finish_weight_update"])
def test_a_weight_transfer_that_fails_half_way_leaves_an_engine_that_refuses_to_sample(engine, backend, step):
    def fail(*_):
        raise RuntimeError("peer is gone")

    setattr(backend, step, fail)
    with pytest.raises(RuntimeError, match="peer is gone"):
        (engine.call_workers("update_weights") if step == "call_workers" else engine.finish_weight_update(4)).result(5)
    assert "peer is gone" in engine.submit(request()).result(5).error


@pytest.mark.parametrize("where", ["abort", "step", "add", "call_workers"])
def test_whatever_ends_the_engines_thread_nobody_waits_for_it(engine, backend, where):
    def exit_thread(*_):
        raise SystemExit("exit called in a library")

    engine.pause().result(5)
    first, second = engine.submit(request()), engine.submit(request())
    engine.pause().result(5)  # both have been added by now
    setattr(backend, where, exit_thread)
    assert first.cancel()
    if where == "step":
        engine.resume()
    elif where == "add":
        assert "exit called" in engine.submit(request()).result(5).error
    elif where == "call_workers":
        backend.running.clear()
        engine._running.clear()
        with pytest.raises(SystemExit):
            engine.call_workers("update_weights").result(5)
        second = engine.submit(request())
    assert "exit called" in second.result(5).error
    assert "exit called" in engine.failure
    with pytest.raises(RuntimeError, match="exit called"):
        engine.resume().result(5)
    engine._thread.join(5)
    assert backend.closed


def test_cancelling_a_future_aborts_its_request(engine, backend):
    engine.pause().result(5)
    cancelled, other = engine.submit(request()), engine.submit(request())
    engine.pause().result(5)  # both requests have been added by now
    assert cancelled.cancel()
    engine.resume().result(5)
    assert other.result(5).error is None
    assert backend.aborted == ["0"]
    assert backend.running == {}


def test_stop_does_not_wait_for_a_build_and_what_was_built_is_freed(backend):
    go_on = threading.Event()

    def build(config):
        assert go_on.wait(5)
        return backend

    engine = Engine(CONFIG, build=build)
    engine.stop()
    go_on.set()
    engine._thread.join(5)
    assert backend.closed


def test_stop_ends_running_requests_frees_the_engine_and_answers_whoever_comes_late(backend):
    engine = Engine(CONFIG, build=lambda config: backend)
    engine.pause().result(5)
    running = engine.submit(request())
    engine.stop()
    assert running.result(5).error == "The engine was stopped."
    assert engine.submit(request()).result(5).error == "The engine was stopped."
    with pytest.raises(RuntimeError, match="was stopped"):
        engine.resume().result(5)
    assert backend.closed
    engine.stop()
