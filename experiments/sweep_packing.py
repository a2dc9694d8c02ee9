"""How many trials of a sweep run side by side, and how many threads each of them may use then."""

import math
from typing import Any

import ray

from learners.algorithm import ToRL
from learners.config import ToRLConfig


def pack(config: ToRLConfig, num_trials: int) -> str:
    """Divide the cluster's cores among the trials that run at once, and return one line that says how many do.

    A learner or engine on CPUs takes all cores of its machine unless told otherwise, which several trials on one
    machine must not: more threads than cores cost several times more than they bring.

    Args:
        config: of the trials; `learner_threads` and `engine_threads` are set where they are not.
        num_trials: in all.

    Raises:
        ValueError: if a trial does not fit a cluster of this process's own.
    """
    need = trial_resources(config)
    have = ray.cluster_resources()
    fits = min(math.floor(have.get(name, 0) / amount + 1e-6) for name, amount in need.items())
    needs = " and ".join(f"{amount:g} {name}" for name, amount in sorted(need.items()))
    holds = " and ".join(f"{have.get(name, 0):g} {name}" for name in sorted(need))
    if fits < 1:
        return f"A trial needs {needs}; the cluster has {holds}: the trials wait until it has grown."
    at_once = min(fits, num_trials)
    cores = max(1, int(have["CPU"]) // at_once)
    if config.learner_threads is None and not config.num_gpus_per_learner:
        config.training(learner_threads=max(1, cores // max(1, config.num_learners)))
    if config.engine_threads is None and not config.num_gpus_per_env_runner:
        config.sampling(engine_threads=max(1, cores // config.num_env_runners))
    return f"A trial needs {needs}; the cluster has {holds}: {at_once} at once."


def trial_resources(config: ToRLConfig) -> dict[str, float]:
    """Return what a trial reserves of each resource, those it does not need left out."""
    need: dict[str, float] = {}
    request: Any = ToRL.default_resource_request(config.copy(copy_frozen=False))
    for bundle in request.bundles:
        for name, amount in bundle.items():
            need[name] = need.get(name, 0) + amount
    return {name: amount for name, amount in need.items() if amount > 0}
