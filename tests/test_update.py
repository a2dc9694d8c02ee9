"""One rank's update: the gradient does not depend on the split, and a batch that contradicts itself takes no step."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learners.batching import MiniBatch, RowRef, plan_update
from learners.episodes import TokenEpisode
from learners.losses import loss_sums
from learners.rl_module import CausalLMModule
from learners.update import PolicyUpdate, UpdateSettings
from learners.update_figures import UpdateResult
from tests.rows import learner_config, make_policy, random_episodes, row_refs
from tests.tiny_model import VOCAB_SIZE, make_tiny_model

NUM_ROWS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_tiny_model(path, tie_word_embeddings=False)
    return path


@pytest.fixture(scope="module")
def episodes(folder: Path) -> list[TokenEpisode]:
    return random_episodes(NUM_ROWS, policy=make_policy(learner_config(folder)))


class OneRank:
    """A policy and its update. With plain SGD at lr 1 a step's change of the parameters is minus the gradient."""

    def __init__(self, folder: Path, *, adam: bool = False, kl_coeff: float = 0.0, **settings: Any) -> None:
        self.policy: CausalLMModule = make_policy(learner_config(folder))
        self.base = make_policy(learner_config(folder))
        self.kl_coeff = kl_coeff
        optimizer: type[torch.optim.Optimizer] = torch.optim.Adam if adam else torch.optim.SGD
        known: dict[str, Any] = {
            "lr": 1.0,
            "warmup_steps": 0,
            "grad_clip": None,
            "logp_diff_limit": float("inf"),
            "measures_kl": kl_coeff > 0,
        }
        known |= settings
        self.update = PolicyUpdate(
            policy=self.policy,
            ref_logp=lambda batch: self.base(batch)["logp"],
            loss=self.loss,
            optimizer=optimizer(self.policy.parameters(), lr=known["lr"]),  # type: ignore[call-arg]
            device=torch.device("cpu"),
            settings=UpdateSettings(**known),
        )
        self.start = self.parameters()

    def loss(self, batch: Any, forward: Any) -> Any:
        return loss_sums(
            logp=forward["logp"],
            entropy=forward["entropy"],
            action_logp=batch["action_logp"],
            advantages=batch["advantages"],
            loss_mask=batch["loss_mask"],
            clip_param=0.2,
            clip_param_high=0.2,
            ref_logp=batch.get("ref_logp"),
            kl_coeff=self.kl_coeff,
        )

    def run(self, episodes: list[TokenEpisode], rows: list[RowRef] | None = None, **plan: Any) -> UpdateResult:
        rows = row_refs(episodes) if rows is None else rows
        return self.update.run(self.plan(rows, **plan), dict(enumerate(episodes)))

    def plan(self, rows: list[RowRef], **plan: Any) -> list[MiniBatch]:
        known = {"minibatch_size": 0, "max_tokens_per_micro_batch": 10_000, "seed": 0, "train_all": False}
        [minibatches] = plan_update(rows, num_ranks=1, **(known | plan))
        return minibatches

    def parameters(self) -> torch.Tensor:
        return torch.cat([p.detach().flatten() for p in self.policy.parameters()])

    def change(self) -> torch.Tensor:
        return self.parameters() - self.start


@pytest.mark.parametrize("split", [{"max_tokens_per_micro_batch": 150}, {"train_all": True}])
def test_the_gradient_does_not_depend_on_micro_batches_nor_on_training_rows_without_advantage(
    folder: Path, episodes: list[TokenEpisode], split: dict[str, Any]
) -> None:
    one, several = OneRank(folder), OneRank(folder)
    assert len(several.plan(row_refs(episodes), **split)[0].micro_batches) != 2
    first, second = one.run(episodes), several.run(episodes, **split)
    assert one.change().norm() > 0.1
    assert (one.change() - several.change()).norm() < 1e-5 * one.change().norm()
    for name, value in first.metrics.items():
        assert second.metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


def test_the_token_mean_is_over_all_rows_that_count(folder: Path, episodes: list[TokenEpisode]) -> None:
    # Twice the rows, the second half without advantage: the same sum over twice the tokens, so half the gradient.
    rows = row_refs(episodes)
    idle = [RowRef(None, r.index, r.num_tokens, r.num_response_tokens, 0.0, r.row_id + NUM_ROWS) for r in rows]
    alone, diluted = OneRank(folder), OneRank(folder)
    alone.run(episodes, rows)
    diluted.run(episodes * 2, rows + idle)
    torch.testing.assert_close(diluted.change(), alone.change() / 2, rtol=1e-3, atol=1e-6)


def test_every_row_gets_its_log_probs_back(folder: Path, episodes: list[TokenEpisode]) -> None:
    result = OneRank(folder).run(episodes, max_tokens_per_micro_batch=100)
    assert sorted(result.logp) == list(range(NUM_ROWS))
    for i, episode in enumerate(episodes):
        np.testing.assert_allclose(result.logp[i], episode.action_logp[episode.loss_mask], rtol=1e-4, atol=1e-5)
        assert result.logp[i].dtype == np.float32


def test_on_its_own_samples_nothing_is_clipped_and_the_loss_is_minus_the_mean_advantage(
    folder: Path, episodes: list[TokenEpisode]
) -> None:
    rows = row_refs(episodes)
    expected = -sum(r.advantage * r.num_response_tokens for r in rows) / sum(r.num_response_tokens for r in rows)
    metrics = OneRank(folder).run(episodes).metrics
    assert metrics["policy_loss"] == pytest.approx(expected, abs=1e-5)
    assert metrics["clip_fraction"] == 0
    assert metrics["logp_diff_max"] < 1e-5


def test_a_second_mini_batch_meets_a_moved_policy_and_is_clipped(folder: Path, episodes: list[TokenEpisode]) -> None:
    rank = OneRank(folder, adam=True, lr=3e-2)
    metrics = rank.run(episodes, minibatch_size=NUM_ROWS // 2).metrics
    assert metrics["clip_fraction"] > 0
    assert metrics["num_optimizer_steps"] == 2
    assert metrics["logp_diff_max"] < 1e-5  # that of the first mini-batch, before any step


def test_the_learning_rate_warms_up_over_optimizer_steps(folder: Path, episodes: list[TokenEpisode]) -> None:
    rank = OneRank(folder, adam=True, lr=0.004, warmup_steps=4)
    rates = [rank.run(episodes).metrics["lr"] for _ in range(5)]
    assert rates == pytest.approx([0.001, 0.002, 0.003, 0.004, 0.004])


def test_the_gradient_is_scaled_to_the_clip_and_reported_before_it(folder: Path, episodes: list[TokenEpisode]) -> None:
    free, clipped = OneRank(folder), OneRank(folder, grad_clip=0.25)
    norm = free.run(episodes).metrics["grad_norm"]
    assert norm > 0.5 and norm == pytest.approx(free.change().norm().item(), rel=1e-4)
    assert clipped.run(episodes).metrics["grad_norm"] == pytest.approx(norm, rel=1e-6)
    assert clipped.change().norm().item() == pytest.approx(0.25, rel=1e-3)


def test_a_batch_without_any_advantage_moves_nothing(folder: Path, episodes: list[TokenEpisode]) -> None:
    rows = [RowRef(None, i, e.num_tokens, e.num_response_tokens, 0.0, i) for i, e in enumerate(episodes)]
    rank = OneRank(folder, adam=True)
    metrics = rank.run(episodes, rows).metrics
    assert metrics["grad_norm"] == 0 and not rank.change().any()
    assert metrics["entropy"] > 0


def test_kl_to_the_base_is_exactly_zero_at_step_0_and_grows(folder: Path, episodes: list[TokenEpisode]) -> None:
    rank = OneRank(folder, adam=True, kl_coeff=0.1, lr=1e-2)
    kls = [rank.run(episodes, train_all=True).metrics["kl"] for _ in range(2)]
    assert kls[0] == 0 and kls[1] > 1e-3


def test_the_kl_term_keeps_the_policy_nearer_the_base(folder: Path, episodes: list[TokenEpisode]) -> None:
    kls = []
    for coefficient in (1e-9, 10.0):
        rank = OneRank(folder, adam=True, kl_coeff=coefficient, lr=1e-2)
        kls.append([rank.run(episodes, train_all=True).metrics["kl"] for _ in range(6)][-1])
    assert kls[1] < 0.5 * kls[0]


def shifted(episode: TokenEpisode, by: float) -> TokenEpisode:
    logp = np.where(episode.loss_mask, episode.action_logp + np.float32(by), 0).astype(np.float32)
    return TokenEpisode(episode.token_ids, episode.loss_mask, logp, episode.prompt_length, 0)


def test_a_sampler_with_other_weights_is_noticed_and_no_step_taken(folder: Path, episodes: list[TokenEpisode]) -> None:
    rank = OneRank(folder, logp_diff_limit=1e-4)
    wrong = [*episodes[:-1], shifted(episodes[-1], 1e-3)]
    with pytest.raises(RuntimeError, match=r"differ by up to 0.001 \(`logp_diff_limit` is 0.0001\)"):
        rank.run(wrong)
    assert not rank.change().any() and rank.update.num_steps == 0
    rank.run(episodes)
    assert rank.update.num_steps == 1


def test_the_difference_of_log_probs_is_reported_per_response_token(folder: Path, episodes: list[TokenEpisode]) -> None:
    # Rows of one advantage sign or 0 alike: the difference is 0.25 on every token of every row.
    metrics = OneRank(folder).run([shifted(episode, 0.25) for episode in episodes]).metrics
    assert metrics["logp_diff_max"] == pytest.approx(0.25, rel=1e-3)
    assert metrics["logp_diff_mean"] == pytest.approx(0.25, rel=1e-3)


def test_log_probs_that_are_not_finite_are_named_by_row_and_no_step_is_taken(folder: Path) -> None:
    rank, poison = OneRank(folder), VOCAB_SIZE - 1
    episodes = random_episodes(4, policy=rank.policy)
    poisoned = TokenEpisode(np.full(8, poison, np.int32), np.arange(8) > 2, np.zeros(8, np.float32), 3, 0)
    with torch.no_grad():
        rank.policy.model.get_input_embeddings().weight[poison] = torch.nan
    rank.start = rank.parameters()
    episodes = [e for e in episodes if poison not in e.token_ids] + [poisoned]
    with pytest.raises(FloatingPointError, match=rf"not finite in rows \[{len(episodes) - 1}\]"):
        rank.run(episodes, max_tokens_per_micro_batch=64)
    torch.testing.assert_close(rank.parameters(), rank.start, equal_nan=True, rtol=0, atol=0)


def test_a_ratio_that_overflows_is_named_by_its_micro_batch(folder: Path, episodes: list[TokenEpisode]) -> None:
    # exp(logp + 200) overflows; with A < 0 no clip bounds the loss.
    wrong = [*episodes[:-1], shifted(episodes[-1], -200.0)]
    rows = [RowRef(None, i, e.num_tokens, e.num_response_tokens, -1.0, i) for i, e in enumerate(wrong)]
    rank = OneRank(folder)
    with pytest.raises(FloatingPointError, match=rf"not finite in rows \[.*{NUM_ROWS - 1}.*\]"):
        rank.run(wrong, rows)
    assert not rank.change().any()
