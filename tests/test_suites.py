"""The evaluation sets by name, from files and from the hub's layout, and the paper's table."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments.paper import PUBLISHED
from experiments.suites import SUITES, load_sets, load_suite
from tests.shared_files import DATA, needs_shared_files
from torl_env.problems import ProblemSet


@needs_shared_files
@pytest.mark.parametrize(
    ("name", "size"), [("aime24", 30), ("aime25", 30), ("math500", 500), ("olympiadbench", 675), ("amc23", 40)]
)
def test_every_suite_loads_from_its_file(name: str, size: int) -> None:
    problems = load_suite(name, DATA)
    assert len(problems) + len(problems.left_out) == size
    assert len(problems.left_out) <= 1
    assert problems.name == name


@pytest.mark.parametrize(
    ("name", "row", "expected"),
    [
        ("aime24", {"id": 60, "problem": "q", "answer": "204"}, ("60", "q", "204")),
        ("aime25", {"id": "0", "problem": "q", "answer": "70"}, ("0", "q", "70")),
        ("math500", {"unique_id": "test/1", "problem": "q", "answer": "7", "subject": "Algebra"}, ("test/1", "q", "7")),
        ("olympiadbench", {"id": 1606, "question": "q", "final_answer": ["1", "2"]}, ("1606", "q", "1, 2")),
        ("amc23", {"id": 0, "question": "q", "answer": 27.0}, ("0", "q", "27.0")),
    ],
)
def test_rows_are_read_as_the_hub_has_them(
    name: str, row: dict[str, Any], expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def load_dataset(hub_name: str, split: str) -> list[dict[str, Any]]:
        asked.append((hub_name, split))
        return [row]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    [problem] = load_suite(name)
    assert (problem.id, problem.question, problem.answer) == expected
    assert asked == [(SUITES[name].hub_name, SUITES[name].split)]


def test_wrong_names_and_missing_files_say_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no suite 'aime26'; expected some of aime24, aime25, math500"):
        load_suite("aime26")
    with pytest.raises(FileNotFoundError, match=r"has no amc23\.jsonl or amc23\.parquet"):
        load_suite("amc23", tmp_path)


def test_sets_are_named_and_cut_and_the_built_in_one_is_the_held_out_split(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps({"question": f"{i}?", "answer": str(i)}) + "\n" for i in range(9)))
    sets = load_sets([], ["arithmetic", str(path)], num_problems=5)
    assert {name: len(problems) for name, problems in sets.items()} == {"arithmetic": 5, "mine": 5}
    assert list(sets["arithmetic"]) == list(ProblemSet.load("arithmetic", split="test")[:5])
    with pytest.raises(ValueError, match="Two problem sets have the name 'mine'"):
        load_sets([], [str(path), str(path)])


def test_the_papers_averages_are_quoted_as_printed_though_two_are_not_their_rows_mean() -> None:
    off = {
        name: (round(sum(row) / 5, 1), average)
        for name, (row, average) in PUBLISHED.items()
        if abs(sum(row) / 5 - average) > 0.06
    }
    assert off == {"Qwen2.5-Math-1.5B-Instruct-TIR": (39.3, 41.3), "ToRL-7B": (56.1, 62.1)}
