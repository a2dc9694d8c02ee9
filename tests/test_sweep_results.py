"""The figures of a sweep: intervals, rows from Tune's results, tables, CSV and picture."""

import csv
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from experiments import sweep_figure, sweep_results
from experiments.sweep_results import TrialRow


def row(calls: int, kl: float, accuracy: float, *, status: str = "done", step_s: float = 1.0) -> TrialRow:
    return TrialRow(
        name=f"C={calls} kl={kl:g}",
        values={"max_tool_calls": calls, "kl_coeff": kl, "lr": 1e-4},
        status=status,
        error="ValueError: no, thank you" if status == "failed" else "",
        folder="/there",
        max_tool_calls=calls,
        kl_coeff=kl,
        seed=0,
        iterations=20,
        accuracy=accuracy,
        num_problems=100,
        step_s=step_s,
        final_kl=0.02 / (1 + kl),
    )


def trial(folder: str, status: str) -> Any:
    config = {"env_config": {"max_tool_calls": 1}, "kl_coeff": 0.1, "seed": 0}
    return SimpleNamespace(path=folder, config=config, status=status, trial_id=f"3f2a0_0000{ord(folder) - ord('a')}")


def result(folder: str, history: list[dict[str, Any]], error: Exception | None = None, **last: Any) -> Any:
    """Return what Tune knows of a trial."""
    frame = pd.DataFrame(history) if history else None
    metrics = {"training_iteration": history[-1]["training_iteration"], **last} if history else {}
    return SimpleNamespace(path=folder, error=error, metrics=metrics, metrics_dataframe=frame)


def step(iteration: int, seconds: float, kl: float) -> dict[str, Any]:
    return {"training_iteration": iteration, "timings/step_s": seconds, "learners/default_policy/kl": kl}


def test_a_row_has_what_the_trial_measured() -> None:
    history = [step(1, 9.0, 0.0), *(step(i, 1.0, i / 100) for i in range(2, 8))]
    # A restored trial did iteration 7 again: the later line counts.
    history.append(step(7, 3.0, 0.17))
    evaluation = {"env_runners": {"accuracy": 0.75, "num_episodes": 40, "excluded_ratio": 0.1}}
    [read] = sweep_results.read(
        [result("a", history, evaluation=evaluation)], [trial("a", "TERMINATED")], ["kl_coeff"], 7
    )
    assert (read.name, read.status, read.values) == ("kl=0.1", "done", {"kl_coeff": 0.1})
    assert (read.accuracy, read.num_problems) == (0.75, 36)
    # Iterations 2-6 take 1 s, the 7th 3 s, the first does not count: 8 / 6.
    assert read.step_s == pytest.approx(8 / 6)
    # Iterations 3-7: (0.03 + 0.04 + 0.05 + 0.06 + 0.17) / 5
    assert read.final_kl == pytest.approx(0.07)


def test_failed_and_stopped_trials_are_rows_without_an_accuracy() -> None:
    evaluation = {"env_runners": {"accuracy": 0.75, "num_episodes": 40, "excluded_ratio": 0.0}}
    never_started = SimpleNamespace(path="c", error=None, metrics={}, metrics_dataframe=None)
    error = RuntimeError("first line\nRuntimeError: the last one\n")
    failed, stopped = sweep_results.read(
        [
            result("a", [], error=error),
            result("b", [step(1, 1.0, 0.0)], evaluation=evaluation),
            never_started,
        ],
        [trial("b", "TERMINATED"), trial("c", "PENDING"), trial("a", "ERROR")],  # restored: in another order
        ["kl_coeff"],
        2,
    )
    assert (failed.status, failed.error, failed.iterations) == ("failed", "RuntimeError: the last one", 0)
    assert (stopped.status, stopped.iterations) == ("stopped by asha", 1)
    assert math.isnan(failed.accuracy) and math.isnan(stopped.accuracy)


@pytest.mark.parametrize("status", ["RUNNING", "PAUSED", "PENDING"])
def test_a_trial_that_tune_was_not_done_with_was_interrupted(status: str) -> None:
    [read] = sweep_results.read([result("a", [step(1, 1.0, 0.0)])], [trial("a", status)], ["kl_coeff"], 1)
    assert read.status == "interrupted" and math.isnan(read.accuracy)


def test_the_table_tells_what_asha_stopped_from_what_was_interrupted() -> None:
    text = sweep_results.tables(
        [row(0, 0.0, math.nan, status="stopped by asha"), row(1, 0.0, 0.5, status="interrupted")]
    )
    first, second = text.splitlines()[1:3]
    assert first.endswith("stopped by asha at iteration 20") and second.endswith("interrupted")


def test_tables_compare_c_and_the_coefficient() -> None:
    rows = [
        row(0, 0.0, 0.2, step_s=1.0),
        row(0, 1.0, 0.4, step_s=2.0),
        row(1, 0.0, 0.9, step_s=3.0),
        row(1, 1.0, 0.0, status="failed", step_s=99.0),
    ]
    text = sweep_results.tables(rows)
    by_calls = [line.split() for line in text.splitlines() if line.startswith(("  0 ", "  1 "))]
    # C=0: two trials, mean accuracy 0.3; mean step 1.5 s. C=1: the failed one does not count; 3.0 / 1.5 = 2 x.
    assert by_calls[0][:3] == ["0", "2", "0.30"] and by_calls[0][6:9] == ["1.50", "1.00", "x"]
    assert by_calls[1][:3] == ["1", "1", "0.90"] and by_calls[1][6:9] == ["3.00", "2.00", "x"]
    assert "237 s, 2.01 x" in text
    [coefficient_one] = [line.split() for line in text.splitlines() if line.strip().startswith("kl=1 ")]
    assert coefficient_one == ["kl=1", "0.0100", "-", "0.40"]
    assert "failed" in text


def test_csv_has_a_line_per_trial(tmp_path: Path) -> None:
    path = sweep_results.write_csv([row(0, 0.0, 0.5), row(1, 0.5, 0.0, status="failed")], tmp_path / "trials.csv")
    with path.open() as file:
        first, second = csv.DictReader(file)
    assert (first["max_tool_calls"], first["lr"], first["accuracy"], first["status"]) == ("0", "0.0001", "0.5", "done")
    assert float(first["accuracy_low"]) == pytest.approx(0.40383, abs=1e-5)
    assert second["error"] == "ValueError: no, thank you"


@pytest.mark.parametrize(
    "rows", [[row(0, 0.0, 0.2), row(1, 0.0, 0.9), row(1, 1.0, 1.0)], [row(1, 0.0, 0.0, status="failed")]]
)
def test_picture_is_drawn_whatever_is_missing(rows: list[TrialRow], tmp_path: Path) -> None:
    path = sweep_figure.draw(rows, tmp_path / "sweep.png")
    assert path.read_bytes().startswith(b"\x89PNG")
