"""`--address`: what is no cluster's is answered at once, before anything starts or is written."""

import contextlib
import importlib
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from experiments import cluster
from experiments.cluster import check_address


@pytest.fixture
def nobody() -> Iterator[str]:
    """Return an address at which nothing listens, and which nobody else can take meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


class Health(grpc.GenericRpcHandler):
    """What a Ray head answers when it is asked for its health."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if handler_call_details.method != "/grpc.health.v1.Health/Check":
            return None
        return grpc.unary_unary_rpc_method_handler(lambda request, context: b"\x08\x01")


@contextlib.contextmanager
def serving(*handlers: grpc.GenericRpcHandler) -> Iterator[int]:
    """Have a gRPC server for the block; give its port."""
    server = grpc.server(ThreadPoolExecutor(1), handlers)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


def test_a_cluster_that_answers_is_taken() -> None:
    with serving(Health()) as port:
        for address in (f"127.0.0.1:{port}", f"localhost:{port}", f"ray://127.0.0.1:{port}", "local", None):
            check_address(address)


def test_another_server_than_rays_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_ANSWER_S", 0.5)
    with serving() as port:
        check_address(f"ray://127.0.0.1:{port}")  # as Ray Client's, which has no health service
        with pytest.raises(ValueError, match=r"no Ray cluster answers there \(UNIMPLEMENTED"):
            check_address(f"127.0.0.1:{port}")
    silent = socket.create_server(("127.0.0.1", 0))
    with silent, pytest.raises(ValueError, match="no Ray cluster answers there"):
        check_address(f"127.0.0.1:{silent.getsockname()[1]}")


def test_auto_is_the_cluster_that_ray_itself_would_join(nobody: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", nobody)
    with pytest.raises(ValueError, match=r"`--address auto`, which is .*: no Ray cluster answers there"):
        check_address("auto")
    monkeypatch.setenv("RAY_ADDRESS", "local")
    check_address("auto")


@pytest.mark.parametrize("address", ["http://127.0.0.1:8265", "somewhere", "127.0.0.1:", ":6379", "127.0.0.1:ray"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="is none of a Ray cluster's: host:port"):
        check_address(address)


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("train", ["quickstart", "--storage-path", "folder"]),
        ("sweep", ["quickstart", "--seeds", "2", "--storage-path", "folder"]),
        ("evaluate", ["--model", "some/model", "--problems", "arithmetic", "--storage-path", "folder"]),
    ],
)
@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_every_command_refuses_a_dead_address_at_once_and_leaves_no_folder(
    command: str,
    arguments: list[str],
    scheme: str,
    nobody: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    main = importlib.import_module(f"experiments.{command}").main
    start_s = time.monotonic()
    assert main([*arguments, "--address", scheme + nobody]) == 2
    assert time.monotonic() - start_s < 60  # the imports; Ray itself would wait for minutes
    assert f"`--address {scheme + nobody}`: no Ray cluster answers there" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
