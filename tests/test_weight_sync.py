"""New weights to the engines: by the object store, and what of the NCCL way can be run without a GPU."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from learners import weight_sync
from learners.weight_sync import (
    NCCLSync,
    ObjectStoreSync,
    PolicySource,
    RunnerClient,
    TransferGroup,
    build_weight_sync,
)
from tests.rows import learner_config, make_policy
from tests.tiny_model import make_tiny_model


class FakeRunner:
    """Notes calls; `runner.method.remote(...)` answers like an actor whose reply is already there."""

    def __init__(self, error: str | None = None) -> None:
        self.calls: list[tuple[str, tuple]] = []
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *args: self.note(name, *args))

    def note(self, name: str, *args: Any) -> str | None:
        self.calls.append((name, args))
        return self._error

    def load_weights(self, weights: Any, version: int) -> str | None:
        return self.note("load_weights", weights, version)


class FakeRunnerGroup:
    def __init__(self, *runners: FakeRunner) -> None:
        self.runners = runners
        self._worker_manager = SimpleNamespace(actors=lambda: dict(enumerate(runners, start=1)))

    def foreach_env_runner(self, function: Callable[[Any], Any], local_env_runner: bool) -> list[Any]:
        assert not local_env_runner
        return [function(runner) for runner in self.runners]


class FakeLearnerGroup:
    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple]] = []

    def weights(self) -> str:
        return "a reference"

    def on_all(self, method: str, *args: Any) -> list[Any]:
        self.calls.append((method, args))
        return [("10.0.0.1", 4321), ("10.0.0.2", 1234)]


def test_every_runner_loads_the_one_object_as_the_new_version() -> None:
    runners = FakeRunner(), FakeRunner()
    ObjectStoreSync(FakeLearnerGroup(), FakeRunnerGroup(*runners)).sync(7)  # type: ignore[arg-type]
    assert [runner.calls for runner in runners] == [[("load_weights", ("a reference", 7))]] * 2


def test_an_engine_that_could_not_load_is_an_error_of_the_driver() -> None:
    runners = FakeRunnerGroup(FakeRunner(), FakeRunner("ValueError: lacks 2 parameters"))
    with pytest.raises(RuntimeError, match=r"(?s)version 7.*lacks 2 parameters"):
        ObjectStoreSync(FakeLearnerGroup(), runners).sync(7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("num_learners", "gpus_per_learner", "gpus_per_runner", "expected"),
    [
        (2, 1, 1, NCCLSync),
        (2, 0, 0, ObjectStoreSync),
        (2, 0, 1, ObjectStoreSync),
        (0, 1, 1, ObjectStoreSync),
        (1, 0.5, 0.5, ObjectStoreSync),
    ],
)
def test_nccl_is_used_where_learners_and_engines_have_gpus_of_their_own(
    tmp_path: Path, num_learners: int, gpus_per_learner: float, gpus_per_runner: float, expected: type
) -> None:
    config = learner_config(tmp_path, num_learners)
    config.learners(num_gpus_per_learner=gpus_per_learner).env_runners(num_gpus_per_env_runner=gpus_per_runner)
    sync = build_weight_sync(config, FakeLearnerGroup(), FakeRunnerGroup(FakeRunner()))  # type: ignore[arg-type]
    assert type(sync) is expected


def test_the_transfer_is_opened_at_the_first_learners_address_with_all_workers(tmp_path: Path) -> None:
    config = learner_config(tmp_path, 2).sampling(engine_kwargs={"tensor_parallel_size": 2})
    learners, runners = FakeLearnerGroup(), (FakeRunner(), FakeRunner())
    sync = NCCLSync(config, learners, FakeRunnerGroup(*runners))  # type: ignore[arg-type]
    sync.sync(3)
    (_, _), (opened, (group,)), sent = learners.calls
    assert (opened, group.address, group.port, group.world_size) == ("open_weight_transfer", "10.0.0.1", 4321, 5)
    assert group.runners == runners
    assert sent == ("send_weights", (3,))


def test_every_engine_joins_at_ranks_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_sync.ray, "get", lambda replies: replies)
    runners = FakeRunner(), FakeRunner()
    client = RunnerClient(TransferGroup("host", 1, runners, workers_per_engine=2))
    client.init_weight_transfer_engine({"rank_offset": 1, "world_size": 5})
    # Learner 0 is rank 0; the first engine's workers are 1 and 2, the second's 3 and 4.
    assert [runner.calls for runner in runners] == [
        [("init_weight_transfer_engine", ({"rank_offset": 1, "world_size": 5},))],
        [("init_weight_transfer_engine", ({"rank_offset": 3, "world_size": 5},))],
    ]


def test_an_engine_that_fails_in_a_transfer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_sync.ray, "get", lambda replies: replies)
    group = TransferGroup("host", 1, (FakeRunner(), FakeRunner("out of memory")), 1)
    with pytest.raises(RuntimeError, match=r"(?s)failed in `start_weight_update`.*out of memory"):
        RunnerClient(group).start_weight_update()


def test_what_the_source_declares_is_what_it_yields(tmp_path: Path) -> None:
    make_tiny_model(tmp_path, tie_word_embeddings=True)
    source = PolicySource(make_policy(learner_config(tmp_path)), torch.bfloat16)
    declared = [(info.name, info.dtype, info.shape) for info in source.metadata()]
    assert declared == [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in source]
    assert len(declared) == len({name for name, _, _ in declared}) == 26


def test_vllms_own_sender_drives_our_client_and_sends_what_it_announces(tmp_path: Path) -> None:
    # All of the NCCL way but NCCL: its broadcast is a list. In a process of its own, since vLLM patches torch.
    make_tiny_model(tmp_path, tie_word_embeddings=False)
    subprocess.run(
        [sys.executable, "-m", "tests.vllm_sender", str(tmp_path)], check=True, cwd=Path(__file__).parents[1]
    )
