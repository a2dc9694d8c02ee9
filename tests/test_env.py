"""The environment: Gymnasium's contract, turns, endings, misuse."""

import asyncio
import functools
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from tests.fakes import FakeSandbox
from torl_env import (
    PLAIN,
    ExecutionResult,
    Grade,
    MathToolEnv,
    Problem,
    Reward,
    Status,
    TranscriptObservation,
    Verdict,
)
from torl_env.spaces import UnicodeText

PROBLEMS = [Problem(f"p{i}", f"What is {i} times 7?", str(i * 7)) for i in range(20)]
SIX = PROBLEMS[6]
CALL = "I compute.\n```python\nprint(6 * 7)\n```\n```output"


def make(**kwargs: Any) -> MathToolEnv:
    return MathToolEnv(PROBLEMS, **({"sandbox": FakeSandbox()} | kwargs))


def started(**kwargs: Any) -> MathToolEnv:
    env = make(**kwargs)
    env.reset(options={"problem": SIX})
    return env


@pytest.fixture(scope="module")
def real() -> Iterator[gymnasium.Env]:
    env = gymnasium.make("torl/MathTool-v0", problems=PROBLEMS, max_tool_calls=2)
    yield env
    env.close()


def test_importing_the_package_is_quick_and_light() -> None:
    script = (
        "import sys, time; t = time.perf_counter(); import torl_env; s = time.process_time()\n"
        "heavy = {'torch', 'vllm', 'ray', 'transformers', 'sympy', 'math_verify'} & set(sys.modules)\n"
        "print(heavy, s < 1.0)"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed == "set() True\n"


@pytest.mark.filterwarnings("error")
def test_gymnasiums_checker_passes(real: gymnasium.Env) -> None:
    check_env(real.unwrapped)


def test_an_episode_with_a_real_program(real: gymnasium.Env) -> None:
    prompt, info = real.reset(seed=3, options={"problem": SIX})
    assert prompt == info["transcript"]
    assert info["stop"] == ("```output",)
    observation, reward, terminated, truncated, info = real.step(CALL)
    assert (observation, reward, terminated, truncated) == ("\n42\n```\n", 0, False, False)
    assert observation in real.observation_space
    assert (info["tool_calls"], info["stop"], info["execution"].ok) == (1, ("```output",), True)
    observation, reward, terminated, truncated, info = real.step("So \\boxed{42}.")
    assert (observation, reward, terminated, truncated) == ("", 1, True, False)
    assert info["transcript"] == f"{prompt}{CALL}\n42\n```\nSo \\boxed{{42}}."
    assert (info["stop_reason"], info["verdict"], info["reward_terms"]) == ("answered", "correct", {"correctness": 1.0})
    assert (info["problem_id"], info["stop"]) == ("p6", ())


def test_a_program_error_is_an_observation(real: gymnasium.Env) -> None:
    real.reset(options={"problem": SIX})
    assert real.step("```python\nprint(a)\n```\n```output")[0] == "\nNameError: name 'a' is not defined\n```\n"


def test_step_works_inside_a_running_loop(real: gymnasium.Env) -> None:
    async def notebook_cell() -> str:
        real.reset(options={"problem": SIX})
        return real.step(CALL)[0]

    assert asyncio.run(notebook_cell()) == "\n42\n```\n"


def test_draws_depend_on_the_seed() -> None:
    def draws(seed: int) -> list[str]:
        env = make()
        return [env.reset(seed=seed if i == 0 else None)[1]["problem_id"] for i in range(8)]

    assert draws(1) == draws(1)
    assert draws(1) != draws(2)


def test_requests_past_the_last_call_are_graded() -> None:
    sandbox = FakeSandbox()
    env = started(sandbox=sandbox, max_tool_calls=1)
    assert env.step(CALL)[4]["stop"] == ()
    *_, terminated, _, info = env.step(f"{CALL}\n42\n```\nIt is \\boxed{{42}}.")
    assert (terminated, info["verdict"], info["tool_calls"], len(sandbox.programs)) == (True, "correct", 1, 1)


def test_without_tool_calls_the_first_turn_is_the_answer() -> None:
    env = make(max_tool_calls=0, dialect=PLAIN)
    assert env.reset(options={"problem": SIX})[1]["stop"] == ()
    assert env.step(CALL)[1:4] == (-1.0, True, False)


def test_the_empty_turn_is_an_answer() -> None:
    assert started().step("")[1:4] == (-1.0, True, False)


def test_a_request_without_a_program_uses_up_a_call() -> None:
    sandbox = FakeSandbox()
    env = started(sandbox=sandbox, max_tool_calls=1)
    assert env.begin("```python\nprint(1)\n```output") is None
    observation, _, terminated, _, info = env.finish(None)
    assert observation == "\nError: there is no complete python block to run\n```\n"
    assert (terminated, info["tool_calls"], info["execution"], info["stop"]) == (False, 1, None, ())
    assert sandbox.programs == []


def test_printed_boxes_are_no_answer() -> None:
    env = started(sandbox=FakeSandbox(lambda code: ExecutionResult(Status.SUCCESS, stdout="\\boxed{42}\n")))
    assert "\\boxed{42}" in env.step(CALL)[0]
    assert env.step("That is it.")[4]["verdict"] == "incorrect"


def test_what_stands_behind_the_marker_is_kept_but_no_answer() -> None:
    env = started()
    info = env.step(f"{CALL}\n42\n```\nSo \\boxed{{42}}")[4]
    assert info["transcript"].endswith("So \\boxed{42}\n42\n```\n")
    assert env.step("Done.")[4]["verdict"] == "incorrect"


def test_an_unclosed_block_does_not_hide_a_later_answer() -> None:
    env = started()
    env.step("```python\nprint(1)\n```output")
    assert env.step("It is \\boxed{42}.")[4]["verdict"] == "correct"


def test_a_sandbox_failure_truncates_without_reward() -> None:
    env = started(sandbox=FakeSandbox(lambda code: ExecutionResult.sandbox_error("unreachable")))
    observation, reward, terminated, truncated, info = env.step(CALL)
    assert (observation, reward, terminated, truncated) == ("", 0.0, False, True)
    assert (info["stop_reason"], info["verdict"], info["reward_terms"]) == ("sandbox_error", "unknown", {})
    assert info["execution"].stderr == "SandboxError: unreachable"


def test_an_unknown_verdict_truncates_without_reward() -> None:
    env = started(reward=Reward(grade=lambda gold, response: Grade(Verdict.UNKNOWN, "too slow")))
    *_, reward, terminated, truncated, info = env.step("\\boxed{42}")
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert (info["stop_reason"], info["verdict"], info["reward_terms"]) == ("grader_unknown", "unknown", {})


def test_failed_programs_reach_the_reward() -> None:
    env = started(
        sandbox=FakeSandbox(lambda code: ExecutionResult(Status.FAILED, stderr="ValueError: no\n", return_code=1)),
        reward=Reward(error_penalty=-0.5),
    )
    env.step(CALL)
    *_, reward, _, _, info = env.step("\\boxed{42}")
    assert (reward, info["reward_terms"]) == (0.5, {"correctness": 1.0, "error_penalty": -0.5})


def test_a_reset_drops_the_episode_in_progress() -> None:
    env = started()
    env.begin(CALL)
    prompt, info = env.reset(options={"problem": PROBLEMS[1]})
    assert (info["transcript"], info["tool_calls"]) == (prompt, 0)
    assert env.step("\\boxed{7}")[1] == 1.0


def test_many_episodes_wait_for_their_tools_at_once_on_one_thread() -> None:
    async def episode(sandbox: FakeSandbox) -> float:
        env = started(sandbox=sandbox)
        program = env.begin(CALL)
        assert program == "print(6 * 7)\n"
        env.finish(await sandbox.run(program, env.timeout_s))
        env.begin("\\boxed{42}")
        return float(env.finish(None)[1])

    async def all_episodes() -> list[float]:
        sandbox = FakeSandbox(hold=("6",))
        episodes = [asyncio.create_task(episode(sandbox)) for _ in range(200)]
        while sandbox.num_running < 200:  # each is at the gate after one turn of the loop
            await asyncio.sleep(0)
        sandbox.release("6")
        return await asyncio.gather(*episodes)

    assert asyncio.run(all_episodes()) == [1.0] * 200


def test_misuse_is_named() -> None:
    env = make()
    with pytest.raises(RuntimeError, match="call `reset` before"):
        env.step("x")
    env.reset()
    with pytest.raises(RuntimeError, match="call `begin` first"):
        env.finish(None)
    env.begin(CALL)
    with pytest.raises(RuntimeError, match="`begin` was called twice"):
        env.begin(CALL)
    with pytest.raises(ValueError, match="should be an ExecutionResult"):
        env.finish(None)
    env.finish(ExecutionResult(Status.SUCCESS))  # a refused call leaves the turn as it was
    env.begin("\\boxed{1}")
    with pytest.raises(ValueError, match="should be None, since `begin` returned no program"):
        env.finish(ExecutionResult(Status.SUCCESS))
    env.finish(None)
    with pytest.raises(RuntimeError, match="call `reset` before"):
        env.begin("after the end")


@pytest.mark.parametrize(
    ("action", "got"), [(3, "got 3"), ("x" * 2001, "got 2001 characters"), ("\ud800", "got 1 characters")]
)
def test_an_action_outside_the_space_is_named(action: Any, got: str) -> None:
    env = started(max_text_chars=2000)
    with pytest.raises(ValueError, match=f"a text of UnicodeText\\(2000\\), {got}"):
        env.begin(action)
    assert env.begin("x" * 2000) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"problme": SIX}, r"Unknown reset options \['problme'\]; the only option is `problem`"),
        ({"problem": "p6"}, r"should be a torl_env.Problem, got 'p6'"),
        ({"problem": Problem("long", "x" * 3000, "1")}, r"prompt of problem 'long' .* raise `max_text_chars`"),
    ],
)
def test_bad_reset_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(max_text_chars=2000).reset(options=options)


@pytest.mark.parametrize(
    ("kwargs", "name"),
    [({"max_tool_calls": -1}, "max_tool_calls"), ({"timeout_s": 0}, "timeout_s"), ({"max_text_chars": 9}, "max_text")],
)
def test_arguments_out_of_range_are_named(kwargs: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        make(**kwargs)


def test_a_given_sandbox_is_not_closed() -> None:
    sandbox = FakeSandbox()
    make(sandbox=sandbox).close()
    assert not sandbox.closed


def test_the_wrapper_observes_the_whole_text() -> None:
    env = TranscriptObservation(make())
    prompt, _ = env.reset(options={"problem": SIX})
    assert env.step(CALL)[0] == f"{prompt}{CALL}\n42\n```\n"
    observation, reward, *_ = env.step("\\boxed{42}")
    assert (observation, reward) == (f"{prompt}{CALL}\n42\n```\n\\boxed{{42}}", 1.0)
    assert observation in env.observation_space
    with pytest.raises(ValueError, match="wraps a MathToolEnv"):
        TranscriptObservation(gymnasium.make("CartPole-v1"))


@pytest.mark.filterwarnings("ignore:.*is different from the unwrapped version")  # that is the point
def test_the_wrapper_passes_gymnasiums_checker() -> None:
    check_env(TranscriptObservation(make()), skip_render_check=True)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_environments_run_in_a_vector(asynchronous: bool) -> None:
    makers = [functools.partial(make)] * 2
    envs: gymnasium.vector.VectorEnv = (
        gymnasium.vector.AsyncVectorEnv(makers, shared_memory=False)
        if asynchronous
        else gymnasium.vector.SyncVectorEnv(makers)
    )
    envs.reset(options={"problem": SIX})
    observations, rewards, terminated, _, _ = envs.step((CALL, "\\boxed{42}"))
    assert observations == ("\n42\n```\n", "")
    assert (rewards.tolist(), terminated.tolist()) == ([0.0, 1.0], [False, True])
    envs.close()


def test_the_text_space_holds_all_unicode_up_to_its_length() -> None:
    space = UnicodeText(8, seed=0)
    for text in ("", "\n", "π ≤ 🙂\r\n", "x" * 8):
        assert text in space
    for other in ("x" * 9, "\ud800", b"x", None, 3):
        assert other not in space
    assert space == UnicodeText(8)
    assert space != UnicodeText(9)
    assert repr(space) == "UnicodeText(8)"
    with pytest.raises(ValueError, match="at least 1"):
        UnicodeText(0)


def test_samples_of_the_text_space_belong_to_it_and_depend_on_the_seed() -> None:
    space, twin = UnicodeText(8, seed=5), UnicodeText(8, seed=5)
    samples = [space.sample() for _ in range(200)]
    assert all(sample in space for sample in samples)
    assert "" in samples
    assert any("\n" in sample for sample in samples)
    assert samples == [twin.sample() for _ in range(200)]
    with pytest.raises(ValueError, match="neither"):
        space.sample(mask=1)
