r"""The record of each episode in the run folder: `episodes.jsonl`, one JSON object a line.

    iteration        training iteration it was sampled in, from 1; of an evaluation the last one done, 0 before any
    split            "train" or "evaluation"
    problem_id, source, kind   of the `Problem`;  `answer`: its gold answer
    group_id         episodes of one problem in one iteration share it;  `sample_index`: 0..G-1 within the group
    turns            [[role, text], ...], roles "prompt", "response", "observation"
    token_ids        (T,) all tokens of the episode, as sampled
    loss_mask        (T,) 1 on response tokens, which are trained on
    action_logp      (R,) log-probs of the R response tokens in order, from the sampler
    logp             (R,) the same from the learner when it came to the episode: before its update, or after the steps
                     on earlier mini-batches; null where the learner did not see the episode
    advantage        group-relative advantage; null where the episode left the batch or was an evaluation
    reward, reward_terms, verdict, terminated, truncated, stop_reason, error
    tool_calls       [{status, run_s, queue_s, wait_s}, ...]
    policy_version   number of weight updates before it was sampled
    duration_s       seconds from the prompt to the reward

Bounded for long runs by `is_recorded`: of a recorded iteration the first groups up to 128 episodes, of an evaluation
the first 200 episodes; iterations 1-100 are all recorded, then every 10th up to 1,000, then every 100th. Floats keep
six digits. How long an iteration's records took to write is `timings/record_s` of its results.

`tokenizer.json` beside it is the sampler's tokenizer as the `tokenizers` library saves it, which says what each token
id reads as; absent where the model has no fast tokenizer.

`groups.jsonl` leaves nothing out: a line per training iteration says how each of its groups fared.

    iteration        as above
    groups           [[problem_id, reward], ...], the mean over the group's episodes that count; null where none does
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from learners.episodes import EpisodeRecord, TokenEpisode, ToolCall

FILE_NAME = "episodes.jsonl"
TOKENIZER_NAME = "tokenizer.json"
GROUPS_NAME = "groups.jsonl"
MAX_EPISODES_PER_ITERATION = 128
MAX_EPISODES_PER_EVALUATION = 200


def is_recorded(iteration: int) -> bool:
    """Return whether the episodes of this training iteration (from 1) are written."""
    if iteration <= 100:
        return True
    return iteration % (10 if iteration <= 1000 else 100) == 0


def episode_line(
    record: EpisodeRecord,
    tokens: TokenEpisode,
    *,
    iteration: int,
    split: str,
    answer: str,
    advantage: float | None = None,
    logp: np.ndarray | None = None,
) -> dict[str, Any]:
    """Return the JSON object of one episode, as the module's docstring lists it.

    Args:
        record: what the driver knows.
        tokens: its token arrays.
        iteration: see above.
        split: see above.
        answer: the gold answer.
        advantage: see above.
        logp: (R,) float32 from the learner.
    """
    return {
        "iteration": iteration,
        "split": split,
        "problem_id": record.problem_id,
        "source": record.source,
        "kind": record.kind,
        "answer": answer,
        "group_id": record.group_id,
        "sample_index": record.sample_index,
        "turns": [list(turn) for turn in record.turns],
        "token_ids": tokens.token_ids.tolist(),
        "loss_mask": tokens.loss_mask.astype(int).tolist(),
        "action_logp": _rounded(tokens.action_logp[tokens.loss_mask]),
        "logp": None if logp is None else _rounded(logp),
        "advantage": None if advantage is None else round(float(advantage), 6),
        "reward": record.reward,
        "reward_terms": dict(record.reward_terms),
        "verdict": record.verdict,
        "terminated": record.terminated,
        "truncated": record.truncated,
        "stop_reason": record.stop_reason,
        "error": record.error,
        "tool_calls": [asdict(call) for call in record.tool_calls],
        "policy_version": record.policy_version,
        "duration_s": round(record.duration_s, 6),
    }


def groups_line(
    problem_ids: Sequence[str], rewards: np.ndarray, counts: np.ndarray, *, iteration: int
) -> dict[str, Any]:
    """Return an iteration's line of `groups.jsonl`.

    Args:
        problem_ids: (P,) one per group.
        rewards: (P, G) of the episodes.
        counts: (P, G) bool, which of them count.
        iteration: see above.
    """
    means = [round(float(r[c].mean()), 6) if c.any() else None for r, c in zip(rewards, counts, strict=True)]
    return {"iteration": iteration, "groups": [list(pair) for pair in zip(problem_ids, means, strict=True)]}


def read_line(line: Mapping[str, Any]) -> EpisodeRecord:
    """Return the record that `episode_line` wrote as `line`."""
    mask = line["loss_mask"]
    return EpisodeRecord(
        group_id=line["group_id"],
        sample_index=line["sample_index"],
        problem_id=line["problem_id"],
        kind=line["kind"],
        reward=line["reward"],
        reward_terms=line["reward_terms"],
        verdict=line["verdict"],
        terminated=line["terminated"],
        truncated=line["truncated"],
        stop_reason=line["stop_reason"],
        error=line["error"],
        policy_version=line["policy_version"],
        num_prompt_tokens=mask.index(1) if 1 in mask else len(mask),
        num_tokens=len(mask),
        num_response_tokens=sum(mask),
        turns=tuple((role, text) for role, text in line["turns"]),
        tool_calls=tuple(ToolCall(**call) for call in line["tool_calls"]),
        duration_s=line["duration_s"],
        source=line.get("source", ""),  # episodes of an evaluation that was begun before there were sources
    )


def append(folder: Path, lines: Iterable[Mapping[str, Any]], name: str = FILE_NAME) -> None:
    """Append the objects to a file of the folder, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)  # Tune makes a trial's folder on the driver's machine only
    with (folder / name).open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def truncate_after(folder: Path, iteration: int, *, evaluates_again: bool = False) -> None:
    """Drop the lines of later iterations: a run restored from an earlier checkpoint writes them anew.

    Args:
        folder: with the records.
        iteration: the last one that stays.
        evaluates_again: drop that iteration's own evaluation as well.
    """

    def stays(line: Mapping[str, Any]) -> bool:
        is_again = evaluates_again and line.get("split") == "evaluation" and line["iteration"] == iteration
        return line["iteration"] <= iteration and not is_again

    for path in (folder / FILE_NAME, folder / GROUPS_NAME):
        if path.exists():
            with path.open(encoding="utf-8") as file:
                kept = [line for line in file if line.endswith("\n") and stays(json.loads(line))]
            path.write_text("".join(kept), encoding="utf-8")


def _rounded(values: np.ndarray) -> list[float]:
    return [round(float(value), 6) for value in values]
