"""The grid of a sweep: from `key=value` texts to Tune's search space, and back from a trial's config to its values."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ray import tune

from experiments.recipes import apply_settings, attribute_of, check_given_once
from learners.config import ToRLConfig
from torl_env.dialect import PLAIN

Grid = Mapping[str, Sequence[str]]
"""Key of `--set` -> the values it takes, as texts."""

# One sandbox serves all trials, so they cannot differ in how it is started.
_SHARED = ("sandbox_app", "sandbox_num_replicas", "sandbox_max_concurrent_runs", "sandbox_memory_mb", "sandbox_tier")
_SHORT = {"max_tool_calls": "C", "kl_coeff": "kl"}


def parse_grid(texts: Sequence[str]) -> dict[str, list[str]]:
    """Return the grid of `key=v1,v2` texts.

    Raises:
        ValueError: on a text without "=" or values, a value or key named twice, or a setting of the shared sandbox.
    """
    check_given_once(texts)
    grid: dict[str, list[str]] = {}
    for text in texts:
        key, equals, raw = text.partition("=")
        key, values = key.strip(), [value.strip() for value in raw.split(",")]
        if not equals or not all(values):
            raise ValueError(f"`--grid` takes key=value1,value2. Received {text!r}.")
        if len(set(values)) < len(values):
            raise ValueError(f"The grid gives `{key}` the same value twice: {raw}.")
        if key in _SHARED:
            raise ValueError(f"`{key}` cannot be in the grid, since all trials share one sandbox. Use --set.")
        grid[key] = values
    return grid


def num_trials(grid: Grid) -> int:
    """Return the number of combinations."""
    return math.prod(len(values) for values in grid.values())


def combinations(grid: Grid) -> Iterator[list[str]]:
    """Yield each combination as `key=value` texts."""
    for values in itertools.product(*grid.values()):
        yield [f"{key}={value}" for key, value in zip(grid, values, strict=True)]


def at(config: ToRLConfig, settings: Sequence[str]) -> ToRLConfig:
    """Return a copy of the config at one point of the grid.

    At `max_tool_calls=0` the prompt asks for no program (`PLAIN`): that is the paper's C = 0, and what
    `quickstart_no_tool` trains. A recipe that brings a prompt of its own keeps it.
    """
    point = apply_settings(config.copy(copy_frozen=False), settings)
    if point.env_config["max_tool_calls"] == 0 and "dialect" not in point.env_config:
        point.environment(env_config={"dialect": PLAIN})
    return point


def search_space(config: ToRLConfig, grid: Grid) -> ToRLConfig:
    """Return the config with Tune's `grid_search` in place of each setting of the grid.

    Settings of the environment share one dict, and the prompt depends on the number of tool calls, so all their
    combinations are one `grid_search` over whole `env_config`s.
    """
    in_env = {key: values for key, values in grid.items() if attribute_of(key) == "env_config"}
    space = at(config, [])
    if in_env:
        space.env_config = tune.grid_search([at(config, point).env_config for point in combinations(in_env)])
    for key, values in grid.items():
        if key not in in_env:
            name = attribute_of(key)
            points = [getattr(at(config, [f"{key}={value}"]), name) for value in values]
            setattr(space, name, tune.grid_search(points))
    return space


def value_of(config: Mapping[str, Any], key: str) -> Any:
    """Return the value of a setting in a trial's config."""
    name = attribute_of(key)
    if name == "evaluation_config":
        return config[name]["env_config"]["problems"]
    if name != "env_config":
        return config[name]
    if key == "error_penalty":
        return config["env_config"]["reward"].error_penalty
    return config["env_config"][key]


def label(config: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Return a trial's place in the grid, as in "C=1 kl=0.01 seed=0"."""
    return " ".join(f"{_SHORT.get(key, key)}={_shown(value_of(config, key))}" for key in keys)


def trial_name(trial: Any, keys: Sequence[str]) -> str:
    """Return the name of a trial's folder, as in "C=1,kl=0.01,seed=0_3f2a0_00004".

    Without the penalty, which is in an object: for those a trial has Tune's placeholders until it has a name.
    """
    shown = label(trial.config, [key for key in keys if key != "error_penalty"])
    return f"{shown or 'trial'}_{trial.trial_id}".replace(" ", ",").replace("/", "-")


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return Path(value).name
    return f"{value:g}" if isinstance(value, float) else str(value)
