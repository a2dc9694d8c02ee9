"""TensorBoard, Weights & Biases and MLflow, offline: what is read back is what was logged."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import tune

from experiments import trackers
from experiments.trackers import Trackers, check_installed, numbers, tune_callbacks
from experiments.train import parse_arguments
from tests.wandb_file import read_history

SETTINGS = {"recipe": "quickstart", "lr": 2e-4, "env_config": {"problems": Path("a.jsonl")}}
ROWS: list[dict[str, Any]] = [
    {
        "training_iteration": iteration,
        "env_runners": {"accuracy": 0.1 * iteration, "pass_ratio": math.nan, "accuracy_kind": {"sum": 0.5}},
        "timings": {"sample_s": 1.5},
        "date": "today",
        "config": object(),
    }
    for iteration in (1, 2, 3)
]
EXPECTED = [
    {
        "training_iteration": float(i),
        "env_runners/accuracy": 0.1 * i,
        "env_runners/accuracy_kind/sum": 0.5,
        "timings/sample_s": 1.5,
    }
    for i in (1, 2, 3)
]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    # MLflow puts its address into the environment, where later tests' processes would find it: undone with the fixture.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")


def log(folder: Path, rows: list[dict[str, Any]], wandb: str | None = None, mlflow: str | None = None) -> None:
    opened = Trackers(folder, SETTINGS, wandb=wandb, mlflow=mlflow, run_id="an-id")
    for row in rows:
        opened.log(row)
    opened.close()
    if wandb:
        import wandb as package

        package.teardown()  # waits for the process that writes the file


def test_only_finite_numbers_are_logged_under_joined_names() -> None:
    assert [numbers(row) for row in ROWS] == [pytest.approx(expected) for expected in EXPECTED]


def test_tensorboard_always_has_the_figures(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log(tmp_path, ROWS)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["scalars"]) == set(EXPECTED[0])
    for name in EXPECTED[0]:
        read = [(event.step, event.value) for event in events.Scalars(name)]
        assert read == [(i + 1, pytest.approx(row[name])) for i, row in enumerate(EXPECTED)]


def test_wandb_has_the_figures_offline(tmp_path: Path) -> None:
    folder = tmp_path / "lr=1e-4, #2"  # W&B takes no such id
    folder.mkdir()
    log(folder, ROWS, wandb="a-project")
    read = read_history(folder)
    assert [row["_step"] for row in read] == [1, 2, 3]
    assert [{name: row[name] for name in EXPECTED[0]} for row in read] == [pytest.approx(row) for row in EXPECTED]
    assert len(list(folder.glob("wandb/offline-run-*-an-id"))) == 1


def test_mlflow_has_figures_and_settings_in_a_local_file(tmp_path: Path) -> None:
    import mlflow

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    folder = tmp_path / "a-run"
    log(folder, ROWS, mlflow=uri)
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("torl")
    assert experiment is not None
    [run] = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("a-run", "FINISHED")
    assert run.data.params["recipe"] == "quickstart" and run.data.params["env_config/problems"] == "a.jsonl"
    for name in EXPECTED[0]:
        read = [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)]
        assert read == [(i + 1, pytest.approx(row[name])) for i, row in enumerate(EXPECTED)]
    assert run.data.metrics.keys() == EXPECTED[0].keys()


def test_a_tracker_that_is_not_installed_is_named_with_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    check_installed("project", "")
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    check_installed(None, None)
    with pytest.raises(ValueError, match=r"`--mlflow` needs .* pip install 'torl-rllib\[trackers\]'"):
        check_installed(None, "")


def test_sweeps_get_rays_callbacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert tune_callbacks(tmp_path / "sweep", None, None) == []
    wandb, mlflow = tune_callbacks(tmp_path / "sweep", "a-project", "")
    assert (type(wandb).__name__, wandb.project, wandb.group) == ("WandbLoggerCallback", "a-project", "sweep")
    assert type(mlflow).__name__ == "MLflowLoggerCallback"
    assert (mlflow.tracking_uri, mlflow.tags) == (f"sqlite:///{tmp_path}/mlflow.db", {"sweep": "sweep"})


def a_trial(config: dict[str, Any]) -> None:
    for row in ROWS:
        tune.report({"accuracy": config["lr"] * row["training_iteration"]})


@pytest.mark.timeout(300)
def test_every_trial_of_a_sweep_is_a_run_of_its_own(tmp_path: Path) -> None:
    import mlflow

    folder = tmp_path / "sweep"
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        trials = tune.Tuner(
            a_trial,
            param_space={"lr": tune.grid_search([0.5, 2.0])},
            run_config=tune.RunConfig(
                name=folder.name,
                storage_path=str(tmp_path),
                callbacks=tune_callbacks(folder, "a-project", ""),
                verbose=0,
            ),
        ).fit()
        assert trials.num_errors == 0
        wandb = sorted(row["accuracy"] for row in read_history(folder))
    finally:
        ray.shutdown()
    expected = [0.5, 1.0, 1.5, 2.0, 4.0, 6.0]
    assert wandb == expected
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("torl")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    assert {run.data.params["lr"] for run in runs} == {"0.5", "2.0"}
    assert {run.data.tags["sweep"] for run in runs} == {"sweep"}
    history = [metric for run in runs for metric in client.get_metric_history(run.info.run_id, "accuracy")]
    assert sorted(metric.value for metric in history) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], (None, None)),
        (["--wandb", "--mlflow"], ("torl", "")),
        (["--wandb", "p", "--mlflow", "http://h"], ("p", "http://h")),
    ],
)
def test_flags_take_a_place_or_the_default_one(arguments: list[str], expected: tuple[str | None, str | None]) -> None:
    parsed = parse_arguments(["quickstart", *arguments])
    assert (parsed.wandb, parsed.mlflow) == expected


def test_neither_package_is_imported_unless_asked_for() -> None:
    program = "import sys, experiments.trackers; print(sorted({'wandb', 'mlflow'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == "[]"
