"""What a small model does with the tool: batched decoding of whole episodes in transformers, no engine, no Ray.

The programs run in the environment's sandbox and the environment grades: the figures are those of an evaluation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from torl_env.dialect import MARKER, Dialect, count_code
from torl_env.env import MathToolEnv
from torl_env.problems import Problem
from torl_env.sandbox.local import LocalSandbox
from torl_env.sandbox.types import ExecutionResult

TIMEOUT_S = 5.0


@dataclass(slots=True)
class Sample:
    """One finished episode: the model's turns, what its programs did, whether the answer was right."""

    problem: Problem
    turns: list[str] = field(default_factory=list)
    executions: list[ExecutionResult] = field(default_factory=list)
    correct: bool = False


def play(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    dialect: Dialect,
    *,
    max_tool_calls: int = 1,
    max_response_tokens: int = 128,
    temperature: float = 0.0,
    seed: int = 0,
) -> list[Sample]:
    """Return one episode per problem, all decoded together, turn by turn.

    Args:
        max_response_tokens: of all turns of an episode together; observations do not count.
        temperature: 0 decodes greedily.
    """
    generator = torch.Generator().manual_seed(seed)
    sandbox = LocalSandbox()
    envs = [
        MathToolEnv([problem], max_tool_calls=max_tool_calls, sandbox=sandbox, dialect=dialect) for problem in problems
    ]
    samples = [Sample(problem) for problem in problems]
    contexts, budgets, stops = [], [max_response_tokens] * len(problems), []
    for env, problem in zip(envs, problems, strict=True):
        prompt, info = env.reset(options={"problem": problem})
        contexts.append(tokenizer(prompt, add_special_tokens=False).input_ids)
        stops.append(info["stop"])
    running = list(range(len(problems)))
    while running:
        turns = decode_turns(
            model,
            tokenizer,
            [contexts[i] for i in running],
            [budgets[i] for i in running],
            [MARKER if stops[i] else None for i in running],
            _chooser(temperature, generator),
        )
        texts = [tokenizer.decode(turn, skip_special_tokens=True) for turn in turns]
        programs = [envs[i].begin(text) for i, text in zip(running, texts, strict=True)]
        results = asyncio.run(_run_all(sandbox, programs))
        still_running = []
        for i, turn, text, result in zip(running, turns, texts, results, strict=True):
            observation, _, terminated, truncated, info = envs[i].finish(result)
            samples[i].turns.append(text)
            if result is not None:
                samples[i].executions.append(result)
            contexts[i] += turn + tokenizer(observation, add_special_tokens=False).input_ids
            budgets[i] -= len(turn)
            stops[i] = info["stop"]
            if terminated or truncated:
                samples[i].correct = info["verdict"] == "correct"
            elif budgets[i] > 0:
                still_running.append(i)
        running = still_running
    asyncio.run(sandbox.close())
    return samples


async def _run_all(sandbox: LocalSandbox, programs: Sequence[str | None]) -> list[ExecutionResult | None]:
    async def run(program: str | None) -> ExecutionResult | None:
        return None if program is None else await sandbox.run(program, TIMEOUT_S)

    return await asyncio.gather(*map(run, programs))


def _chooser(temperature: float, generator: torch.Generator) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function from logits (B, V) to tokens (B,)."""
    if temperature == 0.0:
        return lambda logits_BV: logits_BV.argmax(-1)
    return lambda logits_BV: torch.multinomial((logits_BV / temperature).softmax(-1), 1, generator=generator)[:, 0]


@torch.inference_mode()
def decode_turns(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    contexts: Sequence[list[int]],
    max_tokens: Sequence[int],
    stops: Sequence[str | None],
    choose: Callable[[torch.Tensor], torch.Tensor],
) -> list[list[int]]:
    """Return the next turn of each context: tokens up to its stop string, the end token, or `max_tokens`, inclusive."""
    longest = max(map(len, contexts))
    end = tokenizer.eos_token_id
    # Padding at the left, so that every row's next token stands in the last column.
    ids_BT = torch.tensor([[end] * (longest - len(context)) + context for context in contexts])
    mask_BT = torch.tensor([[0] * (longest - len(context)) + [1] * len(context) for context in contexts])
    position_B1 = mask_BT.sum(1, keepdim=True)
    cache = DynamicCache(config=model.config)
    logits_BTV = model(
        ids_BT,
        attention_mask=mask_BT,
        position_ids=(mask_BT.cumsum(1) - 1).clamp(min=0),
        past_key_values=cache,
        logits_to_keep=1,
    ).logits
    turns: list[list[int]] = [[] for _ in contexts]
    done = [False] * len(contexts)
    while True:
        token_B = choose(logits_BTV[:, -1])
        for i, token in enumerate(token_B.tolist()):
            if done[i]:
                continue
            turns[i].append(token)
            stop = stops[i]
            done[i] = (
                token == end
                or len(turns[i]) >= max_tokens[i]
                or (stop is not None and stop in tokenizer.decode(turns[i][-len(stop) :]))
            )
        if all(done):
            return turns
        mask_BT = torch.cat([mask_BT, torch.ones_like(position_B1)], 1)
        logits_BTV = model(
            token_B[:, None], attention_mask=mask_BT, position_ids=position_B1, past_key_values=cache
        ).logits
        position_B1 = position_B1 + 1


def figures(samples: Sequence[Sample]) -> dict[str, float]:
    """Return accuracy, code ratio (episodes with a program) and pass ratio (executed programs that ran) of samples."""
    executions = [execution for sample in samples for execution in sample.executions]
    return {
        "accuracy": sum(sample.correct for sample in samples) / len(samples),
        "code_ratio": sum(count_code(sample.turns).num_blocks > 0 for sample in samples) / len(samples),
        "pass_ratio": sum(execution.ok for execution in executions) / max(1, len(executions)),
    }


def figures_per_kind(samples: Sequence[Sample]) -> dict[str, dict[str, float]]:
    """Return the same, keyed by kind of problem."""
    kinds = dict.fromkeys(sample.problem.kind for sample in samples)
    return {kind: figures([sample for sample in samples if sample.problem.kind == kind]) for kind in kinds}
