"""The filters and behaviours of the report: for each rule an episode it accepts and one it rejects."""

import pytest

from experiments.reporting.behaviours import RULES, Program, programs, tags
from tests.reports import record, response_with

OK, FAILED = "success", "failed"
ASK_1 = response_with("print(1 / 0)")
ASK_2 = response_with("print(1 + 1)")
ANSWER = r"The answer is \boxed{2}."


@pytest.mark.parametrize(
    ("rule", "accepted", "rejected"),
    [
        ("correct", record(ANSWER), record(ANSWER, verdict="incorrect")),
        ("wrong", record(ANSWER, verdict="incorrect"), record(ANSWER, verdict="unknown")),
        ("unknown", record(ANSWER, verdict="unknown"), record(ANSWER)),
        (
            "code_failed",
            record(ASK_1, "\nZeroDivisionError\n```\n", ANSWER, statuses=[FAILED]),
            record(ASK_1, "\n```\n", ANSWER, statuses=["sandbox_error"]),
        ),
        (
            "past_c",
            record(ASK_2, "\n2\n```\n", ASK_2, statuses=[OK]),
            record(ASK_2, "\n2\n```\n", ANSWER, statuses=[OK]),
        ),
        ("truncated", record(ANSWER, truncated=True), record(ANSWER)),
        ("left_out", record(stop_reason="prompt_too_long"), record(ANSWER, stop_reason="max_response_tokens")),
        (
            "fixes_code",
            record(ASK_1, "\nError\n```\n", ASK_2, "\n2\n```\n", ANSWER, statuses=[FAILED, OK]),
            record(ASK_1, "\nError\n```\n", ASK_2, "\nError\n```\n", ANSWER, statuses=[FAILED, FAILED]),
        ),
        (
            "cross_checks",
            record(response_with("print(1 + 1)", r"It is \boxed{2}. "), "\n2\n```\n", "Done.", statuses=[OK]),
            record(response_with("print(1 + 1)", "I compute. "), "\n2\n```\n", ANSWER, statuses=[OK]),
        ),
        (
            "cross_checks",
            record(response_with("print(1 + 1)", "Let me verify it. "), "\n2\n```\n", ANSWER, statuses=[OK]),
            # What the code or the tool says is no prose, and a program that failed checked nothing.
            record(response_with("# verify\n1 / 0", "Let me verify. "), "\ncheck\n```\n", ANSWER, statuses=[FAILED]),
        ),
        ("without_code", record(ANSWER), record(ASK_2, "\n2\n```\n", ANSWER, statuses=[OK])),
        ("without_code", record("So 1 + 1 = " + r"\boxed{2}"), record("I do not know.")),
        (
            "code_after_answer",
            record(ANSWER + "\n```python\nprint(2)\n```\n"),
            record("```python\nprint(2)\n```\n" + ANSWER),
        ),
        (
            "repeats_failing",
            record(ASK_1, "\nE\n```\n", response_with("print(1 / 0)  \n"), "\nE\n```\n", ANSWER, statuses=[FAILED] * 2),
            record(ASK_2, "\n2\n```\n", ASK_2, "\n2\n```\n", ANSWER, statuses=[OK, OK]),
        ),
    ],
)
def test_a_rule_accepts_and_rejects(rule, accepted, rejected):
    assert rule in tags(accepted)
    assert rule not in tags(rejected)


def test_each_rule_has_a_name_of_its_own_and_a_sentence():
    assert len({rule.id for rule in RULES}) == len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.sentence.endswith(".") for rule in RULES)


def test_a_request_without_a_program_takes_no_tool_call():
    line = record("I ask.```output", "\nError\n```\n", ASK_2, "\n2\n```\n", ANSWER, statuses=[OK])
    assert programs(line) == [Program("print(1 + 1)\n", OK, 3)]
