"""What a command line of `experiments.train` asks for, before anything starts: the config, and where the run is."""

import argparse
import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import torl_math
from experiments.cluster import in_job
from experiments.recipes import apply_settings, check_given_once, get_recipe, key_of
from experiments.run_folder import RunFolder
from learners.config import ToRLConfig
from torl_env.problems import ProblemSet

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Launch:
    """A run to start or to go on with.

    Args:
        recipe: Its name.
        config: The complete config, validated.
        settings: The `key=value` texts that were applied to the recipe.
        path: The run folder, which need not be there yet.
        checkpoint: What it goes on from, or None.
        state: What run.json has, or will have.
        is_default_path: Nobody named the folder.
        summary: Of a run that has nothing left to do; else empty.
    """

    recipe: str
    config: ToRLConfig
    settings: list[str]
    path: Path
    checkpoint: Path | None
    state: dict[str, Any]
    is_default_path: bool
    summary: dict[str, Any]


def resolve(arguments: argparse.Namespace) -> Launch:
    """Return what the arguments mean, without making or writing anything.

    Raises:
        ValueError: on an unknown recipe, key or value, an invalid config, or a folder that does not fit.
    """
    recipe = get_recipe(arguments.recipe)
    settings = list(arguments.settings)
    check_given_once(settings if arguments.seed is None else [*settings, f"seed={arguments.seed}"])
    path, checkpoint = arguments.storage_path, None
    state: dict[str, Any] = {}
    if arguments.restore == AUTO:
        path = path or runs_root() / f"{arguments.recipe}-{_digest(arguments)}"
        checkpoint, state = _left_by_this_command(path, arguments)
    elif arguments.restore:
        if path:
            raise ValueError("`--restore` goes on in the run's own folder; leave `--storage-path` out.")
        folder, checkpoint = RunFolder.of_checkpoint(Path(arguments.restore))
        path, state = folder.path, folder.state
        if state["recipe"] != arguments.recipe:
            raise ValueError(f"`--restore {path}` is a run of {state['recipe']}, not of {arguments.recipe}.")
        settings = state["settings"] + settings
    elif path and (path / "run.json").exists():
        raise ValueError(f"`--storage-path {path}` holds a run. Go on with it by --restore, or name another.")
    config = apply_settings(recipe(), settings)
    seed = arguments.seed
    if seed is None and "seed" in map(key_of, arguments.settings):
        seed = config.seed
    if seed is not None and seed != state.get("seed", seed):
        raise ValueError(
            f"`seed` {seed}: the run in {path} has seed {state['seed']}, which its problems were drawn with. Leave it "
            f"out, or start another run."
        )
    num_iterations = state.get("num_iterations") if arguments.num_iterations is None else arguments.num_iterations
    if num_iterations is not None:
        config.training(num_iterations=num_iterations)
    if seed is None:
        seed = state.get("seed", config.seed or 0)
    config.debugging(seed=seed)
    config.copy().validate()
    summary = RunFolder(path).summary if path and state else {}
    num_done = int(checkpoint.name) if checkpoint else 0
    return Launch(
        recipe=arguments.recipe,
        config=config,
        settings=settings,
        path=path or runs_root() / f"{arguments.recipe}-{time.strftime('%Y%m%d-%H%M%S')}",
        checkpoint=checkpoint,
        state={
            **state,
            "recipe": arguments.recipe,
            "settings": settings,
            "seed": seed,
            "num_iterations": config.num_iterations,
        },
        is_default_path=path is None or (arguments.restore == AUTO and not arguments.storage_path),
        summary=summary if summary.get("iterations") == num_done >= config.num_iterations else {},
    )


def runs_root() -> Path:
    """Return where runs go unless told otherwise. A job's working directory is a temporary copy, so not there."""
    return Path.home() / "torl-runs" if in_job() else Path("runs")


def _digest(arguments: argparse.Namespace) -> str:
    """Return what tells a command from one with other settings, but not from the same one submitted again."""
    parts = [arguments.recipe, arguments.settings, arguments.seed]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]


def _left_by_this_command(path: Path, arguments: argparse.Namespace) -> tuple[Path | None, dict[str, Any]]:
    """Return the latest checkpoint and the state of the run in that folder, where there are any.

    Raises:
        ValueError: if the run is another command's.
    """
    if not (path / "run.json").exists():
        return None, {}
    folder = RunFolder(path)
    state = folder.state
    asked = {"recipe": arguments.recipe, "settings": list(arguments.settings)}
    if arguments.seed is not None:
        asked["seed"] = arguments.seed
    if different := [key for key, value in asked.items() if state[key] != value]:
        raise ValueError(
            f"`--restore auto`: the run in {path} has another {different[0]}: {state[different[0]]!r} instead of "
            f"{asked[different[0]]!r}. Submit the same command, or name another `--storage-path`."
        )
    checkpoints = folder.checkpoints()
    return (checkpoints[-1] if checkpoints else None), state


def evaluation_env_config(config: ToRLConfig) -> dict[str, Any]:
    """Return the environment's arguments in evaluation: those of training with the evaluation's own over them."""
    return {**config.env_config, **(config.evaluation_config or {}).get("env_config", {})}


def load_problems(config: ToRLConfig) -> dict[str, ProblemSet]:
    """Return the sets "train" and "test" as far as they come by name, and log which problems are in both.

    Raises:
        FileNotFoundError: if a file is not there, with how to get it.
        ValueError: if a file is no set of problems.
    """
    sets = {}
    for split, env_config in (("train", config.env_config), ("test", evaluation_env_config(config))):
        problems = env_config["problems"]
        if isinstance(problems, str | Path):
            torl_math.check_file(str(problems), "problems" if split == "train" else "evaluation_problems")
            sets[split] = ProblemSet.load(problems, split=split)
    if len(sets) == 2:
        sets["train"].report_overlap(sets["test"])
    return sets
