"""Run a file of programs with their expected outcome against a sandbox: the local one, or a server.

How to run this script:
    python -m torl_env.sandbox.check FILE.jsonl [--tier strict|fallback] [--url http://127.0.0.1:8080]

Results to expect: the tier, a line for each mismatch, a total; exit status 1 if there was a mismatch, 2 if the sandbox
could not be used, or if the file is not one of cases (then nothing is run). Each line of the file is an object with
`id`, `code`, `expect` and optionally `request` (`timeout`, `stdin`, `mem_mb`, `allow_subprocess`, `fetch`; `generate`
and `stdin_generate` are Python expressions, evaluated here, that build the code or the input: only check files you
trust). In the fallback tier a program that asks for subprocesses is right if it is refused with the tier's name.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from torl_env.sandbox.local import LocalSandbox
from torl_env.sandbox.process import SandboxProcessError
from torl_env.sandbox.wire import format_response, parse_request, parse_response

Ask = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
_TIMEOUT_S = 10.0
_REQUEST = {"timeout", "stdin", "mem_mb", "allow_subprocess", "fetch", "generate", "stdin_generate"}
_EXPECT: dict[str, tuple[type, ...]] = {
    "status": (str, list),
    "run_status": (str, list),
    "rc": (int, list, type(None)),
    **dict.fromkeys(("out_eq", "out_has", "out_not", "err_has", "err_has2", "err_not", "err_eq"), (str,)),
    "out_in": (list,),
    "truncated": (bool,),
    "max_wall": (int, float),
    "files_eq": (dict,),
    "differs": (bool,),
    "follow_up": (str,),
    "follow_out": (str,),
    "note": (str,),  # for readers
}


def read_cases(path: Path) -> list[dict[str, Any]]:
    """Return the cases of a file.

    Raises:
        ValueError: if a line is no case whose program can be asked for, with its number, or there is none.
    """
    cases = []
    # Not `splitlines`: JSON's strings may hold other line separators as they are.
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), 1):
        if line.strip():
            try:
                cases.append(_read_case(line))
            except Exception as error:  # of whatever kind the file's own expressions raise too
                raise ValueError(f"{path}, line {number}: {type(error).__name__}: {error}") from error
    if not cases:
        raise ValueError(f"{path} has no cases.")
    return cases


def _read_case(line: str) -> dict[str, Any]:
    case = json.loads(line)
    if not isinstance(case, dict) or not {"id", "code", "expect"} <= case.keys():
        raise ValueError("a case should be an object with `id`, `code` and `expect`.")
    for name, known in (("expect", _EXPECT.keys()), ("request", _REQUEST)):
        fields = case.get(name, {})
        if not isinstance(fields, dict) or not fields.keys() <= known:
            raise ValueError(f"`{name}` ({fields!r:.200}) should be an object of {', '.join(sorted(known))}.")
    if not case["expect"] or ("follow_up" in case["expect"]) != ("follow_out" in case["expect"]):
        raise ValueError("`expect` should say something, and `follow_up` and `follow_out` go together.")
    for name, value in case["expect"].items():
        if not isinstance(value, _EXPECT[name]):
            raise ValueError(f"`{name}` ({value!r:.100}) should be of kind {_EXPECT[name][0].__name__}.")
    parse_request(build_body(case))
    return case


def build_body(case: dict[str, Any]) -> dict[str, Any]:
    """Return the HTTP body that asks for a case's program."""
    request = case.get("request", {})
    body = {"code": case["code"], "language": "python", "run_timeout": request.get("timeout", _TIMEOUT_S)}
    if "generate" in request:
        body["code"] = eval(request["generate"])
    if "stdin" in request or "stdin_generate" in request:
        body["stdin"] = eval(request["stdin_generate"]) if "stdin_generate" in request else request["stdin"]
    names = {"mem_mb": "memory_limit_MB", "allow_subprocess": "allow_subprocess", "fetch": "fetch_files"}
    return body | {name: request[key] for key, name in names.items() if key in request}


def find_mismatches(expect: dict[str, Any], response: dict[str, Any]) -> list[str]:
    """Return in words what of a response is not as expected."""
    ran, ours = response["run_result"], response.get("sandbox") or {}
    out, err = ran["stdout"], ran["stderr"]
    wrong = []
    for key, value in {"status": response["status"], "run_status": ran["status"], "rc": ran["return_code"]}.items():
        if key in expect and value not in (expect[key] if isinstance(expect[key], list) else [expect[key]]):
            wrong.append(f"{key} is {value!r}, not {expect[key]!r}")
    tests: dict[str, tuple[Callable[[Any], bool], Any]] = {
        "out_eq": (lambda value: out == value, out),
        "out_in": (lambda value: out in value, out),
        "out_has": (lambda value: value in out, out),
        "out_not": (lambda value: value not in out, out),
        "err_has": (lambda value: value in err, err),
        "err_has2": (lambda value: value in err, err),
        "err_not": (lambda value: value not in err, err),
        "err_eq": (lambda value: err == value, err),
        "truncated": (lambda value: value == (ours.get("stdout_truncated") or ours.get("stderr_truncated")), ours),
        "max_wall": (lambda value: ran["execution_time"] <= value, ran["execution_time"]),
        "files_eq": (lambda value: response["files"] == value, response["files"]),
    }
    for key, (is_right, value) in tests.items():
        if key in expect and not is_right(expect[key]):
            wrong.append(f"{key} {expect[key]!r} does not hold for {value!r:.300}")
    return wrong


async def check_case(case: dict[str, Any], ask: Ask) -> tuple[list[str], str | None]:
    """Run a case; return what is wrong and the tier that was used."""
    expect, body = case["expect"], build_body(case)
    response = await ask(body)
    tier = (response.get("sandbox") or {}).get("tier")
    if body.get("allow_subprocess") and response["status"] == "SandboxError" and "fallback" in response["message"]:
        return [], "fallback"
    wrong = find_mismatches(expect, response)
    if "differs" in expect:
        again = await ask(body)
        if (again["run_result"]["stdout"] != response["run_result"]["stdout"]) != expect["differs"]:
            wrong.append(f"two runs {'do not differ' if expect['differs'] else 'differ'}")
    if "follow_up" in expect:
        later = (await ask(body | {"code": expect["follow_up"]}))["run_result"]["stdout"]
        if later != expect["follow_out"]:
            wrong.append(f"the run after it printed {later!r}, not {expect['follow_out']!r}")
    return wrong, tier


async def check_cases(cases: list[dict[str, Any]], ask: Ask, num_at_once: int) -> int:
    """Run every case, print what there is to say, and return the number of mismatches."""
    turns = asyncio.Semaphore(num_at_once)

    async def one(case: dict[str, Any]) -> tuple[list[str], str | None]:
        async with turns:
            return await check_case(case, ask)

    outcomes = await asyncio.gather(*[one(case) for case in cases])
    print(f"tier: {', '.join(sorted({str(tier) for _, tier in outcomes if tier})) or 'not named'}")
    num_wrong = 0
    for case, (wrong, _) in zip(cases, outcomes, strict=True):
        num_wrong += bool(wrong)
        if wrong:
            print(f"MISMATCH {case['id']}: {'; '.join(wrong)}")
    print(f"{len(cases)} cases, {len(cases) - num_wrong} as expected, {num_wrong} mismatches")
    return num_wrong


async def _check_locally(cases: list[dict[str, Any]], tier: str, num_at_once: int) -> int:
    sandbox = LocalSandbox(num_at_once, tier=tier)

    async def ask(body: dict[str, Any]) -> dict[str, Any]:
        return format_response(await sandbox.execute(parse_request(body)))

    try:
        await sandbox.start()
        return await check_cases(cases, ask, num_at_once)
    finally:
        await sandbox.close()


async def _check_server(cases: list[dict[str, Any]], url: str, num_at_once: int, token: str | None) -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession(headers=headers) as session:

        async def ask(body: dict[str, Any]) -> dict[str, Any]:
            async with session.post(f"{url.rstrip('/')}/run_code", json=body) as response:
                response.raise_for_status()
                return format_response(parse_response(await response.json()))

        return await check_cases(cases, ask, num_at_once)


def _count(text: str) -> int:
    if int(text) < 1:
        raise ValueError
    return int(text)


def main(arguments: list[str] | None = None) -> int:
    """Check a file; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m torl_env.sandbox.check", description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="cases, one JSON object a line")
    parser.add_argument("--url", help="of a server, instead of a local sandbox")
    parser.add_argument("--token", help="that the server asks for")
    parser.add_argument("--tier", choices=("strict", "fallback"), default="strict", help="of the local sandbox")
    parser.add_argument("--num-at-once", type=_count, default=len(os.sched_getaffinity(0)), help="programs at a time")
    options = parser.parse_args(arguments)
    try:
        cases = read_cases(options.file)
        if options.url:
            num_wrong = asyncio.run(_check_server(cases, options.url, options.num_at_once, options.token))
        else:
            num_wrong = asyncio.run(_check_locally(cases, options.tier, options.num_at_once))
    except (SandboxProcessError, OSError, ValueError, RecursionError, aiohttp.ClientError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
