r"""The base model's pre-training documents: what a mixed crowd would write on arithmetic problems, tool at hand or not.

A document is a prompt and the segments of one episode as the environment would have recorded it, e.g.

    prompt       "A conversation ... \nAssistant:"
    response     " I write a program.\n```python\nprint(374 * 586)\n```\n```output"
    observation  "\n219164\n```\n"
    response     "The answer is \boxed{219164}."

No reward chose them: of the programs about 70% are right; answers without one are right where no carry is needed and
mostly wrong where real arithmetic is. All problems are from the train split.
"""

from __future__ import annotations

import contextlib
import io
import random
import traceback
from dataclasses import dataclass
from functools import lru_cache

from experiments.tiny_base.programs import HABITS, break_program, guess
from torl_env.arithmetic import KINDS, Kind, draw_operands, make_problem
from torl_env.dialect import MARKER, PLAIN, TORL, Dialect
from torl_env.problems import Problem
from torl_env.sandbox.types import ExecutionResult, Status

MENDED_SHARE = 0.6  # of the programs that print nothing, how many are followed by a second, right one
# Direct answers. Only easy problems are worked out step by step; other answers come at once.
STEPS_SHARE = {TORL: 0.2, PLAIN: 0.4}
RIGHT_AT_ONCE = 0.93  # easy problems without a carry
RIGHT_WITH_CARRY = 0.3
RIGHT_BY_LUCK = 0.04  # where only a program helps
# Whoever has no tool is asked easy problems more often.
EASY_SHARE = {TORL: 0.4, PLAIN: 0.8}


@dataclass(frozen=True, slots=True)
class Document:
    """One pre-training document.

    Attributes:
        problem: what it is about.
        prompt: the rendered prompt, not trained on.
        segments: response, observation, response, ...: always an odd number; the last one ends the document.
        programs: the executed programs and what came of them, one per observation.
    """

    problem: Problem
    prompt: str
    segments: tuple[str, ...]
    programs: tuple[tuple[str, ExecutionResult], ...] = ()

    def __post_init__(self) -> None:
        assert len(self.segments) == 2 * len(self.programs) + 1


def sample_document(dialect: Dialect, rng: random.Random) -> Document:
    """Return one document on a problem of the train split; only the prompt that asks for programs gets any."""
    easy = rng.random() < EASY_SHARE[dialect]
    kind = rng.choice([kind for kind in KINDS if kind.needs_code != easy])
    operands = draw_operands(kind, "train", rng)
    problem = make_problem(kind, operands)
    prompt = dialect.render_prompt(problem)
    if dialect == TORL and rng.random() < HABITS[kind.name].code_share:
        return _with_code(prompt, kind, operands, rng)
    return Document(problem, prompt, (_direct(kind, operands, STEPS_SHARE[dialect], rng),))


def _direct(kind: Kind, operands: tuple[int, ...], steps_share: float, rng: random.Random) -> str:
    answer, habits = kind.answer(*operands), HABITS[kind.name]
    if habits.slip is None or habits.steps is None:
        right, mistake = RIGHT_BY_LUCK, guess(answer, rng)
    elif rng.random() < steps_share:
        return f" {habits.steps(*operands)}. The answer is \\boxed{{{answer}}}."
    elif habits.slip(*operands) == answer:
        right, mistake = RIGHT_AT_ONCE, guess(answer, rng)
    else:
        right, mistake = RIGHT_WITH_CARRY, habits.slip(*operands)
    return f" The answer is \\boxed{{{answer if rng.random() < right else mistake}}}."


def _with_code(prompt: str, kind: Kind, operands: tuple[int, ...], rng: random.Random) -> Document:
    habits, answer = HABITS[kind.name], kind.answer(*operands)
    program = rng.choice(habits.right)(*operands)
    fate = rng.random()
    if fate < habits.wrong_share:
        program = habits.wrong(*operands)
    elif fate < habits.wrong_share + habits.broken_share:
        program = break_program(program, rng)
    result = run_program(program)
    segments = [f" I write a program.{_block(program)}", TORL.render_observation(result)]
    programs = [(program, result)]
    if not result.stdout and rng.random() < MENDED_SHARE:
        program = rng.choice(habits.right)(*operands)
        result = run_program(program)
        segments += [f"That did not work. I mend it.{_block(program)}", TORL.render_observation(result)]
        programs.append((program, result))
    if result.stdout:
        segments.append(f"The answer is \\boxed{{{result.stdout.strip()}}}.")
    else:
        segments.append(f"That did not work. I guess \\boxed{{{guess(answer, rng)}}}.")
    return Document(make_problem(kind, operands), prompt, tuple(segments), tuple(programs))


def _block(program: str) -> str:
    return f"\n```python\n{program}\n```\n{MARKER}"


@lru_cache(maxsize=100_000)
def run_program(program: str) -> ExecutionResult:
    """Return what a program of the generator's own making prints, or how it fails; run in this process, so fast.

    Text written by a model belongs into the sandbox instead.
    """
    stdout = io.StringIO()
    error = ""
    with contextlib.redirect_stdout(stdout):
        try:
            exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
        except Exception as exception:  # what the program does wrong is its result
            error = "".join(traceback.format_exception_only(exception))
    status = Status.FAILED if error else Status.SUCCESS
    return ExecutionResult(status, stdout.getvalue(), error, int(bool(error)), 0.0, 0.0, False)
