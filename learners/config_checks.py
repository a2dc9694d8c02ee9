"""What `ToRLConfig.validate` refuses: values out of range, and RLlib's settings that would silently do nothing here."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from torl_env.sandbox.tiers import TIERS

if TYPE_CHECKING:
    from learners.config import ToRLConfig

# These change the distribution sampled from, so the learner's `logp` would no longer be that of the sampler (TRL#6789).
_REFUSED_SAMPLING = ("top_p", "top_k", "min_p")
_DTYPES = ("float32", "bfloat16")
_SMALLEST = {
    "group_size": 2,
    "max_prompt_tokens": 1,
    "max_response_tokens": 1,
    "num_problems_per_step": 1,
    "minibatch_size": 1,
    "max_tokens_per_micro_batch": 1,
    "lora_rank": 0,
    "warmup_steps": 0,
    "num_iterations": 0,
    "checkpoint_interval": 1,
    "num_checkpoints_to_keep": 1,
    "sandbox_memory_mb": 64,  # what the interpreter itself needs
    "num_learners": 0,
}
# May also be None.
_SMALLEST_IF_SET = {"engine_threads": 1, "learner_threads": 1, "sandbox_max_concurrent_runs": 1}
_NOT_NEGATIVE = ("kl_coeff", "entropy_coeff", "weight_decay")
_POSITIVE = ("temperature", "clip_param", "lora_alpha", "sandbox_timeout_s")
_POSITIVE_IF_SET = ("grad_clip", "logp_diff_limit")
_SEEDS_END = 2**31  # numpy takes no negative one; RLlib and vLLM add to it what must stay below 2**32

# RLlib's settings that nothing here reads, and what takes their place: refused unless they have RLlib's own default.
_WITHOUT_EFFECT = {
    "num_epochs": "a batch is used once; several optimizer steps come from a smaller `minibatch_size`",
    "shuffle_batch_per_epoch": "rows are shuffled into mini-batches as it is",
    "train_batch_size": "set `num_problems_per_step` and `group_size`",
    "_train_batch_size_per_learner": "set `num_problems_per_step` and `group_size`",
    "rollout_fragment_length": "episodes are sampled whole",
    "num_envs_per_env_runner": "an engine runs all episodes of its share at once",
    "gamma": "the reward comes at the end and is not discounted",
    "clip_rewards": "set `env_config={'reward': ...}`",
    "min_time_s_per_iteration": "an iteration is one step",
    "min_sample_timesteps_per_iteration": "an iteration is one step",
    "min_train_timesteps_per_iteration": "an iteration is one step",
    "evaluation_duration_unit": "`evaluation_duration` counts problems, one episode each",
}


def why_refused(name: str) -> str | None:
    """Return why there is no such setting here, and what to use; None if it is no other trainer's that is known."""
    if name in _REFUSED_SAMPLING:
        return (
            f"`{name}` is not supported: it renormalises the sampled distribution, so that the learner's "
            f"log-probs would not be the sampler's and the policy ratio would be biased. Use `temperature`."
        )
    for known, instead in _WITHOUT_EFFECT.items():
        if name in (known, known.lstrip("_")):
            return f"`{known.lstrip('_')}` has no effect here: {instead}."
    return None


def check_choices(config: "ToRLConfig") -> None:
    """Raise ValueError for the first setting that is none of its choices, or does not go with another."""
    if not config.model_path:
        raise ValueError("`model` is missing. Name a Hugging Face folder or hub name in `.language_model(...)`.")
    if _looks_like_a_path(config.model_path) and not Path(config.model_path).expanduser().is_dir():
        raise ValueError(f"`model` is no folder: {config.model_path!r}. Name a Hugging Face folder or a hub name.")
    if config.sandbox_app == "":
        raise ValueError("`app` of the sandbox must be a name or None. Received ''.")
    if config.dtype not in _DTYPES:
        raise ValueError(f"`dtype` must be one of {_DTYPES}. Received {config.dtype!r}.")
    if config.dtype == "bfloat16" and config.num_learners < 1:
        raise ValueError(
            "`dtype` 'bfloat16' needs `num_learners` >= 1, since mixed precision comes with FSDP. "
            f"Received {config.num_learners}; use 'float32' for a learner in the driver's process."
        )
    if config.grad_clip_by != "global_norm":
        raise ValueError(f"`grad_clip_by` must be 'global_norm', the only one built. Received {config.grad_clip_by!r}.")
    if config.sandbox_tier not in TIERS:
        raise ValueError(f"`tier` of the sandbox must be one of {TIERS}. Received {config.sandbox_tier!r}.")
    if config.sandbox_num_replicas != "auto" and not (
        isinstance(config.sandbox_num_replicas, int) and config.sandbox_num_replicas >= 1
    ):
        raise ValueError(
            f"`num_replicas` of the sandbox must be 'auto' or an integer >= 1. "
            f"Received {config.sandbox_num_replicas!r}."
        )
    if not config.in_evaluation and config.num_env_runners < 1:
        raise ValueError(
            f"`num_env_runners` must be >= 1: each vLLM engine lives in an actor of its own. "
            f"Received {config.num_env_runners}."
        )
    if config.evaluation_num_env_runners > 0:
        raise ValueError(
            f"`evaluation_num_env_runners` must be 0: evaluation uses the samplers' own engines. "
            f"Received {config.evaluation_num_env_runners}."
        )
    if config.evaluation_parallel_to_training:
        raise ValueError(
            "`evaluation_parallel_to_training` must be False: evaluation uses the samplers' own engines, which "
            "sample the training batch meanwhile. Received True."
        )


def check_ranges(config: "ToRLConfig") -> None:
    """Raise ValueError for the first setting that is out of its range, naming it, its value and the range."""
    for name, smallest in (_SMALLEST | _SMALLEST_IF_SET).items():
        value = getattr(config, name)
        if value is None and name in _SMALLEST_IF_SET:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < smallest:
            none = ", or None" if name in _SMALLEST_IF_SET else ""
            raise ValueError(f"`{name}` must be an integer >= {smallest}{none}. Received {value!r}.")
    for name in _NOT_NEGATIVE:
        if not 0 <= getattr(config, name) < math.inf:
            raise ValueError(f"`{name}` must be >= 0 and finite. Received {getattr(config, name)}.")
    for name in _POSITIVE:
        if not 0 < getattr(config, name) < math.inf:
            raise ValueError(f"`{name}` must be > 0 and finite. Received {getattr(config, name)}.")
    for name in _POSITIVE_IF_SET:
        value = getattr(config, name)
        if value is not None and value <= 0:
            raise ValueError(f"`{name}` must be > 0, or None. Received {value}.")
    if config.seed is not None and not 0 <= config.seed < _SEEDS_END:
        raise ValueError(f"`seed` must be an integer >= 0 and below {_SEEDS_END}, or None. Received {config.seed!r}.")
    if config.clip_param >= 1:
        raise ValueError(
            f"`clip_param` must be < 1, since a policy ratio is never below 0. Received {config.clip_param}."
        )
    if config.clip_param_high is not None and config.clip_param_high < config.clip_param:
        raise ValueError(
            f"`clip_param_high` ({config.clip_param_high}) must be >= `clip_param` ({config.clip_param}), "
            f"or None to equal it."
        )
    num_cpus = config.num_cpus_per_learner
    if num_cpus != "auto" and not (isinstance(num_cpus, int | float) and num_cpus >= 0):
        raise ValueError(f"`num_cpus_per_learner` must be 'auto' or a number >= 0. Received {num_cpus!r}.")
    max_tool_calls = config.env_config.get("max_tool_calls", 0)
    if not isinstance(max_tool_calls, int) or isinstance(max_tool_calls, bool) or max_tool_calls < 0:
        raise ValueError(f"`max_tool_calls` must be an integer >= 0. Received {max_tool_calls!r}.")
    betas = config.adam_betas
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"`adam_betas` must be two numbers in [0, 1). Received {betas!r}.")


def _looks_like_a_path(model: str) -> bool:
    return model.startswith(("/", "./", "../", "~"))


def check_has_effect(config: "ToRLConfig") -> None:
    """Raise ValueError for the first setting of RLlib's that was changed and would do nothing, naming what does it."""
    defaults = AlgorithmConfig()
    for name in _WITHOUT_EFFECT:
        if getattr(config, name) != getattr(defaults, name):
            raise ValueError(f"{why_refused(name)} Received {getattr(config, name)!r}.")
    if config.sample_timeout_s is not None:
        raise ValueError(
            f"`sample_timeout_s` must be None: a step waits for its samplers, whose failures come back as errors. "
            f"Received {config.sample_timeout_s!r}."
        )
    if "timeout_s" in config.env_config:
        raise ValueError(
            "`timeout_s` in `env_config` has no effect here: the sampler runs the programs. Set "
            "`.sandbox(timeout_s=...)`."
        )
    overrides: dict[str, Any] = dict(config.evaluation_config or {})
    unknown = [f"env_config[{name!r}]" for name in overrides.pop("env_config", {}) if name != "problems"]
    unknown += overrides
    if unknown:
        raise ValueError(
            f"`evaluation_config` can name other `problems` in its `env_config` and nothing else: evaluation runs on "
            f"the samplers' own engines and environments. Received {', '.join(unknown)}."
        )
