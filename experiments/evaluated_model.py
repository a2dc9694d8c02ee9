"""What `--model` of an evaluation means, and the config the model is sampled with."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.recipes import apply_settings, check_given_once, get_recipe, key_of
from experiments.run_folder import RunFolder
from learners.config import ToRLConfig
from torl_env.dialect import TORL, Dialect
from torl_env.problems import ProblemSet

_MODEL = "model"  # in a run folder: the trained model
_RUN = "run.json"


@dataclass(frozen=True, slots=True)
class EvaluatedModel:
    """A model and how it is asked.

    Args:
        name: For tables.
        path: Hugging Face folder or hub name.
        config: Prompt, limits and resources; validated where it is used.
        run: The run folder it comes from, or None.
    """

    name: str
    path: str
    config: ToRLConfig
    run: Path | None

    @property
    def dialect(self) -> Dialect:
        """The prompt and protocol."""
        dialect = self.config.env_config.get("dialect", TORL)
        assert isinstance(dialect, Dialect)
        return dialect

    def training_problems(self) -> ProblemSet | None:
        """Return what the run trained on, if it is a run's and its problems are a file that is still there."""
        problems = self.config.env_config["problems"]
        if self.run is None or not isinstance(problems, str | Path):
            return None
        try:
            return ProblemSet.load(problems)
        except (OSError, ValueError, ImportError):
            return None

    def fingerprint(self) -> list[Any]:
        """Return what changes when the weights in a folder do: each file's name, size and time; empty for the hub."""
        files = sorted(Path(self.path).glob("*.safetensors")) if Path(self.path).is_dir() else []
        return [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]


def resolve(model: str, recipe: str | None, settings: Iterable[str]) -> EvaluatedModel:
    """Return the model that is meant.

    Args:
        model: A run folder, a Hugging Face folder (that of a run too) or a hub name.
        recipe: Whose prompt, limits and resources are taken; None: the run's, else `ToRLConfig`'s own, the paper's.
        settings: `key=value` texts on top.

    Raises:
        ValueError: if it is none of these, a run without a model yet, or one whose run.json no run wrote; or for a
            wrong recipe or setting.
    """
    settings = list(settings)
    check_given_once(settings)
    path = Path(model).expanduser()
    run = next((folder for folder in (path, path.absolute().parent) if (folder / _RUN).exists()), None)
    if run is not None and (run == path or path.name == _MODEL):
        state = RunFolder(run).state
        source = run / _MODEL
        if not (source / "config.json").exists():
            raise ValueError(
                f"`--model {model}`: the run has no model yet, which comes with its end. Go on with it: "
                f"python -m experiments.train {state['recipe']} --restore {shlex.quote(model)}"
            )
        of_run = state["settings"] if recipe is None else []
        config = apply_settings(get_recipe(recipe or state["recipe"])(), [*of_run, *settings])
        return EvaluatedModel(run.absolute().name, str(source), _of(config, str(source)), run)
    if path.exists() and not (path / "config.json").exists():
        raise ValueError(f"`--model {model}` is neither a run folder (with {_RUN}) nor a model's (with config.json).")
    if not path.exists() and (model.count("/") > 1 or model.startswith((".", "/", "~"))):
        raise ValueError(f"`--model {model}`: there is no such folder, and a hub name would be NAME or OWNER/NAME.")
    config = apply_settings(get_recipe(recipe)() if recipe else ToRLConfig(), settings)
    name = path.absolute().name if path.exists() else model
    source_name = str(path) if path.exists() else model
    return EvaluatedModel(name, source_name, _of(config, source_name), None)


def _of(config: ToRLConfig, model: str) -> ToRLConfig:
    """Return the config with this model in place of the recipe's: whole, adapters are merged in what a run exports."""
    return config.language_model(model, tokenizer=None, lora_rank=0)


def options_text(runs: Path = Path("runs")) -> str:
    """Return what `--model` could be, with the finished runs that are here."""
    here = sorted(str(path.parent) for path in runs.glob(f"*/{_MODEL}") if (path.parent / _RUN).exists())
    return (
        "name the model with --model: a run folder"
        + (f" ({', '.join(here)})" if here else " (runs/...)")
        + ", a Hugging Face folder (experiments/tiny_base is the built-in base model) or a hub name "
        "(Qwen/Qwen2.5-Math-1.5B)"
    )


def fit_to_problems(config: ToRLConfig, prompt_lengths: Iterable[int], max_positions: int | None) -> ToRLConfig:
    """Return the config with room for every prompt, as far as the model's positions go.

    Args:
        config: Its `max_response_tokens` stays.
        prompt_lengths: In tokens.
        max_positions: Tokens the model was made for; None if it does not say.

    Raises:
        ValueError: if the responses alone fill the positions.
    """
    longest = max(prompt_lengths)
    if max_positions is not None:
        room = max_positions - config.max_response_tokens
        if room < 1:
            raise ValueError(
                f"`max_response_tokens` ({config.max_response_tokens}) must be below the model's {max_positions} "
                f"positions, to leave room for the prompt. Use --set max_response_tokens=..., or --recipe."
            )
        longest = min(longest, room)
    return config.sampling(max_prompt_tokens=longest)


def fit_to_machine(config: ToRLConfig, num_gpus: int, settings: Iterable[str], is_default: bool) -> ToRLConfig:
    """Return the config with an engine on every GPU, or without GPUs where there are none.

    Args:
        config: A recipe's, made for sampling and learning at once, or the default.
        num_gpus: Of the cluster.
        settings: What the user set, which stays.
        is_default: The config is `ToRLConfig`'s own, whose dtype then follows the machine.
    """
    chosen = set(map(key_of, settings))
    if num_gpus == 0:
        if is_default and "dtype" not in chosen:
            config.language_model(dtype="float32")
        return config
    if not chosen & {"num_env_runners", "num_gpus_per_env_runner"}:
        per_engine = max(1, int(config.num_gpus_per_env_runner))
        config.env_runners(num_env_runners=max(1, num_gpus // per_engine), num_gpus_per_env_runner=per_engine)
    return config
