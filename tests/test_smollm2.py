"""The same arc with a real pre-trained model: SmolLM2-135M-Instruct on a few word problems."""

import json
from pathlib import Path

import pytest

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
