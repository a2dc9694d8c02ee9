"""Problems: where an episode starts, and what its answer is compared with."""

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np

from torl_env.audit import why_ungradable
from torl_env.problem_files import RowReader, read_rows

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


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A row that is no problem of the set: where it stands, and why its answer cannot be graded."""

    where: str
    reason: str


_logger = logging.getLogger(__name__)
_NUM_NAMED = 5  # left-out rows, duplicates and overlaps that a log line names; the attributes have them all


class ProblemSet(Sequence[Problem]):
    """An immutable, ordered, named set of problems with unique ids.

    Attributes:
        name: for reports.
        left_out: rows of the file whose answers cannot be graded, in order.
    """

    def __init__(self, problems: Iterable[Problem], name: str = "problems", left_out: Iterable[LeftOut] = ()) -> None:
        """Collect `problems`.

        Raises:
            ValueError: if there are none, or two share an id.
        """
        self.name = name
        self._problems = tuple(problems)
        self.left_out = tuple(left_out)
        self._fingerprint = ""
        if not self._problems:
            raise ValueError(f"Problem set `{name}` is empty; it needs at least one problem.")
        for problem in self._problems:
            if not isinstance(problem, Problem):
                raise ValueError(f"Problem set `{name}` should hold torl_env.Problem, got {problem!r}.")
        seen: set[str] = set()
        for problem in self._problems:
            if problem.id in seen:
                raise ValueError(f"Problem set `{name}` has two problems with id {problem.id!r}; ids must be unique.")
            seen.add(problem.id)

    @classmethod
    def load(cls, source: str | Path, split: str = "train", *, fields: Mapping[str, str] | None = None) -> "ProblemSet":
        """Load the built-in set "arithmetic", a JSON Lines or Parquet file, or a Hugging Face data set "hf:NAME".

        A row has `question` (or `problem`), `answer` and optionally `id`, `source`, `kind`, or the nested layout of
        `problem_files.py`; all strings, but a number is taken as an answer or id too, and a list of texts as an answer.
        Blank lines are passed over. A row whose answer cannot be graded (`audit.py`) is left out; such rows and
        problems with the same question are reported in the log.

        Args:
            source: what to load.
            split: "train" or "test" of the built-in set, which never share a problem; any split of a data set; a file
                is one split, whole.
            fields: where a field of `Problem` stands in a row, by name or dotted path, if not under its own name.

        Raises:
            ValueError: naming file, line, field and what was expected; or an unknown split.
            FileNotFoundError: if there is no such file.
            ImportError: if the extra that reads the format is not installed.
        """
        if str(source) == BUILT_IN:
            if split not in BUILT_IN_SIZES:
                raise ValueError(f"`split` is {split!r}; it should be one of {sorted(BUILT_IN_SIZES)}.")
            from torl_env import arithmetic

            return cls(arithmetic.generate(split, BUILT_IN_SIZES[split]), name=f"{BUILT_IN}/{split}")
        reader = RowReader(fields)
        problems, left_out = [], []
        places: dict[str, str] = {}  # by id
        for where, row in read_rows(str(source), split):
            values = reader.read(row, where)
            reason = why_ungradable(values["answer"])
            if reason:
                left_out.append(LeftOut(where, f"answer {values['answer'][:80]!r}: {reason}"))
                continue
            first = places.setdefault(values["id"], where)
            if first != where:
                raise ValueError(
                    f"{where}: id {values['id']!r} is that of {first} too; ids must be unique. Give each row its "
                    "own, or none an id: a row without one has its number as id."
                )
            problems.append(Problem(**values))
        if not problems:
            if not left_out:
                raise ValueError(
                    f"{source} has no row: problem set `{Path(source).stem}` is empty; expected a problem."
                )
            reasons = "; ".join(f"{row.where}: {row.reason}" for row in left_out[:3])
            raise ValueError(f"None of the {len(left_out)} answers of {source} can be graded: {reasons}.")
        loaded = cls(problems, name=Path(source).stem, left_out=left_out)
        loaded.report()
        return loaded

    def report(self) -> None:
        """Log what was left out and which problems ask the same question."""
        rows = [f"{row.where}: {row.reason}" for row in self.left_out]
        _warn(f"{self.name}: {len(rows)} of {len(self) + len(rows)} rows left out", rows)
        pairs = [f"{problem.id} = {first.id}" for first, problem in self.duplicates()]
        _warn(f"{self.name}: {len(pairs)} problems repeat the question of an earlier one", pairs)

    def duplicates(self) -> list[tuple[Problem, Problem]]:
        """Return (first, other) for each problem that asks the same question as an earlier one.

        Questions are the same if they differ in case, spacing and punctuation alone.
        """
        first: dict[bytes, int] = {}
        return [
            (self[seen], problem)
            for index, problem in enumerate(self)
            if (seen := first.setdefault(_question_key(problem), index)) != index
        ]

    def overlap(self, other: "ProblemSet") -> list[tuple[Problem, Problem]]:
        """Return (problem of this set, problem of the other) for each of this set's questions the other asks too."""
        asked = {_question_key(problem): problem for problem in other}
        return [(problem, asked[key]) for problem in self if (key := _question_key(problem)) in asked]

    def report_overlap(self, evaluation: "ProblemSet") -> None:
        """Log which problems of this set, for training, are in an evaluation set as well."""
        pairs = [f"{mine.id} = {theirs.id}" for mine, theirs in self.overlap(evaluation)]
        _warn(f"{self.name}: {len(pairs)} training problems are in the evaluation set {evaluation.name} too", pairs)

    def filter(self, keep: Callable[[Problem], bool], name: str | None = None) -> "ProblemSet":
        """Return the problems that `keep` returns True for.

        Raises:
            ValueError: if there are none.
        """
        return ProblemSet(filter(keep, self), name=name or self.name, left_out=self.left_out)

    def with_prompts_up_to(self, max_tokens: int, count_tokens: Callable[[Problem], int]) -> "ProblemSet":
        """Return the problems whose prompt has at most `max_tokens` tokens.

        Args:
            max_tokens: the limit, inclusive.
            count_tokens: e.g. `lambda problem: len(tokenizer.encode(dialect.render_prompt(problem)))`.
        """
        return self.filter(lambda problem: count_tokens(problem) <= max_tokens)

    def with_pass_rates(self, pass_rates: Mapping[str, float], lowest: float, highest: float) -> "ProblemSet":
        """Return the problems with a pass rate within [`lowest`, `highest`]; one without a known rate is kept.

        Args:
            pass_rates: share of correct responses by problem id, 0 to 1.
            lowest: e.g. 0.1, to leave out what the model never solves.
            highest: e.g. 0.9, to leave out what it always solves.

        Raises:
            ValueError: if the limits are not in order within [0, 1].
        """
        if not 0 <= lowest <= highest <= 1:
            raise ValueError(f"`lowest` ({lowest}) and `highest` ({highest}) should be in order within [0, 1].")
        return self.filter(lambda problem: lowest <= pass_rates.get(problem.id, lowest) <= highest)

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
        if not self._fingerprint:
            digest = hashlib.sha256()
            for problem in self._problems:
                digest.update(json.dumps([problem.id, problem.question, problem.answer]).encode())
            self._fingerprint = digest.hexdigest()[:16]
        return self._fingerprint


_NO_WORDING = str.maketrans("", "", " \t\r\n;:!?$'\"")
_PUNCTUATION = re.compile(r"[.,](?!\d)|\\,")


def _question_key(problem: Problem) -> bytes:
    """Return a digest of the question without case, spacing and punctuation; mathematical signs count."""
    text = _PUNCTUATION.sub("", problem.question.lower().translate(_NO_WORDING))
    return hashlib.blake2b(text.encode(), digest_size=12).digest()


def _warn(summary: str, entries: Sequence[str]) -> None:
    if entries:
        more = ", ..." if len(entries) > _NUM_NAMED else ""
        _logger.warning("%s: %s%s", summary, ", ".join(entries[:_NUM_NAMED]), more)


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
            ValueError: if the state belongs to another problem set, or is no position in it.
        """
        if state["fingerprint"] != self.problem_set.fingerprint():
            raise ValueError(
                f"The saved stream belongs to other problems than {self.problem_set!r}; restore it with the problem "
                "set it was saved with."
            )
        seed, epoch, position = int(state["seed"]), int(state["epoch"]), int(state["position"])
        size = len(self.problem_set)
        if seed < 0 or epoch < 0 or not 0 <= position <= size:
            raise ValueError(
                f"The saved stream has seed {seed}, epoch {epoch}, position {position}; expected none negative and a "
                f"position of at most {size}, the number of problems. Restore what `get_state` returned."
            )
        self.seed, self._epoch, self._position = seed, epoch, position
        self._order = self._permutation()
