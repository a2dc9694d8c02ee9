"""What a sandbox has done, as numbers that can be added up over replicas."""

from bisect import bisect_left
from dataclasses import dataclass, field

from torl_env.sandbox.types import ExecutionResult, Status

BUCKETS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
"""Upper ends of the buckets of run and queue times; one more bucket holds what took longer."""


@dataclass(slots=True)
class SandboxStats:
    """What the live replicas of an application have done; a replica that died took its counts along.

    Attributes:
        num_runs: programs executed, each counted in the replica that ran it.
        num_replicas: live replicas.
        tiers: number of runs by tier.
        statuses: number of calls by status, those that were not run ("sandbox_error") included.
        limit_hits: number of runs that a limit ended, by limit.
        run_s: number of runs by bucket of `BUCKETS_S`.
        queue_s: likewise for the time they waited.
    """

    num_runs: int = 0
    num_replicas: int = 1
    tiers: dict[str, int] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    limit_hits: dict[str, int] = field(default_factory=dict)
    run_s: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    queue_s: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))

    def add_result(self, result: ExecutionResult) -> None:
        """Count a call."""
        _count(self.statuses, {str(result.status): 1})
        if result.limit_hit:
            _count(self.limit_hits, {result.limit_hit: 1})
        if result.status is not Status.SANDBOX_ERROR:
            self.num_runs += 1
            _count(self.tiers, {str(result.tier): 1})
            self.run_s[bisect_left(BUCKETS_S, result.run_s)] += 1
            self.queue_s[bisect_left(BUCKETS_S, result.queue_s)] += 1

    def add(self, other: "SandboxStats") -> None:
        """Add what another replica has done."""
        self.num_runs += other.num_runs
        self.num_replicas += other.num_replicas
        for mine, theirs in (
            (self.tiers, other.tiers),
            (self.statuses, other.statuses),
            (self.limit_hits, other.limit_hits),
        ):
            _count(mine, theirs)
        self.run_s = [a + b for a, b in zip(self.run_s, other.run_s, strict=True)]
        self.queue_s = [a + b for a, b in zip(self.queue_s, other.queue_s, strict=True)]

    def as_metrics(self) -> dict[str, float]:
        """Return a flat dictionary for a results table: counts, and medians and 99th percentiles as bucket ends."""
        metrics: dict[str, float] = {"num_runs": self.num_runs, "num_replicas": self.num_replicas}
        metrics |= {f"num_{tier}_runs": count for tier, count in self.tiers.items()}
        metrics |= {f"num_{limit}_limit_hits": count for limit, count in self.limit_hits.items()}
        metrics["num_sandbox_errors"] = self.statuses.get(Status.SANDBOX_ERROR, 0)
        for name, counts in (("run_s", self.run_s), ("queue_s", self.queue_s)):
            metrics |= {f"{name}_p50": _quantile(counts, 0.5), f"{name}_p99": _quantile(counts, 0.99)}
        return metrics


def _count(counts: dict[str, int], more: dict[str, int]) -> None:
    for key, number in more.items():
        counts[key] = counts.get(key, 0) + number


def _quantile(counts: list[int], share: float) -> float:
    """Return the upper end of the bucket that holds the quantile; 0 if nothing was counted."""
    wanted, seen = share * sum(counts), 0
    for end, count in zip((*BUCKETS_S, float("inf")), counts, strict=True):
        seen += count
        if count and seen >= wanted:
            return end
    return 0.0
