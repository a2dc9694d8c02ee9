"""Recipes by name and `--set`: typed, validated, with the nearest name where one is wrong."""

import pytest

from experiments import smollm2
from experiments.recipes import RECIPES, apply_settings, get_recipe, settable_keys
from learners.config import ToRLConfig
from torl_env.rewards import Reward


@pytest.mark.parametrize(
    "name", sorted(set(RECIPES) - {"smollm2_gsm8k"})
)  # that one needs its weights: test_smollm2.py
def test_every_recipe_validates(name: str) -> None:
    config = get_recipe(name)()
    config.validate()
    assert isinstance(config, ToRLConfig)


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"no recipe 'quikstart'\. Did you mean: quickstart"):
        get_recipe("quikstart")


def test_smollm2_without_its_weights_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "local_checkpoint", lambda: None)
    monkeypatch.setattr(smollm2, "HUB_NAME", "/there/is/no/such/model")
    with pytest.raises(ValueError, match="make smollm2"):
        get_recipe("smollm2_gsm8k")()


def test_settings_are_typed() -> None:
    config = apply_settings(
        get_recipe("quickstart")(),
        ["kl_coeff=1", "max_tool_calls=2", "problems=my.jsonl", "group_size=4", "measure_kl=true", "grad_clip=none"],
    )
    assert (config.kl_coeff, config.group_size, config.measure_kl, config.grad_clip) == (1.0, 4, True, None)
    assert isinstance(config.kl_coeff, float)
    assert (config.env_config["max_tool_calls"], config.env_config["problems"]) == (2, "my.jsonl")


def test_mixed_types_are_taken() -> None:
    config = apply_settings(get_recipe("quickstart")(), ["sandbox_num_replicas=auto", "num_cpus_per_learner=1"])
    assert config.sandbox_num_replicas == "auto"
    assert config.num_cpus_per_learner == 1.0


def test_the_error_penalty_reaches_the_reward() -> None:
    config = apply_settings(get_recipe("quickstart")(), ["error_penalty=-0.5"])
    reward = config.env_config["reward"]
    assert isinstance(reward, Reward) and reward.error_penalty == -0.5


def test_the_short_names_of_model_and_tokenizer_are_taken() -> None:
    config = apply_settings(get_recipe("quickstart")(), ["model=some/where", "tokenizer=there"])
    assert (config.model_path, config.tokenizer_path) == ("some/where", "there")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kl_coef=1", "no setting 'kl_coef'. Did you mean: kl_coeff"),
        ("kl_coeff", "takes key=value. Received 'kl_coeff'"),
        ("group_size=4.5", "`group_size` takes int. Received '4.5'; the recipe has 8"),
        ("group_size=four", "`group_size` takes int. Received 'four'"),
        ("measure_kl=1", "`measure_kl` takes bool. Received '1'"),
        ("lr=fast", "`lr` takes float. Received 'fast'"),
        ("max_tool_calls=none", "`max_tool_calls` takes int. Received 'none'"),
    ],
)
def test_a_wrong_setting_says_what_is_expected(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        apply_settings(get_recipe("quickstart")(), [text])


def test_operational_settings_are_no_keys() -> None:
    assert "run_dir" not in settable_keys() and "num_iterations" not in settable_keys()
