"""Learners as RLlib runs them: in the driver, one actor, two actors that share one model. Ray is real, the model
tiny."""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from ray.rllib.core import COMPONENT_LEARNER, COMPONENT_OPTIMIZER, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from transformers import AutoModelForCausalLM

from learners import fsdp, learner_group
from learners.batching import MiniBatch, RowRef, plan_update
from learners.episodes import TokenEpisode
from learners.learner import LLMLearner
from learners.learner_group import LLMLearnerGroup
from learners.update_figures import UpdateFigures
from tests.rows import SPACE, learner_config, make_policy, random_episodes, row_refs
from tests.tiny_model import make_tiny_model

NUM_ROWS = 12


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="warning")
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_tiny_model(path, tie_word_embeddings=True)
    return path


@pytest.fixture(scope="module")
def episodes(folder: Path) -> list[TokenEpisode]:
    return random_episodes(NUM_ROWS, policy=make_policy(learner_config(folder)))


@pytest.fixture(scope="module")
def rows(cluster: None, episodes: list[TokenEpisode]) -> list[RowRef]:
    return row_refs(episodes, ref=ray.put(episodes))


def build(folder: Path, num_learners: int, **training: Any) -> LLMLearnerGroup:
    config = learner_config(folder, num_learners, max_tokens_per_micro_batch=80, **training)
    return config.build_learner_group(spaces={DEFAULT_MODULE_ID: (SPACE, SPACE)})


@pytest.fixture(scope="module")
def two(cluster: None, folder: Path) -> Iterator[LLMLearnerGroup]:
    """Two learners that also measure the KL; `fresh` brings them back to the start."""
    group = build(folder, 2, measure_kl=True, logp_diff_limit=float("inf"))
    yield group
    group.shutdown()


@pytest.fixture(scope="module")
def start(two: LLMLearnerGroup) -> dict[str, Any]:
    return two.get_state()


@pytest.fixture
def fresh(two: LLMLearnerGroup, start: dict[str, Any]) -> LLMLearnerGroup:
    two.set_state(start)
    return two


def weights(group: LLMLearnerGroup) -> dict[str, torch.Tensor]:
    return ray.get(group.weights())


def distance(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    assert first.keys() == second.keys()
    return float(torch.stack([(first[name] - second[name]).norm() for name in first]).norm())


def gradient(learner: LLMLearner, minibatch: MiniBatch, episodes: Sequence[TokenEpisode]) -> dict[str, torch.Tensor]:
    """Return a mini-batch's gradient, whole: what the optimizer would be given."""
    figures = UpdateFigures()
    for micro_batch in minibatch.micro_batches:
        learner._policy_update._accumulate(micro_batch, dict(enumerate(episodes)), minibatch.num_tokens, figures)
    gradients = {}
    for name, parameter in learner._lm.named_parameters():
        assert parameter.grad is not None
        gradients[name] = fsdp.gathered(parameter.grad)
        parameter.grad = None
    return gradients


def shard_sizes(learner: LLMLearner) -> tuple[int, int]:
    """Return elements of parameters and Adam state held by this learner, and of the whole."""
    live = fsdp.trained_parameters(learner._lm) | fsdp.adam_state(learner._lm, learner._optimizer)
    state = [tensor for tensor in live.values() if tensor.ndim]
    return sum(getattr(t, "_local_tensor", t).numel() for t in state), sum(t.numel() for t in state)


def on_two(group: LLMLearnerGroup, function: Any, per_learner: Sequence[tuple] = ((), ())) -> list[Any]:
    return ray.get([w.apply.remote(function, *a) for w, a in zip(group._workers, per_learner, strict=True)])


def test_two_learners_and_four_micro_batches_give_the_gradient_of_one_batch(
    fresh: LLMLearnerGroup, folder: Path, rows: list[RowRef], episodes: list[TokenEpisode]
) -> None:
    plan = {"minibatch_size": 0, "seed": 0, "train_all": True}
    [[one]] = plan_update(rows, num_ranks=1, max_tokens_per_micro_batch=10_000, **plan)  # type: ignore[arg-type]
    shares = plan_update(rows, num_ranks=2, max_tokens_per_micro_batch=110, **plan)  # type: ignore[arg-type]
    assert (len(one.micro_batches), [len(share[0].micro_batches) for share in shares]) == (1, [4, 4])
    local = build(folder, 0)
    assert local._learner is not None
    expected = gradient(local._learner, one, episodes)
    ours, _ = on_two(fresh, gradient, [(share[0], episodes) for share in shares])
    nothing = {name: torch.zeros_like(value) for name, value in expected.items()}
    assert distance(ours, expected) < 1e-5 * distance(expected, nothing)


def test_after_five_updates_two_learners_are_where_one_is(
    fresh: LLMLearnerGroup, folder: Path, rows: list[RowRef]
) -> None:
    one = build(folder, 0, logp_diff_limit=float("inf"))
    before = weights(one)
    for seed in range(5):
        first = one.update_rows(rows, minibatch_size=0, seed=seed)
        second = fresh.update_rows(rows, minibatch_size=0, seed=seed)
        assert first.metrics["policy_loss"] == pytest.approx(second.metrics["policy_loss"], rel=1e-3, abs=1e-5)
        assert first.logp.keys() == second.logp.keys() == set(range(NUM_ROWS))
    assert distance(weights(fresh), weights(one)) < 1e-3 * distance(weights(one), before)


def test_a_learner_without_rows_keeps_in_step(fresh: LLMLearnerGroup, folder: Path, rows: list[RowRef]) -> None:
    one = build(folder, 0)
    expected = one.update_rows(rows[:1], minibatch_size=0, seed=0)
    result = fresh.update_rows(rows[:1], minibatch_size=0, seed=0)
    assert result.metrics["grad_norm"] == pytest.approx(expected.metrics["grad_norm"], rel=1e-4)
    assert list(result.logp) == [rows[0].row_id]


def test_each_of_two_learners_holds_about_half_of_parameters_and_adam_state(fresh: LLMLearnerGroup) -> None:
    for held, whole in on_two(fresh, shard_sizes):
        assert 0.4 * whole < held < 0.6 * whole


def test_kl_is_zero_at_step_0_and_is_measured_to_the_same_base_after_a_restore(
    fresh: LLMLearnerGroup, rows: list[RowRef], tmp_path: Path
) -> None:
    kls = [fresh.update_rows(rows, minibatch_size=0, seed=0).metrics["kl"] for _ in range(2)]
    assert kls[0] == 0 and kls[1] > 0
    fresh.save_to_path(tmp_path)
    goes_on = fresh.update_rows(rows, minibatch_size=0, seed=0).metrics["kl"]
    fresh.restore_from_path(tmp_path)
    assert fresh.update_rows(rows, minibatch_size=0, seed=0).metrics["kl"] == goes_on > kls[1]


def test_a_checkpoint_of_two_learners_goes_on_exactly_in_two_and_alike_in_one_and_none(
    fresh: LLMLearnerGroup, folder: Path, rows: list[RowRef], tmp_path: Path
) -> None:
    fresh.update_rows(rows, minibatch_size=6, seed=0)
    fresh.save_to_path(tmp_path)
    straight = fresh.update_rows(rows, minibatch_size=6, seed=1)
    expected = weights(fresh)

    fresh.restore_from_path(tmp_path)
    again = fresh.update_rows(rows, minibatch_size=6, seed=1)
    assert again.metrics == straight.metrics and again.metrics["num_optimizer_steps"] == 4
    assert distance(weights(fresh), expected) == 0

    for num_learners in (0, 1):
        other = build(folder, num_learners, logp_diff_limit=float("inf"))
        other.restore_from_path(tmp_path)
        assert other.update_rows(rows, minibatch_size=6, seed=1).metrics["num_optimizer_steps"] == 4
        moved = distance(expected, dict(make_policy(learner_config(folder)).named_weights()))
        assert distance(weights(other), expected) < 1e-3 * moved
        other.save_to_path(tmp_path / str(num_learners))
        other.shutdown()
        fresh.restore_from_path(tmp_path / str(num_learners))
        assert distance(weights(fresh), expected) < 1e-3 * moved


def test_whole_state_goes_from_two_learners_to_none_and_through_a_file(
    fresh: LLMLearnerGroup, folder: Path, rows: list[RowRef], tmp_path: Path
) -> None:
    fresh.update_rows(rows, minibatch_size=0, seed=0)
    state = fresh.get_state()
    assert set(state[COMPONENT_LEARNER]) == {COMPONENT_RL_MODULE, COMPONENT_OPTIMIZER, "num_optimizer_steps"}
    local = build(folder, 0)
    local.set_state(state)
    assert distance(weights(local), weights(fresh)) == 0
    # RLlib's `Algorithm.save_to_path` gathers the state itself and passes it on.
    local.save_to_path(str(tmp_path), state=local.get_state())
    fresh.update_rows(rows, minibatch_size=0, seed=0)
    fresh.restore_from_path(str(tmp_path))
    assert distance(weights(local), weights(fresh)) == 0
    assert list(fresh.get_weights()) == [DEFAULT_MODULE_ID]


def test_runners_are_given_no_weights_by_rllib(fresh: LLMLearnerGroup) -> None:
    state = fresh.get_state(components=f"{COMPONENT_LEARNER}/{COMPONENT_RL_MODULE}", inference_only=True)
    assert state == {COMPONENT_LEARNER: {COMPONENT_RL_MODULE: {}}}


def test_only_a_whole_checkpoint_can_be_restored(fresh: LLMLearnerGroup, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`component` 'learner/rl_module'"):
        fresh.restore_from_path(tmp_path, component="learner/rl_module")


def test_a_checkpoint_on_remote_storage_is_refused(fresh: LLMLearnerGroup) -> None:
    with pytest.raises(ValueError, match="local or shared folder"):
        fresh.save_to_path("mock://somewhere")


def test_an_export_of_two_learners_loads_and_agrees(fresh: LLMLearnerGroup, rows: list[RowRef], tmp_path: Path) -> None:
    fresh.update_rows(rows, minibatch_size=0, seed=0)
    fresh.export_hf(tmp_path)
    exported = dict(AutoModelForCausalLM.from_pretrained(tmp_path).named_parameters())
    assert distance(weights(fresh), {name: p.detach() for name, p in exported.items()}) == 0


def test_what_all_learners_raise_is_raised_in_the_driver_and_they_live_on(
    fresh: LLMLearnerGroup, rows: list[RowRef]
) -> None:
    wrong = [RowRef(r.ref, r.index, r.num_tokens + 1, r.num_response_tokens, r.advantage, r.row_id) for r in rows]
    with pytest.raises(ValueError, match="record and tokens are not of the same episode"):
        fresh.update_rows(wrong, minibatch_size=0, seed=0)
    assert fresh.update_rows(rows, minibatch_size=0, seed=0).metrics["num_optimizer_steps"] == 1


def test_bfloat16_without_a_process_group_is_refused(cluster: None, folder: Path) -> None:
    config = learner_config(folder).language_model(dtype="bfloat16")
    with pytest.raises(ValueError, match="needs `num_learners` >= 1"):
        config.build_learner_group(spaces={DEFAULT_MODULE_ID: (SPACE, SPACE)})


# The last one on the shared learners: it ends them.
def test_one_failing_learner_raises_in_the_driver_and_the_one_that_waits_for_it_is_ended(
    fresh: LLMLearnerGroup, rows: list[RowRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learner_group, "_GRACE_S", 1.0)
    pids = on_two(fresh, lambda _: os.getpid())
    wrong = list(rows)
    r = wrong[0]
    wrong[0] = RowRef(r.ref, r.index, r.num_tokens + 1, r.num_response_tokens, r.advantage, r.row_id)
    with pytest.raises(ValueError, match=f"Row {r.row_id} should have {r.num_tokens + 1} tokens"):
        fresh.update_rows(wrong, minibatch_size=0, seed=0)
    fresh.shutdown()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
