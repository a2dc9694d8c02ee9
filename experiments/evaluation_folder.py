"""What an evaluation leaves on disk, and how the same command goes on with it.

<folder>/
  evaluation.json              what was evaluated and how; another model or setting is refused
  <set>/episodes.jsonl         one record per episode, the format of training (`learners/records.py`); of another set of
                               the same name <set>-2, ...
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from experiments.run_folder import jsonable
from learners import records
from learners.episodes import STOP_PROMPT_TOO_LONG, EpisodeRecord
from learners.sampler import Episode
from torl_env.problems import Problem, ProblemSet

_SETUP = "evaluation.json"


class EvaluationFolder:
    """The episodes of one evaluation, found again by set, problem and sample.

    Args:
        path: The folder, new or of an earlier evaluation.
        setup: What decides the episodes: model, prompt, limits, temperature, seed.

    Raises:
        ValueError: if the folder holds an evaluation with another setup.
    """

    def __init__(self, path: Path, setup: Mapping[str, Any]) -> None:
        self.path = path
        self._places: dict[str, str] = {}  # set: its folder's name
        path.mkdir(parents=True, exist_ok=True)
        file = path / _SETUP
        setup = jsonable(setup)
        if file.exists():
            earlier = json.loads(file.read_text())
            if different := [
                key for key in sorted(earlier.keys() | setup.keys()) if earlier.get(key) != setup.get(key)
            ]:
                key = different[0]
                raise ValueError(
                    f"`--storage-path {path}` holds an evaluation with another {key}: {earlier.get(key)!r} instead of "
                    f"{setup.get(key)!r}. Name another folder."
                )
        else:
            partial = file.with_suffix(".partial")
            partial.write_text(json.dumps(setup, indent=2) + "\n")
            partial.replace(file)

    def finished(
        self, set_name: str, problems: ProblemSet, render_prompt: Callable[[Problem], str]
    ) -> dict[tuple[str, int], EpisodeRecord]:
        """Return what is known of a set's problems: (problem id, sample index) to the episode's record.

        An episode that could not be judged (sandbox, grader, engine) is not finished. It is dropped from the file, as
        is one of a problem that has changed since, and a line that an interruption cut short. Where all of the problems
        are other ones, though, the file is another set's (two files have the name test.jsonl): it stays as it is.
        """
        wanted = {problem.id: problem for problem in problems}
        place, number = set_name, 1
        while (found := _finished_in(self.path / place / records.FILE_NAME, wanted, render_prompt)) is None:
            number += 1
            place = f"{set_name}-{number}"
        self._places[set_name] = place
        return found

    def add(self, set_name: str, problem: Problem, episode: Episode) -> None:
        """Write an episode."""
        record, tokens = episode
        line = records.episode_line(record, tokens, iteration=0, split="evaluation", answer=problem.answer)
        records.append(self.path / self._places.get(set_name, set_name), [line])


def _finished_in(
    path: Path, wanted: Mapping[str, Problem], render_prompt: Callable[[Problem], str]
) -> dict[tuple[str, int], EpisodeRecord] | None:
    """Return what is known of the problems, and drop what does not hold; None if the file is another set's."""
    found: dict[tuple[str, int], EpisodeRecord] = {}
    if not path.exists():
        return found
    num_others = 0
    partial = path.with_suffix(".partial")
    with path.open(encoding="utf-8") as file, partial.open("w", encoding="utf-8") as kept:
        for text in file:
            if not text.endswith("\n"):
                continue
            line = json.loads(text)
            record, problem = records.read_line(line), wanted.get(line["problem_id"])
            if not record.counts and record.stop_reason != STOP_PROMPT_TOO_LONG:
                continue
            if problem is not None:
                if (line["turns"][0][1], line["answer"]) != (render_prompt(problem), problem.answer):
                    num_others += 1
                    continue
                found[record.problem_id, record.sample_index] = record
            kept.write(text)
    if num_others and not found:
        partial.unlink()
        return None
    partial.replace(path)
    return found
