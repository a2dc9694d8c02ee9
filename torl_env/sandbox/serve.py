"""The sandbox over HTTP, alone: SandboxFusion's `POST /run_code`.

How to run this script:
    python -m torl_env.sandbox.serve --port 8080 [--host 127.0.0.1] [--token-file FILE] [--tier strict]

`GET /health` answers 200 while programs can be run and names the tier; `GET /v1/ping` answers as SandboxFusion does.
It listens to this machine alone unless told otherwise: whoever can connect can use its processors.
"""

import argparse
import asyncio
import hmac
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

from torl_env.sandbox.local import LocalSandbox
from torl_env.sandbox.process import SandboxProcessError
from torl_env.sandbox.tiers import TIERS, describe
from torl_env.sandbox.wire import answer

_MAX_BODY_BYTES = 64 * 2**20
_HEALTH_TIMEOUT_S = 5.0
_SANDBOX: web.AppKey[LocalSandbox] = web.AppKey("sandbox", LocalSandbox)
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def build_app(sandbox: LocalSandbox, token: str | None = None) -> web.Application:
    """Return the HTTP application around a sandbox.

    Args:
        sandbox: that runs the programs; whoever made it closes it.
        token: that a caller has to send as `Authorization: Bearer TOKEN`; None to ask for none.

    Raises:
        ValueError: if the token is empty, which a caller that sends none would have.
    """
    if token == "":
        raise ValueError("the token is empty: everyone would have it; write one into the token file.")

    @web.middleware
    async def authorize(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        sent = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token is not None and not hmac.compare_digest(os.fsencode(sent), token.encode()):
            return web.json_response({"detail": "the token is missing or wrong."}, status=401)
        return await handler(request)

    app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[authorize])
    app[_SANDBOX] = sandbox
    app.router.add_post("/run_code", _run_code)
    app.router.add_get("/health", _health)
    app.router.add_get("/v1/ping", _ping)
    return app


async def _run_code(request: web.Request) -> web.Response:
    try:
        sent = await request.read()
    except web.RequestPayloadError as error:  # of a `Content-Encoding` that the body does not have
        return web.json_response({"detail": f"the body cannot be read ({error})."}, status=400)
    status, body = await answer(sent, request.app[_SANDBOX].execute, os.uname().nodename)
    return web.json_response(body, status=status, headers={"Retry-After": "1"} if status == 504 else None)


async def _health(request: web.Request) -> web.Response:
    result = await request.app[_SANDBOX].check(_HEALTH_TIMEOUT_S)
    return web.json_response(
        {"ok": result.ok, "tier": result.tier, "detail": result.stderr}, status=200 if result.ok else 503
    )


async def _ping(_: web.Request) -> web.Response:
    return web.json_response("pong")


async def _serve(options: argparse.Namespace, token: str | None) -> None:
    sandbox = LocalSandbox(
        options.max_concurrent_runs, options.memory_mb, max_queued_runs=options.max_queued_runs, tier=options.tier
    )
    try:
        app = build_app(sandbox, token)
        tier = await sandbox.start()
        # A caller that hangs up has its program killed; it would hold up others', up to its limit.
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, options.host, options.port)
        await site.start()
        port = runner.addresses[0][1]
        print(f"{describe(tier)}\nListening on http://{options.host}:{port}/run_code", flush=True)
        stopped = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        await stopped.wait()
        await runner.cleanup()  # lets the requests in flight end
    finally:
        await sandbox.close()


def main(arguments: list[str] | None = None) -> int:
    """Serve until interrupted; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m torl_env.sandbox.serve", description=__doc__.splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, default=8080, help="0 for any that is free")
    parser.add_argument("--token-file", type=Path, help="a file with the token callers have to send")
    parser.add_argument(
        "--tier", choices=TIERS, default="strict", help="isolation; the server does not start without it"
    )
    parser.add_argument("--max-concurrent-runs", type=int, help="programs at a time (default: one a core)")
    parser.add_argument("--max-queued-runs", type=int, default=10_000, help="waiting programs before 504 is answered")
    parser.add_argument("--memory-mb", type=int, default=1024, help="address space of a program")
    options = parser.parse_args(arguments)
    try:
        token = options.token_file.read_text().strip() if options.token_file else None
        if token is None and options.host not in _LOOPBACK:
            print("warning: anyone who can reach this address can run programs; see --token-file", file=sys.stderr)
        asyncio.run(_serve(options, token))
    except (SandboxProcessError, OSError, ValueError, OverflowError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
