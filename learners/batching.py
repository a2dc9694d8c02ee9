"""From rows to micro-batches: who computes what, in which optimizer step, within which token budget. Numpy and torch
only.

The driver plans (`plan_update`), from lengths and advantages alone; each learner turns its part of the plan into
tensors (`collate`). Shapes: B rows of a micro-batch, T its longest row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from learners.episodes import TokenEpisode

# RLlib's own names (`Columns`) where it has one.
INPUT_IDS = "input_ids"
LOSS_MASK = "loss_mask"
ACTION_LOGP = "action_logp"
ADVANTAGES = "advantages"


@dataclass(frozen=True, slots=True)
class RowRef:
    """One episode to train on, as the driver knows it; its tokens are `ray.get(ref)[index]`.

    Args:
        ref: Reference to the group's `list[TokenEpisode]`.
        index: Position in that list.
        num_tokens: T of the episode, prompt included.
        num_response_tokens: Tokens under the loss mask, at least 1.
        advantage: The episode's group-relative advantage.
        row_id: Names the row in results and errors.
    """

    ref: Any
    index: int
    num_tokens: int
    num_response_tokens: int
    advantage: float
    row_id: int


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows of one forward pass; no rows at all make a dummy that keeps this rank's collectives in step with the
    others'.

    Args:
        rows: Longest first.
        trains: False if the rows have no gradient and are measured only.
    """

    rows: tuple[RowRef, ...]
    trains: bool


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """One rank's share of one optimizer step.

    Args:
        micro_batches: As many, and in the same order of `trains`, on every rank.
        num_tokens: Response tokens of the whole mini-batch on all ranks: what the token-mean divides by.
    """

    micro_batches: tuple[MicroBatch, ...]
    num_tokens: int


def plan_update(
    rows: Sequence[RowRef],
    *,
    num_ranks: int,
    minibatch_size: int,
    max_tokens_per_micro_batch: int,
    seed: int | Sequence[int],
    train_all: bool,
) -> list[list[MiniBatch]]:
    """Return what each rank does, mini-batch by mini-batch.

    A row whose advantage is 0 contributes no gradient to the policy-gradient term, so it is measured (log-probs,
    entropy) without a backward pass unless another term needs one. Its tokens still count in `num_tokens`: the
    gradient is the one that training on all rows gives.

    Args:
        rows: Rows that count.
        num_ranks: Learners to share the work, at least 1.
        minibatch_size: Rows per optimizer step at most; 0 means all of them.
        max_tokens_per_micro_batch: Token budget of one forward pass, padding included. A longer row goes alone.
        seed: Of the split into mini-batches.
        train_all: Give rows of advantage 0 a backward pass too (for a KL or entropy term).

    Returns:
        [rank][mini-batch].

    Raises:
        ValueError: if there are no rows, or one has no response tokens.
    """
    if not rows:
        raise ValueError("`rows` must not be empty: there is nothing to update from.")
    if empty := [row.row_id for row in rows if row.num_response_tokens < 1]:
        raise ValueError(f"Every row needs at least one response token. Rows without: {empty}.")
    plans: list[list[MiniBatch]] = [[] for _ in range(num_ranks)]
    for chosen in split_minibatches(rows, minibatch_size, seed):
        trained = [row for row in chosen if train_all or row.advantage != 0]
        measured = [row for row in chosen if not (train_all or row.advantage != 0)]
        # At least one trained micro-batch, a dummy if need be: the step is then the step of an all-zero gradient.
        parts = [
            *_micro_batches_per_rank(measured, num_ranks, max_tokens_per_micro_batch, trains=False, at_least=0),
            *_micro_batches_per_rank(trained, num_ranks, max_tokens_per_micro_batch, trains=True, at_least=1),
        ]
        num_tokens = sum(row.num_response_tokens for row in chosen)
        for rank, plan in enumerate(plans):
            plan.append(MiniBatch((*parts[rank], *parts[num_ranks + rank]), num_tokens))
    return plans


def split_minibatches(rows: Sequence[RowRef], minibatch_size: int, seed: int | Sequence[int]) -> list[list[RowRef]]:
    """Return the rows in the fewest mini-batches of at most `minibatch_size`, as equal in size as can be, drawn at
    random.

    (Cutting off full ones would leave a last step of a few rows, and its token-mean would weigh each of them the most.)
    """
    if minibatch_size <= 0 or len(rows) <= minibatch_size:
        return [list(rows)]
    order = np.random.default_rng(seed).permutation(len(rows))
    num_parts = -(-len(rows) // minibatch_size)
    return [[rows[i] for i in part] for part in np.array_split(order, num_parts)]


def shard_rows(rows: Sequence[RowRef], num_ranks: int) -> list[list[RowRef]]:
    """Return the rows shared out by tokens: longest first, each to the rank that has the fewest tokens so far."""
    shards: list[list[RowRef]] = [[] for _ in range(num_ranks)]
    tokens = [0] * num_ranks
    for row in _longest_first(rows):
        rank = tokens.index(min(tokens))
        shards[rank].append(row)
        tokens[rank] += row.num_tokens
    return shards


def micro_batches(rows: Sequence[RowRef], max_tokens: int) -> list[tuple[RowRef, ...]]:
    """Return the rows cut into micro-batches, longest first, so that rows x longest row stays within `max_tokens`.

    Similar lengths come together, hence little padding, and the largest one comes first: memory that does not suffice
    is noticed at once.
    """
    ordered = _longest_first(rows)
    batches, start = [], 0
    while start < len(ordered):
        size = max(1, max_tokens // ordered[start].num_tokens)
        batches.append(tuple(ordered[start : start + size]))
        start += size
    return batches


def collate(episodes: "Sequence[TokenEpisode]", advantages: Sequence[float]) -> dict[str, torch.Tensor]:
    """Return the rows as tensors, padded on the right to the longest.

    There is no attention mask: under causal attention a real token sees only tokens before it, which are all real,
    and what is computed at padding is masked out of the loss. Without a mask `sdpa` takes its fast causal kernel.

    Args:
        episodes: B rows; none at all gives a dummy of one row without response tokens.
        advantages: B of them.

    Returns:
        `input_ids` int64, `loss_mask` bool, `action_logp` float32, each (B, T), and `advantages` (B, 1) float32. As in
        `TokenEpisode`, column t of `loss_mask` and `action_logp` describes token t.
    """
    if not episodes:
        # Two tokens, as few as can predict one.
        shape = (1, 2)
        advantages = (0.0,)
    else:
        shape = (len(episodes), max(episode.num_tokens for episode in episodes))
    input_ids, loss_mask, action_logp = np.zeros(shape, np.int64), np.zeros(shape, bool), np.zeros(shape, np.float32)
    for i, episode in enumerate(episodes):
        input_ids[i, : episode.num_tokens] = episode.token_ids
        loss_mask[i, : episode.num_tokens] = episode.loss_mask
        action_logp[i, : episode.num_tokens] = episode.action_logp
    return {
        INPUT_IDS: torch.from_numpy(input_ids),
        LOSS_MASK: torch.from_numpy(loss_mask),
        ACTION_LOGP: torch.from_numpy(action_logp),
        ADVANTAGES: torch.tensor(advantages, dtype=torch.float32).unsqueeze(1),
    }


def _micro_batches_per_rank(
    rows: Sequence[RowRef], num_ranks: int, max_tokens: int, *, trains: bool, at_least: int
) -> list[list[MicroBatch]]:
    """Return each rank's micro-batches, ranks with fewer filled up with dummies."""
    batches = [micro_batches(shard, max_tokens) for shard in shard_rows(rows, num_ranks)]
    length = max(at_least, *(len(batch) for batch in batches))
    return [[MicroBatch(rows, trains) for rows in batch + [()] * (length - len(batch))] for batch in batches]


def _longest_first(rows: Sequence[RowRef]) -> list[RowRef]:
    return sorted(rows, key=lambda row: (-row.num_tokens, row.row_id))
