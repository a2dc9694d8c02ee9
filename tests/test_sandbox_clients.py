"""Requests as the clients of other projects send them, answered so that those clients read them right.

What each client sends and looks at is in its source: verl's reward client (`sandbox_fusion/utils.py`), the rollout of
ToRL and of projects built on it, and tools that read the answer with SandboxFusion's own data model.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from torl_env import LocalSandbox
from torl_env.sandbox import serve

HEADERS = {"Content-Type": "application/json", "Accept": "application/json"}  # verl sends them with a body of its own


def verl(code: str, stdin: str = "", timeout: int = 10) -> dict[str, Any]:
    return {
        "compile_timeout": timeout,
        "run_timeout": timeout,
        "code": code,
        "stdin": stdin,
        "memory_limit_MB": 1024,
        "language": "python",
        "files": {},
        "fetch_files": [],
    }


def older_verl(code: str) -> dict[str, Any]:
    return {name: value for name, value in verl(code).items() if name != "memory_limit_MB"}


def torl(code: str) -> dict[str, Any]:
    return {"code": code, "language": "python"}


def torl_with_time_limits(code: str, timeout: int = 10) -> dict[str, Any]:
    return {"code": code, "language": "python", "run_timeout": timeout, "compile_timeout": timeout}


def without_input(code: str) -> dict[str, Any]:
    return {"language": "python", "code": code, "stdin": None, "run_timeout": 10}


@pytest_asyncio.fixture
async def url() -> AsyncIterator[str]:
    sandbox = LocalSandbox(max_concurrent_runs=1, max_queued_runs=0)
    runner = web.AppRunner(serve.build_app(sandbox))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/run_code"
    await runner.cleanup()
    await sandbox.close()


async def send(url: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=json.dumps(body), headers=HEADERS) as response,
    ):
        return response.status, await response.json()


def verdict_of_verl(status: int, answer: dict[str, Any], expected: str) -> bool | int:
    """True and False for the right and the wrong output, -1 for the sandbox, -2 for an error, -3 for a time-out."""
    if status != 200 or answer["status"] not in ("Success", "Failed"):
        return -1
    ran = answer["run_result"]
    assert answer["compile_result"] is None  # -4 otherwise: a compiler's error
    if answer["status"] == "Failed":
        return {"TimeLimitExceeded": -3, "Error": -2, "Finished": -2}[ran["status"]]
    assert ran["status"] == "Finished"
    return bool(ran["stdout"].rstrip("\n") == expected)


def observation_of_torl(answer: dict[str, Any]) -> tuple[str, str]:
    """What was printed, with "Done" if the program ended well, else with what it said on stderr."""
    ran = answer["run_result"]
    return ran["stdout"], "Done" if str(ran["return_code"]) == "0" else ran["stderr"].strip()


async def test_verl_reads_its_verdicts(url: str) -> None:
    add = "print(sum(map(int, input().split())))"
    for body, expected, verdict in (
        (verl(add, "1 2 3"), "6", True),
        (verl(add, "1 2 3"), "7", False),
        (older_verl("print(6)"), "6", True),
        (verl("print(6)\n1 / 0"), "6", -2),
        (verl("def f(:"), "6", -2),
        (verl("import os; os.abort()"), "6", -2),
        (verl("x = bytearray(2 ** 40)"), "6", -2),
        (verl("print(6, flush=True)\nwhile True: pass", timeout=1), "6", -3),
    ):
        status, answer = await send(url, body)
        assert verdict_of_verl(status, answer, expected) == verdict, body
        assert None not in (answer["run_result"]["stdout"], answer["run_result"]["stderr"])  # it joins the two


@pytest.mark.parametrize("request_of", [torl, torl_with_time_limits])
async def test_torl_reads_its_observations(url: str, request_of: Any) -> None:
    _, answer = await send(url, request_of("print(6 * 7)"))
    assert observation_of_torl(answer) == ("42\n", "Done")
    _, answer = await send(url, request_of("print('so far')\nprint(a)"))
    printed, said = observation_of_torl(answer)
    assert printed == "so far\n"
    # It shows the model the last line only.
    assert said.split("\n")[-1] == "NameError: name 'a' is not defined"
    assert answer["run_result"]["stderr"].startswith("Traceback (most recent call last):\n")


async def test_torl_sees_a_time_out_as_one(url: str) -> None:
    _, answer = await send(url, torl_with_time_limits("import time\ntime.sleep(1000)", timeout=1))
    assert observation_of_torl(answer) == ("", "TimeoutError: the program ran longer than 1 s")


async def test_clients_of_the_whole_model_find_every_field(url: str) -> None:
    _, answer = await send(url, without_input("print(6 * 7)"))
    ran = answer["run_result"]
    assert (answer["status"], ran["status"], ran["return_code"], ran["stdout"]) == ("Success", "Finished", 0, "42\n")
    kinds = {"status": str, "execution_time": float, "return_code": int, "stdout": str, "stderr": str}
    assert {name: type(value) for name, value in ran.items()} == kinds
    whole = {
        "status": str,
        "message": str,
        "run_result": dict,
        "executor_pod_name": str,
        "files": dict,
        "sandbox": dict,
    }
    assert {name: type(value) for name, value in answer.items() if name != "compile_result"} == whole


async def test_a_full_queue_is_the_status_after_which_verl_asks_again(url: str) -> None:
    await send(url, torl("1"))  # the server has its interpreter
    answers = await asyncio.gather(*[send(url, verl("import time\ntime.sleep(1)")) for _ in range(3)])
    assert sorted(status for status, _ in answers) == [200, 504, 504]
    assert (await send(url, torl("1")))[0] == 200
