"""Which answer a response gives, and what is made of it; batches, event loops, the command."""

import asyncio
import json
import random
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
import ray

from tests.shared_files import GRADING_CASES, needs_shared_files
from torl_env import Problem, Reward, Verdict, grade
from torl_env.grading import extract_answer, grade_async, grade_batch, grading_failures
from torl_env.grading.__main__ import main, report
from torl_env.grading.workers import GradingWorkers, shared_workers

HANG = ("\\sqrt{5}", "\\sum_{k=1}^{9999999}\\frac{1}{k}")  # no power, no factorial: not for the size gate


@pytest.fixture
def no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torl_env.grading.shared_workers", lambda: pytest.fail("a worker was asked"))


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("\\boxed{42}", "42"),
        ("\\boxed{1} then \\boxed{2}", "2"),
        ("\\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
        ("\\boxed {7}", "7"),
        ("\\fbox{7}", "7"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{\\left\\{ x \\right.}", "\\left\\{ x \\right."),  # an escaped brace needs no partner
        ("\\boxed{a \\\\{b}}", "a \\\\{b}"),  # here the backslash is escaped, the brace is not
        ("\\\\boxed{3}", "3"),  # escaped twice
        ("\\boxed{\\boxed{3}}", "3"),
        ("\\boxed{}", ""),
        ("<think>\\boxed{1}</think> \\boxed{2}", "2"),
        ("\\boxed{1}</think> \\boxed{2}", "2"),  # opened in the prompt
        ("\\boxed{2}\n```python\nprint('\\boxed{1}')\n```", "2"),
        ("```python\nunfinished\n```\n\\boxed{2}", "2"),
    ],
)
def test_the_last_box_is_the_answer(response: str, answer: str) -> None:
    assert extract_answer(response) == answer


@pytest.mark.parametrize(
    "response",
    [
        "",
        "42",
        "boxed{42}",
        "\\boxed 42",
        "\\boxed{42",
        "\\boxed{42} and \\boxed{1",  # the last one is unfinished; what stands before it was taken back
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


@pytest.mark.parametrize("box", ["", " ", "$ $", "{}", "."])
def test_an_empty_box_is_incorrect(box: str) -> None:
    assert grade("42", f"\\boxed{{{box}}}").verdict is Verdict.INCORRECT
    assert grade("", f"\\boxed{{{box}}}").verdict is Verdict.INCORRECT


def test_an_answer_without_a_box_counts_where_asked_for_and_never_for_a_reward() -> None:
    assert grade("42", "42", require_box=False).verdict is Verdict.CORRECT
    assert grade("42", "\\boxed{41} 42", require_box=False).verdict is Verdict.INCORRECT
    assert grade("42", "\\boxed{ 42", require_box=False).verdict is Verdict.INCORRECT
    assert grade("42", "42").verdict is Verdict.INCORRECT
    assert Reward()(Problem("p", "6 times 7?", "42"), "42", []).total == -1.0


def test_boxes_merge_where_the_gold_is_a_list_and_one_statement_holds_them() -> None:
    both = "so \\boxed{1} and $\\boxed{2}$."
    assert grade("1, 2", both).verdict is Verdict.CORRECT
    assert grade("2", both).verdict is Verdict.CORRECT  # the gold is no list: the last box
    assert grade("1", both).verdict is Verdict.INCORRECT
    assert grade("1, 2", "first \\boxed{1}, which leaves \\boxed{2}").verdict is Verdict.INCORRECT


@pytest.mark.usefixtures("no_worker")
def test_identical_texts_need_no_worker_however_long() -> None:
    tower = "9^{9^{9}}"
    assert grade(tower, f"\\boxed{{{tower}}}").verdict is Verdict.CORRECT
    assert grade("x" * 5000, f"\\boxed{{{'x' * 5000}}}").verdict is Verdict.CORRECT
    assert grade("x", f"\\boxed{{{'x' * 5000}}}").verdict is Verdict.INCORRECT


@pytest.mark.usefixtures("no_worker")
@pytest.mark.parametrize("answer", ["9^{9^{9}}", "((9^9)^9)^9^9", "10.0**10.0**10.0", "10000000!", "7" * 900 + "!"])
def test_an_answer_too_large_to_compute_is_incorrect_without_a_worker(answer: str) -> None:
    assert grade("5", f"\\boxed{{{answer}}}").verdict is Verdict.INCORRECT
    assert grade("\\sqrt{x}", f"\\boxed{{x + {answer}}}").verdict is Verdict.INCORRECT


@pytest.mark.usefixtures("no_worker")
def test_powers_too_large_to_compute_are_compared_as_written() -> None:
    assert grade("2^{10^9}", "\\boxed{2^{1000000000}}").verdict is Verdict.CORRECT
    assert grade("4^{10^9}", "\\boxed{2^{2 \\cdot 10^9}}").verdict is Verdict.CORRECT
    assert grade("2^{10^9}", "\\boxed{2^{10^{10}}}").verdict is Verdict.INCORRECT


@pytest.mark.parametrize(
    ("gold", "answer", "verdict"),
    [
        ("\\frac{1}{\\sqrt{2}}", "\\frac{\\sqrt{2}}{2}", Verdict.CORRECT),
        ("\\frac{1}{\\sqrt{2}}", "\\frac{\\sqrt{3}}{2}", Verdict.INCORRECT),
        ("x^2 - 1", "(x - 1)(x + 1)", Verdict.CORRECT),
        ("x^2 - 1", "(x - 1)^2", Verdict.INCORRECT),
        # A part of the answer must not be taken for it: LaTeX is read whole or not at all.
        ("\\frac{2}{3}", "\\frac{1}{3} E_{1} + \\frac{2}{3}", Verdict.INCORRECT),
        ("5", "5 \\unknowncommand{3}", Verdict.INCORRECT),
    ],
)
def test_formulas_go_to_math_verify(gold: str, answer: str, verdict: Verdict) -> None:
    assert grade(gold, f"\\boxed{{{answer}}}").verdict is verdict


def test_every_caller_gets_its_verdict() -> None:
    def check() -> Verdict:
        return grade("\\sqrt{8}", "\\boxed{2\\sqrt{2}}").verdict

    async def in_loop() -> list[Verdict]:
        graded = [grade_async("\\sqrt{8}", "\\boxed{2\\sqrt{2}}"), grade_async("2", "\\boxed{2.0}")]
        return [check(), *[found.verdict for found in await asyncio.gather(*graded)]]

    assert check() is Verdict.CORRECT
    with ThreadPoolExecutor(4) as threads:
        assert {future.result() for future in [threads.submit(check) for _ in range(8)]} == {Verdict.CORRECT}
    assert asyncio.run(in_loop()) == [Verdict.CORRECT] * 3


class _Grader:
    def grade(self) -> str:
        return grade("\\sqrt{8}", "\\boxed{2\\sqrt{2}}").verdict


def test_a_ray_actor_grades() -> None:
    ray.init(num_cpus=1, include_dashboard=False, configure_logging=False, ignore_reinit_error=True)
    try:
        grader = ray.remote(num_cpus=0)(_Grader).remote()
        assert ray.get(grader.grade.remote(), timeout=120) == "correct"
    finally:
        ray.shutdown()


def ordinary(num: int) -> list[tuple[str, str]]:
    """Return distinct pairs of equal integers and fractions."""
    integers = [(str(i), f"so the result is $\\boxed{{{i}}}$.") for i in range(1000, 1000 + num // 2)]
    return integers + [(f"{i}/7", f"\\boxed{{\\frac{{{2 * i}}}{{14}}}}") for i in range(1, 1 + num - num // 2)]


@pytest.mark.usefixtures("no_worker")
def test_a_batch_of_numbers_needs_no_worker_and_under_a_millisecond_each() -> None:
    pairs = ordinary(1000)
    start = time.process_time()
    graded = grade_batch(pairs)
    assert time.process_time() - start < 1.0
    assert {found.verdict for found in graded} == {Verdict.CORRECT}


def test_hanging_cases_delay_no_ordinary_one_beyond_the_limit() -> None:
    pairs = ordinary(1000)
    hanging = [("5", "\\boxed{9^{9^{9}} - x}")] * 25 + [("5", "\\boxed{10000000!}")] * 25
    mixed = [*hanging, *pairs, ("\\sqrt{8}", "\\boxed{2\\sqrt{2}}")]
    start = time.monotonic()
    graded = grade_batch(mixed)
    assert time.monotonic() - start < 3.0
    assert {found.verdict for found in graded[50:]} == {Verdict.CORRECT}
    assert Verdict.CORRECT not in {found.verdict for found in graded[:50]}


# Where Ctrl-C finds a batch: waiting, by a signal from here; or starting a thread that nobody has noted yet.
WAITING = """
ask = workers.is_equal_quick
workers.is_equal_quick = lambda *pair: print('asked', flush=True) or ask(*pair)
"""
STARTING_A_THREAD = """
import threading
start = threading.Thread.start
def interrupted(thread):
    start(thread)
    print('asked', flush=True)
    raise KeyboardInterrupt
threading.Thread.start = interrupted
"""


@pytest.mark.parametrize("moment", [WAITING, STARTING_A_THREAD], ids=["waiting", "starting a thread"])
def test_an_interrupted_batch_does_not_hold_up_the_exit(moment: str) -> None:
    script = (
        f"from torl_env.grading import grade_batch, shared_workers\nworkers = shared_workers()\n{moment}\n"
        f"grade_batch([({HANG[0]!r}, {HANG[1]!r} + f' + {{i}}') for i in range(500)], require_box=False)\n"
    )
    grader = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert grader.stdout is not None
    assert grader.stdout.readline() == "asked\n"  # each would take a tenth of a second of a core, some three seconds
    if moment is WAITING:
        grader.send_signal(signal.SIGINT)
    try:
        _, said = grader.communicate(timeout=40)
    finally:
        grader.kill()
    assert said.endswith("KeyboardInterrupt\n")


def test_after_an_interrupted_batch_there_are_new_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted = shared_workers()
    with monkeypatch.context() as patch:
        patch.setattr(interrupted.quick, "submit", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            grade_batch([("\\sqrt{8}", "\\boxed{2\\sqrt{2}}")])
    assert interrupted.is_closed
    assert grade("\\sqrt{8}", "\\boxed{2\\sqrt{2}}").verdict is Verdict.CORRECT


def test_what_passes_the_gate_and_hangs_delays_formulas_by_the_quick_limit_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = GradingWorkers(max_workers=2, limit_s=6.0)  # wide, for machines with other work
    monkeypatch.setattr("torl_env.grading.shared_workers", lambda: workers)
    hanging = [(HANG[0], f"\\boxed{{{HANG[1]} + {i}}}") for i in range(2)]
    formulas = [(f"\\sqrt{{{8 * i * i}}}", f"\\boxed{{{2 * i}\\sqrt{{2}}}}") for i in range(2, 20)]

    async def all_at_once() -> list[Verdict]:
        slow = [asyncio.ensure_future(grade_async(*pair)) for pair in hanging]
        found = await asyncio.gather(*(grade_async(*pair) for pair in formulas))
        assert not any(task.done() for task in slow)  # the loop was free, and these take six seconds
        assert {late.verdict for late in await asyncio.gather(*slow)} == {Verdict.UNKNOWN}
        return [quick.verdict for quick in found]

    assert asyncio.run(all_at_once()) == [Verdict.CORRECT] * len(formulas)
    assert grading_failures() == len(hanging)
    workers.close()


def test_odd_texts_raise_nothing() -> None:
    pieces = [
        "\\frac",
        "{",
        "}",
        "(",
        "]",
        "\\{",
        "1",
        "0",
        ".",
        "x",
        "=",
        "\\leq",
        ",",
        " and ",
        "\\pm",
        "^",
        "_",
        "!",
    ]
    pieces += ["\\text{", "cm", "\\%", "$", "sqrt(", "/", "\\cup", ":", "12:30", "|", "\\left", "\\\\", "é", "²", "_8"]
    generator = random.Random(0)

    def text() -> str:
        return "".join(generator.choices(pieces, k=generator.randint(0, 12)))

    from torl_env.grading import _grade

    for _ in range(3000):
        _grade(text(), text(), False, lambda gold, answer: generator.choice([True, False, None]))


def test_the_command_prints_one_object(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "gold": "1/2", "prediction": "0.5", "expected": True},
        {"id": "b", "gold": "1/2", "prediction": "\\boxed{2}", "expected": False},
        {"id": "c", "gold": "1/2", "expected": False},  # no prediction: an empty one
        {"id": "d", "gold": "1/2", "prediction": "2", "expected": True},
        {"id": "e", "gold": "1/2", "prediction": "2/4", "expected": False},
        {"id": "f", "gold": HANG[0], "prediction": HANG[1], "expected": False},
    ]
    path = tmp_path / "cases.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-m", "torl_env.grading", str(path)]
    printed = subprocess.run([*command, "--json"], check=True, capture_output=True, text=True)
    found = json.loads(printed.stdout)
    assert printed.stderr == ""
    assert [entry["id"] for entry in found.pop("disagreements")] == ["d", "e", "f"]
    assert found.pop("p99_ms") >= found.pop("median_ms") > 0
    assert found == {"cases": 6, "agree": 3, "false_positives": 1, "false_negatives": 1, "unknown": 1}


def test_separators_within_a_string_and_a_byte_order_mark_are_no_ends_of_lines(tmp_path: Path) -> None:
    row = {"id": "a", "gold": "1/2", "prediction": "so\u2028 it\u2029 is\u0085 \\boxed{0.5}", "expected": True}
    path = tmp_path / "cases.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + 2 * (json.dumps(row, ensure_ascii=False).encode() + b"\r\n"))
    command = [sys.executable, "-m", "torl_env.grading", str(path), "--json"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert (found["cases"], found["agree"]) == (2, 2)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"gold": "1", "prediction": 1, "expected": true}', "line 2: field `prediction` should be text, got 1."),
        ('{"gold": "1", "prediction": ["1"], "expected": true}', "field `prediction` should be text, got ['1']."),
        ('{"gold": 1, "expected": true}', "line 2: field `gold` should be text, got 1."),
        ('{"gold": "1"}', "line 2: field `expected` should be true or false, got nothing."),
        ("[]", "line 2: got '[]'; expected a JSON object."),
        ("[" * 100_000, "line 2: not JSON (maximum recursion depth exceeded"),
    ],
)
def test_a_line_that_is_no_case_is_named_with_its_field(line: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        report(['{"gold": "1", "prediction": null, "expected": false}', line])


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_half_of_a_surrogate_pair_can_be_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text('{"id": "\\ud800", "gold": "\\ud801", "prediction": "\\ud802", "expected": true}\n')
    monkeypatch.setattr(sys, "argv", ["grading", str(path), *options])
    main()
    printed = capsys.readouterr().out
    assert [half for half in ("\\ud800", "\\ud801", "\\ud802") if half not in printed] == []


@needs_shared_files
def test_public_cases_agree_with_their_mathematical_verdicts() -> None:
    threads = threading.active_count()
    found = report(GRADING_CASES.read_text(encoding="utf-8").splitlines())
    print({key: value for key, value in found.items() if key != "disagreements"})
    assert found["cases"] == 467
    assert found["agree"] >= 0.97 * found["cases"]
    assert found["false_positives"] <= 5
    assert found["unknown"] == 0
    assert threading.active_count() == threads
