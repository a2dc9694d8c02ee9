"""A sandbox client for an HTTP server that speaks SandboxFusion's protocol, ours or another."""

import asyncio
import os
import random
from typing import Any

import aiohttp

from torl_env.sandbox.blocking import background_loop
from torl_env.sandbox.types import ExecutionResult, RunRequest, check_kind
from torl_env.sandbox.wire import BadRequestError, format_request, parse_response

_RETRIED = (503, 504)  # the server, or what stands before it, is overloaded or just starting
_CONNECT_TIMEOUT_S = 10.0


class HttpSandbox:
    """Runs programs on a server (a `SandboxClient`).

    Connection errors, 503 and 504 are tried again with growing pauses; what fails after that is a sandbox error, as is
    any other answer that is no result. All connections live on one background loop, whatever loop calls.
    """

    def __init__(self, url: str, *, token: str | None = None, max_attempts: int = 5, max_wait_s: float = 600.0) -> None:
        """Set up the client; nothing is connected before the first run.

        Args:
            url: of the server, without "/run_code".
            token: sent as a bearer token.
            max_attempts: requests for one program before it is a sandbox error.
            max_wait_s: seconds one request may wait in the server's queue beyond the program's own time.

        Raises:
            ValueError: if a number is out of range.
        """
        check_kind("max_attempts", max_attempts, int)
        check_kind("max_wait_s", max_wait_s, int, float)
        if max_attempts < 1:
            raise ValueError(f"`max_attempts` ({max_attempts}) should be at least 1.")
        self.url = url.rstrip("/").removesuffix("/run_code")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._max_attempts = max_attempts
        self._max_wait_s = max_wait_s
        self._sessions: dict[int, aiohttp.ClientSession] = {}  # by process id: a fork would share the connections
        self._closed = False

    async def run(self, code: str, timeout_s: float, **options: Any) -> ExecutionResult:
        """Run `code` as a Python program for at most `timeout_s` seconds; `options` are `RunRequest`'s other fields."""
        return await self.execute(RunRequest(code, timeout_s, **options))

    async def execute(self, request: RunRequest) -> ExecutionResult:
        """Run one program; cancelling the call closes its connection."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._execute(request), background_loop()))

    async def _execute(self, request: RunRequest) -> ExecutionResult:
        failure = ""
        body = format_request(request)
        for attempt in range(self._max_attempts):
            if self._closed:
                return ExecutionResult.sandbox_error("the sandbox client is closed")
            if attempt:
                await asyncio.sleep(min(8.0, 0.25 * 2**attempt) * random.uniform(0.5, 1.0))
            try:
                async with self._connected().post(
                    f"{self.url}/run_code",
                    json=body,
                    timeout=aiohttp.ClientTimeout(
                        total=3 * request.timeout_s + self._max_wait_s, sock_connect=_CONNECT_TIMEOUT_S
                    ),
                ) as response:
                    if response.status in _RETRIED:
                        failure = f"{self.url} answered {response.status}"
                        continue
                    if response.status != 200:
                        said = (await response.text())[:200]
                        return ExecutionResult.sandbox_error(f"{self.url} answered {response.status}: {said}")
                    return parse_response(await response.json())
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError) as error:
                failure = f"{self.url} did not answer ({type(error).__name__})"
            except (aiohttp.ClientError, BadRequestError, ValueError, RecursionError) as error:
                return ExecutionResult.sandbox_error(f"{self.url} gave no usable answer ({error})")
        return ExecutionResult.sandbox_error(f"{failure}, {self._max_attempts} times")

    def _connected(self) -> aiohttp.ClientSession:
        if os.getpid() not in self._sessions:
            connector = aiohttp.TCPConnector(limit=0)  # the queue is the server's
            self._sessions[os.getpid()] = aiohttp.ClientSession(connector=connector, headers=self._headers)
        return self._sessions[os.getpid()]

    async def close(self) -> None:
        """Close the connections; later runs are sandbox errors."""
        self._closed = True
        session = self._sessions.pop(os.getpid(), None)
        if session is not None:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(session.close(), background_loop()))
