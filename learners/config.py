"""`ToRLConfig`: every setting of a training run, with the paper's values as defaults.

Paper: "ToRL: Scaling Tool-Integrated RL", arXiv 2503.23383, section 3.1 unless another source is named. RLlib's own
settings (`environment`, `env_runners`, `learners`, `evaluation`, `fault_tolerance`, ...) keep their names and meaning.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils.annotations import override

from learners.config_checks import check_choices, check_has_effect, check_ranges, why_refused
from learners.env_runner import LLMEnvRunner


class ToRLConfig(AlgorithmConfig):
    """Configuration of the `ToRL` algorithm.

    Example::

        config = (
            ToRLConfig()
            .environment("torl/MathTool-v0", env_config={"problems": "train.jsonl", "max_tool_calls": 1})
            .language_model("Qwen/Qwen2.5-Math-1.5B")
            .sampling(temperature=1.0, group_size=16)
            .training(lr=1e-6, num_problems_per_step=128, kl_coeff=0.0)
        )
        algo = config.build_algo()
    """

    def __init__(self, algo_class: type | None = None) -> None:
        """Set the defaults; `algo_class` is for subclasses of `ToRL`."""
        if algo_class is None:
            from learners.algorithm import ToRL  # which imports this module

            algo_class = ToRL
        super().__init__(algo_class=algo_class)
        self.env = "torl/MathTool-v0"
        self.env_config: dict[str, Any] = {"problems": "arithmetic", "max_tool_calls": 1}

        # language_model()
        self.model_path: str | None = None
        self.tokenizer_path: str | None = None
        self.dtype = "bfloat16"
        self.gradient_checkpointing = False
        self.lora_rank = 0
        self.lora_alpha = 32.0

        # sampling()
        self.temperature = 1.0
        self.group_size = 16
        self.max_prompt_tokens = 400
        self.max_response_tokens = 3072
        self.engine_kwargs: dict[str, Any] = {}
        self.engine_threads: int | None = None

        # sandbox()
        self.sandbox_app: str | None = None
        self.sandbox_num_replicas: int | str = 1
        self.sandbox_max_concurrent_runs: int | None = None
        self.sandbox_timeout_s = 5.0
        self.sandbox_memory_mb = 512
        self.sandbox_tier = "auto"

        # training()
        self.lr = 1e-6
        self.weight_decay = 0.0
        self.adam_betas = (0.9, 0.999)
        self.warmup_steps = 0
        self.grad_clip = 1.0
        self.grad_clip_by = "global_norm"
        self.num_problems_per_step = 128
        self.minibatch_size = 1024
        self.max_tokens_per_micro_batch = 16384
        self.clip_param = 0.2
        self.clip_param_high: float | None = None
        self.kl_coeff = 0.0
        self.measure_kl = False
        self.entropy_coeff = 0.0
        self.normalize_advantages = True
        self.logp_diff_limit: float | None = None
        self.learner_threads: int | None = None
        self.num_iterations = 500

        # checkpointing() and reporting()
        self.checkpoint_interval = 20
        self.num_checkpoints_to_keep = 2
        self.run_dir: str | None = None

        # RLlib settings whose own defaults do not fit a language model.
        self.env_runner_cls = LLMEnvRunner
        self.num_env_runners = 1
        self.num_learners = 1
        self.create_local_env_runner = False
        # A restarted runner returns empty samples for ever (RLlib swallows the error): let a failure end the run.
        self.restart_failed_env_runners = False
        self.ignore_env_runner_failures = False
        self.sample_timeout_s = None
        self.evaluation_config: dict[str, Any] | None = None
        self.evaluation_duration = 200
        self.evaluation_duration_unit = "episodes"
        # There are no connectors to merge, and weights go through `WeightSync` alone.
        self._dont_auto_sync_env_runner_states = True

    def language_model(
        self,
        model: str = NotProvided,
        *,
        tokenizer: str | None = NotProvided,
        dtype: str = NotProvided,
        gradient_checkpointing: bool = NotProvided,
        lora_rank: int = NotProvided,
        lora_alpha: float = NotProvided,
    ) -> Self:
        """Set the policy: a causal language model of `transformers` that vLLM can serve.

        Args:
            model: Hugging Face folder or hub name. (`model` in `training()` is RLlib's old-stack dict.)
            tokenizer: Folder or hub name; default: `model`.
            dtype: "bfloat16" (parameters and optimizer stay float32 in the learner) or "float32", the choice on CPUs.
            gradient_checkpointing: Trade a second forward pass for activation memory.
            lora_rank: Train low-rank adapters (peft) of this rank instead of the whole model; 0 trains the whole model.
            lora_alpha: Scale of the adapters, `lora_alpha / lora_rank`.
        """
        return self._set(
            model_path=model,
            tokenizer_path=tokenizer,
            dtype=dtype,
            gradient_checkpointing=gradient_checkpointing,
            lora_rank=lora_rank,
            lora_alpha=lora_alpha,
        ).resolve_paths()

    @override(AlgorithmConfig)
    def environment(self, *args: Any, **kwargs: Any) -> Self:
        """Set the environment, as RLlib does; `env_config` are `MathToolEnv`'s arguments."""
        super().environment(*args, **kwargs)
        return self.resolve_paths()

    @override(AlgorithmConfig)
    def evaluation(self, *args: Any, **kwargs: Any) -> Self:
        """Set the evaluation, as RLlib does; `evaluation_config={"env_config": {"problems": ...}}` has its problems."""
        super().evaluation(*args, **kwargs)
        return self.resolve_paths()

    def resolve_paths(self) -> Self:
        """Make the paths of what is there, seen from here, absolute: a Tune trial runs in a folder of its own."""
        for name in ("model_path", "tokenizer_path"):
            if (path := getattr(self, name)) and Path(path).is_dir():
                setattr(self, name, str(Path(path).absolute()))
        self.env_config = _with_absolute_problems(self.env_config)
        evaluation = self.evaluation_config or {}
        if "env_config" in evaluation:
            self.evaluation_config = {**evaluation, "env_config": _with_absolute_problems(evaluation["env_config"])}
        return self

    def sampling(
        self,
        *,
        temperature: float = NotProvided,
        group_size: int = NotProvided,
        max_prompt_tokens: int = NotProvided,
        max_response_tokens: int = NotProvided,
        engine_kwargs: Mapping[str, Any] = NotProvided,
        engine_threads: int | None = NotProvided,
        **refused: Any,
    ) -> Self:
        """Set how vLLM samples.

        Args:
            temperature: Softmax temperature in training; evaluation is greedy as in the paper.
            group_size: Episodes per problem (the paper's 16 samples), at least 2.
            max_prompt_tokens: Longer prompts are left out and counted.
            max_response_tokens: Tokens after the prompt, tool output included; the episode is truncated there.
            engine_kwargs: Passed to vLLM's `EngineArgs` as they are.
            engine_threads: CPU threads of one engine; default: the machine's cores divided by the number of all
                runners.

        Raises:
            ValueError: on `top_p`, `top_k` or `min_p`.
            TypeError: on any other unknown keyword.
        """
        for name in refused:
            if reason := why_refused(name):
                raise ValueError(reason)
            raise TypeError(f"sampling() got an unexpected keyword argument '{name}'.")
        if engine_kwargs is not NotProvided:
            engine_kwargs = dict(engine_kwargs)
        return self._set(
            temperature=temperature,
            group_size=group_size,
            max_prompt_tokens=max_prompt_tokens,
            max_response_tokens=max_response_tokens,
            engine_kwargs=engine_kwargs,
            engine_threads=engine_threads,
        )

    def sandbox(
        self,
        *,
        app: str | None = NotProvided,
        num_replicas: int | str = NotProvided,
        max_concurrent_runs: int | None = NotProvided,
        timeout_s: float = NotProvided,
        memory_mb: int = NotProvided,
        tier: str = NotProvided,
    ) -> Self:
        """Set the Ray Serve application that runs the model's programs.

        Args:
            app: Name of the application. One that runs already is used and left alone; otherwise this algorithm
                starts it and removes it in the end, except in a Tune trial: there a named one is shared with the other
                trials, and removing it is left to whoever runs them. None: an application of this algorithm's own.
            num_replicas: Number of replicas, or "auto" for Serve's autoscaling.
            max_concurrent_runs: Programs at once per replica; default: a node's cores divided among its replicas.
            timeout_s: Wall-clock limit of one program.
            memory_mb: Memory limit of one program.
            tier: Isolation that is required ("strict", "fallback", "unisolated"; see docs/sandbox.md). "auto": the best
                isolated one there is, never unisolated.
        """
        return self._set(
            sandbox_app=app,
            sandbox_num_replicas=num_replicas,
            sandbox_max_concurrent_runs=max_concurrent_runs,
            sandbox_timeout_s=timeout_s,
            sandbox_memory_mb=memory_mb,
            sandbox_tier=tier,
        )

    @override(AlgorithmConfig)
    def training(
        self,
        *,
        num_problems_per_step: int = NotProvided,
        max_tokens_per_micro_batch: int = NotProvided,
        clip_param: float = NotProvided,
        clip_param_high: float | None = NotProvided,
        kl_coeff: float = NotProvided,
        measure_kl: bool = NotProvided,
        entropy_coeff: float = NotProvided,
        normalize_advantages: bool = NotProvided,
        weight_decay: float = NotProvided,
        adam_betas: tuple[float, float] = NotProvided,
        warmup_steps: int = NotProvided,
        logp_diff_limit: float | None = NotProvided,
        learner_threads: int | None = NotProvided,
        num_iterations: int = NotProvided,
        **kwargs: Any,
    ) -> Self:
        """Set the update. RLlib's own `lr`, `grad_clip` (global norm) and `minibatch_size` (here: episodes) apply.

        Args:
            num_problems_per_step: Problems, hence groups, per training step.
            max_tokens_per_micro_batch: Token budget of one forward and backward pass on one learner, padding included.
            clip_param: PPO clip range (DeepSeekMath, arXiv 2402.03300, eq. 3).
            clip_param_high: Upper range where it differs ("clip higher", DAPO, arXiv 2503.14476); None: `clip_param`.
            kl_coeff: Weight of the k3 KL estimate to the frozen base model; the paper trains without (0).
            measure_kl: Report the KL to the base also at `kl_coeff=0` (costs a forward pass of the base).
            entropy_coeff: Weight of the entropy bonus.
            normalize_advantages: Divide a group's advantages by its standard deviation (GRPO); False: Dr. GRPO.
            weight_decay: AdamW's.
            adam_betas: AdamW's.
            warmup_steps: Optimizer steps over which the learning rate rises linearly from 0.
            logp_diff_limit: Largest accepted |learner logp - sampler action_logp| on a batch sampled with the
                learner's own weights; above it the step raises. None: 1e-4 in float32, no limit in bfloat16.
            learner_threads: CPU threads per learner; default: the machine's cores divided by the number of all
                learners.
            num_iterations: Training steps of a whole run; `experiments.train` stops there.
        """
        super().training(**kwargs)
        return self._set(
            num_problems_per_step=num_problems_per_step,
            max_tokens_per_micro_batch=max_tokens_per_micro_batch,
            clip_param=clip_param,
            clip_param_high=clip_param_high,
            kl_coeff=kl_coeff,
            measure_kl=measure_kl,
            entropy_coeff=entropy_coeff,
            normalize_advantages=normalize_advantages,
            weight_decay=weight_decay,
            adam_betas=adam_betas,
            warmup_steps=warmup_steps,
            logp_diff_limit=logp_diff_limit,
            learner_threads=learner_threads,
            num_iterations=num_iterations,
        )

    @override(AlgorithmConfig)
    def checkpointing(
        self, *, checkpoint_interval: int = NotProvided, num_checkpoints_to_keep: int = NotProvided, **kwargs: Any
    ) -> Self:
        """Set what `experiments.train` keeps (Tune has its own `CheckpointConfig`).

        Args:
            checkpoint_interval: Iterations between two checkpoints; the last iteration is always kept.
            num_checkpoints_to_keep: Older ones are removed.
        """
        super().checkpointing(**kwargs)
        return self._set(checkpoint_interval=checkpoint_interval, num_checkpoints_to_keep=num_checkpoints_to_keep)

    @override(AlgorithmConfig)
    def reporting(self, *, run_dir: str | None = NotProvided, **kwargs: Any) -> Self:
        """Set where results go.

        Args:
            run_dir: Folder of the episode records; None: RLlib's log directory of the trial.
        """
        super().reporting(**kwargs)
        return self._set(run_dir=run_dir)

    def _set(self, **settings: Any) -> Self:
        for name, value in settings.items():
            if value is not NotProvided:
                setattr(self, name, value)
        return self

    @override(AlgorithmConfig)
    def validate(self) -> None:
        """Check every setting and how they fit together.

        Raises:
            ValueError: naming the setting, its value, the rule and what to do.
        """
        if not isinstance(self.lr, float) or not 0 < self.lr < float("inf"):
            raise ValueError(f"`lr` must be a finite float > 0; schedules are not supported. Received {self.lr!r}.")
        super().validate()
        check_ranges(self)
        check_choices(self)
        if not self.in_evaluation:
            check_has_effect(self)

    @override(AlgorithmConfig)
    def get_default_rl_module_spec(self) -> RLModuleSpec:
        """Return the spec of the causal language model."""
        from learners.rl_module import causal_lm_spec

        return causal_lm_spec(self)

    @override(AlgorithmConfig)
    def get_default_learner_class(self) -> type:
        """Return the learner class."""
        from learners.learner import LLMLearner

        return LLMLearner

    @override(AlgorithmConfig)
    def build_learner_group(
        self, *, env: Any = None, spaces: Any = None, rl_module_spec: Any = None, placement_group: Any = None
    ) -> Any:
        """Build the learner group whose state, save and restore run on all learners (RLlib's asks one only)."""
        from learners.learner_group import LLMLearnerGroup

        return LLMLearnerGroup(
            config=self.copy(),
            module_spec=rl_module_spec or self.get_multi_rl_module_spec(env=env, spaces=spaces),
            placement_group=placement_group,
        )


def _with_absolute_problems(env_config: Mapping[str, Any]) -> dict[str, Any]:
    problems = env_config.get("problems")
    if isinstance(problems, str | Path) and Path(problems).is_file():
        return {**env_config, "problems": str(Path(problems).absolute())}
    return dict(env_config)
