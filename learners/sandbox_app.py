"""The sandbox's Serve application as an algorithm has it: started or found, and removed by whoever started it."""

import contextlib
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any
from uuid import uuid4

import ray
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from torl_env.sandbox.deployment import sandbox_stats, start_sandbox, stop_sandbox
from torl_env.sandbox.stats import SandboxStats


def sandbox_options(config: AlgorithmConfig) -> dict[str, Any]:
    """Return what `.sandbox(...)` says of the application, as `start_sandbox` takes it."""
    return {
        "num_replicas": config.sandbox_num_replicas,
        "max_concurrent_runs": config.sandbox_max_concurrent_runs,
        "memory_mb": config.sandbox_memory_mb,
        "tier": config.sandbox_tier,
    }


class SandboxApp:
    """The application of one algorithm.

    Args:
        config: A `ToRLConfig`; with a "sandbox" in its `env_config` there is no application.

    Attributes:
        name: Of the application.
    """

    def __init__(self, config: AlgorithmConfig) -> None:
        self.name = config.sandbox_app or f"torl-sandbox-{uuid4().hex[:8]}"
        self._config = config
        self._is_removed_by_us = False
        self._started: Future[bool] | None = None

    def start(self) -> None:
        """Start it in the background, since engines and learners take as long to start."""
        if "sandbox" not in self._config.env_config:
            in_trial = ray.util.get_current_placement_group() is not None
            starter = ThreadPoolExecutor(1, thread_name_prefix="sandbox-start")
            self._started = starter.submit(self._start, in_trial)
            starter.shutdown(wait=False)

    def wait(self) -> None:
        """Wait until it runs; raises what starting it raised."""
        if self._started is not None:
            self._is_removed_by_us = self._started.result()

    def stats(self) -> SandboxStats | None:
        """Return what its replicas counted; None if there is no application."""
        return None if self._started is None else sandbox_stats(self.name)

    def stop(self) -> None:
        """Remove it if it was started here. May be called twice, and when starting it failed."""
        with contextlib.suppress(Exception):
            self.wait()
        self._started = None
        if self._is_removed_by_us:
            self._is_removed_by_us = False
            stop_sandbox(self.name)

    def _start(self, in_trial: bool) -> bool:
        """Return whether it is removed from here in the end: it was started here, for this algorithm alone."""
        start = partial(start_sandbox, self.name, **sandbox_options(self._config))
        if not in_trial:
            return start()
        # What a Tune trial starts is confined to the trial's placement group, and Serve's controller must not be: a
        # task outside of the group starts it.
        outside = PlacementGroupSchedulingStrategy(placement_group=None)
        started = ray.get(ray.remote(num_cpus=0, scheduling_strategy=outside)(lambda: start()).remote())
        # A named one is for all trials: whichever happened to start it must not take it from those that go on.
        return started and self._config.sandbox_app is None
