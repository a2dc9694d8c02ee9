"""The episodes of an evaluation on disk: found again by set, problem and sample, and only where they still hold."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.evaluation_folder import EvaluationFolder
from learners.episodes import TokenEpisode
from learners.sampler import Episode
from tests.test_metrics import record
from torl_env.problems import Problem, ProblemSet

PROBLEMS = ProblemSet([Problem("p1", "1+1?", "2"), Problem("p2", "2+2?", "4")])
SETUP = {"model": "m", "temperature": 1.0}


def prompt(problem: Problem) -> str:
    return f"Q {problem.question}"


def episode(problem: Problem, sample_index: int = 0, stop_reason: str = "answered") -> Episode:
    tokens = TokenEpisode(
        token_ids=np.array([5, 6, 7], np.int32),
        loss_mask=np.array([False, True, True]),
        action_logp=np.array([0, -0.5, -0.25], np.float32),
        prompt_length=1,
        policy_version=0,
    )
    made = replace(record(r"\boxed{2}"), problem_id=problem.id, sample_index=sample_index, stop_reason=stop_reason)
    made = replace(made, num_prompt_tokens=1, num_tokens=3, num_response_tokens=2)
    return replace(made, turns=(("prompt", prompt(problem)), *made.turns[1:])), tokens


def test_finished_episodes_are_found_again_as_they_were(tmp_path: Path) -> None:
    folder = EvaluationFolder(tmp_path, SETUP)
    written = [episode(PROBLEMS[0], 0), episode(PROBLEMS[0], 1), episode(PROBLEMS[1], 0)]
    for one in written:
        folder.add("set", PROBLEMS[0] if one[0].problem_id == "p1" else PROBLEMS[1], one)
    found = EvaluationFolder(tmp_path, SETUP).finished("set", PROBLEMS, prompt)
    assert found == {("p1", 0): written[0][0], ("p1", 1): written[1][0], ("p2", 0): written[2][0]}
    assert folder.finished("another set", PROBLEMS, prompt) == {}


def test_what_was_cut_short_or_could_not_be_judged_is_sampled_again(tmp_path: Path) -> None:
    folder = EvaluationFolder(tmp_path, SETUP)
    folder.add("set", PROBLEMS[0], episode(PROBLEMS[0]))
    folder.add("set", PROBLEMS[0], episode(PROBLEMS[0], 1, stop_reason="sandbox_error"))
    folder.add("set", PROBLEMS[0], episode(PROBLEMS[0], 2, stop_reason="prompt_too_long"))  # it is as long next time
    path = tmp_path / "set" / "episodes.jsonl"
    with path.open("a") as file:
        file.write('{"problem_id": "p2", "cut off')
    assert set(folder.finished("set", PROBLEMS, prompt)) == {("p1", 0), ("p1", 2)}
    folder.add("set", PROBLEMS[1], episode(PROBLEMS[1]))
    assert [json.loads(line)["problem_id"] for line in path.read_text().splitlines()] == ["p1", "p1", "p2"]


@pytest.mark.parametrize("changed", [Problem("p1", "1+2?", "2"), Problem("p1", "1+1?", "3")])
def test_an_episode_of_a_problem_that_has_changed_is_sampled_again(changed: Problem, tmp_path: Path) -> None:
    folder = EvaluationFolder(tmp_path, SETUP)
    for problem in PROBLEMS:
        folder.add("set", problem, episode(problem))
    assert set(folder.finished("set", ProblemSet([changed, PROBLEMS[1]]), prompt)) == {("p2", 0)}
    folder.add("set", changed, episode(changed))
    assert len((tmp_path / "set" / "episodes.jsonl").read_text().splitlines()) == 2


def test_another_set_of_the_same_name_leaves_the_episodes_of_the_first(tmp_path: Path) -> None:
    others = ProblemSet([Problem("p1", "3+3?", "6"), Problem("p2", "4+4?", "8")])
    for problems in (PROBLEMS, others, PROBLEMS, others):
        folder = EvaluationFolder(tmp_path, SETUP)
        if len(folder.finished("test", problems, prompt)) == 0:
            folder.add("test", problems[0], episode(problems[0]))
    for place, problems in (("test", PROBLEMS), ("test-2", others)):
        [line] = (tmp_path / place / "episodes.jsonl").read_text().splitlines()
        assert json.loads(line)["turns"][0][1] == prompt(problems[0])


def test_episodes_of_problems_left_out_this_time_are_kept(tmp_path: Path) -> None:
    folder = EvaluationFolder(tmp_path, SETUP)
    for problem in PROBLEMS:
        folder.add("set", problem, episode(problem))
    assert set(folder.finished("set", ProblemSet(PROBLEMS[:1]), prompt)) == {("p1", 0)}
    assert set(folder.finished("set", PROBLEMS, prompt)) == {("p1", 0), ("p2", 0)}


def test_another_setup_is_refused_by_what_differs(tmp_path: Path) -> None:
    EvaluationFolder(tmp_path, SETUP)
    EvaluationFolder(tmp_path, dict(SETUP))
    with pytest.raises(ValueError, match=r"another temperature: 1\.0 instead of 0\.5\. Name another folder"):
        EvaluationFolder(tmp_path, {**SETUP, "temperature": 0.5})
