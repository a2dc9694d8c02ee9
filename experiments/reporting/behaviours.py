r"""What an episode is filtered by: its outcome, and the behaviours the paper describes (section 4), by stated rules.

Each rule looks at one line of `episodes.jsonl` and nothing else, so it says what the text shows, not what the model
meant. The sentences are shown in the report beside the filters.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from learners.episodes import EXCLUDED_STOP_REASONS
from torl_env.dialect import MARKER, TORL, code_blocks, count_code, strip_code
from torl_env.grading.extract import extract_answer

_OK, _SANDBOX_ERROR = "success", "sandbox_error"
_VERIFYING = re.compile(
    r"\b(?:double-?check|cross-?check|check|verify|verif(?:ies|ying|ication)|confirm)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Program:
    """A program that was run: its code, the status of its result, the index of its response among the turns."""

    code: str
    status: str
    turn: int

    @property
    def failed(self) -> bool:
        """True if the program's own fault ended it; trouble of the sandbox is not the program's."""
        return self.status not in (_OK, _SANDBOX_ERROR)


@dataclass(frozen=True, slots=True)
class Rule:
    """A filter: its id in links, its name, the rule as a sentence, and the rule."""

    id: str
    name: str
    sentence: str
    holds: Callable[[Mapping[str, Any]], bool]


def programs(record: Mapping[str, Any]) -> list[Program]:
    """Return the programs of an episode that were run, in order: the n-th with the n-th of `tool_calls`."""
    calls = iter(record["tool_calls"])
    found = []
    for turn, (role, text) in enumerate(record["turns"]):
        code = TORL.parse(text, 1).code if role == "response" else None
        call = next(calls, None) if code is not None else None
        if code is not None and call is not None:
            found.append(Program(code, call["status"], turn))
    return found


def responses(record: Mapping[str, Any]) -> list[str]:
    """Return the texts the model wrote, in order."""
    return [text for role, text in record["turns"] if role == "response"]


def boxed_answer(texts: Sequence[str]) -> str | None:
    """Return the final answer in the model's texts, as the grader looks for it; None if there is none."""
    return extract_answer(TORL.answer_text(texts))


def _asks_past_c(record: Mapping[str, Any]) -> bool:
    turns: Sequence[Sequence[str]] = record["turns"]
    run = {program.turn for program in programs(record)}
    return any(
        role == "response"
        and MARKER in text
        and turn not in run
        and (turn + 1 == len(turns) or turns[turn + 1][0] != "observation")
        for turn, (role, text) in enumerate(turns)
    )


def _answers_without_code(record: Mapping[str, Any]) -> bool:
    texts = responses(record)
    return boxed_answer(texts) is not None and count_code(texts).num_blocks == 0


def _code_after_answer(record: Mapping[str, Any]) -> bool:
    counts = count_code(responses(record))
    return counts.num_before_answer < counts.num_blocks


def _fixes_code(record: Mapping[str, Any]) -> bool:
    failed: list[str] = []
    for program in programs(record):
        if program.failed:
            failed.append(_normalised(program.code))
        elif program.status == _OK and failed and _normalised(program.code) not in failed:
            return True
    return False


def _repeats_failing_code(record: Mapping[str, Any]) -> bool:
    failed: set[str] = set()
    for program in programs(record):
        code = _normalised(program.code)
        if code in failed:
            return True
        if program.failed:
            failed.add(code)
    return False


def _cross_checks(record: Mapping[str, Any]) -> bool:
    turns = record["turns"]
    for program in programs(record):
        if program.status != _OK:
            continue
        earlier = [text for role, text in turns[: program.turn] if role == "response"]
        block = code_blocks(turns[program.turn][1].partition(MARKER)[0])[-1]
        before = [text.partition(MARKER)[0] for text in earlier] + [turns[program.turn][1][: block.start]]
        after = [text for role, text in turns[program.turn + 1 :] if role == "response"]
        if boxed_answer(before) is not None or any(_VERIFYING.search(strip_code(text)) for text in before + after):
            return True
    return False


def _normalised(code: str) -> str:
    return "\n".join(line.rstrip() for line in code.splitlines() if line.strip())


FILTERS: tuple[Rule, ...] = (
    Rule("correct", "correct", "The grader found the answer correct.", lambda r: r["verdict"] == "correct"),
    Rule("wrong", "wrong", "The grader found the answer incorrect.", lambda r: r["verdict"] == "incorrect"),
    Rule("unknown", "unknown", "The answer was not judged.", lambda r: r["verdict"] not in ("correct", "incorrect")),
    Rule(
        "code_failed",
        "code failed",
        "A program ended with an error or at a limit.",
        lambda r: any(call["status"] not in (_OK, _SANDBOX_ERROR) for call in r["tool_calls"]),
    ),
    Rule("past_c", "past C", f"The response asks for a program ({MARKER}) that was not run.", _asks_past_c),
    Rule("truncated", "truncated", "A limit was hit, or the episode could not be judged.", lambda r: r["truncated"]),
    Rule(
        "left_out",
        "left the batch",
        "Sandbox, grader, engine or prompt length: it says nothing about the policy.",
        lambda r: r["stop_reason"] in EXCLUDED_STOP_REASONS,
    ),
)
BEHAVIOURS: tuple[Rule, ...] = (
    Rule(
        "fixes_code",
        "fixes code after an error",
        "A program failed, and a later, different one ran without error.",
        _fixes_code,
    ),
    Rule(
        "cross_checks",
        "cross-checks against the tool",
        "A program ran without error, and the prose before it already has a boxed answer, or the prose before or after "
        "it says check, verify or confirm.",
        _cross_checks,
    ),
    Rule(
        "without_code",
        "answers without code",
        "There is a boxed answer and not one complete Python block.",
        _answers_without_code,
    ),
    Rule(
        "code_after_answer",
        "code after the answer",
        "A Python block stands behind the first boxed answer.",
        _code_after_answer,
    ),
    Rule(
        "repeats_failing",
        "repeats failing code",
        "A program that failed was run again unchanged, blank lines and line ends aside.",
        _repeats_failing_code,
    ),
)
RULES: tuple[Rule, ...] = FILTERS + BEHAVIOURS


def tags(record: Mapping[str, Any]) -> list[str]:
    """Return the ids of the rules that hold, in the order of `RULES`."""
    return [rule.id for rule in RULES if rule.holds(record)]
