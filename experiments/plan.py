"""What `--dry-run` prints: every resolved setting, and the GPUs, memory, disk and time the run needs.

All of it follows from the config and the model's config.json (`memory.py`, `model_size.py`); neither a GPU nor Ray nor
the problems have to be there.
"""

import argparse
from collections.abc import Iterator
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from experiments import memory
from experiments.cluster import quiet_libraries
from experiments.launch import Launch, evaluation_env_config, load_problems, resolve
from experiments.memory import CARD_GB, Need
from experiments.recipes import RLLIB_KEYS
from learners.config import ToRLConfig

_WIDTH = 26


def describe(arguments: argparse.Namespace) -> str:
    """Return the text for a command line.

    Raises:
        ValueError: on an unknown recipe, key or value, an invalid config, or a model nothing is known of.
    """
    quiet_libraries()
    launch = resolve(arguments)
    return "\n".join(
        [
            f"{launch.recipe}: nothing is started.",
            "",
            "Settings (any other of RLlib has RLlib's default)",
            *_settings(launch.config),
            "",
            "Problems",
            *_problems(launch.config),
            "",
            *_resources(launch.config),
            "",
            *_memory(launch.config),
            "",
            *_disk_and_time(launch),
        ]
    )


def _settings(config: ToRLConfig) -> Iterator[str]:
    own = set(vars(ToRLConfig())) - set(vars(AlgorithmConfig())) - {"run_dir"}
    # `--dry-run` is to show what a recipe changes in RLlib too, whether or not `--set` takes it.
    defaults = vars(AlgorithmConfig())
    changed = {key for key in vars(ToRLConfig()) if key in defaults and _changed(config, key, defaults)}
    for key in sorted(own | changed | set(RLLIB_KEYS)):
        yield f"  {key:<36} {_value(getattr(config, key))}"


def _changed(config: ToRLConfig, key: str, defaults: dict[str, Any]) -> bool:
    if key in ("env_config", "evaluation_config"):
        return True
    if key.startswith("_") or key in ("algo_class", "policies"):  # made by RLlib, of what the other settings say
        return False
    return repr(getattr(config, key)) != repr(defaults[key])


def _value(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}" if isinstance(value, type) else repr(value)


def _problems(config: ToRLConfig) -> Iterator[str]:
    for name, env_config in (("training", config.env_config), ("evaluation", evaluation_env_config(config))):
        yield f"  {name:<12} {env_config['problems']}"
    try:
        sets = load_problems(config)
    except (FileNotFoundError, ImportError) as error:
        yield f"  MISSING      {error}"
    else:
        for split, problems in sets.items():
            yield f"  {split:<12} {len(problems)} problems, {len(problems.left_out)} left out"


def _resources(config: ToRLConfig) -> Iterator[str]:
    learners, engines = config.num_learners, config.num_env_runners
    cpus_per_learner = config.num_cpus_per_learner
    if cpus_per_learner == "auto":  # RLlib's rule
        cpus_per_learner = 0 if config.num_gpus_per_learner else 1
    per_engine = memory.gpus_per_engine(config)
    engine_gpus = config.num_gpus_per_env_runner
    rows = [
        ("driver", 1, 0.0, float(config.num_cpus_for_main_process)),
        ("engines (vLLM)", engines, engine_gpus, config.num_cpus_per_env_runner),
        ("learners (FSDP2)", learners, config.num_gpus_per_learner, cpus_per_learner),
    ]
    yield f"{'Reserved in Ray':<{_WIDTH}}{'number':>8}{'GPUs each':>11}{'CPUs each':>11}"
    for name, number, gpus, cpus in rows:
        yield f"  {name:<{_WIDTH - 2}}{number:>8}{gpus:>11g}{cpus:>11g}"
    all_gpus, all_cpus = sum(n * gpus for _, n, gpus, _ in rows), sum(n * cpus for _, n, _, cpus in rows)
    yield f"  {'in all':<{_WIDTH - 2}}{'':>8}{all_gpus:>11g}{all_cpus:>11g}"
    yield (
        f"  The sandbox ({config.sandbox_num_replicas} replicas, tier {config.sandbox_tier}) reserves none; its "
        f"programs use the cores that are free."
    )
    if engine_gpus and per_engine > max(1, engine_gpus):
        yield f"  WARNING: an engine of {per_engine} GPUs reserves {engine_gpus:g}; raise num_gpus_per_env_runner."


def _memory(config: ToRLConfig) -> Iterator[str]:
    size = memory.size_of(config)
    trained = "" if size.num_trained == size.num_parameters else f", {size.num_trained / 1e6:.4g} million trained"
    yield f"Model {config.model_path}: {size.num_parameters / 1e6:,.5g} million parameters{trained}"
    yield f"  from {size.source}"
    learner, engine = memory.learner_need(config), memory.engine_need(config)
    yield from _parts("Memory of a learner, at the peak of an update", learner)
    yield from _parts(f"Memory of an engine, its {memory.num_seqs(config)} episodes at full length", engine)
    if not config.num_gpus_per_env_runner:
        yield "  On a CPU; beside what Python and the libraries take, 0.5 to 1 GB in each process."
        return
    share = memory.engine_share(config)
    yield (
        f"  vLLM takes {share / 1e9:.1f} GB of a card of {CARD_GB} GB, whatever it needs: "
        f"{memory.full_episodes_that_fit(config)} episodes at full length at once, the others wait."
    )
    shared = 0 < config.num_gpus_per_learner < 1
    of_learner = learner.total if config.num_gpus_per_learner else 0
    on_one = of_learner + share if shared else max(of_learner, share)
    fits = "fits" if on_one <= CARD_GB * 1e9 else "DOES NOT FIT"
    both = "both on one card" if shared else "the fuller card"
    yield f"  {both}: {on_one / 1e9:.1f} GB of {CARD_GB} GB, {fits}"


def _parts(title: str, need: Need) -> Iterator[str]:
    yield title
    for part, amount in need.parts.items():
        if amount:
            yield f"  {part:<{_WIDTH - 2}}{_size(amount):>12}"
    yield f"  {'in all':<{_WIDTH - 2}}{_size(need.total):>12}"


def _disk_and_time(launch: Launch) -> Iterator[str]:
    config = launch.config
    size, kept = memory.size_of(config), config.num_checkpoints_to_keep
    checkpoint = memory.checkpoint_bytes(config)
    yield "Disk"
    yield (
        f"  a checkpoint              {_size(checkpoint)} (12 bytes a trained parameter), every "
        f"{config.checkpoint_interval} iterations; {kept} kept, {kept + 1} while one is written: "
        f"{_size((kept + 1) * checkpoint)}"
    )
    yield f"  the trained model         {_size(memory.item_bytes(config) * size.num_parameters)}"
    download = _size(size.download_bytes) if size.download_bytes else "none, the model is a folder here"
    yield f"  to download               {download}"
    yield f"  results go to             {launch.path}"
    if config.num_gpus_per_learner and config.num_gpus_per_env_runner:
        sampling, update = memory.step_seconds(config)
        hours = (sampling + update) * config.num_iterations / 3600
        yield (
            f"Time of a step, computed     sampling {sampling:.0f} s + update {update:.0f} s, "
            f"{config.num_iterations} of them {hours:.0f} h"
        )
        yield "  for A100s at 40% of their peak and episodes of a third of the token limit; tool and grader not counted"


def _size(amount: float) -> str:
    """Return bytes as people read them."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if amount >= scale:
            return f"{amount / scale:.1f} {unit}"
    return f"{amount / 1e3:.1f} kB"
