"""SandboxFusion's JSON and ours: `POST /run_code`, request and response, in both directions.

    {"code", "language": "python", "stdin", "compile_timeout", "run_timeout", "memory_limit_MB", "files", "fetch_files"}
    {"status": "Success|Failed|SandboxError", "message", "compile_result": null, "run_result": {"status":
     "Finished|TimeLimitExceeded|Error", "execution_time", "return_code", "stdout", "stderr"}, "executor_pod_name",
     "files": {path: base64}}

Ours adds `cpu_timeout, seed, allow_subprocess, echo_last_expr` to the request and `"sandbox"` to the response. A server
that lacks them ignores the former and leaves out the latter.
"""

import base64
import binascii
import json
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from torl_env.sandbox.types import OVERLOAD, ExecutionResult, RunRequest, Status, Tier, check_kind

_DEFAULT_TIMEOUT_S = 10.0
_KINDS: dict[str, tuple[type, ...]] = {
    "code": (str,),
    "stdin": (str,),
    "run_timeout": (int, float),
    "cpu_timeout": (int, float),
    "memory_limit_MB": (int,),
    "seed": (int,),
    "allow_subprocess": (bool,),
    "echo_last_expr": (bool,),
    "files": (dict,),
    "fetch_files": (list,),
}


class BadRequestError(ValueError):
    """A body that is no request; the text names the field, what it was and what it should be."""


def parse_request(body: Any) -> RunRequest:
    """Return the request a JSON body stands for; fields nobody knows are ignored, null means the default.

    Raises:
        BadRequestError: if a field is missing or of the wrong kind.
    """
    if not isinstance(body, dict):
        raise BadRequestError(f"the body should be an object; received {type(body).__name__}.")
    if "code" not in body:
        raise BadRequestError("`code` is missing.")
    if body.get("language", "python") not in ("python", "python3"):
        raise BadRequestError(f"`language` ({body['language']!r}) should be 'python'.")
    if body["code"] is None:
        raise BadRequestError("`code` (None) should be of kind str.")
    for name, kinds in _KINDS.items():
        _value(body, name, *kinds)
    memory_mb = body.get("memory_limit_MB")
    paths = body.get("fetch_files") or []
    if not all(isinstance(path, str) for path in paths):
        raise BadRequestError("`fetch_files` should be a list of paths.")
    try:
        return RunRequest(
            code=body["code"],
            timeout_s=_DEFAULT_TIMEOUT_S if body.get("run_timeout") is None else body["run_timeout"],
            cpu_timeout_s=body.get("cpu_timeout"),
            memory_mb=memory_mb if memory_mb is not None and memory_mb > 0 else None,  # -1 is "no limit" there
            stdin=body.get("stdin") or "",
            seed=body.get("seed"),
            allow_subprocess=bool(body.get("allow_subprocess")),
            echo_last_expr=bool(body.get("echo_last_expr")),
            files={path: _decode(path, text) for path, text in (body.get("files") or {}).items()},
            fetch_files=tuple(paths),
        )
    except ValueError as error:
        raise BadRequestError(str(error)) from error


def _value(of: Mapping[str, Any], name: str, *kinds: type) -> Any:
    """Return a field, None if it is missing or null; one of another kind is an error."""
    value = of.get(name)
    if value is not None:
        try:
            check_kind(name, value, *kinds)
        except ValueError as error:
            raise BadRequestError(str(error)) from None
    return value


def _decode(path: str, text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise BadRequestError(f"`files[{path!r}]` should be base64.") from None


def format_request(request: RunRequest) -> dict[str, Any]:
    """Return the JSON body of a request; what has its default value is left out, for servers that check fields."""
    body: dict[str, Any] = {"code": request.code, "language": "python", "run_timeout": request.timeout_s}
    optional = {
        "stdin": request.stdin,
        "cpu_timeout": request.cpu_timeout_s,
        "memory_limit_MB": request.memory_mb,
        "seed": request.seed,
        "allow_subprocess": request.allow_subprocess,
        "echo_last_expr": request.echo_last_expr,
        "files": {path: base64.b64encode(content).decode() for path, content in request.files.items()},
        "fetch_files": list(request.fetch_files),
    }
    return body | {
        name: value
        for name, value in optional.items()
        if value not in ("", {}, []) and value is not None and value is not False
    }


def format_response(result: ExecutionResult, pod_name: str = "") -> dict[str, Any]:
    """Return the JSON body of a response."""
    status = {Status.SUCCESS: "Success", Status.SANDBOX_ERROR: "SandboxError"}.get(result.status, "Failed")
    run_status = {Status.TIME_LIMIT: "TimeLimitExceeded", Status.SANDBOX_ERROR: "Error"}.get(result.status, "Finished")
    return_code = -signal.SIGKILL if result.limit_hit == "output" else result.return_code
    return {
        "status": status,
        "message": result.stderr if result.status is Status.SANDBOX_ERROR else "",
        "compile_result": None,
        "run_result": {
            "status": run_status,
            "execution_time": result.run_s,
            "return_code": return_code,
            "stdout": _valid(result.stdout),
            "stderr": _valid(result.stderr),
        },
        "executor_pod_name": pod_name,
        "files": {path: base64.b64encode(content).decode() for path, content in result.files.items()},
        "sandbox": {
            "tier": result.tier,
            "cpu_time": result.cpu_s,
            "max_rss_kb": result.max_rss_kb,
            "signal": -return_code if return_code is not None and return_code < 0 else None,
            "limit_hit": result.limit_hit,
            "stdout_truncated": result.stdout_truncated,
            "stderr_truncated": result.stderr_truncated,
            "queue_time": result.queue_s,
        },
    }


def parse_response(body: Any) -> ExecutionResult:
    """Return the result a response stands for, of this server's or of another's; null means the default.

    Raises:
        BadRequestError: if it is no such response.
    """
    if not isinstance(body, dict):
        raise BadRequestError(f"the answer should be an object; received {type(body).__name__}.")
    ran, ours, files = (_value(body, name, dict) or {} for name in ("run_result", "sandbox", "files"))
    status, limit_hit, tier = body.get("status"), _value(ours, "limit_hit", str), _value(ours, "tier", str)
    if status not in ("Success", "Failed", "SandboxError"):
        raise BadRequestError(f"`status` ({status!r:.100}) should be Success, Failed or SandboxError.")
    if tier and tier not in list(Tier):
        raise BadRequestError(f"`tier` ({tier!r:.100}) should be one of {', '.join(Tier)}.")
    if status == "SandboxError":
        said = str(body.get("message") or ran.get("stderr") or "the server gave no reason")
        return ExecutionResult.sandbox_error(said.removeprefix("SandboxError: "))
    kind = Status.SUCCESS if status == "Success" else Status.FAILED
    if ran.get("status") == "TimeLimitExceeded":
        kind = Status.TIME_LIMIT
    elif kind is Status.FAILED and limit_hit == "memory":
        kind = Status.MEMORY_LIMIT
    return_code = _value(ran, "return_code", int)
    return ExecutionResult(
        kind,
        stdout=_value(ran, "stdout", str) or "",
        stderr=_value(ran, "stderr", str) or "",
        return_code=None if limit_hit == "output" else return_code,
        run_s=_value(ran, "execution_time", int, float) or 0.0,
        queue_s=_value(ours, "queue_time", int, float) or 0.0,
        stdout_truncated=_value(ours, "stdout_truncated", bool) or False,
        stderr_truncated=_value(ours, "stderr_truncated", bool) or False,
        tier=Tier(tier) if tier else None,
        cpu_s=_value(ours, "cpu_time", int, float) or 0.0,
        max_rss_kb=_value(ours, "max_rss_kb", int) or 0,
        limit_hit=limit_hit,
        files={path: _decode(path, text) for path, text in files.items()},
    )


def _valid(text: str) -> str:
    """Return text that JSON in UTF-8 can carry: a lone surrogate cannot."""
    return text.encode("utf-8", "replace").decode()


async def answer(
    body: bytes, execute: Callable[[RunRequest], Awaitable[ExecutionResult]], pod_name: str = ""
) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status and the JSON body that answer a request's body.

    422 for a body that is no request. 504 when too many programs wait already: the one status after which verl's client
    asks again. Everything else is 200, the sandbox's own failures included.
    """
    try:
        request = parse_request(json.loads(body))
    except (ValueError, RecursionError) as error:
        return 422, {"detail": str(error)}
    result = await execute(request)
    return 504 if result.limit_hit == OVERLOAD else 200, format_response(result, pod_name)
