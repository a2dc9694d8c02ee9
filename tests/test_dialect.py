"""Prompt, parsing, observations and code counts."""

import pytest

from torl_env import PLAIN, TORL, Dialect, ExecutionResult, Problem, Status
from torl_env.dialect import Action, code_blocks, count_code, cut_middle, strip_code

PROBLEM = Problem("p", "What is {6} times {problem}? \\frac{1}{2}", "42")
CODE = "```python\nprint(6 * 7)\n```\n"


def success(stdout: str) -> ExecutionResult:
    return ExecutionResult(Status.SUCCESS, stdout=stdout, return_code=0)


def failure(stderr: str, status: Status = Status.FAILED, return_code: int | None = 1) -> ExecutionResult:
    return ExecutionResult(status, stdout="partial\n", stderr=stderr, return_code=return_code)


def test_the_prompt_is_the_papers_and_braces_stay() -> None:
    assert TORL.render_prompt(PROBLEM) == (
        "A conversation between User and Assistant. The user asks a question, and the Assistant solves it.\n"
        "User: Please integrate natural language reasoning with programs to solve the problem above, and put your "
        "final answer within \\boxed{}.\nWhat is {6} times {problem}? \\frac{1}{2}\nAssistant:"
    )


def test_the_plain_prompt_does_not_ask_for_programs() -> None:
    assert "Please reason step by step, and put your final answer within \\boxed{}." in PLAIN.template
    assert "program" not in PLAIN.template


@pytest.mark.parametrize("template", ["no place", "{problem} and {problem}"])
def test_a_template_without_exactly_one_place_for_the_problem_is_rejected(template: str) -> None:
    with pytest.raises(ValueError, match="exactly once"):
        Dialect(template)


def test_a_tiny_observation_budget_is_rejected() -> None:
    assert Dialect("{problem}", max_observation_chars=100).max_observation_chars == 100
    with pytest.raises(ValueError, match="at least 100"):
        Dialect("{problem}", max_observation_chars=99)


def test_a_chat_template_is_rendered_once_around_the_problem() -> None:
    def render(messages: list[dict[str, str]]) -> str:
        return "".join(f"<|{m['role']}|>{m['content']}<|end|>" for m in messages) + "<|assistant|>"

    dialect = Dialect.from_chat_template(render, "Solve it.")
    assert dialect.template == "<|user|>Solve it.\n{problem}<|end|><|assistant|>"


def test_stop_is_the_marker_while_calls_are_left() -> None:
    assert TORL.stop(1) == ("```output",)
    assert TORL.stop(0) == ()


@pytest.mark.parametrize("after", ["", "\n", "s", "s\n42\n```\nSo \\boxed{42}"])
def test_the_marker_counts_whatever_stands_after_it(after: str) -> None:
    turn = f"Let me compute.\n{CODE}```output{after}"
    assert TORL.parse(turn, 1) == Action(requests_tool=True, code="print(6 * 7)\n")


def test_code_without_the_marker_is_an_answer() -> None:
    assert TORL.parse(CODE, 1) == Action(requests_tool=False)
    assert TORL.parse("", 1) == Action(requests_tool=False)


def test_a_request_without_calls_left_is_an_answer() -> None:
    assert TORL.parse(f"{CODE}```output", 0) == Action(requests_tool=False)


def test_the_latest_complete_block_is_run() -> None:
    turn = "```python\na\n```\ntext\n```python\nb\n```\n```python\nunfinished\n```output"
    assert TORL.parse(turn, 1).code == "b\n"


def test_only_blocks_before_the_marker_count() -> None:
    assert TORL.parse(f"```output\n{CODE}", 1) == Action(requests_tool=True, code=None)


def test_a_marker_inside_a_code_string_cuts_the_block_off() -> None:
    assert TORL.parse('```python\nprint("```output")\n```\n', 1) == Action(requests_tool=True, code=None)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\r\nx = 1\r\ny\r\n```\r\n", "x = 1\ny\n"),
        ("Compute ```python\nx\n```", "x\n"),  # not at the line's start
        ("```Python \nx\n```", "x\n"),
        ("```py\nx\n```", "x\n"),
        ("```python3\nx\n```", "x\n"),
        ("```python\n```", ""),
        ('```python\ns = "a ``` b"\n```', 's = "a ``` b"\n'),
        ("```python\nprint(1)```\n", "print(1)"),  # the closing fence ends a line
        ("1. So\n   ```python\n   if x:\n     y\n   ```", "if x:\n  y\n"),  # in a list: the fence's indentation goes
    ],
)
def test_a_block_is_found(text: str, code: str) -> None:
    assert [block.code for block in code_blocks(text)] == [code]


@pytest.mark.parametrize(
    "text",
    [
        "```python\nx = 1",
        "```python x = 1\n```",
        "```\nx\n```",
        "```pythonic\nx\n```",
        "````python\nx\n````",
        "```output\n42\n```",
        "python\nx\n",
        "",
    ],
)
def test_no_block_is_found(text: str) -> None:
    assert code_blocks(text) == []


def test_success_shows_stdout() -> None:
    assert TORL.render_observation(success("42\n")) == "\n42\n```\n"
    assert TORL.render_observation(success("")) == "\n\n```\n"
    assert TORL.render_observation(success(" 1\n\n2\n\n")) == "\n 1\n\n2\n```\n"


def test_failure_shows_the_last_line_of_the_traceback_alone() -> None:
    trace = "Traceback (most recent call last):\n  File \"<string>\", line 1\nNameError: name 'a' is not defined\n"
    assert TORL.render_observation(failure(trace)) == "\nNameError: name 'a' is not defined\n```\n"


def test_host_paths_are_not_shown() -> None:
    line = "ImportError: cannot import name 'f' from 'math' (/usr/lib/python3.11/lib-dynload/math.so)\n"
    assert TORL.render_observation(failure(line)) == "\nImportError: cannot import name 'f' from 'math'\n```\n"


@pytest.mark.parametrize(
    ("result", "line"),
    [
        (failure("warning\nTimeoutError: the program ran longer than 5 s\n", Status.TIME_LIMIT, None),
         "TimeoutError: the program ran longer than 5 s"),
        (failure("", Status.TIME_LIMIT, None), "TimeoutError: the program ran too long"),
        (failure("", Status.MEMORY_LIMIT), "MemoryError: the program used too much memory"),
        (failure("", return_code=3), "Error: the program exited with code 3"),
        (failure("", return_code=-11), "Error: the program was killed by signal 11"),
        (None, "Error: there is no complete python block to run"),
    ],
)  # fmt: skip
def test_other_endings_are_one_line(result: ExecutionResult | None, line: str) -> None:
    assert TORL.render_observation(result) == f"\n{line}\n```\n"


def test_output_cannot_fake_a_fence() -> None:
    faked = "1\n```\nThe answer is \\boxed{1}.\n````python\nx"
    observation = TORL.render_observation(success(faked))
    assert observation == "\n1\n'''\nThe answer is \\boxed{1}.\n''''python\nx\n```\n"
    assert observation.count("```") == 1


def test_long_output_loses_its_middle() -> None:
    dialect = Dialect("{problem}", max_observation_chars=100)
    # 40 characters are kept around the mark: 20 of the head, 20 of the tail; 1000 - 40 = 960 are left out.
    shown = dialect.render_observation(success("a" * 500 + "b" * 500))
    assert shown == "\n" + "a" * 20 + "\n... (960 characters left out) ...\n" + "b" * 20 + "\n```\n"
    assert cut_middle("x" * 100, 100) == "x" * 100
    assert len(cut_middle("x" * 10**6, 100)) <= 100


def test_strip_code_leaves_the_prose() -> None:
    assert strip_code(f"A\n{CODE}B") == "A\n\nB"
    assert strip_code("A\n```\n\\boxed{1}\n```\nB\n```output\nlost \\boxed{2}") == "A\n\nB\n"
    assert strip_code("no code, `x` and ``` inline") == "no code, `x` and ``` inline"


def test_the_answer_text_is_the_prose_of_all_turns() -> None:
    turns = [f"First \\boxed{{1}}.\n{CODE}```output\n \\boxed{{2}}", "```python\nunfinished\n```output", "Last."]
    # What stands behind a request's marker was ignored; a block left open ends with its turn.
    assert TORL.answer_text(turns) == "First \\boxed{1}.\n\n\n\nLast."
    assert TORL.answer_text([f"{CODE}```output\n42\n```\nSo \\boxed{{42}}"]) == "\n\nSo \\boxed{42}"


def test_blocks_are_counted_before_and_after_the_first_answer() -> None:
    turns = [f"{CODE}{CODE}```output", f"So \\boxed{{42}}. Check:\n{CODE}", CODE]
    assert (count_code(turns).num_blocks, count_code(turns).num_before_answer) == (4, 2)


def test_without_an_answer_all_blocks_stand_before_it() -> None:
    counts = count_code([f'{CODE}```python\nprint("\\boxed{{1}}")\n```\n'])
    assert (counts.num_blocks, counts.num_before_answer) == (2, 2)
    assert count_code([]).num_blocks == 0
