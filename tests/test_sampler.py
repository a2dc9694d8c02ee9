"""The episode loop: masks, limits, errors, and that nobody waits for anybody else's tool."""

import asyncio
import threading
import time

import gymnasium
import numpy as np
import pytest

from learners.generation import Generation
from learners.sampler import EpisodeRequest, Sampler, SamplerConfig, request_seed
from tests.fake_engine import EOS, CharTokenizer, FakeEngine
from tests.fakes import FakeSandbox
from torl_env import Dialect, ExecutionResult, MathToolEnv, Problem, Status
from torl_env.grading import Verdict
from torl_env.rewards import RewardTerms

PROBLEM = Problem("p1", "6*7?", "42", kind="product")
DIALECT = Dialect("Q{problem}A")  # the prompt is "Q6*7?A", 6 tokens of one character
CODE = "```python\nprint(42)\n```\n```output"  # 33 characters
OBSERVATION = "\n42\n```\n"  # 8 characters
ANSWER = "\\boxed{42}"  # 10 characters and the end-of-sequence token


class ScriptedEngine(FakeEngine):
    """Answers turn t of every episode with script[t]; turns are counted by the observations in the prompt."""

    def __init__(self, *script):
        super().__init__(lambda request: script[self.turn(request)])

    @staticmethod
    def turn(request):
        return "".join(chr(i % 1_000_000) for i in request.prompt_ids).count("\n```\n```output")


def make_sampler(engine, sandbox=None, make_env=None, **changes):
    config = {"max_prompt_tokens": 20, "max_response_tokens": 200, "tool_timeout_s": 5.0, "seed": 0} | changes
    return Sampler(
        engine,
        CharTokenizer(),
        sandbox or FakeSandbox(),
        make_env or (lambda: MathToolEnv([PROBLEM], dialect=DIALECT, max_tool_calls=2)),
        SamplerConfig(**config),
    )


async def sample_one(sampler, **changes):
    arguments = {
        "problems": [PROBLEM],
        "group_ids": [0],
        "group_size": 1,
        "iteration": 1,
        "temperature": 1.0,
    } | changes
    episodes, metrics = await sampler.sample(**arguments)
    return *episodes[0], metrics


async def test_a_two_call_episode_masks_prompt_and_observations_and_keeps_log_probs_in_place():
    record, tokens, _ = await sample_one(make_sampler(ScriptedEngine(CODE, CODE, ANSWER)))
    # P 6 | R 33 | O 8 | R 33 | O 8 | R 11 (with the end of sequence)
    expected_mask = [0] * 6 + [1] * 33 + [0] * 8 + [1] * 33 + [0] * 8 + [1] * 11
    assert tokens.loss_mask.tolist() == [bool(m) for m in expected_mask]
    assert tokens.prompt_length == 6
    assert tokens.policy_version == 7
    text = "Q6*7?A" + (CODE + OBSERVATION) * 2 + ANSWER
    assert tokens.token_ids.tolist() == [ord(c) for c in text] + [EOS]
    # The fake's log-probs count -1, -2, ... in each turn.
    assert tokens.action_logp[6:39].tolist() == [-float(i) for i in range(1, 34)]
    assert tokens.action_logp[39:47].tolist() == [0.0] * 8
    assert tokens.action_logp[47] == -1
    assert tokens.action_logp[-1] == -11
    assert record.turns == (
        ("prompt", "Q6*7?A"),
        ("response", CODE),
        ("observation", OBSERVATION),
        ("response", CODE),
        ("observation", OBSERVATION),
        ("response", ANSWER),
    )
    assert (record.num_tokens, record.num_prompt_tokens, record.num_response_tokens) == (99, 6, 77)
    assert (record.reward, record.verdict, record.stop_reason) == (1.0, "correct", "answered")
    assert record.terminated
    assert not record.truncated
    assert [call.status for call in record.tool_calls] == ["success", "success"]


async def test_each_turn_gets_the_envs_stop_strings_the_remaining_budget_and_all_tokens_so_far():
    engine = ScriptedEngine(CODE, CODE, ANSWER)
    await sample_one(make_sampler(engine), temperature=0.7)
    assert [request.stop for request in engine.requests] == [("```output",), ("```output",), ()]
    assert [request.max_tokens for request in engine.requests] == [200, 200 - 41, 200 - 82]
    assert [len(request.prompt_ids) for request in engine.requests] == [6, 47, 88]
    assert {request.temperature for request in engine.requests} == {0.7}


async def test_sampled_ids_are_kept_even_where_decoding_and_encoding_would_change_them():
    spelled_differently = [1_000_000 + ord(c) for c in ANSWER] + [EOS]  # decodes to ANSWER, which encodes to other ids
    record, tokens, _ = await sample_one(make_sampler(FakeEngine(lambda request: spelled_differently)))
    assert tokens.token_ids[6:].tolist() == spelled_differently
    assert record.turns[-1] == ("response", ANSWER)
    assert record.verdict == "correct"


async def test_a_turn_cut_by_the_token_limit_is_graded_and_truncated():
    record, tokens, _ = await sample_one(make_sampler(ScriptedEngine(ANSWER + " and so on"), max_response_tokens=10))
    assert tokens.num_response_tokens == 10
    assert (record.reward, record.verdict) == (1.0, "correct")
    assert (record.terminated, record.truncated, record.stop_reason) == (False, True, "max_response_tokens")
    assert record.counts


@pytest.mark.parametrize("budget", [33, 41])
async def test_an_observation_that_leaves_no_room_is_dropped_and_the_episode_graded(budget):
    # CODE has 33 tokens, the observation 8: at 41 it would fit exactly, with nothing left to sample.
    engine = ScriptedEngine(CODE, ANSWER)
    record, tokens, _ = await sample_one(make_sampler(engine, max_response_tokens=budget))
    assert tokens.num_tokens == 6 + 33
    assert len(engine.requests) == 1
    assert (record.reward, record.verdict) == (-1.0, "incorrect")
    assert (record.terminated, record.truncated, record.stop_reason) == (False, True, "max_response_tokens")
    assert record.turns[-1][0] == "response"
    assert len(record.tool_calls) == 1


async def test_one_token_of_room_after_an_observation_is_used():
    record, tokens, _ = await sample_one(make_sampler(ScriptedEngine(CODE, ANSWER), max_response_tokens=42))
    assert tokens.num_tokens == 6 + 42
    assert tokens.loss_mask[-1]
    assert record.stop_reason == "max_response_tokens"


async def test_a_too_long_prompt_is_excluded_and_nothing_is_sampled():
    engine = ScriptedEngine(ANSWER)
    record, tokens, _ = await sample_one(make_sampler(engine, max_prompt_tokens=5))
    assert engine.requests == []
    assert (record.stop_reason, record.counts, record.truncated) == ("prompt_too_long", False, True)
    assert "6 tokens" in record.error
    assert tokens.num_response_tokens == 0


async def test_an_engine_error_ends_the_episode_as_a_value():
    record, _, _ = await sample_one(make_sampler(FakeEngine(lambda request: Generation.failed("out of blocks", 7))))
    assert (record.stop_reason, record.error, record.counts) == ("engine_error", "out of blocks", False)


async def test_an_episode_never_mixes_two_policies():
    newer = Generation([65], np.zeros(1, np.float32), "stop", None, policy_version=8)
    record, tokens, _ = await sample_one(make_sampler(FakeEngine(lambda request: newer)))
    assert (record.stop_reason, record.counts) == ("engine_error", False)
    assert "from version 7 to 8" in record.error
    assert tokens.num_response_tokens == 0


async def test_a_sandbox_failure_leaves_the_batch():
    sandbox = FakeSandbox(lambda code: ExecutionResult.sandbox_error("unreachable"))
    record, _, _ = await sample_one(make_sampler(ScriptedEngine(CODE), sandbox))
    assert (record.stop_reason, record.counts, record.reward) == ("sandbox_error", False, 0.0)
    assert record.tool_calls[0].status == "sandbox_error"


async def test_all_others_finish_while_one_tool_call_is_held():
    """The held program is released by the 15th graded episode, so the test ends only if none of those waits for it."""
    sandbox = FakeSandbox(hold=("held",))
    finished = []

    class CountingEnv(MathToolEnv):
        def finish(self, result):
            step = super().finish(result)
            if step[2]:
                finished.append(step)
                if len(finished) == 15:
                    sandbox.release("held")
            return step

    first = True

    def answer(request):
        nonlocal first
        if ScriptedEngine.turn(request):
            return ANSWER
        code, first = ("```python\nheld\n```\n```output" if first else CODE), False
        return code

    sampler = make_sampler(
        FakeEngine(answer), sandbox, lambda: CountingEnv([PROBLEM], dialect=DIALECT, max_tool_calls=2)
    )
    async with asyncio.timeout(20):
        episodes, metrics = await sampler.sample([PROBLEM] * 4, [0, 1, 2, 3], 4, 1, 1.0)
    assert len(finished) == 16
    assert all(record.stop_reason == "answered" for record, _ in episodes)
    assert metrics["num_tool_calls"] == 16


class SleepingSandbox:
    """Each program takes a second; counts the threads alive meanwhile."""

    def __init__(self):
        self.max_threads = 0

    async def run(self, code, timeout_s):
        await asyncio.sleep(1)
        self.max_threads = max(self.max_threads, threading.active_count())
        return ExecutionResult(Status.SUCCESS, stdout="42\n", return_code=0, run_s=1.0)

    async def close(self):
        pass


async def test_a_thousand_one_second_tools_take_under_three_seconds_without_a_thread_each():
    sandbox = SleepingSandbox()
    correct = RewardTerms({"correctness": 1.0}, Verdict.CORRECT, "equal")

    def make_env():
        return MathToolEnv([PROBLEM], dialect=DIALECT, max_tool_calls=1, reward=lambda *episode: correct)

    sampler = make_sampler(ScriptedEngine(CODE, ANSWER), sandbox, make_env)
    start = time.perf_counter()
    episodes, metrics = await sampler.sample([PROBLEM] * 10, range(10), 100, 1, 1.0)
    assert time.perf_counter() - start < 3
    assert len(episodes) == 1000
    assert sandbox.max_threads < 50
    # All waited together: 1,000 s of waiting in a little more than one.
    assert metrics["tool_wait_s_sum"] > 1000
    assert 1 < metrics["tool_pending_s"] < 3


def test_seeds_depend_on_every_coordinate_and_on_nothing_else():
    base = (0, 1, 2, 3, 4)
    seeds = {request_seed(*base)}
    for position in range(5):
        changed = list(base)
        changed[position] += 10
        seeds.add(request_seed(*changed))
    assert len(seeds) == 6
    assert request_seed(*base) == 1_410_846_738_257_104_941  # a resumed run on another machine samples the same tokens
    assert all(0 <= seed < 2**63 for seed in seeds)


async def test_the_same_call_requests_the_same_seeds_and_another_seed_others():
    async def seeds(seed, iteration=1):
        engine = ScriptedEngine(CODE, ANSWER)
        await make_sampler(engine, seed=seed).sample([PROBLEM] * 2, [5, 9], 2, iteration, 1.0)
        return sorted(request.seed for request in engine.requests)

    first = await seeds(0)
    assert len(set(first)) == 8  # 2 groups x 2 samples x 2 turns
    assert await seeds(0) == first
    assert not set(await seeds(1)) & set(first)
    assert not set(await seeds(0, iteration=2)) & set(first)


async def test_what_an_env_raises_reaches_the_caller_and_ends_the_others():
    class BrokenEnv(MathToolEnv):
        def finish(self, result):
            raise KeyError("no such column")

    sandbox = FakeSandbox()
    sampler = make_sampler(
        ScriptedEngine(CODE), sandbox, lambda: BrokenEnv([PROBLEM], dialect=DIALECT, max_tool_calls=2)
    )
    with pytest.raises(ExceptionGroup) as raised:
        await sampler.sample([PROBLEM], [0], 4, 1, 1.0)
    assert "no such column" in str(raised.value.exceptions[0])


async def test_prompts_that_differ_within_a_group_are_rejected():
    class RandomPromptEnv(MathToolEnv):
        def reset(self, *, seed=None, options=None):
            prompt, info = super().reset(seed=seed, options=options)
            return f"{prompt}{seed}", info

    def make_env():
        return RandomPromptEnv([PROBLEM], dialect=DIALECT)

    with pytest.raises(ValueError, match="2 different prompts"):
        await make_sampler(ScriptedEngine(ANSWER), make_env=make_env).sample([PROBLEM], [0], 2, 1, 1.0)


def test_an_env_without_begin_and_finish_is_rejected_at_once():
    with pytest.raises(ValueError, match="has no `begin`"):
        make_sampler(ScriptedEngine(), make_env=lambda: gymnasium.make("CartPole-v1"))


async def test_a_wrapped_env_is_accepted():
    def make_env():
        return gymnasium.make("torl/MathTool-v0", problems=[PROBLEM], dialect=DIALECT)

    record, _, _ = await sample_one(make_sampler(ScriptedEngine(CODE, ANSWER), make_env=make_env))
    assert record.verdict == "correct"


async def test_vllms_count_of_generated_tokens_is_in_the_figures():
    _, _, metrics = await sample_one(make_sampler(ScriptedEngine(CODE, ANSWER)))
    assert metrics["num_generated_tokens"] == metrics["num_response_tokens"] == 33 + 11
    assert metrics["num_observation_tokens"] == 8


async def test_single_episodes_are_handed_over_as_they_end_and_equal_those_of_a_batch():
    sandbox = FakeSandbox(hold=("hold",))
    held = CODE.replace("42", "42 #hold")
    problems = [Problem("slow", "slow 6*7?", "42"), Problem("fast", "fast 6*7?", "42")]

    def answer(request):
        text = "".join(map(chr, request.prompt_ids))
        return ANSWER if "output\n" in text else held if "slow" in text else CODE

    sampler = make_sampler(FakeEngine(answer), sandbox)
    ended = []

    def on_episode(episode):
        ended.append(episode)
        sandbox.release("hold")  # the slow one goes on only now that the fast one was handed over

    requests = [EpisodeRequest(problems[0], 4, 2), EpisodeRequest(problems[1], 5, 0)]
    await sampler.sample_each(requests, 1, 1.0, on_episode)
    assert [(r.problem_id, r.group_id, r.sample_index) for r, _ in ended] == [("fast", 5, 0), ("slow", 4, 2)]
    batch, _ = await sampler.sample(problems, [4, 5], 3, 1, 1.0)
    again = {(record.group_id, record.sample_index): tokens for record, tokens in batch}
    for record, tokens in ended:
        assert tokens.token_ids.tolist() == again[record.group_id, record.sample_index].token_ids.tolist()


async def test_a_single_episode_has_the_request_seeds_of_its_place_in_a_batch():
    engine = ScriptedEngine(ANSWER)
    sampler = make_sampler(engine)
    await sampler.sample([PROBLEM], [9], 3, 4, 1.0)
    seeds = [request.seed for request in engine.requests]
    await sampler.sample_each([EpisodeRequest(PROBLEM, 9, 2)], 4, 1.0, lambda episode: None)
    assert engine.requests[-1].seed == seeds[2]
    assert len(set(seeds)) == 3
