"""Where the figures of a run go besides `result.json`: TensorBoard always, Weights & Biases and MLflow if asked for.

A training loop takes `Trackers`; a Tune sweep takes Ray's callbacks from `tune_callbacks` (TensorBoard is Tune's own).
Both packages come with the extra `trackers`. Credentials and modes are the packages' own: `wandb login`,
`WANDB_API_KEY`, `WANDB_MODE=offline`; `MLFLOW_TRACKING_URI`, `MLFLOW_TRACKING_TOKEN`. Names are the paths in the result
dict joined with slashes, the step is the training iteration; what is not a finite number is left out.
"""

import argparse
import importlib.util
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.run_folder import NO_FIGURES, flatten, jsonable

if TYPE_CHECKING:
    from ray import tune

_PROJECT = "torl"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare `--wandb` and `--mlflow`."""
    parser.add_argument(
        "--wandb", nargs="?", const=_PROJECT, metavar="PROJECT", help=f"log to W&B (project {_PROJECT})"
    )
    parser.add_argument(
        "--mlflow", nargs="?", const="", metavar="URI", help="log to MLflow (MLFLOW_TRACKING_URI, else runs/mlflow.db)"
    )


def check_installed(wandb: str | None, mlflow: str | None) -> None:
    """Check that what is asked for can be imported.

    Raises:
        ValueError: naming the extra that brings it.
    """
    for flag, value in (("wandb", wandb), ("mlflow", mlflow)):
        if value is not None and importlib.util.find_spec(flag) is None:
            raise ValueError(f"`--{flag}` needs the package of that name: pip install 'torl-rllib[trackers]'.")


class Trackers:
    """The trackers of one training run, open until `close`.

    Args:
        folder: The run folder: TensorBoard's events and W&B's files go there; its name is the run's.
        settings: Of the run, for the trackers that show them.
        wandb: W&B project, or None to leave it out.
        mlflow: Tracking URI, "" for `MLFLOW_TRACKING_URI`, else `mlflow.db` beside the folder, or None to leave it out.
        run_id: W&B's, which no other run of the project may have: W&B would go on with that one. A restored run has
            the id it had.
    """

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], wandb: str | None, mlflow: str | None, run_id: str
    ) -> None:
        from tensorboardX import SummaryWriter

        self._tensorboard = SummaryWriter(str(folder), flush_secs=10)
        self._wandb: Any = None
        self._mlflow: Any = None
        settings = jsonable(settings)
        if wandb is not None:
            from ray.air.integrations.wandb import setup_wandb

            self._wandb = setup_wandb(
                dict(settings), project=wandb, trial_id=run_id, trial_name=folder.name, dir=str(folder)
            )
        if mlflow is not None:
            from ray.air.integrations.mlflow import setup_mlflow

            # A restored run is a second MLflow run of the same name; MLflow's own ids are not kept.
            self._mlflow = setup_mlflow(
                dict(settings),
                tracking_uri=_tracking_uri(mlflow, folder),
                experiment_name=_PROJECT,
                run_name=folder.name,
                create_experiment_if_not_exists=True,
            )

    def log(self, result: Mapping[str, Any]) -> None:
        """Log one iteration's result dict."""
        step = result["training_iteration"]
        figures = numbers(result)
        for name, value in figures.items():
            self._tensorboard.add_scalar(name, value, global_step=step)
        if self._wandb is not None:
            self._wandb.log(figures, step=step)
        if self._mlflow is not None:
            self._mlflow.log_metrics(figures, step=step)

    def close(self) -> None:
        """Flush and close all of them."""
        self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()
        if self._mlflow is not None:
            self._mlflow.end_run()


def tune_callbacks(folder: Path, wandb: str | None, mlflow: str | None) -> "list[tune.Callback]":
    """Return Ray's callbacks for a sweep: one W&B run, one MLflow run for each trial.

    Args:
        folder: Of the sweep; its name is W&B's group, and a tag in MLflow.
        wandb: As in `Trackers`.
        mlflow: As in `Trackers`.
    """
    callbacks: list[tune.Callback] = []
    if wandb is not None:
        from ray.air.integrations.wandb import WandbLoggerCallback

        # Its default is a temporary folder of the driver's, from where Tune copies all but the last trial's files.
        folder.mkdir(parents=True, exist_ok=True)
        callbacks.append(WandbLoggerCallback(project=wandb, group=folder.name, dir=str(folder)))
    if mlflow is not None:
        from ray.air.integrations.mlflow import MLflowLoggerCallback

        uri, tags = _tracking_uri(mlflow, folder), {"sweep": folder.name}
        callbacks.append(MLflowLoggerCallback(tracking_uri=uri, experiment_name=_PROJECT, tags=tags))
    return callbacks


def _tracking_uri(given: str, folder: Path) -> str:
    return given or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder.absolute().parent}/mlflow.db"


def numbers(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a result dict under names joined with slashes."""
    rows = {key: value for key, value in result.items() if key not in NO_FIGURES}
    return {name: value for name, value in flatten(rows) if math.isfinite(value)}
