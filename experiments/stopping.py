"""Ctrl-C ends a run after the iteration in progress, with a checkpoint; a second one, or SIGTERM, ends it at once."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class StopRequest:
    """Signal handling of a run; a context manager for the main thread.

    Outside `deferred()` Ctrl-C raises `KeyboardInterrupt` as usual. Within, the first one only sets `requested`.
    """

    def __init__(self) -> None:
        """Prepare; `with` installs the handlers and restores the old ones."""
        self.requested = False
        self._deferring = False

    def __enter__(self) -> "StopRequest":
        self._old = {
            signal.SIGINT: signal.signal(signal.SIGINT, self._interrupt),
            signal.SIGTERM: signal.signal(signal.SIGTERM, self._terminate),
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Let the block end before the first Ctrl-C counts."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if not self._deferring or self.requested:
            raise KeyboardInterrupt
        self.requested = True
        print("\nStopping after this iteration, with a checkpoint. Press Ctrl-C again to stop at once.", flush=True)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)
