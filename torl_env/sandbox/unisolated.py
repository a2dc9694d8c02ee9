"""Programs with limits and without isolation: a new interpreter each, for systems other than Linux.

Covers time, and on POSIX systems CPU seconds and memory where the system enforces them. Does not cover anything else:
a program reads the caller's files, uses the network, and may leave processes behind. Never chosen unasked.
"""

import asyncio
import contextlib
import marshal
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from torl_env.sandbox import program
from torl_env.sandbox.capture import Capture
from torl_env.sandbox.outcome import Ending, make_result
from torl_env.sandbox.process import SandboxProcessError
from torl_env.sandbox.types import ExecutionResult, RunRequest, Tier

_START = """
import importlib.util, marshal, os, resource
spec = importlib.util.spec_from_file_location('program', {program!r})
program = importlib.util.module_from_spec(spec)
spec.loader.exec_module(program)
task = marshal.load(open({task!r}, 'rb'))
for kind, limit in (('CPU', task['cpu_s']), ('AS', task['memory'])):
    try:
        resource.setrlimit(getattr(resource, 'RLIMIT_' + kind), (limit, limit))
    except (ValueError, OSError):
        pass
program.reseed(task['seed'])
os._exit(program.run_program(task['code'], echo_last_expr=task['echo']))
"""


class Unisolated:
    """Starts `python` for each program."""

    tier = Tier.UNISOLATED
    alive = True
    pid = 0

    def close(self) -> None:
        """Nothing to end: each run ends with its call."""

    async def run(self, request: RunRequest, slot: int, memory_mb: int) -> ExecutionResult:
        """Run one program; when the caller is cancelled its process group is killed.

        Raises:
            SandboxProcessError: if no interpreter can be started.
        """
        killed_for: str | None = None

        def end(reason: str) -> None:
            nonlocal killed_for
            killed_for = killed_for or reason
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

        with (
            tempfile.TemporaryDirectory(prefix="torl-sandbox-", ignore_cleanup_errors=True) as directory,
            Capture(lambda: end("output")) as stdout,
            Capture(lambda: end("output")) as stderr,
        ):
            task = Path(directory, ".task")
            code = request.code.encode("utf-8", "surrogatepass")
            limits = {"cpu_s": request.cpu_limit_s, "memory": memory_mb * 2**20}
            task.write_bytes(
                marshal.dumps({"code": code, "echo": request.echo_last_expr, "seed": request.seed, **limits})
            )
            started = time.perf_counter()
            try:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-c",
                    _START.format(program=program.__file__, task=str(task)),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=stdout.write_fd,
                    stderr=stderr.write_fd,
                    cwd=directory,
                    env={"PATH": os.defpath, "HOME": directory, "TMPDIR": directory, "PYTHONUTF8": "1"},
                    start_new_session=True,
                )
            except OSError as error:
                raise SandboxProcessError(f"the interpreter did not start ({error.strerror})") from error
            stdout.close_write_end()
            stderr.close_write_end()
            timer = asyncio.get_running_loop().call_later(request.timeout_s, end, "wall")
            try:
                await process.communicate(request.stdin.encode("utf-8", "surrogatepass"))
            finally:
                timer.cancel()
                end("cancel")
            run_s = time.perf_counter() - started
            await asyncio.wait([stdout.ended, stderr.ended], timeout=1.0)  # a process that got away may hold them open
            code_or_signal = process.returncode or 0
            status = -code_or_signal if code_or_signal < 0 else code_or_signal << 8
            ending = Ending(status, 0.0, 0)
            return make_result(ending, killed_for, stdout, stderr, request, memory_mb, run_s, self.tier, {})
