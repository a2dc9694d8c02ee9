"""Problem sets and the seeded stream."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import datasets
import pyarrow.parquet
import pytest

from tests.shared_files import DATA, needs_shared_files
from torl_env import Problem, ProblemSet, ProblemStream

NUM_ROWS = {  # as SOURCES.md there counts them
    "aime24": 30,
    "aime25": 30,
    "amc23": 40,
    "math500": 500,
    "olympiadbench": 675,
    "gsm8k_test": 1319,
    "gsm8k_train": 7473,
    "math_train_7k": 7472,
    "simplelr_math35_train": 8521,
    "limr_1389": 1389,
    "dapo_math_17k": 16383,
}


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
        ('{"question": "q", "answer": 1e400}', "line 2: field `answer` is infinite; expected a finite number"),
        ('{"question": "q", "answer": -Infinity}', "line 2: field `answer` is infinite; expected a finite number"),
        ('{"question": " ", "answer": "1"}', "line 2: field `question` is empty"),
        ('{"question": ["q"], "answer": "1"}', "line 2: field `question` should be a string, got ['q']"),
        ('{"question": "q", "answer": "1", "kind": 3}', "line 2: field `kind` should be a string, got 3"),
    ],
)
def test_a_bad_line_is_named_with_field_and_expectation(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path / "set.jsonl", '{"question": "q", "answer": "1"}', line)
    with pytest.raises(ValueError, match=re.escape(f"{path}, {message}")):
        ProblemSet.load(path)


def test_answers_that_cannot_be_graded_are_left_out_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(
        tmp_path / "set.jsonl",
        '{"question": "q1", "answer": "1"}',
        '{"question": "q2", "answer": " "}',
        '{"question": "q3", "answer": "the set of all pairs for which the sum of both is a square"}',
    )
    loaded = ProblemSet.load(path)
    assert [problem.question for problem in loaded] == ["q1"]
    assert [row.where for row in loaded.left_out] == [f"{path}, line 2", f"{path}, line 3"]
    assert "answer ' ': it is empty" in loaded.left_out[0].reason
    assert "it is prose" in loaded.left_out[1].reason
    assert "set: 2 of 3 rows left out" in caplog.text


def test_repeated_questions_and_overlap_are_found_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    train = ProblemSet(
        [Problem("a", "What is $x+1$?", "1"), Problem("b", "what is  x + 1 ", "1"), Problem("c", "What is x-1?", "2")],
        "t",
    )
    evaluation = ProblemSet([Problem("e", "What is x - 1", "2"), Problem("f", "What is x + 1.5?", "2")], "e")
    assert [(first.id, other.id) for first, other in train.duplicates()] == [("a", "b")]
    assert [(mine.id, theirs.id) for mine, theirs in train.overlap(evaluation)] == [("c", "e")]
    train.report()
    train.report_overlap(evaluation)
    assert "t: 1 problems repeat the question of an earlier one: b = a" in caplog.text
    assert "t: 1 training problems are in the evaluation set e too: c = e" in caplog.text
    assert evaluation.duplicates() == []


def parquet(path: Path, rows: list[dict]) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def test_a_parquet_file_gives_its_problems(tmp_path: Path) -> None:
    path = parquet(tmp_path / "set.parquet", [{"problem": "q1", "answer": 1, "id": 7}, {"problem": "q2", "answer": 2}])
    assert list(ProblemSet.load(path)) == [Problem("7", "q1", "1"), Problem("2", "q2", "2")]
    bad = parquet(tmp_path / "bad.parquet", [{"problem": "q1", "answer": "1"}, {"problem": None, "answer": "1"}])
    with pytest.raises(ValueError, match=re.escape(f"{bad}, row 2: field `problem` should be a string, got None")):
        ProblemSet.load(bad)


def nested(question: str, answer: str, number: int) -> dict:
    return {
        "data_source": "math",
        "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}],
        "ability": "algebra",
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": {"id": number, "split": "train"},
    }


def test_the_nested_layout_of_torl_and_verl_is_read_from_both_formats(tmp_path: Path) -> None:
    rows = [nested("q1", "1", 10), nested("q2", "2", 11)]
    expected = [Problem("10", "q1", "1", "math", "algebra"), Problem("11", "q2", "2", "math", "algebra")]
    assert list(ProblemSet.load(parquet(tmp_path / "set.parquet", rows))) == expected
    assert list(ProblemSet.load(write(tmp_path / "set.jsonl", *map(json.dumps, rows)))) == expected
    rows[1]["prompt"] = [{"role": "system", "content": "Be brief."}]
    bad = write(tmp_path / "bad.jsonl", *map(json.dumps, rows))
    with pytest.raises(ValueError, match="line 2: field `prompt` should be a list"):
        ProblemSet.load(bad)
    del rows[0]["reward_model"]["ground_truth"]
    bad = write(tmp_path / "bad.jsonl", *map(json.dumps, rows))
    with pytest.raises(ValueError, match=r"line 1: field `reward_model\.ground_truth` should be a string, got nothing"):
        ProblemSet.load(bad)


def test_other_layouts_are_mapped_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "set.jsonl", '{"task": {"text": "q"}, "solution": 3, "key": "k"}')
    fields = {"question": "task.text", "answer": "solution", "id": "key"}
    assert list(ProblemSet.load(path, fields=fields)) == [Problem("k", "q", "3")]
    with pytest.raises(ValueError, match=r"`fields` maps \['text'\]"):
        ProblemSet.load(path, fields={"text": "task.text"})
    with pytest.raises(ValueError, match=r"line 1: field `task\.body` should be a string"):
        ProblemSet.load(path, fields={**fields, "question": "task.body"})


def test_a_hugging_face_data_set_is_read_from_a_parquet_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    repository = tmp_path / "repository" / "data"
    repository.mkdir(parents=True)
    parquet(repository / "train-00000-of-00001.parquet", [{"problem": "q1", "answer": "1"}])
    parquet(repository / "test-00000-of-00001.parquet", [{"problem": "q2", "answer": "2"}])
    source = f"hf:{tmp_path / 'repository'}"
    assert list(ProblemSet.load(source)) == [Problem("1", "q1", "1")]
    assert list(ProblemSet.load(source, split="test")) == [Problem("1", "q2", "2")]
    with pytest.raises(ValueError, match="split 'dev', could not be loaded"):
        ProblemSet.load(source, split="dev")


def test_a_data_set_that_cannot_be_had_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(name: str, split: str) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=offline))
    with pytest.raises(ValueError, match=r"'some/set', split 'train', could not be loaded \(ConnectionError: no route"):
        ProblemSet.load("hf:some/set")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match="install it with the extra `datasets`"):
        ProblemSet.load("hf:some/set")


@needs_shared_files
@pytest.mark.parametrize(("name", "num_rows"), NUM_ROWS.items())
def test_every_shared_file_loads_whole_but_for_prose(name: str, num_rows: int) -> None:
    loaded = ProblemSet.load(DATA / f"{name}.jsonl")
    assert len(loaded) + len(loaded.left_out) == num_rows
    # One gold of OlympiadBench is a sentence: "f(x) = ax + b, where b is an arbitrary integer, and ..."
    assert [row.where.rpartition("/")[2] for row in loaded.left_out] == {
        "olympiadbench": ["olympiadbench.jsonl, line 74"]
    }.get(name, [])


def test_a_hundred_thousand_problems_load_in_three_seconds_and_300_mb(tmp_path: Path) -> None:
    question = "Let $x$ be a real number such that $x^2 - {0} x + 1 = 0$. Find $x^2 + \\\\frac{{1}}{{x^2}}$. " * 3
    path = write(
        tmp_path / "set.jsonl",
        *(f'{{"problem": "{question.format(i)}", "answer": "\\\\frac{{{i}}}{{7}}"}}' for i in range(100_000)),
    )
    script = (
        "import sys, time\n"
        "from torl_env import ProblemSet\n"
        "start = time.process_time()\n"  # other processes share the cores
        "assert len(ProblemSet.load(sys.argv[1])) == 100_000\n"
        "seconds = time.process_time() - start\n"
        # Not `ru_maxrss`: a new program inherits the peak of the process that started it.
        "peak = next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM:'))\n"
        "print(seconds, int(peak) / 1024)\n"
    )
    command = [sys.executable, "-c", script, str(path)]
    seconds, megabytes = map(float, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    assert seconds < 3
    assert megabytes < 300


def test_problems_are_filtered_by_prompt_length_and_pass_rate() -> None:
    everything = ProblemSet(problems(4))
    short = everything.with_prompts_up_to(2, lambda problem: int(problem.id[1:]))
    assert [problem.id for problem in short] == ["p0", "p1", "p2"]  # the limit is inclusive
    rates = {"p0": 0.0, "p1": 0.1, "p2": 1.0}  # p3 is not known: kept
    assert [problem.id for problem in everything.with_pass_rates(rates, 0.1, 0.9)] == ["p1", "p3"]
    with pytest.raises(ValueError, match="is empty"):
        everything.filter(lambda problem: False)
    with pytest.raises(ValueError, match=r"`lowest` \(0\.9\) and `highest` \(0\.1\)"):
        everything.with_pass_rates(rates, 0.9, 0.1)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(FileNotFoundError, match=r"'no\.jsonl'"):
        ProblemSet.load("no.jsonl")


def test_an_empty_set_and_double_ids_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`empty` is empty"):
        ProblemSet.load(write(tmp_path / "empty.jsonl", ""))
    with pytest.raises(ValueError, match="two problems with id 'p0'"):
        ProblemSet(problems(2) + problems(1))


def test_double_ids_of_a_file_are_named_with_both_lines(tmp_path: Path) -> None:
    rows = ['{"id": "a", "question": "q1", "answer": "1"}', '{"question": "q2", "answer": "2"}']
    path = write(tmp_path / "set.jsonl", *rows, rows[0])
    with pytest.raises(ValueError, match=re.escape(f"{path}, line 3: id 'a' is that of {path}, line 1 too")):
        ProblemSet.load(path)
    path = write(tmp_path / "set.jsonl", *rows, '{"id": 2, "question": "q3", "answer": "3"}')
    with pytest.raises(ValueError, match=re.escape(f"{path}, line 3: id '2' is that of {path}, line 2 too")):
        ProblemSet.load(path)


def test_a_file_without_a_row_and_a_folder_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "empty.jsonl", "")
    with pytest.raises(ValueError, match=re.escape(f"{path} has no row")):
        ProblemSet.load(path)
    with pytest.raises(FileNotFoundError, match=re.escape(f"No problem file {str(tmp_path)!r} (it is a folder)")):
        ProblemSet.load(tmp_path)


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


@pytest.mark.parametrize(("key", "value"), [("position", 4), ("position", -1), ("epoch", -1), ("seed", -1)])
def test_a_state_that_is_no_position_is_rejected_and_changes_nothing(key: str, value: int) -> None:
    stream, untouched = (ProblemStream(ProblemSet(problems(3)), seed=5) for _ in range(2))
    with pytest.raises(ValueError, match=rf"{key} {value}\b.*expected none negative and a position of at most 3"):
        stream.set_state({**stream.get_state(), key: value})
    assert stream.next_batch(7) == untouched.next_batch(7)
    stream.set_state({**untouched.get_state(), "position": 3})  # an epoch's end, before the next has begun
    assert len(stream.next_batch(1)) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"question": "q", "answer": "1"}\n{"question": "caf\xe9", "answer": "1"}\n', r"line 2: not UTF-8"),
        ('{"question": "q", "answer": "1"}'.encode("utf-16"), r"line 1: not UTF-8"),
        (b'{"question": "q", "answer": ' + b"1" * 5000 + b"}", r"line 1: not JSON \(Exceeds the limit"),
        (b"[" * 100_000, r"line 1: not JSON"),
        (b'{"question": "a\\ud800b", "answer": "1"}', r"line 1: field `question` has half of a surrogate pair"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        ProblemSet.load(path)


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    (tmp_path / "problems.parquet").write_bytes(b"not parquet")
    with pytest.raises(ValueError, match=r"problems.parquet: no Parquet file"):
        ProblemSet.load(tmp_path / "problems.parquet")


def test_a_damaged_parquet_file_is_named_with_the_last_good_row(tmp_path: Path) -> None:
    rows = [{"problem": f"q{number}", "answer": str(number)} for number in range(1, 6001)]
    path = tmp_path / "problems.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=4096)
    offset = pyarrow.parquet.read_metadata(path).row_group(1).column(0).dictionary_page_offset
    content = bytearray(path.read_bytes())
    content[offset : offset + 64] = b"\xff" * 64
    path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(f"{path}: no Parquet file, or damaged after row 4096 (")):
        ProblemSet.load(path)


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"question": "q", "answer": "1"}')
    assert ProblemSet.load(path)[0].question == "q"


def test_the_answer_of_a_solution_as_in_gsm8k_stands_behind_its_mark(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    answers = ["She sold 48/2 = <<48/2=24>>24 clips.\n#### 72", "#7"]
    path.write_text("".join(json.dumps({"question": f"q{i}", "answer": a}) + "\n" for i, a in enumerate(answers)))
    assert [problem.answer for problem in ProblemSet.load(path)] == ["72", "#7"]


def test_a_set_of_which_nothing_can_be_graded_says_why(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_text('{"question": "q", "answer": "n/a"}\n')
    with pytest.raises(ValueError, match=r"None of the 1 answers .*line 1: answer 'n/a': it stands for"):
        ProblemSet.load(path)


def test_something_else_than_problems_is_refused() -> None:
    with pytest.raises(ValueError, match=r"should hold torl_env.Problem, got 1"):
        ProblemSet([1])  # type: ignore[list-item]
