r"""Compare a response's final answer with the gold answer.

The answer is the last complete "\boxed{...}" of the response, outside code fences and <think>; without one, or with an
empty one, the response is incorrect. Identical texts and plain numbers are decided here, exactly; everything else is
math-verify's (`grading_workers.py`). What neither can decide is *unknown*, which is not incorrect.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from torl_env.dialect import strip_code
from torl_env.grading_workers import shared_workers

_MAX_ANSWER_CHARS = 1000  # the longest gold answer of the public sets has 160; longer boxes hold working, not answers
_BOX = re.compile(r"\\boxed\s*\{")
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped brace is a character of the answer, not a bracket
_THINKING = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_INTEGER = re.compile(r"[+-]?(?:\d{1,200}|\d{1,3}(?:,\d{3}){1,60})")
_DECIMAL = re.compile(r"[+-]?\d{0,100}\.\d{1,100}")
_FRACTION = re.compile(r"([+-]?\d{1,200})/(\d{1,200})|([+-]?)\\[dt]?frac\{([+-]?\d{1,200})\}\{([+-]?\d{1,200})\}")


class Verdict(StrEnum):
    """What grading found out."""

    CORRECT = "correct"
    INCORRECT = "incorrect"
    UNKNOWN = "unknown"  # the grader's failure, not the answer's


@dataclass(frozen=True, slots=True)
class Grade:
    """A verdict and, for a reader, why."""

    verdict: Verdict
    reason: str


def grade(gold: str, response: str) -> Grade:
    r"""Grade a response; blocks for at most the workers' time limit once a worker is free. Callable from any thread.

    Args:
        gold: the reference answer, plain or LaTeX, with or without "$".
        response: the model's own text; observations are no part of it.

    Example:
        >>> grade("1/2", r"Half of it: \boxed{\frac{2}{4}}").verdict
        <Verdict.CORRECT: 'correct'>
    """
    answer = extract_answer(response)
    if answer is None:
        return Grade(Verdict.INCORRECT, "no complete \\boxed{} outside code")
    answer, gold = _bare(answer), _bare(gold)
    if not answer:
        return Grade(Verdict.INCORRECT, "the box is empty")
    if answer == gold:
        return Grade(Verdict.CORRECT, "identical")
    if len(answer) > _MAX_ANSWER_CHARS:
        return Grade(Verdict.INCORRECT, f"the box holds {len(answer)} characters, over {_MAX_ANSWER_CHARS}")
    exact = _compare_numbers(gold, answer)
    if exact is not None:
        return Grade(Verdict.CORRECT if exact else Verdict.INCORRECT, "compared as exact numbers")
    equal = shared_workers().is_equal(gold, answer)
    if equal is None:
        return Grade(Verdict.UNKNOWN, "math-verify failed or took too long")
    return Grade(Verdict.CORRECT if equal else Verdict.INCORRECT, "compared by math-verify")


def extract_answer(response: str) -> str | None:
    r"""Return what the last complete "\boxed{...}" outside code and thinking holds; None if there is none.

    Thinking is "<think>...</think>", an unclosed one, and whatever stands before a "</think>" that was never opened
    (templates that open it in the prompt).
    """
    prose = _THINKING.sub("", strip_code(response)).rpartition("</think>")[2]
    answer = None
    for box in _BOX.finditer(prose):
        depth = 1
        for brace in _BRACES.finditer(prose, box.end()):
            depth += {"{": 1, "}": -1}.get(brace[0], 0)
            if depth == 0:
                answer = prose[box.end() : brace.start()]
                break
    return answer


def _bare(text: str) -> str:
    """Take off white space and one pair of dollar signs around the whole."""
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] == "$" and "$" not in text[1:-1]:
        text = text[1:-1].strip()
    return text


def _compare_numbers(gold: str, answer: str) -> bool | None:
    """Return whether two plain numbers are equal, exactly; None unless both are plain numbers.

    Two that differ while one is a decimal are left to math-verify: 0.3333 may be meant for 1/3.
    """
    gold_value, answer_value = _number(gold), _number(answer)
    if gold_value is None or answer_value is None:
        return None
    if gold_value == answer_value:
        return True
    return None if "." in gold + answer else False


def _number(text: str) -> Fraction | None:
    if _INTEGER.fullmatch(text):
        return Fraction(text.replace(",", ""))
    if _DECIMAL.fullmatch(text):
        return Fraction(text)
    if match := _FRACTION.fullmatch(text):
        if match[1]:
            numerator, denominator = match[1], match[2]
        else:
            numerator, denominator = (match[3] + match[4]).replace("--", "").replace("+", ""), match[5]
        if int(denominator):
            return Fraction(int(numerator), int(denominator))
    return None
