"""The evaluation sets of the paper by name: where they are on the hub.

Five suites make the paper's Table 3 (`paper.py`): competition problems of AIME 2024 and 2025 and of AMC 2023, the
500 problems of MATH500, and the English open-ended text problems of OlympiadBench. Each comes from the Hugging Face hub
or, where a folder is named, from `<name>.jsonl` or `<name>.parquet` in it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torl_env.problem_files import HUB_PREFIX
from torl_env.problems import BUILT_IN, ProblemSet

_FILE_ENDINGS = (".jsonl", ".parquet")


@dataclass(frozen=True, slots=True)
class Suite:
    """One evaluation set.

    Args:
        title: as the paper's table heads it.
        hub_name: the data set on the hub.
        split: of that data set.
        fields: where the fields of a problem stand in a row, if not under their own names.
    """

    title: str
    hub_name: str
    split: str = "test"
    fields: Mapping[str, str] = field(default_factory=dict)


SUITES = {
    "aime24": Suite("AIME24", "HuggingFaceH4/aime_2024", "train"),
    "aime25": Suite("AIME25", "math-ai/aime25"),
    "math500": Suite("MATH500", "HuggingFaceH4/MATH-500", fields={"id": "unique_id", "kind": "subject"}),
    "olympiadbench": Suite("Olympiad", "math-ai/olympiadbench", fields={"answer": "final_answer"}),
    "amc23": Suite("AMC23", "math-ai/amc23"),
}


def load_suite(name: str, data_dir: Path | None = None) -> ProblemSet:
    """Return the problems of a suite, from the folder if one is given, else from the hub.

    Raises:
        ValueError: on an unknown name, or if the hub cannot be reached.
        FileNotFoundError: if the folder lacks the file.
        ImportError: without the extra `datasets`, which reads the hub.
    """
    if name not in SUITES:
        raise ValueError(f"There is no suite {name!r}; expected some of {', '.join(SUITES)}, joined by commas.")
    suite = SUITES[name]
    if data_dir is None:
        loaded = ProblemSet.load(HUB_PREFIX + suite.hub_name, split=suite.split, fields=suite.fields)
        return ProblemSet(loaded, name=name, left_out=loaded.left_out)
    for ending in _FILE_ENDINGS:
        if (path := data_dir / f"{name}{ending}").exists():
            return ProblemSet.load(path)
    raise FileNotFoundError(
        f"`--data-dir {data_dir}` has no {' or '.join(name + ending for ending in _FILE_ENDINGS)}; leave the option "
        f"out to load {suite.hub_name} from the hub."
    )


def load_sets(
    suites: Iterable[str], problems: Iterable[str], data_dir: Path | None = None, num_problems: int | None = None
) -> dict[str, ProblemSet]:
    """Return the problem sets to evaluate on by name, in order.

    Args:
        suites: names of suites.
        problems: further sets as `ProblemSet.load` takes them; of the built-in one the held-out split.
        data_dir: folder of the suites' files.
        num_problems: the first so many of each set; None takes all.

    Raises:
        ValueError: if two sets have one name, or for the reasons of `load_suite`.
    """
    loaded = [(name, load_suite(name, data_dir)) for name in suites]
    loaded += [(_name(source), ProblemSet.load(source, split="test")) for source in problems]
    sets: dict[str, ProblemSet] = {}
    for name, problem_set in loaded:
        if name in sets:
            raise ValueError(f"Two problem sets have the name {name!r}; evaluate them one after the other.")
        sets[name] = ProblemSet(problem_set[:num_problems], name=name, left_out=problem_set.left_out)
    return sets


def _name(source: str) -> str:
    """Return what a set is called in tables and folders."""
    if source == BUILT_IN:
        return BUILT_IN
    if source.startswith(HUB_PREFIX):
        return source.removeprefix(HUB_PREFIX).replace("/", "--")
    return Path(source).stem
