"""What a program writes to one of its streams, read as it comes and bounded in memory."""

import asyncio
import os
from collections.abc import Callable

MAX_BYTES = 16 * 2**20  # a program that prints more is ended
_KEPT_BYTES = 64 * 2**10  # head and tail
_CHUNK_BYTES = 64 * 2**10


class Capture:
    """Reads a pipe until its end, keeping head and tail.

    The event loop calls `_read` whenever there is something; no thread and no task waits.
    """

    def __init__(self, on_flood: Callable[[], None]) -> None:
        """Make the pipe; `write_fd` is the program's end, to be closed here once the program has it."""
        self._fd, self.write_fd = os.pipe()
        self._loop = asyncio.get_running_loop()
        self._head = bytearray()
        self._tail = bytearray()
        self._num_bytes = 0
        self._on_flood = on_flood
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def __enter__(self) -> "Capture":
        os.set_blocking(self._fd, False)
        self._loop.add_reader(self._fd, self._read)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self.close_write_end()

    def close_write_end(self) -> None:
        """Close this process's copy of the program's end: without it the pipe ends with the program."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def _read(self) -> None:
        try:
            chunk = os.read(self._fd, _CHUNK_BYTES)
        except BlockingIOError:
            return
        if not chunk:
            self._loop.remove_reader(self._fd)
            if not self.ended.done():
                self.ended.set_result(None)
            return
        self._num_bytes += len(chunk)
        room = _KEPT_BYTES // 2 - len(self._head)
        self._head += chunk[:room]
        self._tail = (self._tail + chunk[room:])[-_KEPT_BYTES // 2 :]
        if self._num_bytes > MAX_BYTES:
            self._on_flood()

    @property
    def truncated(self) -> bool:
        """Whether the middle is missing."""
        return self._num_bytes > len(self._head) + len(self._tail)

    def text(self) -> str:
        """Return what was kept, with a mark where the middle is missing."""
        left_out = self._num_bytes - len(self._head) - len(self._tail)
        mark = f"\n... ({left_out} bytes left out) ...\n".encode() if left_out else b""
        return (self._head + mark + self._tail).decode("utf-8", "replace")
