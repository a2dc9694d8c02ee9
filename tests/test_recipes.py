"""Recipes by name and `--set`: typed, validated, with the nearest name where one is wrong."""

import pytest

from experiments import smollm2
from experiments.recipes import RECIPES, apply_settings, check_given_once, get_recipe, settable_keys
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
        ("max_tool_calls=none", "`max_tool_calls` takes int. Received 'none'; the recipe has 1"),
        ("error_penalty=some", "`error_penalty` takes float. Received 'some'; the recipe has 0.0"),
        ("engine_threads=some", "`engine_threads` takes int or none. Received 'some'; the recipe has 1"),
        ("learner_threads=some", "`learner_threads` takes int or none. Received 'some'; the recipe has none"),
        ("top_p=0.9", "`top_p` is not supported: .* the policy ratio would be biased. Use `temperature`"),
        ("gamma=0.9", "`gamma` has no effect here: the reward comes at the end"),
        ("train_batch_size=9", "`train_batch_size` has no effect here: set `num_problems_per_step` and `group_size`"),
        ("lerning_rate=1", r"Did you mean: lr\?"),
        ("batch_size=9", "Did you mean: num_problems_per_step, group_size, minibatch_size"),
        ("temprature=1", r"Did you mean: temperature\?"),
        ("tool_calls=1", "Did you mean: max_tool_calls"),
        ("entirely_different=1", r"no setting 'entirely_different'\. Known: adam_betas, "),
    ],
)
def test_a_wrong_setting_says_what_is_expected(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        apply_settings(get_recipe("quickstart")(), [text])


@pytest.mark.parametrize("texts", [["lr=1", "kl_coeff=0", "lr=2"], ["lr=1", "kl_coeff=0", " lr =2"]])
def test_a_setting_given_twice_is_refused_with_both(texts: list[str]) -> None:
    with pytest.raises(ValueError, match=r"`lr` is given twice: lr=1 and .*2\. Give it once"):
        check_given_once(texts)
    check_given_once(texts[:2])


def test_the_evaluation_has_problems_of_its_own() -> None:
    config = apply_settings(get_recipe("quickstart")(), ["problems=a.jsonl", "evaluation_problems=b.jsonl"])
    assert config.env_config["problems"] == "a.jsonl"
    assert config.get_evaluation_config_object().env_config == {"problems": "b.jsonl", "max_tool_calls": 1}


@pytest.mark.parametrize("size", ["1_5b", "7b"])
def test_the_papers_runs_differ_in_what_their_names_say(size: str) -> None:
    base = get_recipe(f"torl_math_{size}")()
    no_tool, c2, penalty = (get_recipe(f"torl_math_{size}_{name}")() for name in ("no_tool", "c2", "error_penalty"))
    assert (base.num_problems_per_step, base.group_size, base.minibatch_size) == (128, 16, 1024)
    assert (base.temperature, base.kl_coeff, base.lr, base.max_response_tokens) == (1.0, 0.0, 1e-6, 3072)
    assert base.sandbox_tier == "strict"
    assert base.num_learners * base.num_gpus_per_learner + base.num_env_runners * base.num_gpus_per_env_runner == 8
    assert [config.env_config["max_tool_calls"] for config in (base, no_tool, c2, penalty)] == [1, 0, 2, 1]
    assert "program" not in no_tool.env_config["dialect"].template
    assert penalty.env_config["reward"].error_penalty == -0.5
    assert {config.model_path for config in (base, no_tool, c2, penalty)} == {
        f"Qwen/Qwen2.5-Math-{size.upper().replace('_', '.')}"
    }


def test_operational_settings_are_no_keys() -> None:
    assert "run_dir" not in settable_keys() and "num_iterations" not in settable_keys()
