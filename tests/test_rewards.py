"""From verdict and executions to reward terms."""

import pickle

import pytest

from torl_env import ExecutionResult, Grade, Problem, Reward, Status, Verdict

PROBLEM = Problem("p", "6 times 7?", "42")
OK = ExecutionResult(Status.SUCCESS)
FAILED = ExecutionResult(Status.FAILED)


def test_correct_is_plus_one_and_incorrect_minus_one() -> None:
    assert Reward()(PROBLEM, "\\boxed{42}", []).terms == {"correctness": 1.0}
    assert Reward()(PROBLEM, "\\boxed{41}", []).terms == {"correctness": -1.0}
    assert Reward()(PROBLEM, "it is 42", []).total == -1.0


def test_failed_code_costs_nothing_by_default() -> None:
    assert Reward()(PROBLEM, "\\boxed{42}", [FAILED]).total == 1.0


@pytest.mark.parametrize(
    ("executions", "penalty"),
    [([], 0.0), ([OK], 0.0), ([OK, FAILED], -0.5), ([FAILED, FAILED], -0.5)],
)
def test_the_error_penalty_is_once_an_episode(executions: list[ExecutionResult], penalty: float) -> None:
    outcome = Reward(error_penalty=-0.5)(PROBLEM, "\\boxed{42}", executions)
    assert outcome.terms == {"correctness": 1.0, "error_penalty": penalty}
    assert outcome.total == 1.0 + penalty


@pytest.mark.parametrize("status", [Status.TIME_LIMIT, Status.MEMORY_LIMIT])
def test_a_limit_the_program_hit_is_a_failure(status: Status) -> None:
    assert Reward(error_penalty=-0.5)(PROBLEM, "\\boxed{42}", [ExecutionResult(status)]).total == 0.5


def test_unknown_is_not_wrong() -> None:
    reward = Reward(error_penalty=-0.5, grade=lambda gold, response: Grade(Verdict.UNKNOWN, "too slow"))
    outcome = reward(PROBLEM, "\\boxed{9^{9^9}}", [FAILED])
    assert (outcome.total, outcome.terms, outcome.verdict) == (0.0, {}, Verdict.UNKNOWN)


def test_a_bonus_for_errors_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"`error_penalty` \(0\.5\) should be 0 or negative"):
        Reward(error_penalty=0.5)


def test_a_reward_pickles() -> None:
    assert pickle.loads(pickle.dumps(Reward(error_penalty=-0.5))) == Reward(error_penalty=-0.5)
