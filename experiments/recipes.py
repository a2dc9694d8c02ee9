"""The recipes by name, and `--set key=value` on top of one."""

import ast
import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from experiments.quickstart import quickstart, quickstart_no_tool
from experiments.smollm2 import smollm2_gsm8k
from experiments.torl_math import (
    torl_math_1_5b,
    torl_math_1_5b_c2,
    torl_math_1_5b_error_penalty,
    torl_math_1_5b_no_tool,
    torl_math_7b,
    torl_math_7b_c2,
    torl_math_7b_error_penalty,
    torl_math_7b_no_tool,
    torl_math_lora,
)
from learners.config import ToRLConfig
from learners.config_checks import why_refused
from torl_env.rewards import Reward

RECIPES: dict[str, Callable[[], ToRLConfig]] = {
    recipe.__name__: recipe
    for recipe in (
        quickstart,
        quickstart_no_tool,
        torl_math_1_5b,
        torl_math_1_5b_no_tool,
        torl_math_1_5b_c2,
        torl_math_1_5b_error_penalty,
        torl_math_7b,
        torl_math_7b_no_tool,
        torl_math_7b_c2,
        torl_math_7b_error_penalty,
        torl_math_lora,
        smollm2_gsm8k,
    )
}

# RLlib's own settings that mean something here; every setting of `ToRLConfig` itself is added below.
RLLIB_KEYS = (
    "lr",
    "grad_clip",
    "minibatch_size",
    "seed",
    "num_env_runners",
    "num_cpus_per_env_runner",
    "num_gpus_per_env_runner",
    "num_learners",
    "num_cpus_per_learner",
    "num_gpus_per_learner",
    "num_cpus_for_main_process",
    "evaluation_interval",
    "evaluation_duration",
)
_SHORT_NAMES = {"model": "model_path", "tokenizer": "tokenizer_path"}
# What other trainers call it -> the keys to suggest.
_NAMES_ELSEWHERE = {
    "learning_rate": ("lr",),
    "batch_size": ("num_problems_per_step", "group_size", "minibatch_size"),
    "num_generations": ("group_size",),
    "max_tokens": ("max_response_tokens", "max_prompt_tokens"),
    "clip_range": ("clip_param", "clip_param_high"),
}
# Settings whose default is None, with the types they take.
_OPTIONAL_TYPES: dict[str, tuple[type, ...]] = {
    "tokenizer_path": (str,),
    "model_path": (str,),
    "engine_threads": (int,),
    "learner_threads": (int,),
    "sandbox_app": (str,),
    "sandbox_max_concurrent_runs": (int,),
    "clip_param_high": (float,),
    "logp_diff_limit": (float,),
    "run_dir": (str,),
    "seed": (int,),
    "grad_clip": (float,),
    "evaluation_interval": (int,),
}
_MIXED_TYPES: dict[str, tuple[type, ...]] = {
    "sandbox_num_replicas": (int, str),
    "num_cpus_per_learner": (float, str),
    "num_cpus_per_env_runner": (float,),
    "num_cpus_for_main_process": (float,),
    "num_gpus_per_env_runner": (float,),
    "num_gpus_per_learner": (float,),
}
# Arguments of the environment that can be written on a command line, with the types they take.
_ENV_TYPES: dict[str, tuple[type, ...]] = {
    "problems": (str,),
    "max_tool_calls": (int,),
}


def get_recipe(name: str) -> Callable[[], ToRLConfig]:
    """Return the recipe of that name.

    Raises:
        ValueError: naming the nearest recipes.
    """
    if name not in RECIPES:
        raise ValueError(f"There is no recipe {name!r}. {_did_you_mean(name, RECIPES)}")
    return RECIPES[name]


def settable_keys() -> list[str]:
    """Return the keys `--set` takes, sorted."""
    own = set(vars(ToRLConfig())) - set(vars(AlgorithmConfig())) - {"num_iterations", "run_dir"}
    return sorted(
        own | set(RLLIB_KEYS) | set(_ENV_TYPES) | set(_SHORT_NAMES) | {"error_penalty", "evaluation_problems"}
    )


def attribute_of(key: str) -> str:
    """Return the attribute of `ToRLConfig` a key of `--set` changes; "env_config" for those of the environment."""
    if key == "evaluation_problems":
        return "evaluation_config"
    if key in _ENV_TYPES or key == "error_penalty":
        return "env_config"
    return _SHORT_NAMES.get(key, key)


def check_given_once(settings: Iterable[str]) -> None:
    """Check the `key=value` texts of one command line, of which the last would win.

    Raises:
        ValueError: naming both texts, if two are about one setting.
    """
    given: dict[str, str] = {}
    for text in settings:
        key = _SHORT_NAMES.get(key_of(text), key_of(text))
        if key in given:
            raise ValueError(f"`{key_of(text)}` is given twice: {given[key]} and {text}. Give it once.")
        given[key] = text


def key_of(setting: str) -> str:
    """Return the key of a `key=value` text."""
    return setting.partition("=")[0].strip()


def apply_settings(config: ToRLConfig, settings: Iterable[str]) -> ToRLConfig:
    """Apply `key=value` texts to the config, each checked against the type of the setting.

    Keys are the attributes of `ToRLConfig`, the environment's `problems` and `max_tool_calls`, `error_penalty` of the
    reward, `evaluation_problems`, and `model` and `tokenizer` as in `.language_model(...)`. "none" unsets a setting
    that may be unset.

    Raises:
        ValueError: on a text without "=", an unknown key (naming the nearest ones) or a value of another type.
    """
    for text in settings:
        key, equals, raw = text.partition("=")
        key, raw = key.strip(), raw.strip()
        if not equals:
            raise ValueError(f"`--set` takes key=value. Received {text!r}.")
        if key == "num_iterations":
            raise ValueError("`num_iterations` is an option of its own: `--num-iterations`.")
        if key not in settable_keys():
            suggestion = _did_you_mean(key, settable_keys(), _NAMES_ELSEWHERE)
            raise ValueError(why_refused(key) or f"There is no setting {key!r}. {suggestion}")
        if key == "error_penalty":
            current = config.env_config.get("reward", Reward()).error_penalty
            config.environment(env_config={"reward": Reward(error_penalty=_value(key, raw, (float,), current))})
        elif key == "evaluation_problems":
            config.evaluation(evaluation_config={"env_config": {"problems": _value(key, raw, (str,), None)}})
        elif key in _ENV_TYPES:
            current = config.env_config.get(key)
            config.environment(env_config={key: _value(key, raw, _ENV_TYPES[key], current)})
        else:
            name = attribute_of(key)
            current = getattr(config, name)
            types = _OPTIONAL_TYPES.get(name) or _MIXED_TYPES.get(name) or (type(current),)
            setattr(config, name, _value(key, raw, types, current, optional=name in _OPTIONAL_TYPES))
    config.resolve_paths()
    return config


def _value(key: str, raw: str, types: tuple[type, ...], current: Any, optional: bool = False) -> Any:
    """Return `raw` as one of `types`; a setting that may be unset also takes "none"."""
    if optional and raw.lower() == "none":
        return None
    if bool in types:
        if raw.lower() in ("true", "false"):
            return raw.lower() == "true"
    else:
        value: Any = raw
        if types != (str,):
            try:
                value = ast.literal_eval(raw)
            except (ValueError, SyntaxError):
                value = raw
        if float in types and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if isinstance(value, types) and not isinstance(value, bool):
            return value
    expected = " or ".join(sorted(kind.__name__ for kind in types)) + (" or none" if optional else "")
    shown = "none" if current is None else repr(current)
    raise ValueError(f"`{key}` takes {expected}. Received {raw!r}; the recipe has {shown}.")


def _did_you_mean(name: str, known: Iterable[str], elsewhere: Mapping[str, tuple[str, ...]] | None = None) -> str:
    names = {**{key: (key,) for key in known}, **(elsewhere or {})}
    near = difflib.get_close_matches(name, names, n=3)
    keys = dict.fromkeys(key for found in near for key in names[found])
    return f"Did you mean: {', '.join(keys)}?" if keys else f"Known: {', '.join(known)}."
