"""`--dry-run`: the whole plan of every recipe, without GPU, Ray, network or data."""

import re
from pathlib import Path

import pytest

from experiments import memory, plan, torl_math
from experiments.launch import resolve
from experiments.recipes import RECIPES, get_recipe, settable_keys
from experiments.train import main, parse_arguments

PAPER = sorted(name for name in RECIPES if name.startswith("torl_math"))


def describe(*words: str) -> str:
    return plan.describe(parse_arguments([*words, "--dry-run"]))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


@pytest.mark.parametrize("name", ["quickstart", *PAPER])
def test_every_recipe_explains_what_it_needs_and_makes_nothing(name: str, elsewhere: Path) -> None:
    text = describe(name)
    for heading in ("Settings", "Problems", "Reserved in Ray", "Memory of a learner", "Memory of an engine", "Disk"):
        assert re.search(f"^{heading}", text, re.MULTILINE)
    assert "DOES NOT FIT" not in text
    assert list(elsewhere.iterdir()) == []


def test_all_settings_are_shown_as_resolved() -> None:
    text = describe(
        "torl_math_7b", "--num-iterations", "3", "--seed", "5", "--set", "kl_coeff=0.01", "error_penalty=-0.5"
    )
    shown = dict(re.findall(r"^  (\w+) {2,}(.*)$", text.partition("Problems")[0], re.MULTILINE))
    assert (shown["kl_coeff"], shown["seed"], shown["num_iterations"]) == ("0.01", "5", "3")
    assert "error_penalty=-0.5" in shown["env_config"] and "test.parquet" in shown["evaluation_config"]
    elsewhere = {"model", "tokenizer", "problems", "evaluation_problems", "max_tool_calls", "error_penalty"}
    assert set(settable_keys()) - elsewhere <= set(shown)
    assert not re.search(r"0x[0-9a-f]{6}", " ".join(value for key, value in shown.items() if key != "env_config"))


def test_gpus_and_cpus_are_added_up_per_role() -> None:
    text = describe("torl_math_7b")
    for row in (r"driver +1 +0 +1", r"engines \(vLLM\) +4 +1 +2", r"learners \(FSDP2\) +4 +1 +1", r"in all +8 +13"):
        assert re.search(f"^  {row}$", text, re.MULTILINE)
    assert "7,615.6 million parameters" in text and "91.4 GB (12 bytes a trained parameter)" in text
    assert "2 kept" in text and "to download               15.2 GB" in text
    assert "from the published config.json" in text


def test_what_does_not_fit_is_said() -> None:
    assert "DOES NOT FIT" in describe("torl_math_7b", "--set", "gradient_checkpointing=false")
    text = describe("torl_math_7b", "--set", "engine_kwargs={'tensor_parallel_size': 2}")
    assert "an engine of 2 GPUs reserves 1; raise num_gpus_per_env_runner" in text


def test_absent_problems_are_a_line_of_the_plan_and_present_ones_are_counted() -> None:
    text = describe("torl_math_1_5b")
    [line] = [line for line in text.splitlines() if "MISSING" in line]
    assert "git clone" in line and "--set problems=FILE" in line
    assert "200 problems, 0 left out" in describe(
        "torl_math_1_5b", "--set", "problems=arithmetic", "evaluation_problems=arithmetic"
    )


def test_a_learner_without_a_gpu_takes_nothing_of_the_engines_card() -> None:
    assert "the fuller card: 68.0 GB of 80 GB, fits" in describe("torl_math_7b", "--set", "num_gpus_per_learner=0")


def test_the_command_prints_the_plan_and_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["torl_math_lora", "--dry-run"]) == 0
    assert "36.93 million trained" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["torl_math_1_5b", "torl_math_7b", "torl_math_lora"])
def test_the_figures_in_the_recipes_docstring_are_the_plans(name: str) -> None:
    config = resolve(parse_arguments([name])).config
    numbers = [
        memory.learner_need(config).total,
        memory.engine_need(config).total,
        memory.checkpoint_bytes(config),
        memory.size_of(config).download_bytes,
    ]
    sampling, update = memory.step_seconds(config)
    expected = [*(f"{number / 1e9:.1f}" for number in numbers), f"{sampling:.0f}", "+", f"{update:.0f}", "s"]
    assert torl_math.__doc__ is not None
    [row] = re.findall(rf"^    {name}  +(\d.*)$", torl_math.__doc__, re.MULTILINE)
    assert row.split() == expected
    assert get_recipe(name).__doc__
