"""Stand-ins for the slow parts, shared by the tests."""

import asyncio
import threading
from collections.abc import Callable

from torl_env import ExecutionResult, Status


class FakeSandbox:
    """A sandbox client that computes results with a function and can hold programs at a gate.

    Programs whose text contains a held string wait until it is released, from whatever thread; everything else
    returns at once. `programs` lists every program given to `run`, in order.
    """

    def __init__(self, answer: Callable[[str], ExecutionResult] | None = None, hold: tuple[str, ...] = ()) -> None:
        self.programs: list[str] = []
        self.num_running = 0
        self.max_running = 0
        self.closed = False
        self.held = threading.Event()  # set once a program waits at a gate
        self._answer = answer or (lambda code: ExecutionResult(Status.SUCCESS, stdout="42\n", return_code=0))
        self._lock = threading.Lock()
        self._gates = dict.fromkeys(hold, False)
        self._waiting: list[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def run(self, code: str, timeout_s: float) -> ExecutionResult:
        """Return the function's result for `code`, after its gate if it has one."""
        with self._lock:
            self.programs.append(code)
            self.num_running += 1
            self.max_running = max(self.max_running, self.num_running)
            gate = asyncio.Event()
            closed_part = next((part for part, is_open in self._gates.items() if part in code and not is_open), None)
            if closed_part is not None:
                self._waiting.append((closed_part, asyncio.get_running_loop(), gate))
                self.held.set()
        try:
            if closed_part is not None:
                await gate.wait()
            return self._answer(code)
        finally:
            with self._lock:
                self.num_running -= 1

    def release(self, part: str) -> None:
        """Open the gate of the programs that contain `part`, present and future."""
        with self._lock:
            self._gates[part] = True
            for waiting_part, loop, gate in self._waiting:
                if waiting_part == part:
                    loop.call_soon_threadsafe(gate.set)

    async def close(self) -> None:
        """Note that the client was closed."""
        self.closed = True
