"""What a run prints: the figures of an iteration, and the closing table, episodes and next commands."""

import math
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.run_folder import SUMMARY


def iteration_figures(result: Mapping[str, Any]) -> str:
    """Return what the line of an iteration says of its result dict."""
    sampled = result["env_runners"]
    held_out = result.get("evaluation", {}).get("env_runners")
    return (
        f"accuracy {number(sampled['accuracy'])}  code {number(sampled['code_ratio'])}  "
        f"pass {number(sampled['pass_ratio'])}  tokens/s {sampled['response_tokens_per_s']:5.0f}"
    ) + (f"  held out {number(held_out['accuracy'])}" if held_out else "")


def number(value: float | None) -> str:
    """Return a share with two digits, or a dash where nothing was measured."""
    return "  - " if value is None or math.isnan(value) else f"{value:.2f}"


def evaluation_line(when: str, figures: Mapping[str, Any]) -> str:
    """Return one line of an evaluation."""
    trained_on = figures["num_trained_on"]
    problems = f"problems, {trained_on} of them trained on," if trained_on else "held-out problems"
    return (
        f"greedy on {figures['num_problems']} {problems} {when}: accuracy {number(figures['accuracy'])}, "
        f"code ratio {number(figures['code_ratio'])}, pass ratio {number(figures['pass_ratio'])}"
    )


def nothing_left(folder: Path, summary: Mapping[str, Any]) -> str:
    """Return what `--restore` of a run says that has done all its iterations."""
    num, before, after = summary["iterations"], summary["accuracy_before"], summary["accuracy_after"]
    return (
        f"Nothing is left to do: {folder.absolute()} has its {num} iterations, accuracy {number(before)} -> "
        f"{number(after)} ({SUMMARY}, curves.png, model/).\n"
        f"To go on further, give the same command with `--num-iterations N`, N above {num}."
    )


def closing(
    recipe: str, before: Mapping[str, Any], after: Mapping[str, Any], picture: Path, model: Path, folder: Path
) -> str:
    """Return the last lines of a run: table, two episodes before and after, where things are, what to try next."""
    title = "greedy" if after["num_trained_on"] else "held out, greedy"
    lines = ["", f"{title:<28}{'before':>8}{'after':>8}"]
    for name, key in (("accuracy", "accuracy"), ("code ratio", "code_ratio"), ("pass ratio", "pass_ratio")):
        lines.append(f"{name:<28}{number(before[key]):>8}{number(after[key]):>8}")
    for kind, value in after["accuracy_per_kind"].items():
        lines.append(f"{'  accuracy, ' + kind:<28}{number(before['accuracy_per_kind'].get(kind)):>8}{number(value):>8}")
    for earlier, later in zip(before["episodes"], after["episodes"], strict=True):
        lines += ["", _episode("before", earlier), "", _episode("after", later)]
    lines += [
        "",
        f"curves   {picture}",
        f"model    {model}   (a Hugging Face folder)",
        f"summary  {folder / SUMMARY}",
        "",
        "Try next:",
        f"  python -m experiments.report {shlex.quote(str(folder))}",
        f"  {_python()} -m experiments.train {recipe} --set model={shlex.quote(str(model))} --num-iterations 0",
        f"  {_python()} -m experiments.train {recipe} --set max_tool_calls=2 kl_coeff=0.01",
        f"  {_python()} -m tensorboard.main --logdir {shlex.quote(str(folder))}",
    ]
    return "\n".join(lines)


def _python() -> str:
    """Return how this interpreter is called from here: "python" where that is it."""
    found = shutil.which("python")
    if found and Path(found).absolute() == Path(sys.executable).absolute():
        return "python"
    executable = Path(sys.executable)
    here = Path.cwd()
    return shlex.quote(str(executable.relative_to(here) if executable.is_relative_to(here) else executable))


def _episode(when: str, episode: Mapping[str, Any]) -> str:
    head = f"--- problem {episode['problem_id']}, {when} training: {episode['verdict']} "
    return head.ljust(80, "-") + "\n" + "".join(text for _, text in episode["turns"])
