"""Problem sets and the seeded stream."""

import json
import re
from pathlib import Path

import pytest

from torl_env import Problem, ProblemSet, ProblemStream


def problems(n: int) -> list[Problem]:
    return [Problem(f"p{i}", f"What is {i} + 1?", str(i + 1)) for i in range(n)]


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_file_gives_its_problems_in_order(tmp_path: Path) -> None:
    path = write(
        tmp_path / "set.jsonl",
        json.dumps({"id": "a", "question": "Où?\nLà?", "answer": "π", "source": "s", "kind": "k"}),
        "",
        json.dumps({"problem": "1 + 1?", "answer": 2}),
    )
    loaded = ProblemSet.load(path)
    assert list(loaded) == [Problem("a", "Où?\nLà?", "π", "s", "k"), Problem("3", "1 + 1?", "2")]  # id: line number
    assert (loaded.name, len(loaded), loaded[-1].answer) == ("set", 2, "2")
    assert list(loaded[:1]) == [loaded[0]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: got list; expected a JSON object"),
        ('{"answer": "1"}', "line 2: field `question` should be a string, got nothing"),
        ('{"question": "q"}', "line 2: field `answer` should be a string, got nothing"),
        ('{"question": "q", "answer": null}', "line 2: field `answer` should be a string, got None"),
        ('{"question": "q", "answer": true}', "line 2: field `answer` should be a string, got True"),
        ('{"question": "q", "answer": " "}', "line 2: field `answer` is empty"),
        ('{"question": ["q"], "answer": "1"}', "line 2: field `question` should be a string, got ['q']"),
        ('{"question": "q", "answer": "1", "kind": 3}', "line 2: field `kind` should be a string, got 3"),
    ],
)
def test_a_bad_line_is_named_with_field_and_expectation(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path / "set.jsonl", '{"question": "q", "answer": "1"}', line)
    with pytest.raises(ValueError, match=re.escape(f"{path}, {message}")):
        ProblemSet.load(path)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(FileNotFoundError, match=r"'no\.jsonl'"):
        ProblemSet.load("no.jsonl")


def test_an_empty_set_and_double_ids_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`empty` is empty"):
        ProblemSet.load(write(tmp_path / "empty.jsonl", ""))
    with pytest.raises(ValueError, match="two problems with id 'p0'"):
        ProblemSet(problems(2) + problems(1))


def test_the_built_in_splits_share_no_question() -> None:
    train, test = ProblemSet.load("arithmetic"), ProblemSet.load("arithmetic", split="test")
    assert (len(train), len(test)) == (4096, 200)
    assert not {p.question for p in train} & {p.question for p in test}
    with pytest.raises(ValueError, match="`split` is 'dev'"):
        ProblemSet.load("arithmetic", split="dev")


def test_each_epoch_is_another_permutation() -> None:
    stream = ProblemStream(ProblemSet(problems(10)), seed=0)
    first, second = stream.next_batch(10), stream.next_batch(10)
    assert sorted(p.id for p in first) == sorted(p.id for p in second) == sorted(p.id for p in problems(10))
    assert first != second


def test_a_batch_reaches_over_epochs() -> None:
    whole = ProblemStream(ProblemSet(problems(4)), seed=1).next_batch(11)
    pieces = ProblemStream(ProblemSet(problems(4)), seed=1)
    assert pieces.next_batch(3) + pieces.next_batch(0) + pieces.next_batch(8) == whole
    assert sorted(p.id for p in whole[4:8]) == ["p0", "p1", "p2", "p3"]
    with pytest.raises(ValueError, match="should not be negative"):
        pieces.next_batch(-1)


def test_the_order_depends_on_the_seed_alone() -> None:
    def order(seed: int) -> list[Problem]:
        return ProblemStream(ProblemSet(problems(50)), seed).next_batch(50)

    assert order(3) == order(3)
    assert order(3) != order(4)


@pytest.mark.parametrize("taken", [0, 3, 7, 10])  # at the start, within, over an epoch's end, within a later one
def test_a_restored_stream_goes_on_where_the_saved_one_stood(taken: int) -> None:
    stream = ProblemStream(ProblemSet(problems(7)), seed=5)
    stream.next_batch(taken)
    state = json.loads(json.dumps(stream.get_state()))  # plain values: any checkpoint format will do
    restored = ProblemStream(ProblemSet(problems(7)), seed=99)
    restored.set_state(state)
    assert restored.next_batch(20) == stream.next_batch(20)


def test_a_state_of_other_problems_is_rejected() -> None:
    state = ProblemStream(ProblemSet(problems(7)), seed=5).get_state()
    with pytest.raises(ValueError, match="belongs to other problems"):
        ProblemStream(ProblemSet(problems(6)), seed=5).set_state(state)
