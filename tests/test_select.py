"""Selection by learning impact."""

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.select import main, reward_curves, scores, selected_rows
from torl_env import Problem

ITERATIONS = [
    # learned: -1 then +1; always: +1, +1; never: -1, -1; half: the mean of +1 and -1, then +1
    {"iteration": 1, "groups": [["learned", -1.0], ["always", 1.0]]},
    {"iteration": 2, "groups": [["never", -1.0], ["half", 0.0]]},
    {"iteration": 5, "groups": [["learned", 1.0], ["never", -1.0], ["half", None]]},
    {"iteration": 6, "groups": [["always", 1.0]]},
    {"iteration": 9, "groups": [["half", 1.0]]},
]


def test_a_curve_is_the_mean_reward_of_each_visit() -> None:
    curves = reward_curves(ITERATIONS)
    assert {problem: curve.tolist() for problem, curve in curves.items()} == {
        "learned": [-1, 1],
        "always": [1, 1],
        "never": [-1, -1],
        "half": [0, 1],
    }


def test_scores_are_those_computed_by_hand() -> None:
    # average curve: visit 1 (-1 + 1 - 1 + 0) / 4 = -1/4, visit 2 (1 + 1 - 1 + 1) / 4 = 1/2
    # room: (1 + 1/4)^2 + (1 - 1/2)^2 = 25/16 + 1/4 = 29/16
    # learned: (3/4)^2 + (1/2)^2 = 13/16;  always: (5/4)^2 + (1/2)^2 = 29/16
    # never: (3/4)^2 + (3/2)^2 = 45/16;    half: (1/4)^2 + (1/2)^2 = 5/16
    assert scores(reward_curves(ITERATIONS)) == pytest.approx(
        {"learned": 1 - 13 / 29, "always": 0.0, "never": 1 - 45 / 29, "half": 1 - 5 / 29}
    )


def test_a_problem_visited_less_often_is_compared_over_its_own_visits() -> None:
    # average: visit 1 (0 + 0.5) / 2 = 0.25, visit 2 0.5; "b" has the first alone: 1 - 0.25^2 / 0.75^2 = 8/9
    found = scores({"a": np.array([0.0, 0.5]), "b": np.array([0.5])})
    assert found["b"] == pytest.approx(8 / 9)


def test_an_average_without_room_to_grow_selects_what_equals_it() -> None:
    assert scores({"a": np.array([1.0]), "b": np.array([1.0])}) == {"a": 1.0, "b": 1.0}
    assert scores({}) == {}


def test_the_best_problems_come_first_and_the_others_stay_away() -> None:
    problems = [Problem(name, f"{name}?", "1") for name in ("learned", "half", "never", "unvisited")]
    rows = selected_rows(problems, reward_curves(ITERATIONS), min_score=0.5)
    assert [(row["id"], row["num_visits"]) for row in rows] == [("half", 2), ("learned", 2)]
    assert [row["id"] for row in selected_rows(problems, reward_curves(ITERATIONS), min_score=0.6)] == ["half"]


def run_and_problems(tmp_path: Path, *names: str) -> tuple[Path, Path]:
    """Write the groups of a run, the last line unfinished, and problems of these ids; return both paths."""
    (tmp_path / "groups.jsonl").write_text("".join(json.dumps(line) + "\n" for line in ITERATIONS) + '{"unfin')
    problems = tmp_path / "train.jsonl"
    problems.write_text("".join(f'{{"id": "{name}", "question": "{name}?", "answer": "1"}}\n' for name in names))
    return tmp_path, problems


def test_the_command_writes_a_problem_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, problems = run_and_problems(tmp_path, "half", "never", "unvisited")
    main([str(run), "--problems", str(problems)])
    rows = [json.loads(line) for line in (tmp_path / "selected.jsonl").read_text().splitlines()]
    assert [(row["id"], row["question"], row["score"]) for row in rows] == [("half", "half?", 0.827586)]
    printed = capsys.readouterr().out
    assert "problems with episodes  2 of 3, visits 2 to 2\n" in printed
    assert f"2 more with episodes are not in {problems}\n" in printed  # learned, always
    assert "selected                1, score above 0.6" in printed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--problems", "arithmetic"],
            "None of the 4 problems with episodes, such as 'learned', is in arithmetic, which",
        ),
        (["--problems", "no.jsonl"], "No problem file 'no.jsonl'"),
        (["--min-score", "0.9"], "No problem scores above 0.9 (median 0.276, lowest -0.552, highest 0.828)"),
        (["--min-score", "nan"], "`--min-score` is nan; no score is above 1"),
        (["--min-score", "2"], "`--min-score` is 2.0; no score is above 1"),
        (["--output", "."], "`--output .` should be a file in a folder that is there"),
        (["--output", "missing/chosen.jsonl"], "`--output missing/chosen.jsonl` should be a file in a folder"),
    ],
)
def test_what_selects_nothing_is_refused_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    run, problems = run_and_problems(tmp_path, "half", "never")
    with pytest.raises(SystemExit):
        main([str(run), "--problems", str(problems), *options])
    assert message in capsys.readouterr().err
    assert not (run / "selected.jsonl").exists()


@pytest.mark.parametrize(
    "line", ["{", "[]", "{}", '{"groups": 1}', '{"groups": [["half"]]}', '{"groups": [["half", "x"]]}']
)
def test_a_damaged_line_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str) -> None:
    run, problems = run_and_problems(tmp_path, "half")
    (run / "groups.jsonl").write_text(json.dumps(ITERATIONS[0]) + f"\n{line}\n")
    with pytest.raises(SystemExit):
        main([str(run), "--problems", str(problems)])
    assert f"{run / 'groups.jsonl'}, line 2: not what a run writes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("state", "message"),
    [(None, "has no run.json (a sweep's trial has none)"), ("{", "run.json is not what a run writes")],
)
def test_a_run_that_does_not_say_its_problems_asks_for_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], state: str | None, message: str
) -> None:
    run, _ = run_and_problems(tmp_path)
    if state is not None:
        (run / "run.json").write_text(state)
    with pytest.raises(SystemExit):
        main([str(run)])
    assert message in capsys.readouterr().err


def test_a_folder_without_episodes_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert "RUN should be the folder of a training run" in capsys.readouterr().err
