"""Extraction, exact comparison, and the workers behind math-verify."""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from torl_env import Verdict, grade
from torl_env.grading import extract_answer
from torl_env.grading_workers import GradingWorkers

CASES = Path(__file__).resolve().parents[2] / "shared" / "cases" / "grading_cases.jsonl"
HANG = "9^{9^{9}}"  # math-verify computes it


@pytest.fixture(scope="module")
def workers() -> Iterator[GradingWorkers]:
    pool = GradingWorkers(max_workers=1, limit_s=1.0)
    yield pool
    pool.close()


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("\\boxed{42}", "42"),
        ("\\boxed{1} then \\boxed{2}", "2"),
        ("\\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
        ("\\boxed {7}", "7"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{\\left\\{ x \\right.}", "\\left\\{ x \\right."),  # an escaped brace needs no partner
        ("\\boxed{a \\\\{b}}", "a \\\\{b}"),  # here the backslash is escaped, the brace is not
        ("\\boxed{1} and \\boxed{2", "1"),  # the last complete one
        ("\\boxed{\\boxed{3}}", "3"),
        ("\\boxed{}", ""),
        ("<think>\\boxed{1}</think> \\boxed{2}", "2"),
        ("\\boxed{1}</think> \\boxed{2}", "2"),  # opened in the prompt
        ("\\boxed{2}\n```python\nprint('\\boxed{1}')\n```", "2"),
        ("```python\nunfinished\n```\n\\boxed{2}", "2"),
    ],
)
def test_the_last_complete_box_is_the_answer(response: str, answer: str) -> None:
    assert extract_answer(response) == answer


@pytest.mark.parametrize(
    "response",
    [
        "",
        "42",
        "boxed{42}",
        "\\boxed 42",
        "\\boxed{42",
        "<think>\\boxed{42}</think>",
        "<think>\\boxed{42}",
        "\\boxed{42}</think>",
        "```python\n\\boxed{42}\n```",
        "```\n\\boxed{42}",
    ],
)
def test_without_a_box_there_is_no_answer(response: str) -> None:
    assert extract_answer(response) is None
    assert grade("42", response).verdict is Verdict.INCORRECT


@pytest.mark.parametrize("box", ["", " ", "$ $"])
def test_an_empty_box_is_incorrect(box: str) -> None:
    assert grade("42", f"\\boxed{{{box}}}").verdict is Verdict.INCORRECT


@pytest.mark.parametrize(
    ("gold", "answer", "correct"),
    [
        ("42", "42", True),
        ("42", " $42$ ", True),
        ("$42$", "42", True),
        ("025", "25", True),
        ("1,234", "1234", True),
        ("42", "42.0", True),
        ("0.5", "1/2", True),
        ("-\\frac{1}{2}", "\\frac{-2}{4}", True),
        ("-1/2", "-\\dfrac{1}{2}", True),
        ("42", "-42", False),
        ("1/3", "1/4", False),
        ("12345678901234567890", "12345678901234567891", False),  # equal as floats
    ],
)
def test_plain_numbers_are_compared_exactly_without_a_worker(
    gold: str, answer: str, correct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_worker() -> None:
        raise AssertionError("a worker was asked")

    monkeypatch.setattr("torl_env.grading.shared_workers", no_worker)
    assert (grade(gold, f"\\boxed{{{answer}}}").verdict is Verdict.CORRECT) == correct


def test_identical_texts_need_no_worker_however_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torl_env.grading.shared_workers", lambda: pytest.fail("a worker was asked"))
    assert grade(HANG, f"\\boxed{{{HANG}}}").verdict is Verdict.CORRECT
    assert grade("x" * 5000, f"\\boxed{{{'x' * 5000}}}").verdict is Verdict.CORRECT
    assert grade("x", f"\\boxed{{{'x' * 5000}}}").verdict is Verdict.INCORRECT


@pytest.mark.parametrize(
    ("gold", "answer", "verdict"),
    [
        ("\\frac{1}{\\sqrt{2}}", "\\frac{\\sqrt{2}}{2}", Verdict.CORRECT),
        ("\\frac{1}{\\sqrt{2}}", "\\frac{\\sqrt{3}}{2}", Verdict.INCORRECT),
        ("\\left(3, \\frac{\\pi}{2}\\right)", "(3, \\pi/2)", Verdict.CORRECT),
    ],
)
def test_formulas_go_to_math_verify(gold: str, answer: str, verdict: Verdict) -> None:
    assert grade(gold, f"\\boxed{{{answer}}}").verdict is verdict


def test_grading_works_from_a_thread_and_inside_a_loop() -> None:
    def check() -> Verdict:
        return grade("\\sqrt{8}", "\\boxed{2\\sqrt{2}}").verdict

    async def in_loop() -> Verdict:
        return check()

    with ThreadPoolExecutor(4) as threads:
        assert {future.result() for future in [threads.submit(check) for _ in range(8)]} == {Verdict.CORRECT}
    assert asyncio.run(in_loop()) is Verdict.CORRECT


def test_a_hanging_comparison_is_unknown_and_the_worker_replaced(workers: GradingWorkers) -> None:
    lost = workers.num_lost
    assert workers.is_equal("5", HANG) is None
    assert workers.num_lost == lost + 1
    assert workers.is_equal("\\sqrt{8}", "2\\sqrt{2}") is True


def test_a_worker_killed_while_idle_costs_no_verdict(workers: GradingWorkers) -> None:
    assert workers.is_equal("x", "x") is True
    lost = workers.num_lost
    workers._idle[0].kill()
    assert workers.is_equal("\\sqrt{8}", "2\\sqrt{2}") is True
    assert workers.num_lost == lost


def test_more_callers_than_workers_wait_their_turn(workers: GradingWorkers) -> None:
    with ThreadPoolExecutor(8) as threads:
        verdicts = list(threads.map(lambda i: workers.is_equal(f"x + {i}", f"{i} + x"), range(16)))
    assert verdicts == [True] * 16
    assert len(workers._idle) == 1


def test_workers_end_with_their_owner() -> None:
    script = (
        "import os, signal\n"
        "from torl_env.grading_workers import GradingWorkers\n"
        "pool = GradingWorkers(1)\n"
        "assert pool.is_equal('x', 'x')\n"
        "print(pool._idle[0]._process.pid, flush=True)\n"
        "input()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    worker = os.pidfd_open(int(owner.stdout.readline()))
    owner.communicate("\n")
    assert owner.returncode == -signal.SIGKILL
    assert select.select([worker], [], [], 30)[0], "the worker outlived its owner"
    os.close(worker)


def test_no_thread_stays_behind(workers: GradingWorkers) -> None:
    before = threading.active_count()
    workers.is_equal("x", "y")
    assert threading.active_count() == before


@pytest.mark.skipif(not CASES.exists(), reason="the shared grading cases are not part of the repository")
def test_math_verify_agrees_with_boxed_public_cases() -> None:
    cases = [json.loads(line) for line in CASES.read_text().splitlines()]
    boxed = [case for case in cases if "\\boxed" in case.get("prediction", "")][:40]
    agree = 0
    for case in boxed:
        verdict = grade(case["gold"], case["prediction"]).verdict
        agree += verdict is (Verdict.CORRECT if case["expected"] else Verdict.INCORRECT)
    print(f"{agree} of {len(boxed)} agree")
    assert agree >= 0.7 * len(boxed)
