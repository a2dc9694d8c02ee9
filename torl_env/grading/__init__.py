r"""Compare a response's final answer with the gold answer.

The answer is what the last "\boxed{...}" of the response holds, outside code fences and <think>; without one, or with
an empty one, the response is incorrect. Rules on text and exact numbers decide what they can in this process
(`rules.py`, `exact.py`, `compare.py`); formulas are compared by math-verify in processes that can be killed
(`workers.py`). What cannot be decided is *unknown*, which is not incorrect.

    python -m torl_env.grading FILE.jsonl [--json]      grade a file of cases (`__main__.py`)
"""

import asyncio
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum

from torl_env.grading import compare
from torl_env.grading.extract import all_boxes, extract_answer, final_boxes
from torl_env.grading.workers import GradingWorkers, TooSlowError, shared_workers

__all__ = ["Grade", "Verdict", "extract_answer", "grade", "grade_async", "grade_batch", "grading_failures"]

_MAX_ANSWER_CHARS = 1000  # the longest gold answer of the public sets has 160; longer boxes hold working, not answers


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


class _NeedsWorkerError(Exception):
    """Text rules and exact numbers did not decide."""


def grade(gold: str, response: str, *, require_box: bool = True) -> Grade:
    r"""Grade a response; blocks for at most the workers' time limit once a worker is free. Callable from any thread.

    Args:
        gold: the reference answer, plain or LaTeX, with or without "$".
        response: the model's own text; observations are no part of it.
        require_box: False takes a response without any "\boxed" as the answer itself; a reward never does.

    Example:
        >>> grade("1/2", r"Half of it: \boxed{\frac{2}{4}}").verdict
        <Verdict.CORRECT: 'correct'>
    """
    return _grade(gold, response, require_box, lambda left, right: shared_workers().is_equal(left, right))


async def grade_async(gold: str, response: str, *, require_box: bool = True) -> Grade:
    """Grade without blocking the event loop; see `grade`."""
    try:
        return _grade(gold, response, require_box, _no_worker)
    except _NeedsWorkerError:
        workers = shared_workers()
    try:
        return await asyncio.wrap_future(
            workers.quick.submit(_grade, gold, response, require_box, workers.is_equal_quick)
        )
    except TooSlowError:
        return await asyncio.wrap_future(
            workers.patient.submit(_grade, gold, response, require_box, workers.is_equal_patient)
        )


def grade_batch(pairs: Iterable[tuple[str, str]], *, require_box: bool = True) -> list[Grade]:
    """Grade many (gold, response) at once, in their order: thousands a second where numbers are compared.

    What needs no worker is decided first; a comparison that hangs delays neither it nor other comparisons. An interrupt
    ends all comparisons of this process; the next ones find new workers.
    """
    pairs = list(pairs)
    grades: list[Grade | None] = [None] * len(pairs)
    futures: dict[int, Future[Grade]] = {}
    workers: GradingWorkers | None = None
    try:
        for index, (gold, response) in enumerate(pairs):
            try:
                grades[index] = _grade(gold, response, require_box, _no_worker)
            except _NeedsWorkerError:
                workers = workers or shared_workers()
                futures[index] = workers.quick.submit(_grade, gold, response, require_box, workers.is_equal_quick)
        for last in (False, True):
            for index, future in list(futures.items()):
                try:
                    grades[index] = future.result()
                    del futures[index]
                except TooSlowError:
                    assert workers is not None
                    assert not last
                    futures[index] = workers.patient.submit(
                        _grade, *pairs[index], require_box, workers.is_equal_patient
                    )
    except BaseException:
        # An interrupt. What is queued would run before Python exits, and a thread caught as it starts would never end.
        if workers is not None:
            workers.close()
        raise
    return [found for found in grades if found is not None]


def grading_failures() -> int:
    """Return how many comparisons of this process ran into the time limit or killed their worker."""
    return shared_workers().num_lost


def _no_worker(gold: str, answer: str) -> bool | None:
    raise _NeedsWorkerError


def _grade(gold: str, response: str, require_box: bool, ask: compare.Ask) -> Grade:
    boxes = final_boxes(response)
    if not boxes and not require_box and "\\boxed" not in response:
        boxes = [response]
    if not boxes:
        return Grade(Verdict.INCORRECT, "no complete \\boxed{} outside code at the end")
    if not boxes[-1].strip(" $"):
        return Grade(Verdict.INCORRECT, "the box is empty")
    if boxes[-1].strip() == gold.strip():
        return Grade(Verdict.CORRECT, "identical")
    if "\\boxed" in gold:
        gold = ", ".join(all_boxes(gold))
    if sum(map(len, boxes)) > max(_MAX_ANSWER_CHARS, 4 * len(gold)):
        return Grade(Verdict.INCORRECT, f"the box holds over {_MAX_ANSWER_CHARS} characters")
    gold = compare.prepared(gold)
    if not gold:
        return Grade(Verdict.INCORRECT, "the gold is empty")
    answer = compare.prepared(", ".join(boxes) if len(boxes) > 1 and compare.is_list(gold) else boxes[-1])
    if not answer:
        return Grade(Verdict.INCORRECT, "the box is empty")
    try:
        same = compare.equal(gold, answer, compare.bounded(ask))
    except compare.UndecidedError:
        return Grade(Verdict.UNKNOWN, "math-verify failed or took too long")
    return Grade(Verdict.CORRECT if same else Verdict.INCORRECT, "equal" if same else "different")
