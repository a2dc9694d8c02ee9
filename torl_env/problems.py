"""Problems: where an episode starts, and what its answer is compared with."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np

BUILT_IN = "arithmetic"
BUILT_IN_SIZES = {"train": 4096, "test": 200}  # problems per split of the built-in set


@dataclass(frozen=True, slots=True)
class Problem:
    """One question with its reference answer.

    Attributes:
        id: unique within its set.
        question: the text put into the prompt, as is.
        answer: the gold answer (plain text or LaTeX); the model never sees it.
        source: where the problem comes from, for reports.
        kind: the sort of problem, for accuracy per kind; may be empty.

    Example:
        Problem("gsm8k-7", "What is 6 times 7?", "42", source="GSM8K")
    """

    id: str
    question: str
    answer: str
    source: str = ""
    kind: str = ""


class ProblemSet(Sequence[Problem]):
    """An immutable, ordered, named set of problems with unique ids."""

    def __init__(self, problems: Iterable[Problem], name: str = "problems") -> None:
        """Collect `problems`.

        Raises:
            ValueError: if there are none, or two share an id.
        """
        self.name = name
        self._problems = tuple(problems)
        if not self._problems:
            raise ValueError(f"Problem set `{name}` is empty; it needs at least one problem.")
        seen: set[str] = set()
        for problem in self._problems:
            if problem.id in seen:
                raise ValueError(f"Problem set `{name}` has two problems with id {problem.id!r}; ids must be unique.")
            seen.add(problem.id)

    @classmethod
    def load(cls, source: str | Path, split: str = "train") -> "ProblemSet":
        """Load the built-in set "arithmetic" or a JSON Lines file.

        A line of the file is an object with `question` (or `problem`), `answer` and optionally `id`, `source`, `kind`;
        all strings, but a number is taken as an answer or id too. Blank lines are passed over.

        Args:
            source: "arithmetic", or a path.
            split: "train" or "test" of the built-in set, which never share a problem; a file is one split, whole.

        Raises:
            ValueError: naming file, line, field and what was expected; or an unknown split.
            FileNotFoundError: if there is no such file.
        """
        if split not in BUILT_IN_SIZES:
            raise ValueError(f"`split` is {split!r}; it should be one of {sorted(BUILT_IN_SIZES)}.")
        if str(source) == BUILT_IN:
            from torl_env import arithmetic

            return cls(arithmetic.generate(split, BUILT_IN_SIZES[split]), name=f"{BUILT_IN}/{split}")
        path = Path(source)
        if not path.is_file():
            raise FileNotFoundError(f"No problem file {str(source)!r}; expected a JSON Lines file or {BUILT_IN!r}.")
        return cls(_read_json_lines(path), name=path.stem)

    @overload
    def __getitem__(self, index: int) -> Problem: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Problem]: ...
    def __getitem__(self, index: int | slice) -> Problem | Sequence[Problem]:
        return self._problems[index]

    def __len__(self) -> int:
        return len(self._problems)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProblemSet) and self._problems == other._problems

    def __hash__(self) -> int:
        return hash(self._problems)

    def __repr__(self) -> str:
        return f"ProblemSet({self.name!r}, {len(self)} problems)"

    def fingerprint(self) -> str:
        """Return a short digest of ids, questions and answers in order: equal for equal content, in any process."""
        digest = hashlib.sha256()
        for problem in self._problems:
            digest.update(json.dumps([problem.id, problem.question, problem.answer]).encode())
        return digest.hexdigest()[:16]


def _read_json_lines(path: Path) -> Iterator[Problem]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{where}: not JSON ({error.msg}); expected one JSON object a line.") from None
            if not isinstance(row, dict):
                raise ValueError(f"{where}: got {type(row).__name__}; expected a JSON object.")
            yield Problem(
                id=_text(row, "id", where, default=str(number), numbers=True),
                question=_text(row, "problem" if "problem" in row and "question" not in row else "question", where),
                answer=_text(row, "answer", where, numbers=True),
                source=_text(row, "source", where, default=""),
                kind=_text(row, "kind", where, default=""),
            )


def _text(row: dict[str, Any], field: str, where: str, default: str | None = None, numbers: bool = False) -> str:
    """Return `row[field]` as text; without a `default` the field must be there and not blank."""
    value = row.get(field, default)
    if numbers and isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        got = "nothing" if field not in row else repr(value)
        raise ValueError(f"{where}: field `{field}` should be a string, got {got}.")
    if default is None and not value.strip():
        raise ValueError(f"{where}: field `{field}` is empty; expected text.")
    return value


class ProblemStream:
    """Problems without end: every epoch is a fresh seeded permutation of the set.

    The order depends on (`seed`, epoch) alone, so the state is two counters and a restored stream goes on exactly
    where the saved one stood. A batch may reach over the end of an epoch.
    """

    def __init__(self, problem_set: ProblemSet, seed: int) -> None:
        self.problem_set = problem_set
        self.seed = seed
        self._epoch = 0
        self._position = 0
        self._order = self._permutation()

    def _permutation(self) -> np.ndarray:  # (len(problem_set),) int64
        return np.random.default_rng([self.seed, self._epoch]).permutation(len(self.problem_set))

    def next_batch(self, num_problems: int) -> list[Problem]:
        """Return the next `num_problems` problems.

        Raises:
            ValueError: if `num_problems` is negative.
        """
        if num_problems < 0:
            raise ValueError(f"`num_problems` ({num_problems}) should not be negative.")
        batch: list[Problem] = []
        while len(batch) < num_problems:
            if self._position == len(self._order):
                self._epoch += 1
                self._position = 0
                self._order = self._permutation()
            take = self._order[self._position : self._position + num_problems - len(batch)]
            batch.extend(self.problem_set[int(index)] for index in take)
            self._position += len(take)
        return batch

    def get_state(self) -> dict[str, int | str]:
        """Return the position as plain values, with the set's fingerprint to notice a changed set."""
        return {
            "seed": self.seed,
            "epoch": self._epoch,
            "position": self._position,
            "fingerprint": self.problem_set.fingerprint(),
        }

    def set_state(self, state: Mapping[str, int | str]) -> None:
        """Go to a position returned by `get_state` of a stream over the same problems.

        Raises:
            ValueError: if the state belongs to another problem set.
        """
        if state["fingerprint"] != self.problem_set.fingerprint():
            raise ValueError(
                f"The saved stream belongs to other problems than {self.problem_set!r}; restore it with the problem "
                "set it was saved with."
            )
        self.seed, self._epoch, self._position = int(state["seed"]), int(state["epoch"]), int(state["position"])
        self._order = self._permutation()
