"""One evaluation from its arguments to its tables: the steps of `experiments.evaluate`."""

import argparse
import contextlib
import hashlib
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import ray
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from transformers import AutoConfig, AutoTokenizer

from experiments.cluster import app_of_folder, check_address, in_job, quiet_libraries, ray_session, remove_leftover
from experiments.contamination import overlap_line
from experiments.evaluated_model import EvaluatedModel, fit_to_machine, fit_to_problems, resolve
from experiments.evaluation_figures import papers_table, set_figures, table
from experiments.evaluation_folder import EvaluationFolder
from experiments.launch import runs_root
from experiments.progress import Progress
from experiments.recipes import key_of
from experiments.run_folder import claim, jsonable
from experiments.suites import load_sets
from learners import runners
from learners.config import ToRLConfig
from learners.episodes import EpisodeRecord
from learners.metrics import uses_code
from learners.sampler import EpisodeRequest
from learners.sandbox_app import sandbox_options
from learners.vllm_backend import check_builds
from torl_env.problems import Problem, ProblemSet
from torl_env.rewards import Reward
from torl_env.sandbox.deployment import start_sandbox, stop_sandbox

_LINE_EVERY_S = 5.0  # in a file: how often a line says how far it is


@dataclass(slots=True)
class Evaluation:
    """An evaluation that is about to start or go on; made by `prepare`. `lock` keeps the folder for this process."""

    arguments: argparse.Namespace
    model: EvaluatedModel
    sets: dict[str, ProblemSet]
    folder: EvaluationFolder
    known: dict[str, dict[tuple[str, int], EpisodeRecord]]  # by set, then by problem id and sample index
    lock: TextIO

    @classmethod
    def prepare(cls, arguments: argparse.Namespace) -> "Evaluation":
        """Check everything that can be checked before anything starts, claim the folder and find what is finished.

        Raises:
            ValueError, OSError, ImportError: naming what is wrong with the arguments.
        """
        quiet_libraries()
        check_address(arguments.address)
        check_builds()
        model = resolve(arguments.model, arguments.recipe, arguments.settings)
        sets = load_sets(arguments.suite, arguments.problems, arguments.data_dir, arguments.num_problems)
        if arguments.max_tool_calls is not None:
            model.config.environment(env_config={"max_tool_calls": arguments.max_tool_calls})
        tokenizer, max_positions = _tokenizer(model.path)
        prompts = [model.dialect.render_prompt(problem) for problems in sets.values() for problem in problems]
        lengths = [len(ids) for ids in tokenizer(prompts, add_special_tokens=False)["input_ids"]]
        fit_to_problems(model.config, lengths, max_positions).debugging(seed=arguments.seed)
        _for_requests(model.config).validate()
        setup = _setup(arguments, model)
        folder = EvaluationFolder(arguments.storage_path or _default_folder(model, setup), setup)
        lock = claim(folder.path)
        known = {name: folder.finished(name, problems, model.dialect.render_prompt) for name, problems in sets.items()}
        return cls(arguments, model, sets, folder, known, lock)

    def requests(self) -> dict[int, tuple[str, Problem, list[int]]]:
        """Return what is not finished yet: by group id the set's name, the problem and the missing samples."""
        missing = {}
        for name, problems in self.sets.items():
            for problem in problems:
                samples = range(self.arguments.samples_per_problem)
                if needed := [i for i in samples if (problem.id, i) not in self.known[name]]:
                    missing[_group_id(name, problem.id)] = (name, problem, needed)
        return missing

    def execute(self, progress: Progress) -> None:
        """Sample what is missing, and write and keep every episode as it ends."""
        missing = self.requests()
        requests = [
            EpisodeRequest(problem, group, i) for group, (_, problem, needed) in missing.items() for i in needed
        ]
        num_known = sum(map(len, self.known.values()))
        progress.say(f"{len(requests)} episodes to sample, {num_known} known, in {self.folder.path}")
        if not requests:
            return
        with self._samplers(progress) as samplers:
            tally = _Tally()
            with progress.count("episode", len(requests), every_s=_LINE_EVERY_S) as count:
                for episode in runners.sample_each(
                    samplers, requests, iteration=0, temperature=self.arguments.temperature
                ):
                    record = episode[0]
                    name, problem, _ = missing[record.group_id]
                    self.folder.add(name, problem, episode)
                    self.known[name][record.problem_id, record.sample_index] = record
                    count.advance(*tally.add(record))

    @contextlib.contextmanager
    def _samplers(self, progress: Progress) -> Iterator[EnvRunnerGroup]:
        """Have the samplers and the sandbox for the block."""
        config = self.model.config
        with contextlib.ExitStack() as session:
            with progress.stage("starting Ray"):
                session.enter_context(ray_session(self.arguments.address))
            is_default = self.model.run is None and self.arguments.recipe is None
            num_gpus = int(ray.cluster_resources().get("GPU", 0))
            config = fit_to_machine(_for_requests(config), num_gpus, self.arguments.settings, is_default)
            config.validate()
            own = app_of_folder(self.folder.path)
            app = config.sandbox_app or own
            if app == own and (self.arguments.address or in_job()):
                remove_leftover(own)
            with progress.stage("starting the sandbox and loading the model into the engine"):
                with ThreadPoolExecutor(1) as starter:
                    sandbox = starter.submit(start_sandbox, app, **sandbox_options(config))
                    samplers = EnvRunnerGroup(config=config, local_env_runner=False)
                session.push(lambda kind, *_: samplers.stop() if kind is None else runners.kill(samplers))
                if sandbox.result():
                    session.callback(stop_sandbox, app)
                runners.connect_sandbox(samplers, app)
                runners.wait_until_ready(samplers)
            yield samplers

    def figures(self) -> dict[str, dict[str, Any]]:
        """Return the figures of each set."""
        wanted = self.arguments.samples_per_problem
        return {
            name: set_figures([record for (_, i), record in sorted(known.items()) if i < wanted], wanted)
            for name, known in self.known.items()
        }

    def report(self, progress: Progress) -> None:
        """Print the tables, and write the figures where that was asked for."""
        figures = self.figures()
        progress.show(f"\n{table(figures)}")
        if self.arguments.suite:
            progress.show(f"\n{papers_table(self.model.name, figures)}")
        lines = []
        if (training := self.model.training_problems()) is not None:
            lines = [overlap_line(training, problems) for problems in self.sets.values()]
            progress.show("\n" + "\n".join(lines))
        unjudged = sum(not record.counts for known in self.known.values() for record in known.values())
        if unjudged:
            progress.show(f"\n{unjudged} episodes have no verdict (see stop_reason and error in the episodes' files).")
        progress.show(f"\nepisodes {self.folder.path}/*/episodes.jsonl")
        if self.arguments.output:
            setup = json.loads((self.folder.path / "evaluation.json").read_text())
            value = {"model": self.model.name, "setup": setup, "contamination": lines, "sets": figures}
            self.arguments.output.write_text(json.dumps(jsonable(value), indent=2) + "\n")
            progress.show(f"figures  {self.arguments.output}")


class _Tally:
    """The figures so far, for the progress line."""

    def __init__(self) -> None:
        self._start_s = time.monotonic()
        self._num = self._counted = self._correct = self._with_code = self._tokens = 0

    def add(self, record: EpisodeRecord) -> tuple[int, str]:
        """Count an episode; return how many there are, and their figures as a text."""
        self._num += 1
        self._tokens += record.num_response_tokens
        if record.counts:
            self._counted += 1
            self._correct += record.verdict == "correct"
            self._with_code += uses_code(record)
        counted = max(1, self._counted)
        speed = self._tokens / max(1e-9, time.monotonic() - self._start_s)
        return self._num, (
            f"accuracy {self._correct / counted:.2f}  code {self._with_code / counted:.2f}  tokens/s {speed:5.0f}"
        )


def _tokenizer(path: str) -> tuple[Any, int | None]:
    """Return the model's tokenizer, and the number of positions it was made for if it says."""
    try:
        positions = getattr(AutoConfig.from_pretrained(path), "max_position_embeddings", None)
        return AutoTokenizer.from_pretrained(path), positions
    except OSError as error:
        raise ValueError(
            f"`--model {path}` is neither a folder here nor to be had from the hub ({type(error).__name__}). Check the "
            f"name, or go online."
        ) from error


def _for_requests(config: ToRLConfig) -> ToRLConfig:
    """Return a copy whose problems come with each request; a recipe's training file need not be here."""
    return config.copy(copy_frozen=False).environment(env_config={"problems": "arithmetic"})


def _setup(arguments: argparse.Namespace, model: EvaluatedModel) -> dict[str, Any]:
    """Return what decides the episodes, so that only such of the same setup are found again."""
    config = model.config
    follows_machine = model.run is None and arguments.recipe is None and "dtype" not in map(key_of, arguments.settings)
    return {
        "model": str(Path(model.path).absolute()) if Path(model.path).exists() else model.path,
        "weights": model.fingerprint(),
        "prompt": model.dialect.template,
        "max_observation_chars": model.dialect.max_observation_chars,
        "max_tool_calls": config.env_config["max_tool_calls"],
        "max_response_tokens": config.max_response_tokens,
        "sandbox_timeout_s": config.sandbox_timeout_s,
        "sandbox_memory_mb": config.sandbox_memory_mb,
        "error_penalty": config.env_config.get("reward", Reward()).error_penalty,
        "dtype": None if follows_machine else config.dtype,
        "temperature": arguments.temperature,
        "seed": arguments.seed if arguments.temperature > 0 else None,
    }


def _default_folder(model: EvaluatedModel, setup: dict[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(setup, sort_keys=True).encode()).hexdigest()[:8]
    if model.run is not None:
        return model.run / "evaluations" / digest
    return runs_root() / "evaluations" / f"{model.name.replace('/', '--')}-{digest}"


def _group_id(set_name: str, problem_id: str) -> int:
    """Return the group of a problem, which enters the seeds: its own, whatever else is evaluated. 48 bits."""
    digest = hashlib.blake2b(f"{set_name}\n{problem_id}".encode(), digest_size=6).digest()
    return int.from_bytes(digest, "little")
