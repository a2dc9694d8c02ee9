"""Where a batch's time goes, on a clock set by hand."""

import pytest

from learners.generation import EngineStats
from learners.sampler_clock import SamplerClock
from tests.test_episodes import make_record


class Hands:
    """A clock and an engine whose counters the test sets."""

    def __init__(self, monkeypatch):
        self.now_s = 100.0
        self.stats = EngineStats(num_generated_tokens=1000, busy_s=50.0, num_steps=10)
        monkeypatch.setattr("learners.sampler_clock.time.perf_counter", lambda: self.now_s)

    def advance(self, seconds, busy_s):
        self.now_s += seconds
        generated = self.stats.num_generated_tokens + 5
        self.stats = EngineStats(generated, 0, 0, self.stats.num_steps + 1, self.stats.busy_s + busy_s, num_threads=1)


@pytest.fixture
def hands(monkeypatch):
    return Hands(monkeypatch)


def test_overlapping_tool_calls_are_pending_once_and_overlap_with_the_busy_engine(hands):
    clock = SamplerClock(lambda: hands.stats)
    clock.start()
    hands.advance(1, busy_s=1)
    with clock.tool() as first:
        hands.advance(2, busy_s=2)
        with clock.tool() as second:
            hands.advance(2, busy_s=0)
    hands.advance(5, busy_s=4)
    metrics = clock.metrics([])
    assert (first.seconds, second.seconds) == (4, 2)
    assert metrics["tool_pending_s"] == 4  # not 6
    assert metrics["tool_busy_s"] == 2
    assert metrics["tool_idle_s"] == 2  # of the 4 s the engine worked for 2
    assert metrics["tool_overlap_share"] == 0.5
    assert metrics["sample_s"] == 10
    assert metrics["engine_busy_share"] == 0.7  # 7 of 10 s
    assert metrics["engine_steps"] == 4
    assert metrics["num_generated_tokens"] == 20


def test_a_step_that_was_under_way_does_not_make_waiting_negative(hands):
    clock = SamplerClock(lambda: hands.stats)
    with clock.tool():
        hands.advance(1, busy_s=3)
    assert clock.metrics([])["tool_idle_s"] == 0


def test_only_answers_are_grading(hands):
    clock = SamplerClock(lambda: hands.stats)
    with clock.finish(is_answer=True):
        hands.advance(2, busy_s=0)
    with clock.finish(is_answer=False):
        hands.advance(3, busy_s=0)
    assert clock.metrics([])["grade_s_sum"] == 2


def test_each_batch_starts_from_zero(hands):
    clock = SamplerClock(lambda: hands.stats)
    with clock.tool():
        hands.advance(2, busy_s=2)
    clock.start()
    hands.advance(4, busy_s=1)
    metrics = clock.metrics([make_record()])  # 10 tokens: 3 of the prompt, 5 of responses, 2 of the observation
    assert metrics["tool_pending_s"] == 0
    assert "tool_overlap_share" not in metrics
    assert metrics["engine_busy_s"] == 1
    assert metrics["num_observation_tokens"] == 2
    assert metrics["response_tokens_per_s"] == 5 / 4
