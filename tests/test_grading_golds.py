"""The evaluation sets' golds: each is correct against itself, and against the next row's only where they are equal."""

import itertools

import pytest

from tests.shared_files import DATA, needs_shared_files
from torl_env import ProblemSet, Verdict
from torl_env.grading import grade_batch

EQUAL_NEIGHBOURS = {
    "math500": [("5", "x=5"), ("7", "7"), ("3", "3")],
    "olympiadbench": [("5", "5"), ("67", "67"), ("3", "3"), ("3", "3")],
    "aime24": [],
    "aime25": [],
    "amc23": [("9", "9"), ("7", "7"), ("7", "7")],
}


@needs_shared_files
@pytest.mark.parametrize(("name", "neighbours"), EQUAL_NEIGHBOURS.items())
def test_golds_equal_themselves_and_only_equal_neighbours(name: str, neighbours: list[tuple[str, str]]) -> None:
    golds = [problem.answer for problem in ProblemSet.load(DATA / f"{name}.jsonl")]
    itself = grade_batch((gold, f"\\boxed{{{gold}}}") for gold in golds)
    assert {graded.verdict for graded in itself} == {Verdict.CORRECT}
    pairs = list(itertools.pairwise(golds))
    graded = grade_batch((gold, f"\\boxed{{{other}}}") for gold, other in pairs)
    equal = [pair for pair, found in zip(pairs, graded, strict=True) if found.verdict is Verdict.CORRECT]
    assert equal == neighbours
