"""One pass over the episode records: what the choice and the page need of each, and where it stands in its file."""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.reporting.behaviours import tags
from experiments.run_folder import as_written
from learners import records

Place = tuple[int, str, int]
"""Run, split, iteration: episodes that were sampled together."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One recorded episode.

    Attributes:
        run: Index of its run.
        split, iteration, problem_id, group_id, sample_index, verdict, reward, advantage: As in the record.
        tags: Ids of the rules that hold (`behaviours.RULES`).
        line: Number of its line, from 1.
        offset: Bytes before its line.
    """

    run: int
    split: str
    iteration: int
    problem_id: str
    group_id: int
    sample_index: int
    verdict: str
    reward: float
    advantage: float | None
    tags: tuple[str, ...]
    line: int
    offset: int

    @property
    def place(self) -> Place:
        """Where it was sampled."""
        return self.run, self.split, self.iteration

    @property
    def group(self) -> tuple[int, str, int, int]:
        """Its group: `place` and the group's id."""
        return self.run, self.split, self.iteration, self.group_id


def read_entries(folders: Sequence[Path]) -> list[Entry]:
    """Return the entries of the folders' records, run by run.

    An unfinished last line is left out. Of an episode that is recorded twice (a restored trial did an iteration again)
    the later line counts.

    Raises:
        ValueError: naming the line that is not what a run writes.
    """
    entries: dict[tuple[Any, ...], Entry] = {}
    for run, folder in enumerate(folders):
        for entry in _entries(run, folder / records.FILE_NAME):
            key = (*entry.group, entry.problem_id, entry.sample_index)
            entries.pop(key, None)
            entries[key] = entry
    return sorted(entries.values(), key=lambda entry: (*entry.group, entry.sample_index))


def groups(entries: Sequence[Entry]) -> dict[tuple[int, str, int, int], list[Entry]]:
    """Return the entries by group."""
    found: dict[tuple[int, str, int, int], list[Entry]] = defaultdict(list)
    for entry in entries:
        found[entry.group].append(entry)
    return found


def read_record(folder: Path, entry: Entry) -> dict[str, Any]:
    """Return the whole record of an entry."""
    with (folder / records.FILE_NAME).open("rb") as file:
        file.seek(entry.offset)
        return json.loads(file.readline())


def _entries(run: int, path: Path) -> Iterator[Entry]:
    if not path.exists():
        return
    offset = 0
    with path.open("rb") as file:
        for line, text in enumerate(file, start=1):
            if text.endswith(b"\n"):
                with as_written(path, line):
                    record = json.loads(text)
                    entry = Entry(
                        run=run,
                        split=record["split"],
                        iteration=record["iteration"],
                        problem_id=record["problem_id"],
                        group_id=record["group_id"],
                        sample_index=record["sample_index"],
                        verdict=record["verdict"],
                        reward=record["reward"],
                        advantage=record["advantage"],
                        tags=tuple(tags(record)),
                        line=line,
                        offset=offset,
                    )
                yield entry
            offset += len(text)
