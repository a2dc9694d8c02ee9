"""What a long command shows while it works: a live view in a terminal, plain lines everywhere else.

Lines that say what happened are printed either way. In a terminal the last lines of the screen are alive: what is being
done and for how long, how far it is, and when it will be done. In a file, a pipe or a submitted job there are no
control codes, and what would only have moved on the screen is a line now and then.
"""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

_BAR_WIDTH = 30


class Progress:
    """The output of one command; a context manager, alive inside.

    Args:
        started: Unix time the stamps of the lines count from.
        stream: Where to print; standard output if None.
    """

    def __init__(self, started: float, stream: TextIO | None = None) -> None:
        """Find out what the stream is; nothing is printed yet."""
        self._started = started
        self._stream = stream or sys.stdout
        self._spinner = Spinner("dots")
        self._stage = ""
        self._stage_start_s = 0.0
        self._count: _Count | None = None
        self._live: Live | None = None
        if is_terminal(self._stream):
            console = Console(file=self._stream, force_terminal=True, highlight=False, markup=False, soft_wrap=True)
            self._live = Live(self, console=console, transient=True, refresh_per_second=8)

    def __enter__(self) -> "Progress":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print what happened, with the seconds since the start."""
        self.show(f"[{time.time() - self._started:5.1f} s] {text}")

    @contextlib.contextmanager
    def stage(self, text: str) -> Iterator[None]:
        """Show what is being done during the block."""
        if self._live is None:
            self.say(text)
        outer, self._stage, self._stage_start_s = (self._stage, self._stage_start_s), text, time.monotonic()
        try:
            yield
            if self._live is not None:
                self.say(f"{text}: {time.monotonic() - self._stage_start_s:.1f} s")
        finally:
            self._stage, self._stage_start_s = outer

    @contextlib.contextmanager
    def count(self, unit: str, total: int, done: int = 0, every_s: float = 0.0) -> "Iterator[_Count]":
        """Show how far something is during the block; call the count's `advance` as it gets further.

        Args:
            unit: what is counted, singular.
            total: how many there will be.
            done: how many there are already.
            every_s: seconds between two lines, at least; 0 prints one for each advance, also in a terminal.
        """
        self._count = _Count(self, unit, total, done, every_s)
        try:
            yield self._count
        finally:
            self._count = None

    def show(self, text: str) -> None:
        """Print a text as it is, above whatever is alive."""
        if self._live is not None:
            self._live.console.print(Text(text))
        else:
            print(text, file=self._stream, flush=True)

    def __rich__(self) -> Group:
        """Return the live view; rich asks for it several times a second."""
        rows: list[RenderableType] = []
        if (count := self._count) is not None:
            grid = Table.grid(padding=(0, 1))
            bar = ProgressBar(count.total, count.done, width=_BAR_WIDTH)
            grid.add_row(f"{count.unit} {count.done}/{count.total}", bar, count.shown)
            rows.append(grid)
        if self._stage:
            elapsed_s = time.monotonic() - self._stage_start_s
            self._spinner.update(text=Text(f"{self._stage}: {elapsed_s:.0f} s"))
            rows.append(self._spinner)
        return Group(*rows)


class _Count:
    """How far something is; made by `Progress.count`."""

    def __init__(self, progress: Progress, unit: str, total: int, done: int, every_s: float) -> None:
        self.unit, self.total, self.done = unit, total, done
        self.shown = ""  # beside the bar
        self._progress = progress
        self._first = done
        self._every_s = every_s
        self._start_s = self._printed_s = time.monotonic()

    def advance(self, done: int, figures: str) -> None:
        """Go on to `done` and show the figures, the seconds each took and the time left."""
        now_s = time.monotonic()
        seconds = (now_s - self._start_s) / max(1, done - self._first)
        self.done = done
        eta = f"ETA {duration(seconds * (self.total - done))}"
        line = f"{figures}  {seconds:5.2f} s  {eta}"
        every_one = self._every_s == 0
        self.shown = eta if every_one else line
        due = now_s - self._printed_s >= self._every_s or done == self.total
        if every_one or (due and self._progress._live is None):
            self._printed_s = now_s
            self._progress.show(f"{self.unit} {done:4d}/{self.total}  {line}")


def is_terminal(stream: TextIO) -> bool:
    """Return whether control codes mean something to the stream's reader."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def duration(seconds: float) -> str:
    """Return a time as m:ss, or h:mm:ss from an hour on."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
