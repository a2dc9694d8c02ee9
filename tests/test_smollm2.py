"""The same arc with a real pre-trained model: SmolLM2-135M-Instruct on a few word problems, and on MATH500."""

import json
from pathlib import Path

import pytest

from experiments.smollm2 import local_checkpoint
from tests.shared_files import DATA, needs_shared_files
from tests.test_train import Command, episodes, results

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

PROBLEMS = [
    ("Tom has 3 apples and buys 4 more. How many apples does he have?", "7"),
    ("A book costs 5 dollars. How many dollars do 6 books cost?", "30"),
    ("Anna had 20 marbles and lost 8. How many marbles are left?", "12"),
    ("There are 24 cookies for 4 children. How many cookies does each child get?", "6"),
]


def test_two_iterations_on_a_real_model_change_the_weights_that_sample(tmp_path: Path) -> None:
    problems = tmp_path / "problems.jsonl"
    problems.write_text("".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in PROBLEMS))
    folder = tmp_path / "run"
    command = Command(
        *("smollm2_gsm8k", "--num-iterations", "2", "--storage-path", str(folder), "--seed", "0", "--set"),
        *(f"problems={problems}", "num_problems_per_step=4", "group_size=4", "max_response_tokens=192"),
        *("evaluation_duration=2", "error_penalty=-0.5", "lr=1e-5"),
    )
    assert command.end() == 0, command.output
    for result in results(folder):
        learner = result["learners"]["default_policy"]
        assert learner["grad_norm"] > 0  # at least one group has mixed rewards
        assert learner["logp_diff_max"] <= 1e-4
    assert any(row["tool_calls"] for row in episodes(folder)), "no episode used the tool"
    before, after = (
        [row for row in episodes(folder, "evaluation") if row["iteration"] == iteration] for iteration in (0, 2)
    )
    # The same prompt, greedily: the engine's own log-probs moved, so its weights did.
    assert before[0]["turns"][0] == after[0]["turns"][0]
    assert before[0]["action_logp"][0] != after[0]["action_logp"][0]


@needs_shared_files
def test_thirty_problems_of_math500_are_evaluated(tmp_path: Path) -> None:
    folder, output = tmp_path / "evaluation", tmp_path / "figures.json"
    model = local_checkpoint()
    assert model is not None, "run `make smollm2`"
    command = Command(
        *("--model", str(model), "--recipe", "smollm2_gsm8k", "--suite", "math500", "--data-dir", str(DATA)),
        *("--num-problems", "30", "--storage-path", str(folder), "--output", str(output)),
        module="experiments.evaluate",
    )
    assert command.end() == 0, command.output
    figures = json.loads(output.read_text())["sets"]["math500"]
    rows = episodes(folder / "math500", "evaluation")
    assert len({row["problem_id"] for row in rows}) == len(rows) == 30
    counted = [row for row in rows if row["verdict"] != "unknown"]
    assert figures["num_episodes"] == len(counted) >= 25
    assert figures["accuracy"] == sum(row["verdict"] == "correct" for row in counted) / len(counted)
    assert figures["code_ratio"] > 0, "no answer has code"
    assert "ToRL-7B" in command.output  # the paper's table beside it
