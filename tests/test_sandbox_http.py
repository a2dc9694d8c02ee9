"""The sandbox over HTTP: SandboxFusion's protocol, as its clients speak it, and our own client."""

import asyncio
import base64
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import pytest_asyncio
from aiohttp import web

from tests.ordinary_user import as_ordinary_user, as_root
from tests.shared_files import SANDBOX_CASES, needs_shared_files
from torl_env import ExecutionResult, LocalSandbox, Status
from torl_env.sandbox import serve
from torl_env.sandbox.http import HttpSandbox
from torl_env.sandbox.types import RunRequest, Tier
from torl_env.sandbox.wire import BadRequestError, format_request, format_response, parse_request, parse_response

TOKEN = "token of the tests"
SERVE = [sys.executable, "-m", "torl_env.sandbox.serve", "--port", "0", "--max-concurrent-runs", "4"]


async def listen(app: web.Application) -> tuple[web.AppRunner, str]:
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


async def answering(run_code: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> tuple[web.AppRunner, str]:
    """Start a server of another make."""
    app = web.Application()
    app.router.add_post("/run_code", run_code)
    return await listen(app)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[str]:
    sandbox = LocalSandbox(max_concurrent_runs=2)
    runner, url = await listen(serve.build_app(sandbox, TOKEN))
    yield url
    await runner.cleanup()
    await sandbox.close()


async def post(url: str, body: Any, token: str | None = TOKEN) -> tuple[int, dict[str, Any]]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{url}/run_code", json=body) as response,
    ):
        return response.status, await response.json()


async def test_failures_and_time_outs_are_200_with_both_streams_as_text(server: str) -> None:
    status, failed = await post(server, {"code": "print(1)\n1 / 0", "language": "python", "run_timeout": 10})
    assert (status, failed["status"], failed["run_result"]["return_code"]) == (200, "Failed", 1)
    assert failed["run_result"]["stderr"].endswith("ZeroDivisionError: division by zero\n")
    code = "print('so far')\nwhile True: pass"
    status, late = await post(server, {"code": code, "language": "python", "run_timeout": 1})
    ran = late["run_result"]
    assert (status, late["status"], ran["status"], ran["return_code"]) == (200, "Failed", "TimeLimitExceeded", None)
    assert ran["stdout"] == "so far\n"
    status, killed = await post(server, {"code": "import os; os.abort()", "language": "python"})
    assert killed["run_result"]["return_code"] == -6
    assert killed["sandbox"]["signal"] == 6


async def test_files_travel_as_base64(server: str) -> None:
    body = {
        "code": "open('out', 'w').write(open('in').read().upper())",
        "language": "python",
        "files": {"in": base64.b64encode(b"abc").decode()},
        "fetch_files": ["out", "missing"],
    }
    _, response = await post(server, body)
    assert response["files"] == {"out": base64.b64encode(b"ABC").decode()}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ([], "should be an object"),
        ({}, "`code` is missing"),
        ({"code": 1}, "`code` (1) should be of kind str"),
        ({"code": "1", "language": "cpp"}, "`language` ('cpp')"),
        ({"code": "1", "run_timeout": 0}, "`timeout_s` (0)"),
        ({"code": "1", "run_timeout": "5"}, "`run_timeout` ('5')"),
        ({"code": "1", "files": {"../x": ""}}, "`files` has the path '../x'"),
        ({"code": "1", "files": {"x": "%"}}, "`files['x']` should be base64"),
        ({"code": "1", "files": {"\ud800": ""}}, "`files` has the path '\\ud800'"),
        ({"code": "1", "files": {"x" * 256: ""}}, "paths should lead into the working directory"),
        ({"code": "1", "files": {"a/": ""}}, "`files` has the path 'a/'"),
        ({"code": "1", "files": {"./a": "", "a//b": ""}}, "`files` has the path 'a/b' below another file"),
        ({"code": "1", "fetch_files": ["\ud800"]}, "`fetch_files` has the path '\\ud800'"),
        ({"code": "1", "fetch_files": ["a\0b"]}, "`fetch_files` has the path"),
        ({"code": "1", "run_timeout": float("inf")}, "`timeout_s` (inf) should be positive and at most 10,000,000"),
        ({"code": "1", "cpu_timeout": float("nan")}, "`cpu_timeout_s` (nan)"),
        ({"code": "1", "memory_limit_MB": 10**30}, "`memory_mb` (1000000000000000000000000000000)"),
        ({"code": "1", "fetch_files": [1]}, "`fetch_files`"),
    ],
)
async def test_a_bad_body_is_422_and_says_why(server: str, body: Any, said: str) -> None:
    status, answer = await post(server, body)
    assert status == 422
    assert said in answer["detail"]


async def test_a_token_is_asked_for(server: str) -> None:
    for token in (None, "another"):
        status, _ = await post(server, {"code": "print(1)"}, token)
        assert status == 401


async def test_headers_that_no_client_should_send_are_refused(server: str) -> None:
    for headers, status in (
        (b"Authorization: Bearer \xff\xfe", b"401"),
        (b"Authorization: Bearer " + TOKEN.encode() + b"\r\nContent-Encoding: gzip", b"400"),
        (b"Authorization: Bearer " + TOKEN.encode() + b"\r\nContent-Encoding: deflate", b"400"),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.rpartition(":")[2]))
        body = b'{"code": "print(1)"}'
        writer.write(b"POST /run_code HTTP/1.1\r\nHost: x\r\n" + headers)
        writer.write(b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert (await reader.readline()).split()[1] == status
        writer.close()


@pytest.mark.parametrize("port", ["99999", "-1"])
def test_a_port_that_there_is_not_is_refused(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve.main(["--port", port, "--max-concurrent-runs", "1"]) == 2
    assert "port must be 0-65535" in capsys.readouterr().err


async def test_the_client_gives_the_results_of_the_local_sandbox(server: str) -> None:
    client = HttpSandbox(server, token=TOKEN)
    result = await client.run("import sys\nprint(input())\nsys.exit(3)", 10, stdin="hi")
    assert (result.status, result.stdout, result.return_code, result.tier) == (Status.FAILED, "hi\n", 3, Tier.STRICT)
    assert (await client.run("x = bytearray(2 ** 40)", 10)).status is Status.MEMORY_LIMIT
    assert (await client.run("while True: pass", 1)).status is Status.TIME_LIMIT
    many = await asyncio.gather(*[client.run(f"print({i})", 10) for i in range(50)])
    assert [result.stdout for result in many] == [f"{i}\n" for i in range(50)]
    await client.close()
    assert (await client.run("1", 10)).stderr == "SandboxError: the sandbox client is closed"


async def test_a_forked_process_has_connections_of_its_own(server: str) -> None:
    script = (
        "import os, sys\nfrom torl_env.sandbox.blocking import run_blocking\n"
        "from torl_env.sandbox.http import HttpSandbox\n"
        "client = HttpSandbox(sys.argv[1], token=sys.argv[2])\nrun_blocking(client.run('1', 10))\n"
        "child = os.fork()\nprint(run_blocking(client.run('print(1)', 10)).ok, flush=True)\n"
        "first = [id(session._loop) for session in client._sessions.values()]\n"
        "print(len(set(first)) == (1 if child else 2), flush=True)\nrun_blocking(client.close())\n"
        "if child: os.waitpid(child, 0)\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script, server, TOKEN), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert output == b"True\n" * 4


async def test_overload_and_outages_are_tried_again() -> None:
    answers = [503, 504, 200]

    async def run_code(_: web.Request) -> web.Response:
        body = format_response(ExecutionResult(Status.SUCCESS, stdout="1\n", return_code=0))
        return web.json_response(body, status=answers.pop(0))

    runner, url = await answering(run_code)
    client = HttpSandbox(url)
    assert (await client.run("print(1)", 10)).stdout == "1\n"
    await client.close()
    await runner.cleanup()


@pytest.mark.parametrize(("status", "num_calls"), [(504, 2), (500, 1), (422, 1)])
async def test_what_keeps_failing_is_a_sandbox_error(status: int, num_calls: int) -> None:
    calls = []

    async def run_code(request: web.Request) -> web.Response:
        calls.append(request)
        return web.Response(status=status, text="no")

    runner, url = await answering(run_code)
    client = HttpSandbox(url, max_attempts=2)
    result = await client.run("print(1)", 10)
    assert result.status is Status.SANDBOX_ERROR
    assert f"answered {status}" in result.stderr
    assert len(calls) == num_calls
    await client.close()
    await runner.cleanup()


@pytest.mark.parametrize(
    "text",
    [
        *("[]", "null", '"x"', "5", "[" * 100_000, "no JSON", "\xff"),
        '{"status": ["Success"]}',
        *(f'{{"status": "Success", "{name}": [1]}}' for name in ("run_result", "sandbox", "files")),
        *(f'{{"status": "Success", "files": {{"a": {text}}}}}' for text in ("1", "null", '"%"')),
        *(
            f'{{"status": "Success", "run_result": {{"{name}": {value}}}}}'
            for name, value in (("stdout", 5), ("stderr", "{}"), ("return_code", '"0"'), ("execution_time", "true"))
        ),
        *(
            f'{{"status": "Failed", "sandbox": {{"{name}": {value}}}}}'
            for name, value in (("tier", '"best"'), ("tier", 5), ("limit_hit", 1), ("cpu_time", '"1"'))
        ),
    ],
    ids=lambda text: text[:60],
)
async def test_an_answer_that_is_no_result_is_a_sandbox_error(text: str) -> None:
    async def run_code(_: web.Request) -> web.Response:
        return web.Response(body=text.encode("latin-1"), content_type="application/json")

    runner, url = await answering(run_code)
    client = HttpSandbox(url, max_attempts=1)
    result = await client.run("print(1)", 10)
    assert result.status is Status.SANDBOX_ERROR
    assert result.stderr.startswith(f"SandboxError: {url} gave no usable answer")
    await client.close()
    await runner.cleanup()


async def test_a_server_that_is_not_there_is_a_sandbox_error() -> None:
    client = HttpSandbox("http://127.0.0.1:1", max_attempts=2)
    result = await client.run("print(1)", 10)
    assert result.stderr == "SandboxError: http://127.0.0.1:1 did not answer (ClientConnectorError), 2 times"
    await client.close()


def test_requests_and_results_survive_the_wire() -> None:
    request = RunRequest("x", 2.5, 1.5, 100, "in", 0, True, True, {"a": b"\xff"}, ("b",))
    assert parse_request(format_request(request)) == request
    assert format_request(RunRequest("x", 1)) == {"code": "x", "language": "python", "run_timeout": 1}
    for result in (
        ExecutionResult(Status.SUCCESS, "o", "e", 0, 1.0, 2.0, True, False, Tier.STRICT, 0.5, 7, None, {"f": b"\x00"}),
        ExecutionResult(Status.MEMORY_LIMIT, return_code=1, tier=Tier.FALLBACK, limit_hit="memory"),
        ExecutionResult(Status.FAILED, tier=Tier.STRICT, limit_hit="output"),
    ):
        assert parse_response(format_response(result)) == result
    foreign = {"status": "Failed", "run_result": {"status": "TimeLimitExceeded", "stdout": None, "stderr": None}}
    assert parse_response(foreign) == ExecutionResult(Status.TIME_LIMIT)
    with pytest.raises(BadRequestError, match="`status` \\(None\\)"):
        parse_response({})


async def start_server(command: list[str]) -> tuple[asyncio.subprocess.Process, str]:
    """Start the command's own server; return its process and where it is."""
    server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert server.stdout is not None
    assert b"strict tier" in await server.stdout.readline()
    return server, (await server.stdout.readline()).decode().split()[-1].removesuffix("/run_code")


@contextlib.asynccontextmanager
async def served(command: list[str] = SERVE) -> AsyncIterator[str]:
    """A server in a process of its own; it has to end cleanly."""
    server, url = await start_server(command)
    yield url
    server.terminate()
    assert await asyncio.wait_for(server.wait(), 20) == 0


async def check(cases: Path, url: str) -> tuple[int | None, list[str]]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "torl_env.sandbox.check", str(cases), "--url", url, "--num-at-once", "8"),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode().splitlines()


async def test_the_command_serves_says_where_and_is_checked(tmp_path: Path) -> None:
    cases = tmp_path / "cases.jsonl"
    cases.write_text(
        '{"id": "right", "code": "print(1)", "expect": {"status": "Success", "out_eq": "1\\n"}}\n'
        '{"id": "wrong", "code": "print(1)", "expect": {"out_eq": "2\\n"}}\n'
    )
    async with served() as url:
        assert await check(cases, url) == (
            1,
            [
                "tier: strict",
                "MISMATCH wrong: out_eq '2\\n' does not hold for '1\\n'",
                "2 cases, 1 as expected, 1 mismatches",
            ],
        )
        async with aiohttp.ClientSession() as session, session.get(f"{url}/health") as response:
            assert (response.status, (await response.json())["tier"]) == (200, "strict")


@pytest.mark.parametrize("written", ["", " \n"])
def test_an_empty_token_is_refused(written: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = tmp_path / "token"
    token.write_text(written)
    assert serve.main(["--port", "0", "--token-file", str(token)]) == 2
    assert capsys.readouterr().err.startswith("error: the token is empty")


async def until_num_below(server: asyncio.subprocess.Process, number: int) -> list[psutil.Process]:
    """Wait until there are so many processes beneath a server: the zygote, its keeper, and a program each."""
    async with asyncio.timeout(20):
        while len(below := psutil.Process(server.pid).children(recursive=True)) != number:
            await asyncio.sleep(0.01)
    return below


async def test_a_caller_that_hangs_up_has_its_programs_killed() -> None:
    server, url = await start_server(SERVE)
    client = HttpSandbox(url)
    calls = [asyncio.create_task(client.run("import time\ntime.sleep(1000)", 1000)) for _ in range(6)]  # 4 of them run
    await until_num_below(server, 2 + 4)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await until_num_below(server, 2)
    assert (await client.run("print(1)", 10)).ok
    await client.close()
    server.terminate()
    assert await asyncio.wait_for(server.wait(), 20) == 0


async def test_a_killed_server_is_a_sandbox_error_to_each_call_in_flight_and_leaves_no_process() -> None:
    server, url = await start_server(SERVE)
    client = HttpSandbox(url, max_attempts=1)
    calls = [asyncio.create_task(client.run("import time\ntime.sleep(1000)", 1000)) for _ in range(6)]  # 4 of them run
    below = await until_num_below(server, 2 + 4)
    server.kill()
    results = await asyncio.wait_for(asyncio.gather(*calls), 10)
    assert [result.status for result in results] == [Status.SANDBOX_ERROR] * 6
    async with asyncio.timeout(20):
        while any(one.is_running() for one in below):
            await asyncio.sleep(0.01)
    await server.wait()
    await client.close()


@pytest.mark.slow
@needs_shared_files
@pytest.mark.parametrize("user", ["caller", pytest.param("ordinary user", marks=as_root)])
async def test_all_public_cases_end_as_expected_over_http(user: str) -> None:
    async with served(SERVE if user == "caller" else as_ordinary_user(SERVE)) as url:
        return_code, lines = await check(SANDBOX_CASES, url)
    assert return_code == 0, lines
