"""The sandbox as a Ray Serve application: one `LocalSandbox` a replica, called through Serve's handles.

Needs Ray, which the rest of the package does not. An HTTP proxy is started by request only: within a cluster it would
cost more than the programs do. A replica reserves no CPU by default: on a small machine it would wait for ever for one
that a training run holds, and the programs it runs are bounded by `max_concurrent_runs` anyway.
"""

import asyncio
import math
import os
import time
import weakref
from typing import Any

from torl_env.sandbox.blocking import run_blocking
from torl_env.sandbox.local import LocalSandbox
from torl_env.sandbox.replica import SandboxReplica
from torl_env.sandbox.stats import SandboxStats
from torl_env.sandbox.tiers import probe
from torl_env.sandbox.types import OVERLOAD, ExecutionResult, RunRequest

DEFAULT_NAME = "torl-sandbox"
_DEPLOYMENT = "Sandbox"
_ATTEMPTS = 3  # a call whose replica died goes to another one, or to the one Serve starts in its place
_RETRY_WAIT_S = 0.5
_STATS_TIMEOUT_S = 30.0
_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 60.0
_MAX_REPLICAS_PER_NODE = 2  # each divides the node's cores; more of them only make more event loops
_CALLS_PER_RUN = 4  # calls at a replica, for each program it may run at once, above which another replica is started
_UPSCALE_DELAY_S, _DOWNSCALE_DELAY_S = 2.0, 30.0
_DRAIN_TIMEOUT_S = 30.0  # a replica that goes finishes its calls first; those it does not get to are made elsewhere
_HEALTH_PERIOD_S, _HEALTH_TIMEOUT_S = 10.0, 60.0
SERVE_ENVIRONMENT = {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1", "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0"}
"""Serve's throughput mode, with one event loop a process: 2.9 ms a call instead of 5.3, not counting the program.

Serve reads the environment when it is first imported, in this process, its controller and its replicas: set it before
`ray.init`. Direct ingress would come with that mode; it starts a proxy nobody calls and drains it for 30 s at the end.
"""


def _serve() -> Any:
    for variable, value in SERVE_ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    from ray import serve

    return serve


def _status(name: str) -> str | None:
    application = _serve().status().applications.get(name)
    return None if application is None else application.status.value


def start_sandbox(
    name: str = DEFAULT_NAME,
    *,
    num_replicas: int | str = 1,
    max_concurrent_runs: int | None = None,
    memory_mb: int = 1024,
    num_cpus: float = 0,
    tier: str = "auto",
    max_queued_runs: int = 10_000,
    http_port: int | None = None,
) -> bool:
    """Deploy the sandbox as Serve application `name` and wait until it runs, or leave the one that does.

    Args:
        name: of the application; Serve itself is started if it does not run.
        num_replicas: replicas, spread over the cluster; "auto" for one replica and up to two a node, as many as the
            number of waiting calls asks for.
        max_concurrent_runs: programs at once in a replica; None for its node's cores divided by the replicas of a node.
        memory_mb: address space of each process of a program.
        num_cpus: that a replica reserves.
        tier: of `LocalSandbox`; which one it is, and how to get strict where it is not, is logged once.
        max_queued_runs: programs that may wait in a replica before calls are refused.
        http_port: where Serve's proxy answers `POST /run_code` on this machine; None for no proxy. Serve keeps the
            proxy it was started with, so that this is for whoever starts it.

    Returns:
        Whether this call deployed it: whoever did removes it, with `stop_sandbox`.

    Raises:
        SandboxProcessError: if this machine does not have the tier, with the reason and the remedy.
        RuntimeError: if Ray is not initialized, or an application somebody else is deploying does not come up.
        ValueError: if a number is out of range.
    """
    import ray

    if not ray.is_initialized():
        raise RuntimeError("Ray is not initialized; call `ray.init` before `start_sandbox`.")
    if num_replicas != "auto" and not (isinstance(num_replicas, int) and num_replicas >= 1):
        raise ValueError(f"`num_replicas` ({num_replicas}) should be at least 1, or 'auto'.")
    num_nodes = sum(node["Alive"] for node in ray.nodes())
    max_replicas = num_replicas if isinstance(num_replicas, int) else _MAX_REPLICAS_PER_NODE * num_nodes
    replicas_per_node = math.ceil(max_replicas / num_nodes)
    runs = max_concurrent_runs or max(1, len(os.sched_getaffinity(0)) // replicas_per_node)
    # The checks of the replicas' own sandboxes, here instead of in a replica that will not start.
    LocalSandbox(max_concurrent_runs, memory_mb, max_queued_runs=max_queued_runs, tier=tier)
    run_blocking(probe(tier))
    serve = _serve()
    _start_serve(serve, http_port)
    deadline = time.monotonic() + _START_TIMEOUT_S
    # It is unhealthy while Serve replaces a replica that died.
    while (status := _status(name)) in ("DEPLOYING", "UNHEALTHY"):
        if time.monotonic() > deadline:
            raise RuntimeError(f"Serve application {name!r} is still {status.lower()} after {_START_TIMEOUT_S:g} s.")
        time.sleep(0.1)
    if status == "RUNNING":
        return False
    deployment = serve.deployment(SandboxReplica).options(
        name=_DEPLOYMENT,
        **_scale(num_replicas, max_replicas, runs),
        max_constructor_retry_count=2,
        max_ongoing_requests=100_000,  # the queue is the local sandbox's; Serve's own would poll for free replicas
        ray_actor_options={"num_cpus": num_cpus, "runtime_env": {"env_vars": SERVE_ENVIRONMENT}},
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=_DRAIN_TIMEOUT_S,
        health_check_period_s=_HEALTH_PERIOD_S,
        health_check_timeout_s=_HEALTH_TIMEOUT_S,
    )
    bound = deployment.bind(max_concurrent_runs, replicas_per_node, memory_mb, max_queued_runs, tier)
    serve.run(bound, name=name, route_prefix=None if http_port is None else "/")
    return True


def _scale(num_replicas: int | str, max_replicas: int, max_concurrent_runs: int) -> dict[str, Any]:
    """Return Serve's options: so many replicas, or enough to keep few calls waiting for each program that may run."""
    if num_replicas != "auto":
        return {"num_replicas": num_replicas}
    return {
        "max_replicas_per_node": _MAX_REPLICAS_PER_NODE,
        "autoscaling_config": {
            "min_replicas": 1,
            "max_replicas": max_replicas,
            "target_ongoing_requests": _CALLS_PER_RUN * max_concurrent_runs,
            "upscale_delay_s": _UPSCALE_DELAY_S,
            "downscale_delay_s": _DOWNSCALE_DELAY_S,
            "metrics_interval_s": 1.0,
            "look_back_period_s": 5.0,
        },
    }


def _start_serve(serve: Any, http_port: int | None) -> None:
    """Start Serve on the cluster, or find it there; several processes may do so at the same moment."""
    from ray.exceptions import ActorAlreadyExistsError

    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            if http_port is None:
                serve.start(proxy_location="Disabled")
            else:
                serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": http_port})
        except ActorAlreadyExistsError:
            # Another process is just starting the controller; the next attempt connects to it.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


def stop_sandbox(name: str = DEFAULT_NAME) -> None:
    """Remove application `name`, if it is there; Serve goes on running for whatever else uses it.

    Raises:
        TimeoutError: if it is still there after a minute; its calls in flight have half of that to end.
    """
    _serve().delete(name, _blocking=False)
    # Not Serve's own wait, which looks once a second: every run ends with this.
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while (status := _status(name)) is not None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"Serve application {name!r} was removed, and is still {status.lower()}.")
        time.sleep(0.1)


def sandbox_stats(name: str = DEFAULT_NAME) -> SandboxStats:
    """Ask every live replica of application `name`; callable with and without a running event loop."""

    async def ask() -> list[SandboxStats]:
        handle = _serve().get_deployment_handle(_DEPLOYMENT, name)
        answers = await handle.broadcast("stats").results_async(timeout_s=_STATS_TIMEOUT_S)
        await handle.shutdown_async()
        return answers

    total = SandboxStats(num_replicas=0)
    for stats in run_blocking(ask()):
        total.add(stats)
    return total


class ServeSandbox:
    """A `SandboxClient` for the Serve application `name`, from the driver, any actor and any event loop.

    Calls wait in the replicas' queues, at no cost of a thread. A call whose replica dies is made again; after three
    attempts it is a sandbox error. Pickles as its name.
    """

    def __init__(self, name: str = DEFAULT_NAME) -> None:
        self.name = name
        self._closed = False
        # In throughput mode a handle lives on the loop it is first used on, so there is one for each loop.
        self._handles: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = weakref.WeakKeyDictionary()

    def __reduce__(self) -> tuple[type["ServeSandbox"], tuple[str]]:
        return ServeSandbox, (self.name,)

    async def run(self, code: str, timeout_s: float, **options: Any) -> ExecutionResult:
        """Run `code` as a Python program for at most `timeout_s` seconds, counted from its start in a replica.

        `options` are `RunRequest`'s other fields.

        Raises:
            ValueError: if an argument is of the wrong kind or out of range.
        """
        return await self.execute(RunRequest(code, timeout_s, **options))

    async def execute(self, request: RunRequest) -> ExecutionResult:
        """Run one program; a call whose replica died, or whose replica has too many waiting, is made again."""
        failure = "the sandbox client is closed"
        for attempt in range(_ATTEMPTS):
            if self._closed:
                break
            if attempt:
                await asyncio.sleep(_RETRY_WAIT_S * attempt)
            try:
                response = self._handle().execute.remote(request)
                try:
                    result = await response
                except asyncio.CancelledError:
                    response.cancel()
                    raise
                if result.limit_hit != OVERLOAD or attempt == _ATTEMPTS - 1:
                    return result
            except (
                Exception
            ) as error:  # Ray has a dozen errors for "the replica could not answer"; none is the program's
                failure = f"application {self.name!r} did not answer ({type(error).__name__})"
        return ExecutionResult.sandbox_error(failure)

    def _handle(self) -> Any:
        loop = asyncio.get_running_loop()
        if loop not in self._handles:
            self._handles[loop] = _serve().get_app_handle(self.name)
        return self._handles[loop]

    async def close(self) -> None:
        """Let go of the application; it goes on running."""
        self._closed = True
        handle = self._handles.pop(asyncio.get_running_loop(), None)
        if handle is not None:
            await handle.shutdown_async()
