r"""The paper's runs: Qwen2.5-Math base models on ToRL's 28,740 problems (arXiv 2503.23383, section 3).

How to run:
    git clone --depth 1 https://github.com/GAIR-NLP/ToRL && mkdir -p data && cp -r ToRL/data/torl_data data/
    python -m experiments.train torl_math_1_5b --dry-run      (what it needs; no GPU, nothing starts)
    python -m experiments.train torl_math_1_5b
or `--set problems=FILE evaluation_problems=FILE` with problems of your own.

    torl_math_1_5b, torl_math_7b     C = 1, 128 problems x 16 episodes, temperature 1, no KL, lr 1e-6, 3072 tokens
    ..._no_tool                      C = 0 and a prompt that asks for no program
    ..._c2                           C = 2 (Table 4)
    ..._error_penalty                -0.5 for an episode with code that failed (Fig. 6)
    torl_math_lora                   adapters of rank 32 on one GPU; smaller batches; not in the paper

The paper does not print its baseline's prompt. Ours (`torl_env.dialect.PLAIN`) is the paper's frame around the
instruction of Qwen2.5-Math's own model card, "Please reason step by step, and put your final answer within \boxed{}."

Hardware: 8 GPUs of 80 GB on one node, four that train and four that sample; `torl_math_lora` one GPU of 24 GB or more.
Never run: there was no GPU. What follows is computed, with the formulas of `experiments/memory.py`; `--dry-run` prints
every part of it for any model and setting. Engines have their largest need, every episode at full length; where that is
more than vLLM's share of the card, episodes wait. A step is sampling + update on A100s, tool and grader not counted.

    GB                a learner   an engine   a checkpoint   to download   a step
    torl_math_1_5b         16.5        56.4           18.5           3.1   18 + 52 s
    torl_math_7b           55.1       120.0           91.4          15.2   87 + 256 s
    torl_math_lora         12.9        22.9            0.4           3.1   12 + 35 s

Results to expect, the paper's, not ours (greedy, %, AIME24 / AIME25 / MATH500 / OlympiadBench / AMC23, Table 3):
ToRL-1.5B 26.7 / 26.7 / 77.8 / 44.0 / 67.5, ToRL-7B 43.3 / 30.0 / 82.2 / 49.9 / 75.0; without the tool 7B has 14 points
less on AIME24 (abstract). A step took 118 s at C = 0, 237 s at C = 1, 288 s at C = 2 on 8 A800 (Table 4).
"""

from pathlib import Path

from learners.config import ToRLConfig
from torl_env.dialect import PLAIN
from torl_env.rewards import Reward

DATA = Path("data/torl_data")
TRAIN, TEST = str(DATA / "train.parquet"), str(DATA / "test.parquet")
_MODEL_7B = "Qwen/Qwen2.5-Math-7B"
_HOW_TO_GET = (
    "`git clone --depth 1 https://github.com/GAIR-NLP/ToRL && mkdir -p data && cp -r ToRL/data/torl_data data/` gets "
    "ToRL's; "
)


def torl_math_1_5b() -> ToRLConfig:
    """Return the paper's run of Qwen2.5-Math-1.5B."""
    return (
        ToRLConfig()
        .environment(env_config={"problems": TRAIN, "max_tool_calls": 1})
        # The batch does not fit without checkpointing; the paper's code has it on too.
        .language_model("Qwen/Qwen2.5-Math-1.5B", gradient_checkpointing=True)
        .sampling(
            temperature=1.0,
            group_size=16,
            max_prompt_tokens=400,
            max_response_tokens=3072,
            # Each engine's 512 episodes at once; the memory share is that of the paper's code.
            engine_kwargs={"gpu_memory_utilization": 0.85, "max_num_seqs": 512},
        )
        .sandbox(tier="strict", num_replicas="auto")
        .training(lr=1e-6, num_problems_per_step=128, minibatch_size=1024, kl_coeff=0.0, num_iterations=500)
        .evaluation(
            evaluation_interval=10, evaluation_duration=500, evaluation_config={"env_config": {"problems": TEST}}
        )
        .env_runners(num_env_runners=4, num_gpus_per_env_runner=1, num_cpus_per_env_runner=2)
        .learners(num_learners=4, num_gpus_per_learner=1, num_cpus_per_learner=1)
    )


def torl_math_1_5b_no_tool() -> ToRLConfig:
    """Return the baseline without the tool."""
    return torl_math_1_5b().environment(env_config={"max_tool_calls": 0, "dialect": PLAIN})


def torl_math_1_5b_c2() -> ToRLConfig:
    """Return the run with two tool calls (Table 4)."""
    return torl_math_1_5b().environment(env_config={"max_tool_calls": 2})


def torl_math_1_5b_error_penalty() -> ToRLConfig:
    """Return the run with the penalty for code that failed (Fig. 6)."""
    return torl_math_1_5b().environment(env_config={"reward": Reward(error_penalty=-0.5)})


def torl_math_7b() -> ToRLConfig:
    """Return the paper's run of Qwen2.5-Math-7B."""
    return torl_math_1_5b().language_model(_MODEL_7B)


def torl_math_7b_no_tool() -> ToRLConfig:
    """Return the baseline without the tool."""
    return torl_math_1_5b_no_tool().language_model(_MODEL_7B)


def torl_math_7b_c2() -> ToRLConfig:
    """Return the run with two tool calls."""
    return torl_math_1_5b_c2().language_model(_MODEL_7B)


def torl_math_7b_error_penalty() -> ToRLConfig:
    """Return the run with the penalty for code that failed."""
    return torl_math_1_5b_error_penalty().language_model(_MODEL_7B)


def torl_math_lora() -> ToRLConfig:
    """Return a run of adapters that learner and engine share one GPU for.

    Batch, learning rate and rank are not the paper's: adapters are usually trained at a rate ten times as high.
    """
    return (
        torl_math_1_5b()
        .language_model(lora_rank=32, lora_alpha=64.0)
        .sampling(max_response_tokens=2048, engine_kwargs={"gpu_memory_utilization": 0.4, "max_num_seqs": 256})
        .training(lr=1e-5, num_problems_per_step=32, minibatch_size=256, max_tokens_per_micro_batch=8192)
        .env_runners(num_env_runners=1, num_gpus_per_env_runner=0.5)
        .learners(num_learners=1, num_gpus_per_learner=0.5)
    )


def check_file(problems: str, key: str) -> None:
    """Check that one of ToRL's files is there, if it is one.

    Raises:
        FileNotFoundError: with how to get it, and the `key` of `--set` that names another.
    """
    if problems in (TRAIN, TEST) and not Path(problems).exists():
        raise FileNotFoundError(
            f"{problems} is not here. {_HOW_TO_GET}`--set {key}=FILE` takes another (JSON Lines or Parquet with "
            f"`question` and `answer`, or hf:NAME)."
        )
