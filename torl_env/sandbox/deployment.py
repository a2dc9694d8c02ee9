"""The sandbox as a Ray Serve application: one `LocalSandbox` a replica, called through Serve's handles.

Needs Ray, which the rest of the package does not. No HTTP proxy is started: within a cluster it would cost more than
the programs do. A replica reserves no CPU by default: on a small machine it would wait for ever for one that a training
run holds, and the programs it runs are bounded by `max_concurrent_runs` anyway.
"""

import asyncio
import os
import time
import weakref
from dataclasses import dataclass
from typing import Any

from torl_env.sandbox.blocking import run_blocking
from torl_env.sandbox.local import LocalSandbox
from torl_env.sandbox.types import ExecutionResult, Status

DEFAULT_NAME = "torl-sandbox"
_DEPLOYMENT = "Sandbox"
_ATTEMPTS = 3  # a call whose replica died goes to another one, or to the one Serve starts in its place
_RETRY_WAIT_S = 0.5
_STATS_TIMEOUT_S = 30.0
_START_TIMEOUT_S = 120.0
_MAX_REPLICAS_PER_NODE = 2  # each divides the node's cores; more of them only make more event loops
_CALLS_PER_RUN = 4  # calls at a replica, for each program it may run at once, above which another replica is started
_UPSCALE_DELAY_S, _DOWNSCALE_DELAY_S = 2.0, 30.0
SERVE_ENVIRONMENT = {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1", "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0"}
"""Serve's throughput mode, with one event loop a process: 2.9 ms a call instead of 5.3, not counting the program.

Serve reads the environment when it is first imported, in this process, its controller and its replicas: set it before
`ray.init`. Direct ingress would come with that mode; it starts a proxy nobody calls and drains it for 30 s at the end.
"""


@dataclass(frozen=True, slots=True)
class SandboxStats:
    """What the live replicas of an application have done; a replica that died took its count along.

    Attributes:
        num_runs: programs executed, each counted in the replica that ran it.
        num_replicas: live replicas.
    """

    num_runs: int
    num_replicas: int


class SandboxReplica:
    """What runs in each replica: a local sandbox and a counter."""

    def __init__(self, max_concurrent_runs: int, memory_mb: int) -> None:
        self._sandbox = LocalSandbox(max_concurrent_runs, memory_mb)
        self._num_runs = 0

    async def run(self, code: str, timeout_s: float) -> ExecutionResult:
        """Run one program; a cancelled call kills it."""
        result = await self._sandbox.run(code, timeout_s)
        self._num_runs += result.status is not Status.SANDBOX_ERROR
        return result

    async def num_runs(self) -> int:
        """Return how many programs this replica has executed."""
        return self._num_runs


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
) -> bool:
    """Deploy the sandbox as Serve application `name` and wait until it runs, or leave the one that does.

    Args:
        name: of the application; Serve itself is started if it does not run.
        num_replicas: replicas, spread over the cluster; "auto" for one replica and up to two a node, as many as the
            number of waiting calls asks for.
        max_concurrent_runs: programs at once in a replica; None for this machine's cores shared out among the replicas.
        memory_mb: address space of each process of a program.
        num_cpus: that a replica reserves.

    Returns:
        Whether this call deployed it: whoever did removes it, with `stop_sandbox`.

    Raises:
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
    if max_concurrent_runs is None:
        max_concurrent_runs = max(1, len(os.sched_getaffinity(0)) * num_nodes // max_replicas)
    LocalSandbox(max_concurrent_runs, memory_mb)  # its checks, here instead of in a replica that will not start
    serve = _serve()
    _start_serve(serve)
    if _status(name) in ("RUNNING", "DEPLOYING"):
        deadline = time.monotonic() + _START_TIMEOUT_S
        while (status := _status(name)) == "DEPLOYING":
            if time.monotonic() > deadline:
                raise RuntimeError(f"Serve application {name!r} is still deploying after {_START_TIMEOUT_S:g} s.")
            time.sleep(0.1)
        if status == "RUNNING":
            return False
    deployment = serve.deployment(SandboxReplica).options(
        name=_DEPLOYMENT,
        **_scale(num_replicas, max_replicas, max_concurrent_runs),
        max_ongoing_requests=100_000,  # the queue is the local sandbox's; Serve's own would poll for free replicas
        ray_actor_options={"num_cpus": num_cpus, "runtime_env": {"env_vars": SERVE_ENVIRONMENT}},
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=5.0,
    )
    serve.run(deployment.bind(max_concurrent_runs, memory_mb), name=name, route_prefix=None)
    return True


def _scale(num_replicas: int | str, max_replicas: int, max_concurrent_runs: int) -> dict[str, Any]:
    """Return Serve's options: so many replicas, or enough to keep few calls waiting for each program that may run."""
    if num_replicas != "auto":
        return {"num_replicas": num_replicas}
    return {
        "autoscaling_config": {
            "min_replicas": 1,
            "max_replicas": max_replicas,
            "target_ongoing_requests": _CALLS_PER_RUN * max_concurrent_runs,
            "upscale_delay_s": _UPSCALE_DELAY_S,
            "downscale_delay_s": _DOWNSCALE_DELAY_S,
        }
    }


def _start_serve(serve: Any) -> None:
    """Start Serve on the cluster, or find it there; several processes may do so at the same moment."""
    from ray.exceptions import ActorAlreadyExistsError

    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            serve.start(proxy_location="Disabled")
        except ActorAlreadyExistsError:
            # Another process is just starting the controller; the next attempt connects to it.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


def stop_sandbox(name: str = DEFAULT_NAME) -> None:
    """Remove application `name`, if it is there; Serve goes on running for whatever else uses it."""
    _serve().delete(name)


def sandbox_stats(name: str = DEFAULT_NAME) -> SandboxStats:
    """Ask every live replica of application `name`; callable with and without a running event loop."""

    async def ask() -> list[int]:
        handle = _serve().get_deployment_handle(_DEPLOYMENT, name)
        counts = await handle.broadcast("num_runs").results_async(timeout_s=_STATS_TIMEOUT_S)
        await handle.shutdown_async()
        return counts

    counts = run_blocking(ask())
    return SandboxStats(num_runs=sum(counts), num_replicas=len(counts))


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

    async def run(self, code: str, timeout_s: float) -> ExecutionResult:
        """Run `code` as a Python program for at most `timeout_s` seconds, counted from its start in a replica."""
        failure = "the sandbox client is closed"
        for attempt in range(_ATTEMPTS):
            if self._closed:
                break
            if attempt:
                await asyncio.sleep(_RETRY_WAIT_S * attempt)
            try:
                response = self._handle().run.remote(code, timeout_s)
                try:
                    return await response
                except asyncio.CancelledError:
                    response.cancel()
                    raise
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
