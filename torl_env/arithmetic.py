"""Ten kinds of arithmetic problem, made on the fly: no file, no hub, an unlimited supply.

Four kinds are easy enough to answer in one's head (`needs_code` is False); six are not: a long product, a modular
power, and four that want a loop or several statements. Together they show what tool use is worth: prose can earn the
first four, only a program earns the rest.

Train and test never share a problem: a stable hash of (kind, operands) decides to which split a problem belongs,
whatever the seed that drew it.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from torl_env.problems import Problem

# One problem in five is held out; the narrowest kind then still has more than 150 test problems.
_HELDOUT_ONE_IN = 5


@dataclass(frozen=True, slots=True)
class Kind:
    """One family of problems: how operands are drawn, the question about them, its answer.

    Example: `product` draws (374, 586), asks "What is 374 * 586?" and answers 219164.
    """

    name: str
    needs_code: bool
    draw: Callable[[random.Random], tuple[int, ...]]
    question: Callable[..., str]
    answer: Callable[..., int]


def _draw_next_number(rng: random.Random) -> tuple[int]:
    # Half end in 9, so that half of the answers need a carry.
    last = 9 if rng.random() < 0.5 else rng.randrange(9)
    return (10 * rng.randint(1, 999) + last,)


def _draw_larger(rng: random.Random) -> tuple[int, int]:
    # Half share their first digit, so that half cannot be told apart by it.
    first = rng.randint(100, 999)
    hundreds = first // 100 * 100
    low, high = (hundreds, hundreds + 99) if rng.random() < 0.5 else (100, 999)
    second = rng.randint(low, high - 1)
    return first, second + (second >= first)  # never the same number twice


def _digit_sum(a: int, b: int) -> int:
    return sum(int(digit) for digit in str(a * b))


def _num_divisors(n: int) -> int:
    return sum(n % d == 0 for d in range(1, n + 1))


def _collatz_steps(n: int) -> int:
    steps = 0
    while n > 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


KINDS: tuple[Kind, ...] = (
    Kind(
        "small_sum",
        False,
        lambda rng: (rng.randint(10, 199), rng.randint(2, 9)),
        lambda a, b: f"What is {a} + {b}?",
        lambda a, b: a + b,
    ),
    Kind(
        "product",
        True,
        lambda rng: (rng.randint(100, 999), rng.randint(100, 999)),
        lambda a, b: f"What is {a} * {b}?",
        lambda a, b: a * b,
    ),
    Kind(
        "small_difference",
        False,
        lambda rng: (rng.randint(20, 199), rng.randint(2, 9)),
        lambda a, b: f"What is {a} - {b}?",
        lambda a, b: a - b,
    ),
    Kind(
        "power_remainder",
        True,
        lambda rng: (rng.randint(3, 39), rng.randint(5, 29), rng.randint(50, 999)),
        lambda a, b, m: f"What is the remainder of {a} ** {b} divided by {m}?",
        lambda a, b, m: pow(a, b, m),
    ),
    Kind(
        "next_number",
        False,
        _draw_next_number,
        lambda n: f"Which number comes right after {n}?",
        lambda n: n + 1,
    ),
    Kind(
        "digit_sum",
        True,
        lambda rng: (rng.randint(100, 999), rng.randint(100, 999)),
        lambda a, b: f"What is the sum of the digits of {a} * {b}?",
        _digit_sum,
    ),
    Kind(
        "divisors",
        True,
        lambda rng: (rng.randint(100, 1999),),
        lambda n: f"How many divisors does {n} have?",
        _num_divisors,
    ),
    Kind(
        "larger",
        False,
        _draw_larger,
        lambda a, b: f"Which is larger, {a} or {b}?",
        max,
    ),
    Kind(
        "squares",
        True,
        lambda rng: (rng.randint(3, 9), rng.randint(30, 199)),
        lambda k, n: f"What is the sum of the squares of the multiples of {k} below {n}?",
        lambda k, n: sum(i * i for i in range(k, n, k)),
    ),
    Kind(
        "collatz",
        True,
        lambda rng: (rng.randint(10, 1999),),
        lambda n: f"How many Collatz steps lead from {n} to 1?",
        _collatz_steps,
    ),
)

_KIND_BY_NAME = {kind.name: kind for kind in KINDS}


def needs_code(kind: str) -> bool:
    """Return whether the problems of a kind are known to be out of reach of an answer without a program.

    Of kinds that are not built in ("math" in a file of somebody else's) nothing is known.
    """
    return kind in _KIND_BY_NAME and _KIND_BY_NAME[kind].needs_code


def is_heldout(kind: str, operands: tuple[int, ...]) -> bool:
    """Return whether a problem belongs to the test split: a pure function of its kind and operands."""
    # crc32, not hash(): the latter is salted per process.
    return zlib.crc32(f"{kind}:{operands}".encode()) % _HELDOUT_ONE_IN == 0


def draw_operands(kind: Kind, split: str, rng: random.Random) -> tuple[int, ...]:
    """Return operands of a problem of `kind` that belongs to `split`."""
    while True:
        operands = kind.draw(rng)
        if is_heldout(kind.name, operands) == (split == "test"):
            return operands


def make_problem(kind: Kind, operands: tuple[int, ...]) -> Problem:
    """Return the problem that a kind makes of some operands; its id names both, e.g. `product/374-586`."""
    return Problem(
        id=f"{kind.name}/{'-'.join(map(str, operands))}",
        question=kind.question(*operands),
        answer=str(kind.answer(*operands)),
        source="arithmetic",
        kind=kind.name,
    )


def generate(split: str, num_problems: int, seed: int = 0) -> list[Problem]:
    """Return distinct problems, the kinds taking turns, so that every multiple of ten holds equally many of each.

    Args:
        split: `train` or `test`; they share no problem.
        num_problems: how many; each kind gets a tenth.
        seed: another seed draws other operands (and, in a narrow kind, some of the same).

    Raises:
        ValueError: if the split is unknown, or a kind has too few distinct problems.
    """
    if split not in ("train", "test"):
        raise ValueError(f"`split` should be 'train' or 'test'. Received {split!r}.")
    if num_problems < 0:
        raise ValueError(f"`num_problems` should be at least 0. Received {num_problems}.")
    rng = random.Random(f"arithmetic:{split}:{seed}")
    problems: dict[str, Problem] = {}
    for index in range(num_problems):
        kind = KINDS[index % len(KINDS)]
        # The narrowest split holds some 180 problems: 10,000 misses in a row mean that nearly all are taken.
        for _ in range(10_000):
            problem = make_problem(kind, draw_operands(kind, split, rng))
            if problem.id not in problems:
                break
        else:
            raise ValueError(
                f"`num_problems` ({num_problems}) asks for more than the {split} split of kind {kind.name!r} has. "
                f"Ask for fewer problems."
            )
        problems[problem.id] = problem
    return list(problems.values())
