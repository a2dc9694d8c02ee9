"""One sweep from its plan to its tables: the steps of `experiments.sweep`."""

import argparse
import contextlib
import json
import logging
import os
import shlex
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO
from uuid import uuid4

import psutil
from ray import tune
from ray.tune.schedulers import ASHAScheduler

from experiments import sweep_figure, sweep_results
from experiments.cluster import check_address, quiet_libraries, ray_session
from experiments.launch import load_problems, runs_root
from experiments.progress import Progress
from experiments.recipes import apply_settings, check_given_once, get_recipe
from experiments.run_folder import claim
from experiments.stopping import StopRequest
from experiments.sweep_grid import (
    at,
    combinations,
    num_trials,
    parse_grid,
    search_space,
    trial_name,
)
from experiments.sweep_packing import pack
from experiments.sweep_progress import SweepProgress
from experiments.trackers import check_installed, tune_callbacks
from learners.algorithm import ToRL
from learners.config import ToRLConfig
from learners.sandbox_app import sandbox_options
from learners.vllm_backend import check_builds
from torl_env.sandbox.deployment import start_sandbox, stop_sandbox

_STATE = "sweep.json"
_PROBLEMS = ("problems", "evaluation_problems")
# What Tune says of failures and interruptions, at length; the end of the sweep says it in a line each.
_TUNE_LOGGERS = ("ray.tune.execution.tune_controller", "ray.tune.tune", "ray.tune.analysis.experiment_analysis")
_TUNE_SAYS = ("Trial task failed", "Trials did not complete", "Failed to fetch metrics", "Experiment has been inter")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a sweep is, as `sweep.json` in its folder keeps it.

    Args:
        recipe: Its name.
        settings: `key=value` texts for all trials.
        grid: Key -> the values it takes, as texts.
        num_iterations: Of a trial.
        scheduler: "fifo" or "asha".
        app: Name of the sandbox all trials share.
        owns_app: The sweep made that name up, so whatever has it is the sweep's to remove.
    """

    recipe: str
    settings: list[str]
    grid: dict[str, list[str]]
    num_iterations: int
    scheduler: str
    app: str
    owns_app: bool

    @classmethod
    def of_arguments(cls, arguments: argparse.Namespace) -> "Plan":
        """Return the plan of a new sweep.

        Raises:
            ValueError: on an unknown recipe, key or value, a setting given twice, or without a grid.
        """
        settings = list(arguments.settings)
        config = apply_settings(get_recipe(arguments.recipe)(), settings)
        texts = list(arguments.grid)
        for key, values in (("kl_coeff", arguments.kl_coeff), ("max_tool_calls", arguments.max_tool_calls)):
            if values:
                texts.insert(0, f"{key}={','.join(values)}")
        check_given_once([*settings, *texts])
        if arguments.seeds is not None:
            if arguments.seeds < 1:
                raise ValueError(f"`--seeds` must be at least 1. Received {arguments.seeds}.")
            first = config.seed or 0
            texts.append(f"seed={','.join(str(first + n) for n in range(arguments.seeds))}")
        if not texts:
            raise ValueError(
                f"A sweep needs a grid, such as `--max-tool-calls 0 1 2`, `--kl-coeff 0 0.01`, `--seeds 3` or "
                f"`--grid lr=1e-6,2e-6`. One run alone is: python -m experiments.train {arguments.recipe}"
            )
        return cls(
            recipe=arguments.recipe,
            settings=settings,
            grid=parse_grid(texts),
            num_iterations=config.num_iterations if arguments.num_iterations is None else arguments.num_iterations,
            scheduler=arguments.scheduler or "fifo",
            app=config.sandbox_app or f"torl-sweep-{uuid4().hex[:8]}",
            owns_app=config.sandbox_app is None,
        )

    def config(self) -> ToRLConfig:
        """Return the config all trials start from.

        Raises:
            ValueError: if a combination of the grid is not valid, or would end without an evaluation.
        """
        config = apply_settings(get_recipe(self.recipe)(), self.settings)
        config.training(num_iterations=self.num_iterations, measure_kl=True)
        config.sandbox(app=self.app).reporting(run_dir=None).debugging(seed=config.seed or 0)
        if self.num_iterations < 1:
            raise ValueError(f"`num_iterations` of a sweep must be at least 1. Received {self.num_iterations}.")
        interval = config.evaluation_interval or self.num_iterations
        if self.num_iterations % interval:
            raise ValueError(
                f"`evaluation_interval` ({interval}) must divide `num_iterations` ({self.num_iterations}): a trial's "
                f"accuracy is that after its last iteration."
            )
        config.evaluation(evaluation_interval=interval)
        for point in combinations(self.grid):
            at(config, point).validate()
        return config


@dataclass(slots=True)
class Sweep:
    """A sweep that is about to start or go on.

    Args:
        plan: What it is.
        folder: Where it is.
        restored: It goes on.
        address: The Ray cluster to join, or None.
        trackers: Tune's callbacks that log elsewhere; a restored sweep has those it was started with.
        lock: Keeps the folder for this process.
    """

    plan: Plan
    folder: Path
    restored: bool
    address: str | None
    trackers: list[tune.Callback]
    lock: TextIO

    @classmethod
    def prepare(cls, arguments: argparse.Namespace) -> "Sweep":
        """Check everything that can be checked before anything starts, and claim the folder.

        Raises:
            ValueError: on an unknown recipe, key or value, an invalid combination, a wrong `--restore`, or if another
                process has the folder.
            OSError: if a set of problems is not there, or the folder cannot be made.
            ImportError: if what reads the problems' format is not installed.
        """
        quiet_libraries()
        check_address(arguments.address)
        check_builds()
        for name in _TUNE_LOGGERS:
            logging.getLogger(name).addFilter(lambda record: not str(record.msg).startswith(_TUNE_SAYS))
        if arguments.restore:
            folder = arguments.restore.resolve()
            plan = _restored_plan(arguments, folder)
        else:
            plan = Plan.of_arguments(arguments)
            name = f"sweep-{plan.recipe}-{time.strftime('%Y%m%d-%H%M%S')}"
            folder = (arguments.storage_path or runs_root() / name).resolve()
            if (folder / _STATE).exists():
                raise ValueError(
                    f"`--storage-path {folder}` holds a sweep. Go on with it by --restore, or name another."
                )
        config = plan.config()
        for point in combinations({key: plan.grid[key] for key in _PROBLEMS if key in plan.grid}):
            load_problems(at(config, point))
        check_installed(arguments.wandb, arguments.mlflow)
        return cls(
            plan=plan,
            folder=folder,
            restored=bool(arguments.restore),
            address=arguments.address,
            trackers=tune_callbacks(folder, arguments.wandb, arguments.mlflow),
            lock=claim(folder),
        )

    def execute(self) -> int:
        """Run the trials and write what they found; return the exit status."""
        with self.lock:
            return self._execute()

    def _execute(self) -> int:
        (self.folder / _STATE).write_text(json.dumps(asdict(self.plan), indent=2) + "\n")
        if (results := self._finished()) is not None:
            return self._report(results)
        config = self.plan.config()
        with StopRequest(), contextlib.ExitStack() as session:
            with Progress(psutil.Process().create_time()) as progress:
                progress.say(f"sweep folder {self.folder}: {num_trials(self.plan.grid)} trials")
                with progress.stage("starting Ray"):
                    session.enter_context(ray_session(self.address))
                # Here, outside of the trials' placement groups, which would confine Serve's controller to one trial.
                with progress.stage("starting the sandbox"):
                    started = start_sandbox(self.plan.app, **sandbox_options(config))
                if started or self.plan.owns_app:  # a killed sweep has left it where the cluster lives on
                    session.callback(stop_sandbox, self.plan.app)
            os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # the other one greets with a box even when it should be silent
            return self._report(self._tuner(config).fit())

    def _has_trials(self) -> bool:
        return any(self.folder.glob("experiment_state-*.json"))

    def _trials(self) -> Any:
        """Return the trials as Tune has written them: its results call an interrupted one terminated."""
        return tune.ExperimentAnalysis(str(self.folder)).trials

    def _finished(self) -> Any:
        """Return Tune's results of a sweep that is to go on but has nothing left to do; else None."""
        if not self.restored or not self._has_trials():
            return None
        num_done = sum(trial.status == "TERMINATED" for trial in self._trials())
        is_done = num_done == num_trials(self.plan.grid)
        return tune.Tuner.restore(str(self.folder), ToRL).get_results() if is_done else None

    def _tuner(self, config: ToRLConfig) -> Any:
        plan = self.plan
        print(pack(config, num_trials(plan.grid)), flush=True)
        space = search_space(config, plan.grid)
        if self.restored and self._has_trials():
            # The space again, since Tune does not keep the objects in it (prompts, classes).
            return tune.Tuner.restore(str(self.folder), ToRL, resume_errored=True, param_space=space)
        names = partial(trial_name, keys=list(plan.grid))
        asha = ASHAScheduler(
            max_t=plan.num_iterations, grace_period=max(1, plan.num_iterations // 4), time_attr="training_iteration"
        )
        return tune.Tuner(
            ToRL,
            param_space=space,
            tune_config=tune.TuneConfig(
                metric="env_runners/episode_return_mean",
                mode="max",
                scheduler=asha if plan.scheduler == "asha" else None,
                trial_name_creator=names,
                trial_dirname_creator=names,
            ),
            run_config=tune.RunConfig(
                name=self.folder.name,
                storage_path=str(self.folder.parent),
                stop={"training_iteration": plan.num_iterations},
                callbacks=[
                    SweepProgress(list(plan.grid), num_trials(plan.grid), plan.num_iterations),
                    *self.trackers,
                ],
                checkpoint_config=tune.CheckpointConfig(
                    checkpoint_frequency=config.checkpoint_interval,
                    checkpoint_at_end=True,
                    num_to_keep=config.num_checkpoints_to_keep,
                ),
                verbose=0,
            ),
        )

    def _report(self, results: Any) -> int:
        plan = self.plan
        trials = self._trials()
        rows = sweep_results.read(results, trials, list(plan.grid), plan.num_iterations)
        statuses = [trial.status for trial in trials]
        num_errors = statuses.count("ERROR")
        num_left = num_trials(plan.grid) - num_errors - statuses.count("TERMINATED")
        if rows:
            table = sweep_results.write_csv(rows, self.folder / "trials.csv")
            picture = sweep_figure.draw(rows, self.folder / "sweep.png")
            print(f"\n{sweep_results.tables(rows)}\n\ntable   {table}\nfigure  {picture}", flush=True)
        for result in results:
            if result.error:
                # Tune keeps it in a temporary folder only.
                Path(result.path).mkdir(exist_ok=True)
                Path(result.path, "error.txt").write_text(str(result.error))
        for row in rows:
            if row.status == "failed":
                print(f"FAILED  {row.name}: {row.error}\n        {row.folder}", file=sys.stderr)
        if num_left:
            print(f"Stopped, {num_left} trials are not done. {self.how_to_go_on()}", file=sys.stderr, flush=True)
            return 130
        if num_errors:
            print(f"{num_errors} trials failed, to be tried again. {self.how_to_go_on()}", file=sys.stderr, flush=True)
        return 1 if num_errors else 0

    def how_to_go_on(self) -> str:
        """Return the command that goes on with this sweep."""
        return f"Go on with: python -m experiments.sweep {self.plan.recipe} --restore {shlex.quote(str(self.folder))}"


def _restored_plan(arguments: argparse.Namespace, folder: Path) -> Plan:
    own = ("max_tool_calls", "kl_coeff", "seeds", "grid", "num_iterations", "scheduler", "storage_path", "settings")
    for name in (*own, "wandb", "mlflow"):
        if getattr(arguments, name) not in (None, []):
            option = "--set" if name == "settings" else f"--{name.replace('_', '-')}"
            raise ValueError(
                f"`--restore` goes on with the sweep as it was started, so `{option}` cannot be given again; name the "
                f"recipe and the folder only."
            )
    if not (folder / _STATE).exists():
        raise ValueError(f"`--restore {folder}` is not a sweep's folder: it has no {_STATE}.")
    try:
        plan = Plan(**json.loads((folder / _STATE).read_text()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{folder / _STATE} is not what a sweep writes ({type(error).__name__}: {error}).") from None
    if plan.recipe != arguments.recipe:
        raise ValueError(f"`--restore {folder}` is a sweep of {plan.recipe}, not of {arguments.recipe}.")
    return plan
