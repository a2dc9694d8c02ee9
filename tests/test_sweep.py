"""`python -m experiments.sweep` as a user runs it: what it refuses, a trial that fails among others, and restoring."""

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ray import tune

from experiments.quickstart import TINY_BASE
from experiments.run_folder import claim
from experiments.sweep import main, parse_arguments
from experiments.sweep_run import Plan, Sweep
from learners import vllm_backend
from learners.algorithm import ToRL

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parent.parent
SMALL = [
    "num_problems_per_step=4",
    "group_size=4",
    "minibatch_size=16",
    "evaluation_duration=8",
    "num_learners=0",  # one process less to start in each trial
]


def plan(*arguments: str) -> Plan:
    return Plan.of_arguments(parse_arguments(["quickstart", *arguments]))


def test_a_plan_has_the_grid_in_the_order_of_the_options() -> None:
    made = plan("--max-tool-calls", "0", "1", "--kl-coeff", "0", "0.01", "--seeds", "2", "--grid", "lr=1e-4,2e-4")
    assert made.grid == {
        "max_tool_calls": ["0", "1"],
        "kl_coeff": ["0", "0.01"],
        "lr": ["1e-4", "2e-4"],
        "seed": ["0", "1"],
    }
    assert made.num_iterations == 50  # the recipe's


def test_every_trial_measures_the_kl_and_ends_with_an_evaluation() -> None:
    config = plan("--seeds", "1", "--num-iterations", "7").config()
    assert config.measure_kl
    assert config.evaluation_interval == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["quikstart"], "Did you mean: quickstart"),
        (["quickstart", "--kl-coeff", "0", "-1"], "`kl_coeff` must be >= 0"),
        (["quickstart", "--max-tool-calls", "one"], "`max_tool_calls` takes int"),
        (["quickstart", "--grid", "kl_coef=0,1"], "Did you mean: kl_coeff"),
        (["quickstart"], "A sweep needs a grid, such as `--max-tool-calls 0 1 2`"),
        (["quickstart", "--kl-coeff", "0", "--grid", "kl_coeff=1"], "`kl_coeff` is given twice"),
        (["quickstart", "--kl-coeff", "0", "1", "--set", "kl_coeff=2"], "given twice: kl_coeff=2 and kl_coeff=0,1"),
        (["quickstart", "--seeds", "2", "--grid", "seed=7,8"], "given twice: seed=7,8 and seed=0,1"),
        (["quickstart", "--grid", "problems=arithmetic,nowhere.jsonl"], "nowhere.jsonl"),
        (["quickstart", "--seeds", "0"], "`--seeds` must be at least 1"),
        (["quickstart", "--seeds", "2", "--num-iterations", "0"], "at least 1"),
        (["quickstart", "--seeds", "2", "--num-iterations", "5", "--set", "evaluation_interval=2"], "must divide"),
        (["quickstart", "--restore", "nowhere"], "is not a sweep's folder"),
        (["quickstart", "--restore", "nowhere", "--seeds", "2"], "as it was started, so `--seeds` cannot be given"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_anything_starts(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_problems_that_nothing_here_can_read_are_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert main(["quickstart", "--seeds", "2", "--set", "problems=hf:some/set"]) == 2
    assert "install it with the extra `datasets`" in capsys.readouterr().err


def test_a_folder_that_holds_a_sweep_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(ValueError, match="holds a sweep"):
        Sweep.prepare(parse_arguments(["quickstart", "--seeds", "2", "--storage-path", str(tmp_path)]))
    with pytest.raises(ValueError, match=r"sweep\.json is not what a sweep writes \(TypeError"):
        Sweep.prepare(parse_arguments(["quickstart", "--restore", str(tmp_path)]))


def test_a_folder_that_cannot_be_or_is_another_processs_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["quickstart", "--seeds", "2", "--storage-path", str(tmp_path / "file")]) == 2
    assert "File exists" in capsys.readouterr().err
    with claim(tmp_path / "sweep"):
        assert main(["quickstart", "--seeds", "2", "--storage-path", str(tmp_path / "sweep")]) == 2
    assert "is writing to" in capsys.readouterr().err


def test_two_builds_of_vllm_are_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(vllm_backend.metadata, "distributions", lambda name: iter([object()]))
    assert main(["quickstart", "--seeds", "2"]) == 2
    assert "two builds of vLLM" in capsys.readouterr().err


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "experiments.sweep", "quickstart", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )


def trials(folder: Path) -> dict[str, dict[str, str]]:
    """Return the rows of `trials.csv` by the name of the model's folder."""
    with (folder / "trials.csv").open() as file:
        return {Path(row["model"]).name: row for row in csv.DictReader(file)}


def test_a_trial_that_fails_leaves_the_other_its_sandbox_and_is_tried_again_by_restore(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = shutil.copytree(TINY_BASE, tmp_path / "broken")
    weights = broken / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:1000])
    folder = tmp_path / "sweep"

    first = run(
        "--grid", f"model={broken},{TINY_BASE}", "--num-iterations", "2", "--storage-path", str(folder), "--set", *SMALL
    )
    assert first.returncode == 1, first.stdout + first.stderr
    assert "2 at once" in first.stdout
    assert "FAILED  model=broken" in first.stderr and "1 trials failed" in first.stderr
    assert "Traceback" not in first.stdout + first.stderr
    rows = trials(folder)
    assert (rows["broken"]["status"], rows["tiny_base"]["status"]) == ("failed", "done")
    assert "safetensor" in Path(rows["broken"]["folder"], "error.txt").read_text().lower()  # what was wrong with it
    # Both share the sandbox; programs still ran in the second iteration, long after the first trial had failed.
    results = [
        json.loads(line) for line in (Path(rows["tiny_base"]["folder"]) / "result.json").read_text().splitlines()
    ]
    assert [result["training_iteration"] for result in results] == [1, 2]
    assert results[1]["sandbox"]["num_runs"] > results[0]["sandbox"]["num_runs"] > 0
    assert results[1]["env_runners"]["excluded_ratio"] == 0

    weights.write_bytes(whole)
    second = run("--restore", str(folder))
    assert second.returncode == 0, second.stdout + second.stderr
    again = trials(folder)
    assert [again[name]["status"] for name in ("broken", "tiny_base")] == ["done", "done"]
    assert again["tiny_base"] == rows["tiny_base"]
    assert (folder / "sweep.png").exists()

    # Nothing is left to do: the tables again, and nothing starts.
    before = (folder / "trials.csv").read_text()
    assert main(["quickstart", "--restore", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "model=tiny_base" in shown and "starting Ray" not in shown
    assert (folder / "trials.csv").read_text() == before

    grid = tune.Tuner.restore(str(folder), ToRL).get_results()
    assert [result.metrics["training_iteration"] for result in grid] == [2, 2]
