"""What a driver asks of all samplers, whoever it is: `ToRL`, or an evaluation without learners."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import ray
from ray.rllib.env.env_runner_group import EnvRunnerGroup

from learners.sampler import Episode, EpisodeRequest


def connect_sandbox(runners: EnvRunnerGroup, app: str) -> None:
    """Have all samplers run programs in the Serve application `app`."""
    runners.foreach_env_runner(partial(_connect_sandbox, app=app))


def wait_until_ready(runners: EnvRunnerGroup) -> None:
    """Wait until all engines have loaded the model and serve requests.

    Raises:
        RuntimeError: with the traceback of one that could not be built.
    """
    for error in runners.foreach_env_runner("wait_until_ready", local_env_runner=False):
        if error is not None:
            raise RuntimeError(f"A sampler failed:\n{error}")


def sample_each(
    runners: EnvRunnerGroup, requests: Sequence[EpisodeRequest], *, iteration: int, temperature: float
) -> Iterator[Episode]:
    """Sample the episodes asked for, spread over all samplers, and yield each as it ends.

    Args:
        runners: The samplers.
        requests: In the order they should be started in.
        iteration: Enters the seeds.
        temperature: 0 is greedy.

    Raises:
        RuntimeError: with the sampler's traceback, if one failed.
    """
    actors = list(runners._worker_manager.actors().values())
    streams = [
        actor.sample_each.remote(requests=requests[i :: len(actors)], iteration=iteration, temperature=temperature)
        for i, actor in enumerate(actors)
        if requests[i :: len(actors)]
    ]
    while streams:
        [ready], _ = ray.wait(streams, num_returns=1)
        try:
            episode = ray.get(next(ready))
        except StopIteration:
            streams.remove(ready)
            continue
        if isinstance(episode, str):
            raise RuntimeError(f"A sampler failed:\n{episode}")
        yield episode


def kill(runners: EnvRunnerGroup) -> None:
    """End all samplers without waiting for the episodes they are at, as `EnvRunnerGroup.stop` would."""
    for actor in runners._worker_manager.actors().values():
        ray.kill(actor)


def _connect_sandbox(env_runner: Any, app: str) -> None:
    env_runner.connect_sandbox(app)
