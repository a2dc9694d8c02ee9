"""What runs in each replica of the Serve application: a local sandbox, its health and its metrics. Needs Ray."""

import math
import os
from typing import Any

from torl_env.sandbox.local import LocalSandbox
from torl_env.sandbox.stats import BUCKETS_S, SandboxStats
from torl_env.sandbox.types import ExecutionResult, RunRequest, Status
from torl_env.sandbox.wire import answer

_HEALTH_TIMEOUT_S = 5.0


class SandboxReplica:
    """A local sandbox behind a Serve handle, and behind HTTP where a proxy runs."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, max_concurrent_runs: int | None, replicas_per_node: int, memory_mb: int, max_queued_runs: int, tier: str
    ) -> None:
        """Start the sandbox: a tier that this node does not have is an error here, not in each call."""
        if max_concurrent_runs is None:
            max_concurrent_runs = max(1, math.ceil(len(os.sched_getaffinity(0)) / replicas_per_node))
        self._sandbox = LocalSandbox(max_concurrent_runs, memory_mb, max_queued_runs=max_queued_runs, tier=tier)
        self._stats = SandboxStats()
        self._metrics = _Metrics()
        await self._sandbox.start()

    async def execute(self, request: RunRequest) -> ExecutionResult:
        """Run one program; a cancelled call kills it."""
        result = await self._sandbox.execute(request)
        self._stats.add_result(result)
        self._metrics.note(result)
        return result

    async def stats(self) -> SandboxStats:
        """Return what this replica has done."""
        return self._stats

    async def check_health(self) -> None:
        """Fork an empty program past the queue; Serve replaces a replica that raises here."""
        result = await self._sandbox.check(_HEALTH_TIMEOUT_S)
        if not result.ok:
            raise RuntimeError(f"The sandbox does not run programs: {result.stderr}")

    async def __call__(self, request: Any) -> Any:
        """Answer an HTTP request that Serve's proxy passes on."""
        from starlette.responses import JSONResponse

        if request.method != "POST" or not request.url.path.endswith("/run_code"):
            return JSONResponse({"detail": "POST /run_code is what there is."}, status_code=404)
        status, body = await answer(await request.body(), self.execute)
        return JSONResponse(body, status_code=status)


class _Metrics:
    """Counters and histograms that Ray exports to Prometheus, with the application's and replica's name."""

    def __init__(self) -> None:
        from ray.serve import metrics

        bounds = list(BUCKETS_S)
        self._runs = metrics.Counter("torl_sandbox_runs", "Programs by status and tier.", ("status", "tier"))
        self._limits = metrics.Counter("torl_sandbox_limit_hits", "Programs that a limit ended.", ("limit",))
        self._run_s = metrics.Histogram("torl_sandbox_run_seconds", "Time of programs.", boundaries=bounds)
        self._queue_s = metrics.Histogram("torl_sandbox_queue_seconds", "Time before programs.", boundaries=bounds)

    def note(self, result: ExecutionResult) -> None:
        self._runs.inc(tags={"status": str(result.status), "tier": str(result.tier)})
        if result.limit_hit:
            self._limits.inc(tags={"limit": result.limit_hit})
        if result.status is not Status.SANDBOX_ERROR:
            self._run_s.observe(result.run_s)
            self._queue_s.observe(result.queue_s)
