"""The Ray cluster a run uses: its own, or one it was told to join; and what all its processes take in memory."""

import contextlib
import hashlib
import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import ray
from ray._private.grpc_utils import init_grpc_channel
from ray._private.ray_constants import GLOBAL_GRPC_OPTIONS
from ray._private.services import canonicalize_bootstrap_address

from torl_env.sandbox.deployment import SERVE_ENVIRONMENT

_GONE_S = 30.0
_HEALTH = "/grpc.health.v1.Health/Check"  # gRPC's own protocol, which Ray's head answers
_ANSWER_S = 5.0
_CHATTY_LOGGERS = (
    "ray.serve",
    "ray.rllib.algorithms.algorithm_config",
    "ray.tune.utils.util",
    "ray._common.deprecation",  # RLlib warns of its own calls
    "ray._private.authentication.authentication_token_setup",
)


def quiet_libraries() -> None:
    """Keep what the libraries say about themselves out of a run's output; their errors stay."""
    for name in _CHATTY_LOGGERS:
        # A filter, since Ray sets the levels itself when it starts.
        logging.getLogger(name).addFilter(lambda record: record.levelno >= logging.ERROR)


def in_job() -> bool:
    """Return whether this process was submitted with `ray job submit`: its working directory is a temporary copy."""
    return "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ


def num_nodes() -> int:
    """Return the number of machines of the cluster this process is connected to."""
    return sum(node["Alive"] for node in ray.nodes())


def app_of_folder(folder: Path) -> str:
    """Return the name of the sandbox that is a folder's alone.

    By the folder, so that what was killed finds, and removes, what it left in the cluster when it is started again.
    """
    return f"torl-sandbox-{hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:8]}"


def remove_leftover(app: str) -> None:
    """Remove the Serve application a killed run has left in the cluster, if there is one."""
    from ray import serve

    if app in serve.status().applications:
        serve.delete(app)


def check_address(address: str | None) -> None:
    """Check that a Ray cluster answers where `--address` says; `ray.init` would wait for it for minutes.

    Args:
        address: as in `ray.init`: host:port, ray://host:port, auto or local; or None.

    Raises:
        ValueError: naming the address and what to do.
    """
    where = address or "local"
    if address == "auto":
        try:
            where = canonicalize_bootstrap_address(address) or "local"
        except ConnectionError:
            raise ValueError("`--address auto`: no Ray runs here. Start one with `ray start --head`.") from None
    if where == "local":
        return
    host, _, port = where.removeprefix("ray://").rpartition(":")
    if "/" in host or not host or not port.isdecimal():
        raise ValueError(
            f"`--address {address}` is none of a Ray cluster's: host:port as `ray start --head` prints it (not the "
            f"dashboard's), ray://host:port, or auto."
        )
    # Ray Client's server lacks the health service, and a cluster may want a token, for which Ray has its own errors.
    fine = {grpc.StatusCode.UNAUTHENTICATED} | (
        {grpc.StatusCode.UNIMPLEMENTED} if where.startswith("ray://") else set()
    )
    try:
        with init_grpc_channel(f"{host}:{port}", GLOBAL_GRPC_OPTIONS) as channel:
            channel.unary_unary(_HEALTH)(b"", timeout=_ANSWER_S)
    except grpc.RpcError as error:
        if error.code() not in fine:
            of = f"`--address {address}`" if where == address else f"`--address {address}`, which is {where}"
            raise ValueError(
                f"{of}: no Ray cluster answers there ({error.code().name}: {error.details()}). `ray start --head` "
                f"prints the address of one; without `--address` a Ray of its own is started."
            ) from None


@contextlib.contextmanager
def ray_session(address: str | None) -> Iterator[None]:
    """Have Ray for the block.

    A run starts a Ray of its own, whatever else runs on the machine, and joins a cluster only where `address` names
    one or inside a submitted job. What it started it stops, and waits until it is gone.

    Args:
        address: as in `ray.init`, or None.
    """
    joins = address or ("auto" if in_job() else None)
    # Serve reads it at import in every process, so it must be there before Ray starts the first one.
    for variable, value in SERVE_ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    on_sigterm = signal.getsignal(signal.SIGTERM)
    ray.init(
        address=joins or "local",
        include_dashboard=None if joins else False,
        log_to_driver=False,
        logging_level="warning",
    )
    try:
        # Ray has put its own handler in place, which ends the process without ending what it started.
        signal.signal(signal.SIGTERM, on_sigterm)
        yield
    finally:
        started = _ray_processes()
        ray.shutdown()
        # Workers that are killed with gigabytes of memory go on for a moment, a long one on a busy machine.
        psutil.wait_procs(started, timeout=_GONE_S)


def _ray_processes() -> list[psutil.Process]:
    """Return the raylet that this process started, if it did, and all that it started in turn."""
    raylets = [child for child in psutil.Process().children() if child.name() == "raylet"]
    return [process for raylet in raylets for process in (raylet, *raylet.children(recursive=True))]


class PeakMemory:
    """The largest memory that this process and all its descendants took together, sampled in a thread.

    Measured as PSS, which counts a page shared by n processes once in all; so forked and shared memory is not counted
    twice.
    """

    def __init__(self, interval_s: float = 2.0) -> None:
        """Prepare; `with` starts and ends the sampling."""
        self.peak_mb = 0.0
        self._interval_s = interval_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak-memory", daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(self._interval_s):
            self.peak_mb = max(self.peak_mb, memory_mb())


def memory_mb() -> float:
    """Return the PSS of this process and its descendants in MB; processes that end meanwhile are left out."""
    me = psutil.Process()
    total_kb = 0
    for process in [me, *me.children(recursive=True)]:
        with contextlib.suppress(OSError, ValueError, psutil.Error), open(f"/proc/{process.pid}/smaps_rollup") as file:
            total_kb += next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    return total_kb / 1000
