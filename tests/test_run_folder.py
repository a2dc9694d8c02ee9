"""The run folder: results, checkpoints, and what `--restore` accepts."""

import json
import math
from pathlib import Path

import pytest

from experiments.run_folder import RunFolder, flatten, jsonable


class FakeAlgo:
    def __init__(self, iteration: int, note: str = "") -> None:
        self.iteration = iteration
        self._note = note

    def save_to_path(self, path: str) -> None:
        Path(path).mkdir(parents=True)
        (Path(path) / "state").write_text(f"{self.iteration}{self._note}")


def test_only_the_last_checkpoints_are_kept(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for iteration in (5, 10, 15):
        folder.save_checkpoint(FakeAlgo(iteration), num_to_keep=2)
    assert [path.name for path in folder.checkpoints()] == ["000010", "000015"]


def test_an_unfinished_checkpoint_is_none(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    (tmp_path / "checkpoints" / "000003.partial").mkdir(parents=True)
    assert folder.checkpoints() == []
    folder.save_checkpoint(FakeAlgo(3), num_to_keep=2)
    assert [path.name for path in folder.checkpoints()] == ["000003"]


def test_restore_takes_a_run_folder_or_a_checkpoint_in_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.save_state({"recipe": "quickstart"})
    for iteration in (3, 6):
        folder.save_checkpoint(FakeAlgo(iteration), num_to_keep=2)
    assert RunFolder.of_checkpoint(tmp_path)[1].name == "000006"
    found, checkpoint = RunFolder.of_checkpoint(tmp_path / "checkpoints" / "000003")
    assert (found.path, checkpoint.name) == (tmp_path.resolve(), "000003")


def test_restore_refuses_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="neither a run folder"):
        RunFolder.of_checkpoint(tmp_path)
    RunFolder(tmp_path).save_state({"recipe": "quickstart"})
    with pytest.raises(ValueError, match="no checkpoint yet"):
        RunFolder.of_checkpoint(tmp_path)
    unfinished = tmp_path / "checkpoints" / "000003.partial"
    unfinished.mkdir(parents=True)
    with pytest.raises(ValueError, match="nor a complete checkpoint in one"):
        RunFolder.of_checkpoint(unfinished)


def test_results_of_later_iterations_are_dropped_on_restore(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for iteration in (1, 2, 3):
        folder.append_result(
            {"training_iteration": iteration, "env_runners": {"accuracy": math.nan}, "config": object()}
        )
    folder.close()
    folder.continue_from(2)
    rows = [json.loads(line) for line in (tmp_path / "result.json").read_text().splitlines()]
    assert [row["training_iteration"] for row in rows] == [1, 2]
    assert rows[0]["env_runners"]["accuracy"] is None and "config" not in rows[0]


def test_a_run_restored_from_an_earlier_checkpoint_leaves_the_later_ones_behind(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for iteration in (10, 20):
        folder.save_checkpoint(FakeAlgo(iteration), num_to_keep=2)
    folder.continue_from(10)
    for iteration in (15, 20):
        checkpoint = folder.save_checkpoint(FakeAlgo(iteration, " again"), num_to_keep=2)
        assert (checkpoint / "state").read_text() == f"{iteration} again"
    assert [path.name for path in folder.checkpoints()] == ["000015", "000020"]


def test_what_is_evaluated_again_is_not_there_twice(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    rows = [(0, "evaluation"), (1, "train"), (2, "train"), (2, "evaluation"), (3, "train")]
    lines = [{"iteration": iteration, "split": split} for iteration, split in rows]
    folder.write_json("summary.json", {"iterations": 3})
    for again, kept in ((False, rows[:4]), (True, rows[:3])):
        path = tmp_path / "episodes.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        folder.continue_from(2, evaluates_again=again)
        found = [json.loads(line) for line in path.read_text().splitlines()]
        assert [(line["iteration"], line["split"]) for line in found] == kept
    assert folder.summary == {}  # the run is not at its end any more


def test_json_has_no_nan_and_names_are_joined() -> None:
    assert jsonable({"a": [math.inf, 1, True, "x", None]}) == {"a": [None, 1, True, "x", None]}
    assert list(flatten({"a": {"b": 1}, "c": True, "d": "x"})) == [("a/b", 1.0)]
