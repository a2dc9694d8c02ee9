"""The arc on GPUs, with the built-in base model: run by `make gpu`; never run yet (see the README)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch

from experiments.quickstart import quickstart
from learners.config import ToRLConfig
from learners.weight_sync import NCCLSync
from torl_env.sandbox.deployment import SERVE_ENVIRONMENT

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

needs_two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs: NCCL takes one rank on each")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    assert torch.cuda.is_available(), "no GPU is visible to torch; `make test` runs what needs none"
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in SERVE_ENVIRONMENT.items():
            patch.setenv(variable, value)
        ray.init(address="local", include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()


def small(run_dir: Path, dtype: str, gpus: float, num_learners: int = 1) -> ToRLConfig:
    return (
        quickstart()
        .language_model(dtype=dtype)
        .sampling(group_size=4, engine_kwargs={"gpu_memory_utilization": 0.3})
        .training(num_problems_per_step=4, minibatch_size=16, max_tokens_per_micro_batch=1024)
        .env_runners(num_gpus_per_env_runner=gpus)
        .learners(num_learners=num_learners, num_gpus_per_learner=gpus)
        .reporting(run_dir=str(run_dir))
        .debugging(seed=0)
    )


def three_steps(config: ToRLConfig) -> list[dict[str, Any]]:
    algo = config.build_algo()
    try:
        assert isinstance(algo._weight_sync, NCCLSync) is (config.num_gpus_per_learner >= 1)
        return [algo.train()["learners"]["default_policy"] for _ in range(3)]
    finally:
        algo.stop()


def test_learner_and_engine_share_one_gpu(tmp_path: Path) -> None:
    for figures in three_steps(small(tmp_path, "float32", gpus=0.5)):
        assert figures["grad_norm"] > 0
        assert figures["logp_diff_max"] < 1e-2  # kernels differ in their order of summation, weights do not


def test_bfloat16_trains_and_stays_near_the_sampler(tmp_path: Path) -> None:
    for figures in three_steps(small(tmp_path, "bfloat16", gpus=0.5)):
        assert np.isfinite(figures["grad_norm"]) and figures["grad_norm"] > 0
        assert figures["logp_diff_mean"] < 0.05


@needs_two_gpus
def test_weights_arrive_over_nccl(tmp_path: Path) -> None:
    for figures in three_steps(small(tmp_path, "float32", gpus=1)):
        assert figures["logp_diff_max"] < 1e-2
