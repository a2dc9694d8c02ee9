"""Episode records on disk: what a line holds, which iterations are written, and a restored run's file."""

import json
from pathlib import Path

import numpy as np
import pytest

from learners import records
from learners.episodes import TokenEpisode
from tests.test_metrics import record


def test_a_line_holds_tokens_masks_and_both_logps() -> None:
    tokens = TokenEpisode(
        token_ids=np.array([5, 6, 7, 8], np.int32),
        loss_mask=np.array([False, True, False, True]),
        action_logp=np.array([0, -0.5, 0, -0.25], np.float32),
        prompt_length=1,
        policy_version=3,
    )
    line = records.episode_line(
        record(r"\boxed{1}", source="math500"),
        tokens,
        iteration=4,
        split="train",
        answer="1",
        advantage=0.5,
        logp=np.array([-0.5, -0.3], np.float32),
    )
    line = json.loads(json.dumps(line))
    assert line["token_ids"] == [5, 6, 7, 8]
    assert line["loss_mask"] == [0, 1, 0, 1]
    assert line["action_logp"] == [-0.5, -0.25]
    assert line["logp"] == [-0.5, -0.3]
    assert (line["iteration"], line["advantage"], line["answer"]) == (4, 0.5, "1")
    assert line["turns"] == [["prompt", "Q"], ["response", r"\boxed{1}"]]
    assert (line["source"], line["kind"]) == ("math500", "sum")
    assert records.read_line(line).source == "math500"


@pytest.mark.parametrize(
    ("iteration", "recorded"), [(1, True), (100, True), (101, False), (110, True), (1010, False), (1100, True)]
)
def test_long_runs_are_thinned_out(iteration: int, recorded: bool) -> None:
    assert records.is_recorded(iteration) is recorded


def test_a_restored_run_drops_the_lines_it_will_write_again(tmp_path: Path) -> None:
    for name in (records.FILE_NAME, records.GROUPS_NAME):
        records.append(tmp_path, [{"iteration": number, "split": "train"} for number in (1, 2, 3)], name)
    with (tmp_path / records.FILE_NAME).open("a") as file:
        file.write('{"iteration": 1, "cut off')
    records.truncate_after(tmp_path, 2)
    for name in (records.FILE_NAME, records.GROUPS_NAME):
        rows = [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        assert [row["iteration"] for row in rows] == [1, 2]


def test_every_group_of_an_iteration_is_in_one_line() -> None:
    rewards = np.array([[1, -1, -1], [1, 1, 0], [0, 0, 0]], np.float32)
    counts = np.array([[True, True, True], [True, True, False], [False, False, False]])
    # (1 - 1 - 1) / 3, then (1 + 1) / 2 without the episode that does not count, then none that does
    assert records.groups_line(["a", "b", "a"], rewards, counts, iteration=7) == {
        "iteration": 7,
        "groups": [["a", -0.333333], ["b", 1.0], ["a", None]],
    }


def test_nothing_to_drop_is_fine(tmp_path: Path) -> None:
    records.truncate_after(tmp_path, 2)
    assert not (tmp_path / records.FILE_NAME).exists()
