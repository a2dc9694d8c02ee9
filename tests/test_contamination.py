"""Evaluation problems that a training set has too."""

import json
from pathlib import Path

import pytest

from experiments.contamination import main, overlap_line, overlaps
from torl_env.problems import Problem, ProblemSet

CLOSING = "can be written as m/n where m and n are relatively prime positive integers. Find m + n."


def problem_set(name: str, *questions: str) -> ProblemSet:
    return ProblemSet([Problem(f"{name}-{i}", question, "1") for i, question in enumerate(questions)], name=name)


def found(training: str, evaluation: str) -> bool:
    return bool(overlaps(problem_set("t", training), problem_set("e", evaluation)))


@pytest.mark.parametrize(
    "training",
    [
        "What is 6 times 7?",
        "what is  $6$ times 7",  # too short for a sequence: found as the same question
    ],
)
def test_the_same_short_question_is_found(training: str) -> None:
    assert found(training, "What is 6 times 7?")


LONG = "A train leaves the station at noon and travels north at 60 miles an hour until it reaches the next town."


@pytest.mark.parametrize(
    "training",
    [
        f"Solve this problem. {LONG} Give your answer in miles.",  # contained in a longer one
        LONG.replace("town", "city"),  # 22 words, 15 sequences; two of them have the changed one
        LONG.upper(),
    ],
)
def test_a_question_in_another_wrapping_is_found(training: str) -> None:
    assert found(training, LONG)


def test_a_shared_closing_sentence_alone_is_no_overlap() -> None:
    first = f"Let ABC be a triangle with sides 13, 14 and 15. The ratio of its inradius to its circumradius {CLOSING}"
    second = f"Two dice are rolled and their numbers are multiplied. The chance that the product is a square {CLOSING}"
    assert not found(first, second)


def test_other_signs_make_another_question() -> None:
    assert not found("Compute 3 + 4 + 5 + 6 + 7 + 8 + 9", "Compute 3 - 4 - 5 - 6 - 7 - 8 - 9")


def test_a_question_about_other_numbers_is_counted_apart() -> None:
    training = problem_set("train", "What is the remainder of 9 ** 16 divided by 839?", LONG)
    evaluation = problem_set("test", "What is the remainder of 9 ** 16 divided by 380?", LONG.replace("town", "city"))
    assert [pair.other_numbers for pair in overlaps(training, evaluation)] == [True, False]
    assert overlap_line(training, evaluation) == (
        "test: 1 of 2 problems are, or nearly are, in the training set train: test-1 (= train-1); "
        "with other numbers 1 more: test-0 (like train-0)"
    )


def test_no_held_out_problem_of_the_built_in_set_is_in_its_training_set() -> None:
    pairs = overlaps(ProblemSet.load("arithmetic"), ProblemSet.load("arithmetic", split="test"))
    assert [pair for pair in pairs if not pair.other_numbers] == []


def test_a_line_names_the_pairs_and_counts_evaluation_problems_once() -> None:
    line = overlap_line(
        problem_set("train", "What is 1+1?", "What is 1 + 1?"), problem_set("test", "What is 1+1?", "x")
    )
    assert line == (
        "test: 1 of 2 problems are, or nearly are, in the training set train: test-0 (= train-0), test-0 (= train-1)"
    )


def test_the_command_prints_a_line_for_each_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, question in (("train", LONG), ("amc23", LONG), ("other", "What is 2 + 2?")):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"question": question, "answer": "1"}) + "\n")
    options = ["--suite", "amc23", "--data-dir", str(tmp_path), "--problems", str(tmp_path / "other.jsonl")]
    main([str(tmp_path / "train.jsonl"), *options])
    assert [line.split(" problems")[0] for line in capsys.readouterr().out.splitlines()] == [
        "amc23: 1 of 1",
        "other: 0 of 1",
    ]
    with pytest.raises(SystemExit):
        main([str(tmp_path / "train.jsonl")])
    assert "--suite or --problems" in capsys.readouterr().err
