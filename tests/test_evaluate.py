"""`python -m experiments.evaluate` as a user runs it: what `--model` means, figures from the episodes, going on."""

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.evaluate import main, parse_arguments
from experiments.evaluated_model import fit_to_machine, fit_to_problems, options_text, resolve
from experiments.evaluation import Evaluation
from experiments.quickstart import TINY_BASE
from experiments.run_folder import claim
from learners import vllm_backend
from learners.config import ToRLConfig
from tests.test_train import Command
from torl_env.dialect import PLAIN, TORL


def make_run(folder: Path, recipe: str, *settings: str, finished: bool = True) -> Path:
    (folder / "model").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"recipe": recipe, "settings": list(settings), "seed": 0}))
    if finished:
        (folder / "model" / "config.json").write_text("{}")
    return folder


def test_a_run_is_asked_as_its_recipe_and_settings_say(tmp_path: Path) -> None:
    run = make_run(tmp_path / "some-run", "quickstart_no_tool", "max_response_tokens=99")
    for path in (run, run / "model"):
        model = resolve(str(path), None, [])
        assert (model.name, model.path) == ("some-run", str(run / "model"))
        assert (model.dialect, model.config.max_response_tokens) == (PLAIN, 99)
        assert model.config.model_path == str(run / "model")
        assert len(model.training_problems() or []) == 4096
    other = resolve(str(run), "quickstart", ["max_response_tokens=50"])
    assert (other.dialect, other.config.max_response_tokens) == (TORL, 50)


def test_other_models_are_asked_as_the_paper_does_or_as_a_recipe_says() -> None:
    hub = resolve("Qwen/Qwen2.5-Math-1.5B", None, [])
    assert (hub.path, hub.config.max_response_tokens, hub.dialect) == ("Qwen/Qwen2.5-Math-1.5B", 3072, TORL)
    assert hub.training_problems() is None
    folder = resolve(str(TINY_BASE), "quickstart", [])
    assert (folder.name, folder.config.max_response_tokens) == ("tiny_base", 160)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("runs/no/such/folder", "no such folder, and a hub name would be NAME or OWNER/NAME"),
        ("./nothing", "no such folder"),
        (".", "neither a run folder .with run.json. nor a model's"),
    ],
)
def test_what_is_no_model_is_refused(model: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        resolve(model, None, [])


def test_a_run_without_a_model_says_how_to_get_one(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "quickstart", finished=False)
    with pytest.raises(ValueError, match=r"no model yet.*experiments\.train quickstart --restore"):
        resolve(str(run), None, [])


def test_a_run_json_that_no_run_wrote_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ValueError, match=r"run\.json is not what a run writes"):
        resolve(str(tmp_path), None, [])


def test_without_a_model_the_error_lists_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "a run folder (runs/...)" in options_text(tmp_path)
    make_run(tmp_path / "runs" / "mine", "quickstart")
    monkeypatch.chdir(tmp_path)
    assert "a run folder (runs/mine), a Hugging Face folder" in options_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--problems", "arithmetic"], "name the model with --model: a run folder"),
        (["--model", "m"], "name what to evaluate on: --suite or --problems"),
        (["--model", "m", "--suite", "amc23", "--num-problems", "0"], "--num-problems must be at least 1. Received 0"),
        (["--model", "m", "--suite", "amc23", "--samples-per-problem", "4"], "needs a --temperature above 0"),
        (["--model", "m", "--suite", "amc23", "--temperature", "-1"], "--temperature must be at least 0"),
        (["--model", "m", "--suite", "amc23", "--temperature", "nan"], "at least 0, and finite. Received nan"),
        (["--model", "m", "--suite", "amc23", "--seed", "-1"], "--seed must be at least 0. Received -1"),
        (["--model", "m", "--suite", "amc23", "--set", "temperature=1"], "--set temperature would do nothing here"),
        (
            ["--model", "m", "--suite", "amc23", "--max-tool-calls", "1", "--set", "max_tool_calls=2"],
            "--set max_tool_calls would do nothing beside --max-tool-calls",
        ),
        (
            ["--model", "m", "--suite", "amc23", "--output", "nowhere/f.json"],
            "must be a file in a folder that is there",
        ),
    ],
)
def test_wrong_arguments_are_answered_at_once(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err


def test_wrong_names_are_answered_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    base = ["--model", str(TINY_BASE)]
    assert main([*base, "--suite", "aime26"]) == 2
    assert "There is no suite 'aime26'" in capsys.readouterr().err
    # 3,072 response tokens, the paper's, are more than this model has positions for.
    assert main([*base, "--problems", "arithmetic"]) == 2
    assert "below the model's 1024 positions" in capsys.readouterr().err
    assert main([*base, "--problems", "arithmetic", "--set", "lr=1", "lr=2"]) == 2
    assert "`lr` is given twice: lr=1 and lr=2" in capsys.readouterr().err


def prepare(folder: Path, *arguments: str) -> Evaluation:
    return Evaluation.prepare(parse_arguments(sampling(folder, 1, *arguments)))


def test_what_cannot_be_evaluated_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="`num_env_runners` must be >= 1"):
        prepare(tmp_path, "--set", "num_env_runners=0")
    with claim(tmp_path), pytest.raises(ValueError, match="is writing to"):
        prepare(tmp_path)
    monkeypatch.setattr(vllm_backend.metadata, "distributions", lambda name: iter([object()]))
    with pytest.raises(ImportError, match="two builds of vLLM"):
        prepare(tmp_path)


@pytest.mark.parametrize("setting", ["dtype=bfloat16", "error_penalty=-0.5", "sandbox_memory_mb=256"])
def test_episodes_of_other_settings_are_not_taken_for_these(setting: str, tmp_path: Path) -> None:
    prepare(tmp_path).lock.close()
    prepare(tmp_path).lock.close()
    with pytest.raises(ValueError, match=f"an evaluation with another {setting.partition('=')[0]}"):
        prepare(tmp_path, "--set", setting)


def test_every_prompt_fits_as_far_as_the_models_positions_go() -> None:
    config = ToRLConfig().sampling(max_response_tokens=3072)
    assert fit_to_problems(config, [100, 700], 4096).max_prompt_tokens == 700
    assert fit_to_problems(config, [100, 1100], 4096).max_prompt_tokens == 1024
    assert fit_to_problems(config, [100, 1100], None).max_prompt_tokens == 1100
    with pytest.raises(ValueError, match=r"`max_response_tokens` \(3072\) must be below the model's 3072 positions"):
        fit_to_problems(config, [100], 3072)


def test_every_gpu_gets_an_engine_unless_the_user_chose() -> None:
    def fitted(num_gpus: int, *settings: str, is_default: bool = True) -> tuple[int, float, str]:
        config = fit_to_machine(ToRLConfig().env_runners(num_env_runners=4), num_gpus, settings, is_default)
        return config.num_env_runners, config.num_gpus_per_env_runner, config.dtype

    assert fitted(8) == (8, 1, "bfloat16")
    assert fitted(8, "num_env_runners=4") == (4, 0, "bfloat16")
    assert fitted(0) == (4, 0, "float32")
    assert fitted(0, "dtype=bfloat16") == (4, 0, "bfloat16")
    assert fitted(0, is_default=False) == (4, 0, "bfloat16")


def evaluate(*arguments: str) -> str:
    command = Command(*arguments, module="experiments.evaluate")
    assert command.end() == 0, command.output
    assert "\x1b" not in command.output
    return command.output


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "arithmetic" / "episodes.jsonl").read_text().splitlines()]


def sampling(folder: Path, num_samples: int, *arguments: str) -> list[str]:
    model = ["--model", str(TINY_BASE), "--recipe", "quickstart", "--problems", "arithmetic", "--temperature", "1"]
    return [*model, "--samples-per-problem", str(num_samples), "--storage-path", str(folder), *arguments]


@pytest.mark.timeout(600)
def test_an_interrupted_evaluation_goes_on_with_what_it_has_and_figures_are_those_of_the_episodes(
    tmp_path: Path,
) -> None:
    command = Command(*sampling(tmp_path, 256), module="experiments.evaluate")
    command.wait_for(r"episode +\d+/51200")
    command.interrupt()
    assert command.end() == 130, command.output  # and does not wait for its episodes, which would take minutes
    assert "The same command goes on where this one was." in command.output
    assert 0 < len(lines(tmp_path)) < 51200 / 2

    # As if it had been killed while it wrote one of the four samples that are asked for next, half of them known.
    path = tmp_path / "arithmetic" / "episodes.jsonl"
    asked = [line for line in path.read_text().splitlines(keepends=True) if json.loads(line)["sample_index"] < 4]
    num_known = len(asked) // 2
    assert 0 < num_known < 24
    path.write_text("".join(asked[:num_known]) + asked[num_known][:50])
    key = lambda row: (row["problem_id"], row["sample_index"])  # noqa: E731

    output = tmp_path / "figures.json"
    arguments = sampling(tmp_path, 4, "--num-problems", "12", "--output", str(output))
    shown = evaluate(*arguments)
    num_left = 48 - num_known
    assert f"{num_left} episodes to sample, {num_known} known" in shown and f"{num_left:4d}/{num_left}" in shown
    for text in ("starting Ray", "loading the model into the engine", "avg@4"):
        assert text in shown
    rows = {key(row): row for row in lines(tmp_path) if row["sample_index"] < 4}
    assert len(rows) == 48
    # Those that were dropped came out the same, beside other episodes.
    again = [row for row in map(json.loads, asked[num_known:]) if key(row) in rows]
    assert again and all(rows[key(row)]["token_ids"] == row["token_ids"] for row in again)

    # By hand: of every two (four) of a problem's samples, is one correct?
    correct: dict[str, list[bool]] = {}
    for row in rows.values():
        correct.setdefault(row["problem_id"], []).append(row["verdict"] == "correct")
    assert any(0 < sum(verdicts) < 4 for verdicts in correct.values())
    figures = json.loads(output.read_text())
    found = figures["sets"]["arithmetic"]
    assert found["accuracy"] == pytest.approx(np.mean([row["verdict"] == "correct" for row in rows.values()]))
    for k in (1, 2, 4):
        by_hand = np.mean([np.mean([any(draw) for draw in combinations(some, k)]) for some in correct.values()])
        assert found["pass_at_k"][str(k)]["value"] == pytest.approx(by_hand)

    # Nothing is left to do, so nothing starts.
    output.unlink()
    assert "starting Ray" not in evaluate(*arguments)
    assert json.loads(output.read_text()) == figures
