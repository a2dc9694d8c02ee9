"""What a run leaves on disk, and how it is found again.

runs/<recipe>-<time>/
  run.json            recipe, settings, seed and the figures from before training: what `--restore` needs
  result.json         RLlib's result dict, one JSON object per iteration (the name and format Tune uses)
  events.out.*        the same for TensorBoard
  episodes.jsonl      one record per episode, bounded for long runs; groups.jsonl: every group's mean reward
                      (`learners/records.py`)
  checkpoints/<n>/    RLlib checkpoints, n = iteration
  model/              the trained model as a Hugging Face folder
  summary.json, curves.png
"""

import contextlib
import fcntl
import json
import math
import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from learners import records

_METRICS = "result.json"
_RUN = "run.json"
_CHECKPOINTS = "checkpoints"
SUMMARY = "summary.json"  # written last: a run that has one has done all its iterations
NO_FIGURES = ("config", "hostname", "node_ip", "pid")  # in RLlib's result dict
# Of the evaluations before and after training, in run.json and summary.json; named as in `learners.metrics`.
EVALUATION_FIGURES = (
    "accuracy",
    "reward_mean",
    "code_ratio",
    "pass_ratio",
    "excluded_ratio",
    "accuracy_source",
    "reward_source",
)
_LOCK = "run.lock"  # held by the process that writes; it goes with the process


def claim(path: Path) -> TextIO:
    """Keep a folder, made if need be, for this process until the file is closed, or the process ends, however it ends.

    Raises:
        ValueError: if another process has it.
        OSError: if it is no folder that can be written to.
    """
    path.mkdir(parents=True, exist_ok=True)
    lock = (path / _LOCK).open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        writer = lock.read().strip()
        lock.close()
        raise ValueError(
            f"Another run ({writer}) is writing to {path}. Wait for it or stop it, or name another folder with "
            f"`--storage-path`."
        ) from None
    lock.truncate(0)
    lock.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    lock.flush()
    return lock


class RunFolder:
    """The folder of one run, new or restored."""

    def __init__(self, path: Path) -> None:
        """Open or create the folder."""
        self.path = path.resolve()
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock: TextIO | None = None

    def claim(self) -> None:
        """Keep the folder for this process until `close`, or until it ends, however it ends.

        Raises:
            ValueError: if another process has it.
        """
        self._lock = claim(self.path)

    @classmethod
    def of_checkpoint(cls, path: Path) -> tuple["RunFolder", Path]:
        """Return the folder and the checkpoint that `--restore PATH` means: a run folder's latest, or the one named.

        Raises:
            ValueError: if there is no such checkpoint.
        """
        path = path.resolve()
        if (path / _RUN).exists():
            folder = cls(path)
            checkpoints = folder.checkpoints()
            if not checkpoints:
                raise ValueError(f"`--restore {path}`: the run has no checkpoint yet. Start it anew.")
            return folder, checkpoints[-1]
        if path.parent.name == _CHECKPOINTS and (path.parent.parent / _RUN).exists():
            folder = cls(path.parent.parent)
            if path in folder.checkpoints():
                return folder, path
        raise ValueError(
            f"`--restore {path}` is neither a run folder (with {_RUN}) nor a complete checkpoint in one. "
            f"Name the folder that the run printed as its last lines."
        )

    @property
    def state(self) -> dict[str, Any]:
        """The contents of run.json; empty before a run has written it.

        Raises:
            ValueError: if it is not what a run writes.
        """
        return self._read(_RUN, "recipe", "settings", "seed")

    @property
    def summary(self) -> dict[str, Any]:
        """The contents of summary.json; empty while there is something left to do.

        Raises:
            ValueError: if it is not what a run writes.
        """
        return self._read(SUMMARY, "iterations")

    def _read(self, name: str, *keys: str) -> dict[str, Any]:
        """Return the contents of a file of the folder, which has these keys; empty if it is not there."""
        path = self.path / name
        if not path.exists():
            return {}
        with as_written(path):
            value: dict[str, Any] = json.loads(path.read_text())
            for key in keys:
                _ = value[key]
        return value

    def save_state(self, state: Mapping[str, Any]) -> None:
        """Write run.json, whole or not at all."""
        self.write_json(_RUN, state)

    def write_json(self, name: str, value: Mapping[str, Any]) -> Path:
        """Write a file of the folder, whole or not at all."""
        target = self.path / name
        partial = target.with_suffix(".partial")
        partial.write_text(json.dumps(jsonable(value), indent=2) + "\n")
        partial.replace(target)
        return target

    def checkpoints(self) -> list[Path]:
        """Return the complete checkpoints, oldest first."""
        folder = self.path / _CHECKPOINTS
        return sorted((path for path in folder.glob("[0-9]*") if path.name.isdigit()), key=lambda path: int(path.name))

    def save_checkpoint(self, algo: Any, num_to_keep: int) -> Path:
        """Save the algorithm's checkpoint, whole or not at all, and remove those beyond `num_to_keep`."""
        target = self.path / _CHECKPOINTS / f"{algo.iteration:06d}"
        if not target.exists():
            partial = target.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            algo.save_to_path(str(partial))
            partial.replace(target)
        for old in self.checkpoints()[:-num_to_keep]:
            shutil.rmtree(old)
        return target

    def continue_from(self, iteration: int, *, evaluates_again: bool = False) -> None:
        """Drop what the restored run does again: all of later iterations, and the summary.

        Args:
            iteration: the last one that stays.
            evaluates_again: the run evaluates after that iteration again, so that evaluation's records go too.
        """
        (self.path / SUMMARY).unlink(missing_ok=True)
        for checkpoint in self.checkpoints():
            if int(checkpoint.name) > iteration:
                shutil.rmtree(checkpoint)
        path = self.path / _METRICS
        if path.exists():
            kept = [json.dumps(row) + "\n" for row in self.results() if row["training_iteration"] <= iteration]
            path.write_text("".join(kept))
        records.truncate_after(self.path, iteration, evaluates_again=evaluates_again)

    def append_result(self, result: Mapping[str, Any]) -> None:
        """Append one iteration's result dict to result.json."""
        row = {key: value for key, value in result.items() if key not in NO_FIGURES}
        with (self.path / _METRICS).open("a") as file:
            file.write(json.dumps(jsonable(row)) + "\n")

    def results(self) -> list[dict[str, Any]]:
        """Return the result dicts written so far, an unfinished last line left out.

        Raises:
            ValueError: naming the line that is not what a run writes.
        """
        path = self.path / _METRICS
        if not path.exists():
            return []
        rows = []
        for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
            if line.endswith(b"\n"):
                with as_written(path, number):
                    rows.append(json.loads(line))
                    _ = rows[-1]["training_iteration"]
        return rows

    def close(self) -> None:
        """Let others have the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


@contextlib.contextmanager
def as_written(path: Path, line: int | None = None) -> Iterator[None]:
    """Name the file, and the line, in what reading it in the block raises.

    Raises:
        ValueError: if it is not what a run writes.
    """
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        place, remedy = (path, "") if line is None else (f"{path}, line {line},", " Remove the line to do without it.")
        raise ValueError(f"{place} is not what a run writes ({type(error).__name__}: {error}).{remedy}") from None


def jsonable(value: Any) -> Any:
    """Return `value` as JSON holds it: NaN and infinities, which JSON lacks, as null; other objects as text."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [jsonable(item) for item in value]
    if isinstance(value, np.ndarray):
        return jsonable(value.tolist())
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a nested dict under names joined with slashes."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from flatten(value, f"{name}/")
        elif isinstance(value, int | float | np.number) and not isinstance(value, bool):
            yield name, float(value)
