"""Run folders made up for tests of the report: a few result rows and episode records."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from learners import records

ROOT = Path(__file__).parent.parent
TOKENIZER = ROOT / "experiments" / "tiny_base" / "tokenizer.json"
PROMPT = "User: Solve it.\n{question}\nAssistant:"


def response_with(code: str, before: str = "", after: str = "") -> str:
    """Return a turn that asks for the program to be run."""
    return f"{before}```python\n{code}\n```\n```output{after}"


def record(
    *texts: str, statuses: Sequence[str] = (), question: str = "What is 1 + 1?", **changes: Any
) -> dict[str, Any]:
    """Return an episode's line: responses and observations in turn, with tokens of the built-in model's tokenizer."""
    roles = ["prompt", *(("response", "observation")[i % 2] for i in range(len(texts)))]
    turns = [list(turn) for turn in zip(roles, [PROMPT.format(question=question), *texts], strict=True)]
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for _, text in turns]
    mask = [int(role == "response") for (role, _), own in zip(turns, ids, strict=True) for _ in own]
    line = {
        "iteration": 1,
        "split": "train",
        "problem_id": "p1",
        "kind": "sum",
        "answer": "2",
        "group_id": 0,
        "sample_index": 0,
        "turns": turns,
        "token_ids": [id_ for own in ids for id_ in own],
        "loss_mask": mask,
        "action_logp": [-0.25] * sum(mask),
        "logp": [-0.250001] * sum(mask),
        "advantage": 0.5,
        "reward": 1.0,
        "reward_terms": {"correctness": 1.0},
        "verdict": "correct",
        "terminated": True,
        "truncated": False,
        "stop_reason": "answered",
        "error": None,
        "tool_calls": [{"status": status, "run_s": 0.01, "queue_s": 0.0, "wait_s": 0.02} for status in statuses],
        "policy_version": 0,
        "duration_s": 0.5,
    }
    return line | changes


def result_row(iteration: int, accuracy: float = 0.5, num_tool_calls: float = 3.0, **changes: Any) -> dict[str, Any]:
    """Return a line of result.json with what the report reads first."""
    return {
        "training_iteration": iteration,
        "timings": {"sample_s": 2.0, "advantage_s": 0.1, "update_s": 1.0, "sync_s": 0.2},
        "env_runners": {
            "accuracy": accuracy,
            "num_tool_calls": num_tool_calls,
            "engine_busy_s": 1.2,
            "tool_pending_s": 0.9,
            "tool_busy_s": 0.6,
        },
        "learners": {"default_policy": {"kl": 0.01 * iteration, "logp_diff_max": 1e-5}},
    } | changes


def write_run(
    folder: Path,
    rows: Sequence[Mapping[str, Any]] = (),
    episodes: Sequence[Mapping[str, Any]] = (),
    recipe: str = "quickstart",
    seed: int = 0,
    settings: Sequence[str] = (),
) -> Path:
    """Write a run folder and return it."""
    folder.mkdir(parents=True)
    state = {"recipe": recipe, "settings": list(settings), "seed": seed, "before": {"accuracy": 0.25}}
    (folder / "run.json").write_text(json.dumps(state))
    (folder / "result.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shutil.copy(TOKENIZER, folder / records.TOKENIZER_NAME)
    records.append(folder, episodes)
    return folder
