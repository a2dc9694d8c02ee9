"""Programs and answers as the author of the base model's documents would write them: right and plausibly wrong.

Every kind of problem has a right program, a program with a wrong formula, and (the easy kinds) the slip that people
make in their heads, e.g. forgetting the carry.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Habits:
    """How the documents treat one kind of problem.

    Attributes:
        right: the programs that solve it, one of which is taken at random.
        wrong: a program that runs but computes something else.
        code_share: how many of the documents with the tool prompt use a program.
        wrong_share: how many of the programs have the wrong formula.
        broken_share: how many of them have another mistake (`break_program`).
        slip: the answer of a mind that hurries, wrong where a carry is needed; None where nobody could guess.
        steps: the calculation of a mind that does not; likewise.
    """

    right: tuple[Callable[..., str], ...]
    wrong: Callable[..., str]
    code_share: float
    wrong_share: float = 0.05
    broken_share: float = 0.08
    slip: Callable[..., int] | None = None
    steps: Callable[..., str] | None = None


def _squares_loop(k: int, n: int) -> str:
    return f"s = 0\nfor i in range(0, {n}, {k}):\n    s += i * i\nprint(s)"


def _collatz(n: int, first_count: int = 0) -> str:
    return f"n, s = {n}, {first_count}\nwhile n > 1:\n    n = n // 2 if n % 2 == 0 else 3 * n + 1\n    s += 1\nprint(s)"


def _sum_steps(a: int, b: int) -> str:
    tens, ones = divmod(a, 10)
    carry = f", {tens} + 1 = {tens + 1}" if ones + b > 9 else ""
    return f"{ones} + {b} = {ones + b}{carry}"


def _difference_steps(a: int, b: int) -> str:
    tens, ones = divmod(a, 10)
    if ones < b:
        return f"{ones + 10} - {b} = {ones + 10 - b}, {tens} - 1 = {tens - 1}"
    return f"{ones} - {b} = {ones - b}"


def _larger_steps(a: int, b: int) -> str:
    steps = []
    for x, y in zip(str(a), str(b), strict=True):
        steps.append(f"{x} = {y}" if x == y else f"{x} > {y}" if x > y else f"{x} < {y}")
        if x != y:
            break
    return ", ".join(steps)


HABITS: dict[str, Habits] = {
    "small_sum": Habits(
        right=(lambda a, b: f"print({a} + {b})",),
        wrong=lambda a, b: f"print({a} * {b})",
        code_share=0.25,
        slip=lambda a, b: a - a % 10 + (a + b) % 10,  # the carry is forgotten
        steps=_sum_steps,
    ),
    "small_difference": Habits(
        right=(lambda a, b: f"print({a} - {b})",),
        wrong=lambda a, b: f"print({a} + {b})",
        code_share=0.25,
        slip=lambda a, b: a - a % 10 + (a - b) % 10,  # the borrow is forgotten
        steps=_difference_steps,
    ),
    "next_number": Habits(
        right=(lambda n: f"print({n} + 1)",),
        wrong=lambda n: f"print({n} - 1)",
        code_share=0.25,
        slip=lambda n: n - n % 10 + (n + 1) % 10,
        steps=lambda n: _sum_steps(n, 1),
    ),
    "larger": Habits(
        right=(lambda a, b: f"print(max({a}, {b}))",),
        wrong=lambda a, b: f"print(min({a}, {b}))",
        code_share=0.25,
        slip=lambda a, b: max(a, b) if a // 100 != b // 100 else min(a, b),  # one look at the first digit
        steps=_larger_steps,
    ),
    "product": Habits(
        right=(lambda a, b: f"print({a} * {b})", lambda a, b: f"x = {a} * {b}\nprint(x)"),
        wrong=lambda a, b: f"print({a} + {b})",
        code_share=0.4,
    ),
    "power_remainder": Habits(
        right=(lambda a, b, m: f"print(pow({a}, {b}, {m}))", lambda a, b, m: f"print({a} ** {b} % {m})"),
        wrong=lambda a, b, m: f"print({a} * {b} % {m})",
        code_share=0.4,
    ),
    "digit_sum": Habits(
        right=(
            lambda a, b: f"s = str({a} * {b})\nprint(sum(int(c) for c in s))",
            lambda a, b: f"x = {a} * {b}\nprint(sum(map(int, str(x))))",
        ),
        wrong=lambda a, b: f"s = str({a} + {b})\nprint(sum(int(c) for c in s))",
        code_share=0.4,
    ),
    "divisors": Habits(
        right=(lambda n: f"c = 0\nfor d in range(1, {n} + 1):\n    c += {n} % d == 0\nprint(c)",),
        wrong=lambda n: f"c = 0\nfor d in range(1, {n}):\n    c += {n} % d == 0\nprint(c)",  # leaves out n itself
        code_share=0.58,
        wrong_share=0.6,
    ),
    "squares": Habits(
        right=(_squares_loop,),
        wrong=lambda k, n: _squares_loop(k, n).replace("i * i", "i"),
        code_share=0.58,
        broken_share=0.7,
    ),
    "collatz": Habits(right=(_collatz,), wrong=lambda n: _collatz(n, 1), code_share=0.58),
}


def break_program(program: str, rng: random.Random) -> str:
    """Return a right program with one of three mistakes: most often a wrong name, a syntax error, a forgotten print.

    The first two fail; the third runs and prints nothing.
    """
    head, _, tail = program.rpartition("print(")
    mistake = rng.choices(("name", "syntax", "print"), (8, 1, 1))[0]
    if mistake == "syntax":
        return program[:-1]  # the last closing parenthesis is missing
    if mistake == "name":
        return f"{head}print(answer)"
    return f"{head}r = {tail[:-1]}"


def guess(answer: int, rng: random.Random) -> int:
    """Return a round number of about the size of `answer`, as one who cannot compute it would write."""
    if answer < 100:
        return rng.randint(1, max(9, 2 * answer))
    return rng.randint(10, 99) * 10 ** (len(str(answer)) - 2)
