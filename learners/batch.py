"""`Batch`: the episodes of one `sample()` over all runners: their records, and references to their tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray

from learners import records
from learners.advantages import group_advantages
from learners.batching import RowRef
from learners.episodes import EpisodeRecord, SampleResult
from learners.metrics import combine_sample_metrics
from torl_env.problems import Problem


@dataclass(frozen=True, slots=True)
class Batch:
    """P groups of G episodes, group by group in the order of the problems.

    Args:
        problems: (P,) the problems, one group each.
        records: (P * G,) what is known of each episode.
        refs: (P,) references to each group's `list[TokenEpisode]`.
        metrics: the runners' own figures, combined.
    """

    problems: Sequence[Problem]
    records: list[EpisodeRecord]
    refs: list[Any]
    metrics: dict[str, float]

    @classmethod
    def gather(
        cls,
        problems: Sequence[Problem],
        shares: Sequence[Sequence[int]],
        results: Sequence[SampleResult],
        group_size: int,
    ) -> "Batch":
        """Put the groups of all runners back into the order of the problems.

        Args:
            problems: (P,) all problems.
            shares: per runner, the indices of the problems it sampled.
            results: per runner, what it returned.
            group_size: G.
        """
        groups: list[list[EpisodeRecord]] = [[] for _ in problems]
        refs: list[Any] = [None] * len(problems)
        for share, result in zip(shares, results, strict=True):
            for position, group in enumerate(share):
                groups[group] = result.records[position * group_size : (position + 1) * group_size]
                refs[group] = result.refs[position]
        return cls(
            problems=problems,
            records=[record for group in groups for record in group],
            refs=refs,
            metrics=combine_sample_metrics([result.metrics for result in results]),
        )

    @property
    def group_size(self) -> int:
        """G."""
        return len(self.records) // len(self.problems)

    def advantages(self, normalize_std: bool) -> np.ndarray:
        """Return (P * G,) float32 group-relative advantages, 0 where an episode does not count.

        Raises:
            RuntimeError: if no episode counts, naming why.
        """
        if not any(record.counts for record in self.records):
            reasons = sorted({record.stop_reason for record in self.records})
            raise RuntimeError(
                f"None of the {len(self.records)} episodes of this step says anything about the policy (stop reasons: "
                f"{', '.join(reasons)}). Check the sandbox and the grader, or `max_prompt_tokens`."
            )
        rewards, counts = self._rewards_and_counts()
        return np.concatenate(
            [
                group_advantages(rewards_G, counts_G, normalize_std=normalize_std)
                for rewards_G, counts_G in zip(rewards, counts, strict=True)
            ]
        )

    def _rewards_and_counts(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (P, G) float32 rewards and (P, G) bool, which of them count."""
        shape = (len(self.problems), self.group_size)
        rewards = np.array([record.reward for record in self.records], np.float32).reshape(shape)
        return rewards, np.array([record.counts for record in self.records]).reshape(shape)

    def groups_line(self, iteration: int) -> dict[str, Any]:
        """Return the line of `groups.jsonl`: see `learners.records`."""
        problem_ids = [problem.id for problem in self.problems]
        return records.groups_line(problem_ids, *self._rewards_and_counts(), iteration=iteration)

    def rows(self, advantages: np.ndarray) -> list[RowRef]:
        """Return what the learners fetch and train on: a row per episode that counts, its position as `row_id`."""
        return [
            RowRef(
                ref=self.refs[row // self.group_size],
                index=row % self.group_size,
                num_tokens=record.num_tokens,
                num_response_tokens=record.num_response_tokens,
                advantage=float(advantages[row]),
                row_id=row,
            )
            for row, record in enumerate(self.records)
            if record.counts
        ]

    def lines(
        self,
        *,
        iteration: int,
        split: str,
        max_episodes: int,
        advantages: np.ndarray | None = None,
        logp: Mapping[int, np.ndarray] | None = None,
    ) -> list[dict[str, Any]]:
        """Return the lines of `learners.records` for the first whole groups of at most `max_episodes` episodes."""
        lines = []
        for group, tokens in enumerate(ray.get(self.refs[: max(1, max_episodes // self.group_size)])):
            for sample in range(self.group_size):
                row = group * self.group_size + sample
                record = self.records[row]
                lines.append(
                    records.episode_line(
                        record,
                        tokens[sample],
                        iteration=iteration,
                        split=split,
                        answer=self.problems[group].answer,
                        advantage=advantages[row] if advantages is not None and record.counts else None,
                        logp=logp.get(row) if logp else None,
                    )
                )
        return lines
