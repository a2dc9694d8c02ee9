"""What a command shows: a live view where there is a terminal, plain lines where there is none."""

import io
import re

import pytest

from experiments import progress as module
from experiments.progress import Progress, duration

STARTED = 1000.0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list whose only item is the time, which the test moves."""
    now = [STARTED]
    monkeypatch.setattr(module.time, "time", lambda: now[0])
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    return Terminal()


def run_two_iterations(stream: io.StringIO, clock: list[float]) -> str:
    with Progress(STARTED, stream) as progress:
        clock[0] += 2
        with progress.stage("loading the model"):
            clock[0] += 3
        with progress.count("iteration", total=4, done=1) as count:
            for done in (2, 3):
                clock[0] += 30
                count.advance(done, "accuracy 0.50")
    return stream.getvalue()


def test_without_a_terminal_there_are_plain_lines_and_no_control_codes(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as some job runners set; it makes no terminal of a file
    output = run_two_iterations(io.StringIO(), clock)
    assert output.splitlines() == [
        "[  2.0 s] loading the model",
        "iteration    2/4  accuracy 0.50  30.00 s  ETA 1:00",
        "iteration    3/4  accuracy 0.50  30.00 s  ETA 0:30",
    ]


def test_in_a_terminal_the_lines_stay_and_the_rest_is_drawn_again_and_again(
    clock: list[float], terminal: Terminal
) -> None:
    output = run_two_iterations(terminal, clock)
    assert "\x1b[" in output
    text = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", output)
    assert "[  5.0 s] loading the model: 3.0 s" in text
    assert "iteration    3/4  accuracy 0.50  30.00 s  ETA 0:30" in text
    assert output.rfind("\x1b[?25h") > output.rfind("\x1b[?25l")  # the cursor is back


def test_the_live_view_names_what_is_done_for_how_long_and_when_it_ends(clock: list[float], terminal: Terminal) -> None:
    from rich.console import Console

    progress = Progress(STARTED, terminal)
    with progress.stage("sampling"), progress.count("episode", total=100, every_s=10) as count:
        clock[0] += 20
        count.advance(25, "accuracy 0.40")
        console = Console(file=io.StringIO(), width=100)
        console.print(progress)
        view = console.file.getvalue()  # type: ignore[attr-defined]
    assert "episode 25/100" in view
    assert "accuracy 0.40   0.80 s  ETA 1:00" in view
    assert "sampling: 20 s" in view
    assert "episode   25/100" not in terminal.getvalue()  # that is for files


def test_lines_of_many_small_steps_come_now_and_then_and_the_last_one_always(clock: list[float]) -> None:
    stream = io.StringIO()
    with Progress(STARTED, stream) as progress, progress.count("episode", total=5, every_s=10) as count:
        for done in range(1, 6):
            clock[0] += 4
            count.advance(done, "x")
    assert [line.split()[1] for line in stream.getvalue().splitlines()] == ["3/5", "5/5"]


def test_times_are_short() -> None:
    assert [duration(seconds) for seconds in (0, 61.9, 3600, 36_061)] == ["0:00", "1:01", "1:00:00", "10:01:01"]
