"""Which training problems an evaluation set asks too: `python -m experiments.contamination TRAINING_SET --suite ...`.

How to run:
    python -m experiments.contamination train.jsonl --suite aime24,math500 [--data-dir DIR] [--problems FILE]

The rule. A question's words are its runs of letters, its runs of digits and its other signs, each a word of its own,
in lower case, spaces and dollar signs left out. A training problem and an evaluation problem overlap if

    * they are the same words but for punctuation (`ProblemSet.overlap`), or
    * the training question contains at least 60% of the evaluation question's 8-word sequences, and all its numbers.

Where numbers are missing, the two are counted apart as "with other numbers", to be looked at: mostly another problem in
the same words, as MATH has many and a generator, the built-in one too, makes them; but the number may also stand in a
drawing's code, or in another last sentence (of 8 such pairs of DAPO's 17k with the suites, 3 were the same problem).

60%, and not one sequence of 13 words as in GPT-3's decontamination (arXiv 2005.14165, appendix C): competition
questions share whole sentences ("can be written as m/n where m and n are relatively prime positive integers. Find m +
n"). What is not found: a paraphrase, another language, and a question of fewer than 8 words that is not the same. What
is found without being the same: a question about other shapes or names in the same words.
"""

import argparse
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.suites import SUITES, load_sets
from torl_env.problems import Problem, ProblemSet

_NUM_WORDS = 8
_LEAST_SHARE = 0.6
_NUMBER = re.compile(r"\d+")
_WORD = re.compile(r"[^\W\d_]+|\d+|[^\w\s$]")
_NUM_NAMED = 5


class Pair(NamedTuple):
    """A training problem and an evaluation problem that overlap, or would but for their numbers."""

    mine: Problem
    theirs: Problem
    other_numbers: bool = False


def overlaps(training: ProblemSet, evaluation: ProblemSet) -> list[Pair]:
    """Return the pairs by the module's rule, in order."""
    pairs = {(mine.id, theirs.id): Pair(mine, theirs) for mine, theirs in training.overlap(evaluation)}
    where: dict[int, list[int]] = defaultdict(list)  # hash of a sequence: the evaluation problems that have it
    num_sequences, numbers = [], []
    for index, problem in enumerate(evaluation):
        sequences = _sequences(problem.question)
        num_sequences.append(len(sequences))
        numbers.append(Counter(_NUMBER.findall(problem.question)))
        for sequence in sequences:
            where[sequence].append(index)
    for mine in training:
        shared: dict[int, int] = defaultdict(int)
        for sequence in _sequences(mine.question):
            for index in where.get(sequence, ()):
                shared[index] += 1
        for index, number in shared.items():
            if number >= _LEAST_SHARE * num_sequences[index]:
                theirs = evaluation[index]
                other_numbers = not numbers[index] <= Counter(_NUMBER.findall(mine.question))
                pairs.setdefault((mine.id, theirs.id), Pair(mine, theirs, other_numbers))
    return list(pairs.values())


def overlap_line(training: ProblemSet, evaluation: ProblemSet) -> str:
    """Return a line that says how many problems of the evaluation set overlap with the training set, and names some."""
    pairs = overlaps(training, evaluation)
    same = [pair for pair in pairs if not pair.other_numbers]
    found = {pair.theirs.id for pair in same}
    like = [pair for pair in pairs if pair.theirs.id not in found]
    line = f"{evaluation.name}: {len(found)} of {len(evaluation)} problems are, or nearly are,"
    line += f" in the training set {training.name}" + _named(same, "=")
    if like:
        line += f"; with other numbers {len({pair.theirs.id for pair in like})} more" + _named(like, "like")
    return line


def _named(pairs: Sequence[Pair], sign: str) -> str:
    named = ", ".join(f"{pair.theirs.id} ({sign} {pair.mine.id})" for pair in pairs[:_NUM_NAMED])
    return (f": {named}" if pairs else "") + (", ..." if len(pairs) > _NUM_NAMED else "")


def _sequences(question: str) -> set[int]:
    """Return the hashes of the question's sequences of words."""
    words = _WORD.findall(question.lower())
    return {hash(tuple(words[i : i + _NUM_WORDS])) for i in range(len(words) - _NUM_WORDS + 1)}


def main(arguments: list[str] | None = None) -> None:
    """Read the arguments and print a line for each evaluation set."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.contamination", description="Find evaluation problems in a training set."
    )
    parser.add_argument("training", help="training problems: a file, hf:NAME or arithmetic")
    parser.add_argument("--suite", default="", help=f"suites, joined by commas: {','.join(SUITES)}")
    parser.add_argument("--data-dir", type=Path, help="folder with <suite>.jsonl (default: the hub)")
    parser.add_argument("--problems", action="append", default=[], help="a further evaluation set, as in evaluate")
    options = parser.parse_args(arguments)
    try:
        sets = load_sets(filter(None, options.suite.split(",")), options.problems, options.data_dir)
        if not sets:
            parser.error("name what to look for: --suite or --problems.")
        training = ProblemSet.load(options.training)
    except (ValueError, FileNotFoundError, ImportError) as error:
        parser.error(str(error))
    for evaluation in sets.values():
        print(overlap_line(training, evaluation), flush=True)


if __name__ == "__main__":
    main()
