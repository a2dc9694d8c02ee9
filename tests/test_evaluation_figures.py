"""The figures of an evaluation by hand, and the tables."""

from dataclasses import replace

import pytest

from experiments.evaluation_figures import papers_table, set_figures, table
from experiments.intervals import wilson
from experiments.pass_at_k import interval_of_mean
from learners.episodes import EpisodeRecord
from tests.test_metrics import record


def episodes(problem_id: str, verdicts: str) -> list[EpisodeRecord]:
    """Return an episode per letter: c correct, i incorrect, x without a verdict."""
    made = []
    for index, letter in enumerate(verdicts):
        verdict = {"c": "correct", "i": "incorrect", "x": "unknown"}[letter]
        reason = "sandbox_error" if letter == "x" else "answered"
        made.append(
            replace(
                record(r"\boxed{1}"), problem_id=problem_id, sample_index=index, verdict=verdict, stop_reason=reason
            )
        )
    return made


def test_figures_by_hand() -> None:
    found = set_figures([*episodes("a", "cici"), *episodes("b", "iiii"), *episodes("c", "cccc")], 4)
    assert found["accuracy"] == pytest.approx((0.5 + 0 + 1) / 3)
    # pass@2 of a problem with 2 of 4 correct: 1 - C(2, 2) / C(4, 2) = 5/6; the others 0 and 1.
    assert found["pass_at_k"][1]["value"] == pytest.approx(found["accuracy"])
    assert found["pass_at_k"][2]["value"] == pytest.approx((5 / 6 + 0 + 1) / 3)
    assert found["pass_at_k"][4]["value"] == pytest.approx((1 + 0 + 1) / 3)
    assert found["accuracy_interval"] == interval_of_mean([0.5, 0.0, 1.0])
    assert (found["num_problems"], found["num_episodes"], found["excluded_ratio"]) == (3, 12, 0)


def test_what_could_not_be_judged_counts_nowhere() -> None:
    found = set_figures([*episodes("a", "cx"), *episodes("b", "ic"), *episodes("c", "xx")], 2)
    assert (found["num_problems"], found["num_episodes"]) == (2, 3)
    assert found["accuracy"] == pytest.approx((1 + 0.5) / 2)
    assert found["pass_at_k"][2] == {"value": 1.0, "interval": wilson(1.0, 1), "num_problems": 1}  # b alone has two
    assert found["excluded_ratio"] == 0.5


def test_the_order_of_the_episodes_changes_nothing() -> None:
    some = [*episodes("a", "cici"), *episodes("b", "iicc"), *episodes("c", "ccci")]
    assert set_figures(some, 4) == set_figures(some[::-1], 4)


def test_tables_show_percent_and_the_means_beside_the_published_averages() -> None:
    some = [*episodes("a", "cici"), *episodes("b", "iiii"), *episodes("c", "icci"), *episodes("d", "iiii")]
    figures = {name: set_figures(some, 4) for name in ("aime24", "math500")}
    lines = table(figures).splitlines()
    assert "avg@4" in lines[0] and "pass@4" in lines[0]
    # Of four problems two are half right; avg@4 is 0 to 0.5 and pass@4 0 to 1 as all draws of four have it.
    assert lines[0].count("95% interval") == 2
    assert lines[1].split()[:6] == ["aime24", "4", "25.0", "0.0-50.0", "50.0", "0.0-100.0"]
    rows = {line.split()[0]: line.split()[1:] for line in papers_table("mine", figures).splitlines()}
    assert rows["mine"] == ["25.0", "-", "25.0", "-", "-", "-"]  # no mean of two suites beside means of five
    assert rows["ToRL-7B"] == ["43.3", "30.0", "82.2", "49.9", "75.0", "62.1", "56.1"]
    assert rows["ToRL-1.5B"][-2:] == ["48.5", "48.5"]


def test_one_greedy_sample_needs_no_pass_at_k() -> None:
    lines = table({"mine": set_figures([*episodes("a", "c"), *episodes("b", "i")], 1)}).splitlines()
    assert "accuracy" in lines[0] and "pass@" not in lines[0]
    assert lines[1].split()[:3] == ["mine", "2", "50.0"]
