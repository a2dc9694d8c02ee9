"""`ToRLConfig`: the paper's defaults, and what `validate` refuses."""

from pathlib import Path
from typing import Any

import pytest

from learners.config import ToRLConfig


def make() -> ToRLConfig:
    return ToRLConfig().language_model("some/model")


def test_defaults_are_the_papers() -> None:
    config = make()
    config.validate()
    assert (config.num_problems_per_step, config.group_size, config.minibatch_size) == (128, 16, 1024)
    assert (config.max_prompt_tokens, config.max_response_tokens) == (400, 3072)
    assert (config.lr, config.kl_coeff, config.temperature, config.clip_param) == (1e-6, 0.0, 1.0, 0.2)
    assert config.env_config["max_tool_calls"] == 1


def test_groups_return_the_config_and_set_what_they_are_given_only() -> None:
    config = make().sampling(group_size=4).sandbox(timeout_s=1.5).training(kl_coeff=0.1, lr=2e-6)
    assert (config.group_size, config.sandbox_timeout_s, config.kl_coeff, config.lr) == (4, 1.5, 0.1, 2e-6)
    assert config.max_response_tokens == 3072


def test_a_copy_and_a_state_round_trip_keep_the_settings() -> None:
    config = make().sampling(engine_kwargs={"block_size": 32})
    assert config.copy().engine_kwargs == {"block_size": 32}
    assert ToRLConfig.from_state(config.get_state()).engine_kwargs == {"block_size": 32}


@pytest.mark.parametrize("name", ["top_p", "top_k", "min_p"])
def test_truncated_sampling_is_refused_with_the_reason(name: str) -> None:
    setting: dict[str, Any] = {name: 1}
    with pytest.raises(ValueError, match=f"`{name}` is not supported.*biased"):
        make().sampling(**setting)


def test_a_misspelt_sampling_keyword_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="grup_size"):
        make().sampling(grup_size=4)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("model_path", None, "`model` is missing"),
        ("dtype", "float16", "`dtype` must be one of"),
        ("num_learners", 0, "'bfloat16' needs `num_learners` >= 1"),
        ("lr", [[0, 1e-6]], "`lr` must be a finite float > 0"),
        ("group_size", 1, "`group_size` must be an integer >= 2. Received 1"),
        ("num_problems_per_step", 0, "`num_problems_per_step` must be an integer >= 1. Received 0"),
        ("minibatch_size", 2.5, "`minibatch_size` must be an integer >= 1. Received 2.5"),
        ("max_response_tokens", True, "`max_response_tokens` must be an integer >= 1. Received True"),
        ("temperature", 0.0, "`temperature` must be > 0 and finite. Received 0.0"),
        ("temperature", float("nan"), "`temperature` must be > 0 and finite. Received nan"),
        ("kl_coeff", -0.1, "`kl_coeff` must be >= 0 and finite. Received -0.1"),
        ("kl_coeff", float("inf"), "`kl_coeff` must be >= 0 and finite. Received inf"),
        ("seed", -1, "`seed` must be an integer >= 0 and below 2147483648, or None. Received -1"),
        ("seed", 2**31, "`seed` must be an integer >= 0"),
        ("clip_param_high", 0.1, r"`clip_param_high` \(0.1\) must be >= `clip_param` \(0.2\)"),
        ("grad_clip_by", "norm", "`grad_clip_by` must be 'global_norm'"),
        ("sandbox_num_replicas", "many", "'auto' or an integer >= 1. Received 'many'"),
        ("sandbox_tier", "strictest", "`tier` of the sandbox must be one of"),
        ("num_env_runners", 0, "`num_env_runners` must be >= 1"),
        ("evaluation_num_env_runners", 1, "`evaluation_num_env_runners` must be 0"),
        ("evaluation_parallel_to_training", True, "evaluation_parallel_to_training"),
        ("lr", float("inf"), "`lr` must be a finite float > 0"),
        ("model_path", "/no/such/folder", "`model` is no folder: '/no/such/folder'"),
        ("num_learners", -1, "`num_learners` must be an integer >= 0. Received -1"),
        ("num_cpus_per_learner", "many", "`num_cpus_per_learner` must be 'auto' or a number >= 0"),
        ("sandbox_memory_mb", 1, "`sandbox_memory_mb` must be an integer >= 64. Received 1"),
        ("sandbox_app", "", "`app` of the sandbox must be a name or None"),
        ("env_config", {"max_tool_calls": -1}, "`max_tool_calls` must be an integer >= 0. Received -1"),
        ("env_config", {"max_tool_calls": 1.5}, "`max_tool_calls` must be an integer >= 0. Received 1.5"),
        ("clip_param", 1.5, "`clip_param` must be < 1"),
        ("adam_betas", (2, 3), r"`adam_betas` must be two numbers in \[0, 1\)"),
        ("grad_clip", 0.0, "`grad_clip` must be > 0, or None. Received 0.0"),
        ("logp_diff_limit", -1.0, "`logp_diff_limit` must be > 0, or None"),
        ("engine_threads", 0, "`engine_threads` must be an integer >= 1, or None. Received 0"),
        ("learner_threads", -1, "`learner_threads` must be an integer >= 1, or None"),
        ("sandbox_max_concurrent_runs", 0, "`sandbox_max_concurrent_runs` must be an integer >= 1, or None"),
    ],
)
def test_an_invalid_setting_is_refused_by_name_and_value(name: str, value: object, message: str) -> None:
    config = make()
    setattr(config, name, value)
    with pytest.raises(ValueError, match=message):
        config.validate()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("num_epochs", 4, "`num_epochs` has no effect here.*`minibatch_size`. Received 4"),
        ("_train_batch_size_per_learner", 64, "`train_batch_size_per_learner` has no effect.*num_problems_per_step"),
        ("sample_timeout_s", 60.0, "`sample_timeout_s` must be None.*Received 60.0"),
        ("gamma", 0.9, "`gamma` has no effect here"),
        ("min_time_s_per_iteration", 5, "`min_time_s_per_iteration` has no effect here"),
        ("evaluation_duration_unit", "timesteps", "`evaluation_duration_unit` has no effect here"),
        ("env_config", {"problems": "arithmetic", "timeout_s": 1.0}, r"Set `.sandbox\(timeout_s=...\)`"),
        ("evaluation_config", {"env_config": {"max_tool_calls": 0}}, r"Received env_config\['max_tool_calls'\]"),
        ("evaluation_config", {"temperature": 0.5}, "Received temperature"),
    ],
)
def test_a_setting_that_would_do_nothing_is_refused(name: str, value: object, message: str) -> None:
    config = make()
    setattr(config, name, value)
    with pytest.raises(ValueError, match=message):
        config.validate()


def test_evaluation_may_have_problems_of_its_own() -> None:
    make().evaluation(evaluation_config={"env_config": {"problems": "test.jsonl"}}).validate()


def test_clip_param_high_above_clip_param_is_accepted() -> None:
    make().training(clip_param=0.2, clip_param_high=0.28).validate()


def test_paths_of_what_is_there_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Tune trial changes into a folder of its own, where they would name nothing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.jsonl").touch()
    (tmp_path / "model").mkdir()
    evaluation = {"env_config": {"problems": "train.jsonl"}}
    config = (
        ToRLConfig()
        .environment(env_config={"problems": "train.jsonl"})
        .evaluation(evaluation_config=evaluation)
        .language_model("model", tokenizer="some/hub-name")
    )
    assert config.env_config["problems"] == str(tmp_path / "train.jsonl")
    assert config.evaluation_config == {"env_config": {"problems": str(tmp_path / "train.jsonl")}}
    assert evaluation == {"env_config": {"problems": "train.jsonl"}}  # the caller's own
    assert (config.model_path, config.tokenizer_path) == (str(tmp_path / "model"), "some/hub-name")
    assert ToRLConfig().environment(env_config={"problems": "absent.jsonl"}).env_config["problems"] == "absent.jsonl"
