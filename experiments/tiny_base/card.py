"""The base model's card: what it does before any reward, for readers (README.md) and for tests (card.json)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from experiments.tiny_base.measure import figures, figures_per_kind, play
from torl_env.arithmetic import KINDS, generate
from torl_env.dialect import PLAIN, TORL, Dialect

NUM_PROBLEMS = 200
# Samples of each problem at temperature 1: 800 episodes leave a standard error below 0.02.
NUM_SAMPLES = 4
_MODES = {"greedy": 0.0, "sampled": 1.0}
# The two ways in which the recipes use the model: with one tool call, and the baseline without any.
_SETTINGS: dict[str, tuple[Dialect, int]] = {"tool": (TORL, 1), "no_tool": (PLAIN, 0)}


def measure_card(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, num_steps: int) -> dict[str, Any]:
    """Return the card as plain values; `card["tool"]["greedy"]["accuracy"]` is the figure that training starts from."""
    problems = generate("test", NUM_PROBLEMS)
    card: dict[str, Any] = {
        "num_parameters": model.num_parameters(),
        "num_steps": num_steps,
        "num_problems": NUM_PROBLEMS,
        "num_samples": NUM_SAMPLES,
    }
    for setting, (dialect, max_tool_calls) in _SETTINGS.items():
        card[setting] = {}
        for mode, temperature in _MODES.items():
            repeated = problems * (NUM_SAMPLES if temperature else 1)
            samples = play(model, tokenizer, repeated, dialect, max_tool_calls=max_tool_calls, temperature=temperature)
            card[setting][mode] = figures(samples) | {"per_kind": figures_per_kind(samples)}
    return card


def write_card(output: Path, card: dict[str, Any]) -> None:
    """Write card.json and README.md into the model's folder."""
    (output / "card.json").write_text(json.dumps(card, indent=1) + "\n")
    (output / "README.md").write_text(render_card(card))


def render_card(card: dict[str, Any]) -> str:
    """Return the card as Markdown."""
    rows = [
        f"| {setting.replace('_', ' ')} | {mode} | {figure['accuracy']:.2f} | {figure['code_ratio']:.2f} "
        f"| {figure['pass_ratio']:.2f} |"
        for setting in _SETTINGS
        for mode, figure in card[setting].items()
    ]
    kind_rows = []
    for kind in KINDS:
        greedy, sampled = (card["tool"][mode]["per_kind"][kind.name] for mode in _MODES)
        kind_rows.append(
            f"| {kind.name} | {'yes' if kind.needs_code else 'no'} | {greedy['accuracy']:.2f} "
            f"| {greedy['code_ratio']:.2f} | {sampled['accuracy']:.2f} | {sampled['code_ratio']:.2f} "
            f"| {card['no_tool']['greedy']['per_kind'][kind.name]['accuracy']:.2f} |"
        )
    return _TEMPLATE.format(
        parameters=card["num_parameters"] / 1e6,
        num_steps=card["num_steps"],
        num_problems=card["num_problems"],
        num_samples=card["num_samples"],
        rows="\n".join(rows),
        kind_rows="\n".join(kind_rows),
    )


_TEMPLATE = """# The built-in base model

A causal language model of the Qwen2 architecture with {parameters:.2f}M parameters and a byte-level BPE tokenizer of
its own, both made from nothing by `python -m experiments.tiny_base.make` ({num_steps} steps, seeded, one CPU thread).
It was trained to continue synthetic documents on arithmetic problems: some use Python, mostly well (others with a
syntax error, a wrong name, a forgotten print or a wrong formula, some mended after the error), some answer directly,
rightly where that is easy and wrongly where real arithmetic is needed. It has never seen a reward, nor a held-out
problem.

It is made for `quickstart`, which teaches it when to use its tool, and is of no use otherwise.

## What it does before any training with a reward

On {num_problems} held-out problems; "sampled" is temperature 1, {num_samples} episodes a problem. "tool" is the paper's
prompt with one tool call, "no tool" the prompt that asks for no programs. Code ratio: episodes that contain a program;
pass ratio: executed programs that ran without error. This page and `card.json` are written by the script.

| prompt | decoding | accuracy | code ratio | pass ratio |
|---|---|---|---|---|
{rows}

| kind | needs code | greedy accuracy | greedy code ratio | sampled accuracy | sampled code ratio | no tool, greedy |
|---|---|---|---|---|---|---|
{kind_rows}
"""
