r"""Choose the problems that a training run learned from: selection by learning impact (LIMR, arXiv 2502.11886).

How to run this script:

    python -m experiments.select RUN [--min-score 0.6] [--problems FILE] [--output FILE]

RUN is a run folder. Each problem's reward curve, one value per visit, is compared with the average curve of all
problems, and scored

    s_i = 1 - sum_k (r_i^k - r_avg^k)^2 / sum_k (r_max - r_avg^k)^2

r_i^k: mean reward of problem i's episodes at its k-th visit; r_avg^k: mean of r_i^k over the problems; r_max = 1, the
reward of a correct answer. 1 is a problem learned exactly as the average is; what is always solved or never solved
falls behind. Problems with a score above `--min-score` (the paper's 0.6) are written as JSON Lines, best first, with
`score` and `num_visits`. Differs: a problem that was visited less often than others is compared over its own visits,
since a run need not end with an epoch.

Results to expect: a table of scores, and `selected.jsonl` in the run folder, which `--set problems=` takes.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.run_folder import RunFolder
from learners import records
from torl_env.problems import Problem, ProblemSet

_MAX_REWARD = 1.0


def reward_curves(iterations: Iterable[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Return each problem's curve, (K_i,) float64: the mean reward of its training episodes, visit by visit.

    A visit is one group; one without an episode that counts is none.

    Args:
        iterations: lines of `groups.jsonl`, which has every group of the run.
    """
    curves: dict[str, list[float]] = {}
    for iteration in iterations:
        for problem, reward in iteration["groups"]:
            if reward is not None:
                curves.setdefault(problem, []).append(reward)
    return {problem: np.array(curve) for problem, curve in curves.items()}


def scores(curves: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return each problem's alignment with the average curve, at most 1 (the module's formula).

    Where the average has no room left to grow, a curve equal to it scores 1 and any other minus infinity.
    """
    if not curves:
        return {}
    longest = max(map(len, curves.values()))
    average = np.array([np.mean([c[k] for c in curves.values() if len(c) > k]) for k in range(longest)])  # (K,)
    found = {}
    for problem, curve in curves.items():
        distance = float(np.sum((curve - average[: len(curve)]) ** 2))
        room = float(np.sum((_MAX_REWARD - average[: len(curve)]) ** 2))
        found[problem] = 1 - distance / room if room > 0 else (1.0 if distance == 0 else -np.inf)
    return found


def selected_rows(problems: Iterable[Problem], curves: Mapping[str, np.ndarray], min_score: float) -> list[dict]:
    """Return the problem file's rows of those that score above `min_score`, best first."""
    score = scores(curves)
    chosen = [problem for problem in problems if score.get(problem.id, -np.inf) > min_score]
    chosen.sort(key=lambda problem: (-score[problem.id], problem.id))
    return [
        {
            "id": problem.id,
            "question": problem.question,
            "answer": problem.answer,
            "source": problem.source,
            "kind": problem.kind,
            "score": round(score[problem.id], 6),
            "num_visits": len(curves[problem.id]),
        }
        for problem in chosen
    ]


def _iterations(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a `groups.jsonl`, an unfinished last one left out.

    Raises:
        ValueError: naming the line that is not what a run writes.
    """
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                groups = json.loads(line)["groups"]
                yield {"groups": [(str(problem), None if mean is None else float(mean)) for problem, mean in groups]}
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise ValueError(
                    f"{path}, line {number}: not what a run writes ({type(error).__name__}: {error}); expected "
                    '{"groups": [[problem id, mean reward or null], ...]}. Remove the line to select without it.'
                ) from None


def _training_problems(run: Path) -> str:
    """Return what the run trained on, as its recipe and settings say.

    Raises:
        ValueError: if they do not say it.
    """
    from experiments.recipes import apply_settings, get_recipe

    state = RunFolder(run).state
    if not state:
        raise ValueError(
            f"{run} has no run.json (a sweep's trial has none), which says what was trained on; name the problems with "
            "`--problems`."
        )
    problems = apply_settings(get_recipe(state["recipe"])(), state["settings"]).env_config["problems"]
    if not isinstance(problems, str | Path):
        raise ValueError(f"The recipe `{state['recipe']}` makes its problems itself; name them with `--problems`.")
    return str(problems)


def _select(run: Path, source: str | None, min_score: float, output: Path) -> str:
    """Write the selection and return what it is, as text.

    Raises:
        ValueError: if the run has no episode, not one of these problems, or none that scores above `min_score`.
        FileNotFoundError, ImportError: as `ProblemSet.load`.
        OSError: if `output` cannot be written.
    """
    path = run / records.GROUPS_NAME
    if not path.is_file():
        raise ValueError(f"{path} is not there; RUN should be the folder of a training run.")
    curves = reward_curves(_iterations(path))
    if not curves:
        raise ValueError(f"{path} has no graded training episode; train for at least one iteration.")
    source = source or _training_problems(run)
    problems = ProblemSet.load(source)
    num_known = sum(problem.id in curves for problem in problems)
    if not num_known:
        raise ValueError(
            f"None of the {len(curves)} problems with episodes, such as {next(iter(curves))!r}, is in {source}, which "
            f"has ids such as {problems[0].id!r}. Name the problems that the run was trained on with `--problems`."
        )
    rows = selected_rows(problems, curves, min_score)
    values = np.array(list(scores(curves).values()))
    summary = f"median {np.median(values):.3f}, lowest {values.min():.3f}, highest {values.max():.3f}"
    if not rows:
        raise ValueError(f"No problem scores above {min_score} ({summary}); nothing was written. Lower `--min-score`.")
    output.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    visits = np.array([len(curve) for curve in curves.values()])
    lines = [f"problems with episodes  {num_known} of {len(problems)}, visits {visits.min()} to {visits.max()}"]
    if num_known < len(curves):
        lines.append(f"                        {len(curves) - num_known} more with episodes are not in {source}")
    lines.append(f"score                   {summary}")
    if visits.max() == 1:
        lines.append(
            "                        no problem was visited twice: a score is the distance from the mean, no curve's"
        )
    lines.append(f"selected                {len(rows)}, score above {min_score}: {output}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Read the arguments, write the selection, print what it is."""
    parser = argparse.ArgumentParser(prog="python -m experiments.select", description="Select by learning impact.")
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("--min-score", type=float, default=0.6, help="keep problems above this (default 0.6)")
    parser.add_argument("--problems", help="the problems trained on, if not those the run's recipe names")
    parser.add_argument("--output", type=Path, help="the file to write (default RUN/selected.jsonl)")
    options = parser.parse_args(arguments)
    output = options.output or options.run / "selected.jsonl"
    if not options.min_score < 1:  # nan too
        parser.error(f"`--min-score` is {options.min_score}; no score is above 1, so it should be a number below.")
    if options.output and (output.is_dir() or not output.parent.is_dir()):
        parser.error(f"`--output {output}` should be a file in a folder that is there.")
    try:
        print(_select(options.run, options.problems, options.min_score, output))
    except (OSError, ValueError, ImportError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
