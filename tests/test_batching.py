"""Mini-batches, shards and micro-batches, planned by hand."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns

from learners import batching
from learners.batching import RowRef, collate, micro_batches, plan_update, shard_rows, split_minibatches
from learners.episodes import TokenEpisode


def row(row_id: int, num_tokens: int, advantage: float = 1.0) -> RowRef:
    return RowRef(
        None, row_id, num_tokens=num_tokens, num_response_tokens=num_tokens // 2, advantage=advantage, row_id=row_id
    )


def ids(rows: object) -> list[int]:
    return [r.row_id for r in rows]  # type: ignore[attr-defined]


def episode(token_ids: list[int], first_response: int) -> TokenEpisode:
    mask = np.arange(len(token_ids)) >= first_response
    logp = np.where(mask, -0.5, 0).astype(np.float32)
    return TokenEpisode(np.array(token_ids, np.int32), mask, logp, prompt_length=first_response, policy_version=0)


def test_rows_are_shared_out_by_tokens_not_by_number() -> None:
    # Longest first to the emptier rank: 10 | 4, then 3 -> rank 1 (7), 3 -> rank 1 (10), 2 -> rank 0 (12, tie goes
    # first)
    shards = shard_rows([row(0, 2), row(1, 10), row(2, 3), row(3, 4), row(4, 3)], 2)
    assert [ids(shard) for shard in shards] == [[1, 0], [3, 2, 4]]


def test_micro_batches_keep_rows_times_longest_row_within_the_budget() -> None:
    # Budget 12: the 6s go two by two (2 x 6), then 4 4 3 (3 x 4); a row of 20 exceeds the budget and goes alone.
    batches = micro_batches([row(0, 4), row(1, 6), row(2, 20), row(3, 6), row(4, 3), row(5, 4)], 12)
    assert [ids(batch) for batch in batches] == [[2], [1, 3], [0, 5, 4]]


def test_mini_batches_are_equal_in_size_and_hold_every_row_once() -> None:
    parts = split_minibatches([row(i, 4) for i in range(10)], 4, seed=0)
    assert sorted(len(part) for part in parts) == [3, 3, 4]
    assert sorted(i for part in parts for i in ids(part)) == list(range(10))


def test_the_split_depends_on_the_seed_alone() -> None:
    rows = [row(i, 4) for i in range(16)]
    first = [ids(part) for part in split_minibatches(rows, 8, seed=1)]
    assert first == [ids(part) for part in split_minibatches(rows, 8, seed=1)]
    assert first != [ids(part) for part in split_minibatches(rows, 8, seed=2)]


@pytest.mark.parametrize("size", [0, 5, 8])
def test_one_mini_batch_is_all_rows_in_order(size: int) -> None:
    assert [ids(part) for part in split_minibatches([row(i, 4) for i in range(5)], size, seed=0)] == [[0, 1, 2, 3, 4]]


def plan(rows: list[RowRef], num_ranks: int = 2, train_all: bool = False, minibatch_size: int = 0):
    return plan_update(
        rows,
        num_ranks=num_ranks,
        minibatch_size=minibatch_size,
        max_tokens_per_micro_batch=8,
        seed=0,
        train_all=train_all,
    )


def test_a_rank_with_fewer_micro_batches_gets_dummies() -> None:
    # Rank 0 takes the 9, rank 1 the three 4s, hence two micro-batches (2 x 4 fits the budget of 8) against one.
    [first], [second] = plan([row(0, 9), row(1, 4), row(2, 4), row(3, 4)])
    assert [ids(batch.rows) for batch in first.micro_batches] == [[0], []]
    assert [ids(batch.rows) for batch in second.micro_batches] == [[1, 2], [3]]
    assert first.num_tokens == second.num_tokens == 4 + 2 + 2 + 2


def test_rows_without_advantage_are_measured_only_but_keep_their_weight_in_the_mean() -> None:
    [[only]] = plan([row(0, 4, advantage=0.0), row(1, 6)], num_ranks=1)
    assert [(ids(batch.rows), batch.trains) for batch in only.micro_batches] == [([0], False), ([1], True)]
    assert only.num_tokens == 2 + 3


def test_rows_without_advantage_are_trained_on_where_another_term_needs_it() -> None:
    [[only]] = plan([row(0, 4, advantage=0.0), row(1, 4)], num_ranks=1, train_all=True)
    assert [(ids(batch.rows), batch.trains) for batch in only.micro_batches] == [([0, 1], True)]


def test_a_mini_batch_without_any_advantage_still_has_one_backward_pass_on_every_rank() -> None:
    for [minibatch] in plan([row(0, 4, advantage=0.0)]):
        assert [batch.trains for batch in minibatch.micro_batches] == [False, True]


def test_every_rank_has_as_many_micro_batches_of_each_sort_in_every_mini_batch() -> None:
    rng = np.random.default_rng(0)
    rows = [row(i, int(rng.integers(2, 12)), advantage=float(rng.integers(-1, 2))) for i in range(40)]
    ranks = plan(rows, num_ranks=3, minibatch_size=16)
    for minibatches in zip(*ranks, strict=True):
        assert len({tuple(batch.trains for batch in m.micro_batches) for m in minibatches}) == 1
    planned = [i for rank in ranks for m in rank for batch in m.micro_batches for i in ids(batch.rows)]
    assert sorted(planned) == list(range(40))


def test_an_update_from_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        plan([])


def test_a_row_without_response_tokens_is_refused_by_its_id() -> None:
    with pytest.raises(ValueError, match=r"Rows without: \[7\]"):
        plan([row(0, 4), row(7, 1)])


def test_rows_are_padded_on_the_right() -> None:
    batch = collate([episode([5, 6, 7], 1), episode([8, 9], 1)], [1.0, -2.0])
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 9, 0]]
    assert batch["loss_mask"].tolist() == [[False, True, True], [False, True, False]]
    assert batch["action_logp"].tolist() == [[0, -0.5, -0.5], [0, -0.5, 0]]
    assert batch["advantages"].tolist() == [[1.0], [-2.0]]
    assert (batch["input_ids"].dtype, batch["loss_mask"].dtype) == (torch.int64, torch.bool)


def test_a_dummy_has_a_token_to_predict_and_none_to_learn_from() -> None:
    batch = collate([], [])
    assert batch["input_ids"].shape == (1, 2) and not batch["loss_mask"].any()


def test_the_batch_uses_rllibs_column_names() -> None:
    assert (batching.LOSS_MASK, batching.ACTION_LOGP, batching.ADVANTAGES) == (
        Columns.LOSS_MASK,
        Columns.ACTION_LOGP,
        Columns.ADVANTAGES,
    )


def test_losses_advantages_and_batching_import_without_ray() -> None:
    program = "import sys; sys.modules['ray'] = None; import learners.losses, learners.advantages, learners.batching"
    subprocess.run([sys.executable, "-c", program], check=True)
