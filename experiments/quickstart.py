"""The whole effect on a CPU in minutes: a tiny base model learns to use the interpreter.

How to run:
    python -m experiments.train quickstart              (what `make quickstart` runs)
    python -m experiments.train quickstart_no_tool      (the paper's baseline: no tool, a prompt that asks for none)
Hardware: 2 CPU cores, no GPU; about 3 minutes and 3.3 GB of memory (the README has the measured runs).
Results to expect: greedy accuracy on held-out problems of about 0.99 with the tool, 0.27 without.
"""

from pathlib import Path

from learners.config import ToRLConfig
from torl_env.dialect import PLAIN

TINY_BASE = Path(__file__).parent / "tiny_base"


def quickstart() -> ToRLConfig:
    """Return the CPU run: the built-in base model on the built-in arithmetic problems, one tool call."""
    return (
        ToRLConfig()
        .environment(env_config={"problems": "arithmetic", "max_tool_calls": 1})
        .language_model(str(TINY_BASE), dtype="float32")
        .sampling(group_size=8, max_prompt_tokens=200, max_response_tokens=160, engine_threads=1)
        .sandbox(num_replicas=1, timeout_s=2.0)
        .training(
            lr=2e-4,
            num_problems_per_step=16,
            minibatch_size=128,
            max_tokens_per_micro_batch=2048,
            num_iterations=50,
        )
        .evaluation(evaluation_duration=200)
        # Fractions: a Tune trial of this recipe fits on one core, so two run side by side on two.
        .resources(num_cpus_for_main_process=0.2)
        .env_runners(num_env_runners=1, num_cpus_per_env_runner=0.4)
        .learners(num_learners=1, num_cpus_per_learner=0.4)
    )


def quickstart_no_tool() -> ToRLConfig:
    """Return the baseline: the same run with C = 0 and a prompt that does not ask for programs."""
    return quickstart().environment(env_config={"max_tool_calls": 0, "dialect": PLAIN})
