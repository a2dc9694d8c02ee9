"""The grid of a sweep: texts to Tune's search space, and a trial's config back to its place in the grid."""

from types import SimpleNamespace

import pytest
from ray.tune.impl.placeholder import create_resolvers_map, inject_placeholders
from ray.tune.search.variant_generator import generate_variants

from experiments.quickstart import quickstart
from experiments.sweep_grid import at, combinations, label, num_trials, parse_grid, search_space, trial_name
from torl_env.dialect import PLAIN, Dialect

GRID = ["max_tool_calls=0,2", "kl_coeff=0,0.01", "error_penalty=0,-0.5"]


def test_tune_gets_every_combination_once() -> None:
    grid = parse_grid(GRID)
    variants = [config for _, config in generate_variants(search_space(quickstart(), grid).to_dict())]
    labels = {label(config, list(grid)) for config in variants}
    assert labels == {
        f"C={calls} kl={kl} error_penalty={penalty}"
        for calls in (0, 2)
        for kl in ("0", "0.01")
        for penalty in ("0", "-0.5")
    }
    assert len(variants) == num_trials(grid) == len(list(combinations(grid))) == 8


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (GRID[::2], {"C=0_id", "C=2_id"}),
        (GRID[2:], {"trial_id"}),
        (["tokenizer=a/b,c", "lr=1e-4"], {"tokenizer=b,lr=0.0001_id", "tokenizer=c,lr=0.0001_id"}),
    ],
)
def test_a_trial_is_named_before_tune_has_put_its_objects_in(texts: list[str], names: set[str]) -> None:
    grid = parse_grid(texts)
    space = inject_placeholders(search_space(quickstart(), grid).to_dict(), create_resolvers_map())
    trials = [SimpleNamespace(config=config, trial_id="id") for _, config in generate_variants(space)]
    assert {trial_name(trial, list(grid)) for trial in trials} == names


def test_without_tool_calls_the_prompt_asks_for_no_program() -> None:
    grid = parse_grid(["max_tool_calls=0,1"])
    none, one = (config for _, config in generate_variants(search_space(quickstart(), grid).to_dict()))
    assert none["env_config"]["dialect"] == PLAIN
    assert "dialect" not in one["env_config"]


def test_a_recipe_keeps_the_prompt_it_brings() -> None:
    own = Dialect("Q: {problem}\nA:")
    config = quickstart().environment(env_config={"dialect": own})
    assert at(config, ["max_tool_calls=0"]).env_config["dialect"] == own


def test_a_point_of_the_grid_leaves_the_recipe_as_it_was() -> None:
    config = quickstart()
    at(config, ["max_tool_calls=0", "kl_coeff=0.5"])
    assert config.env_config == quickstart().env_config
    assert config.kl_coeff == 0.0


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["kl_coeff"], "`--grid` takes key=value1,value2. Received 'kl_coeff'"),
        (["kl_coeff=0,,1"], "`--grid` takes key=value1,value2"),
        (["kl_coeff=0", "kl_coeff=1"], "`kl_coeff` is given twice: kl_coeff=0 and kl_coeff=1"),
        (["model=a", "model_path=b"], "`model_path` is given twice: model=a and model_path=b"),
        (["kl_coeff=0,1,0"], "gives `kl_coeff` the same value twice"),
        (["sandbox_memory_mb=256,512"], "all trials share one sandbox"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(texts: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_grid(texts)


def test_problems_and_models_are_named_by_their_files() -> None:
    grid = parse_grid(["problems=data/a.jsonl,arithmetic", "evaluation_problems=data/test.jsonl", "model=some/where"])
    variants = [config for _, config in generate_variants(search_space(quickstart(), grid).to_dict())]
    assert [label(config, list(grid)) for config in variants] == [
        "problems=a.jsonl evaluation_problems=test.jsonl model=where",
        "problems=arithmetic evaluation_problems=test.jsonl model=where",
    ]
