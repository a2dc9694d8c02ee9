"""From an episode's answer and executions to its reward."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torl_env.grading import Grade, Verdict, grade
from torl_env.problems import Problem
from torl_env.sandbox.types import ExecutionResult


@dataclass(frozen=True, slots=True)
class RewardTerms:
    """The parts a reward is the sum of, and the verdict behind them.

    Example:
        RewardTerms({"correctness": 1.0, "error_penalty": -0.5}, Verdict.CORRECT, "equal") has total 0.5
    """

    terms: dict[str, float]
    verdict: Verdict
    reason: str

    @property
    def total(self) -> float:
        """The reward."""
        return sum(self.terms.values())


@dataclass(frozen=True, slots=True)
class Reward:
    """Rule-based reward (ToRL, arXiv 2503.23383, Tables 1 and 2).

    correctness = +1 if the answer is correct, -1 if it is not
    error_penalty, added if any executed program failed: -0.5 in Table 2, 0 (off) by default since the paper found that
    it does not help

    What the grader cannot decide has no terms at all and total 0: it is unknown, not wrong, and the episode is to be
    left out.

    Attributes:
        error_penalty: 0 or negative.
        grade: (gold answer, response text) -> Grade.

    Raises:
        ValueError: if `error_penalty` is positive.
    """

    error_penalty: float = 0.0
    grade: Callable[[str, str], Grade] = field(default=grade)

    def __post_init__(self) -> None:
        if not self.error_penalty <= 0:
            raise ValueError(f"`error_penalty` ({self.error_penalty}) should be 0 or negative; the paper's is -0.5.")

    def __call__(self, problem: Problem, response: str, executions: Sequence[ExecutionResult]) -> RewardTerms:
        """Return the terms of an episode that ended with an answer.

        Args:
            problem: the episode's problem.
            response: the model's own text without its code (`Dialect.answer_text`); observations never count.
            executions: results of the programs that ran, in order.
        """
        graded = self.grade(problem.answer, response)
        if graded.verdict is Verdict.UNKNOWN:
            return RewardTerms({}, graded.verdict, graded.reason)
        terms = {"correctness": 1.0 if graded.verdict is Verdict.CORRECT else -1.0}
        if self.error_penalty:
            terms["error_penalty"] = self.error_penalty if any(not result.ok for result in executions) else 0.0
        return RewardTerms(terms, graded.verdict, graded.reason)
