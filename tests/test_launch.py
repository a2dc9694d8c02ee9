"""What a command line means: the run folder, what `--restore` goes on from, and files that are not there."""

import argparse
import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import launch, run
from experiments.run_folder import RunFolder
from experiments.train import main, parse_arguments

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def arguments(*words: str) -> argparse.Namespace:
    return parse_arguments(["quickstart", *words])


def prepare(*words: str) -> run.Run:
    given = arguments(*words)
    return run.Run.prepare(given, launch.resolve(given), started=0.0)


def leave_a_run(found: launch.Launch, *iterations: int) -> RunFolder:
    folder = RunFolder(found.path)
    folder.save_state({**found.state, "before": {"accuracy": 0.25}})
    for iteration in iterations:
        (folder.path / "checkpoints" / f"{iteration:06d}").mkdir(parents=True)
    return folder


def test_a_run_goes_to_a_folder_named_by_recipe_and_time_and_nothing_is_made_yet() -> None:
    found = launch.resolve(arguments())
    assert re.fullmatch(r"runs/quickstart-\d{8}-\d{6}", str(found.path))
    assert not found.path.exists() and found.checkpoint is None and found.is_default_path


def test_in_a_job_runs_go_to_a_folder_outside_of_its_temporary_copy(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    assert launch.resolve(arguments()).path.parent == elsewhere / "home" / "torl-runs"
    assert launch.resolve(arguments("--storage-path", "mine")).path == Path("mine")


def test_the_same_command_finds_what_it_left() -> None:
    words = ("--restore", "auto", "--seed", "3", "--set", "lr=1e-4")
    first = launch.resolve(arguments(*words))
    assert first.checkpoint is None and first.is_default_path
    leave_a_run(first, 20, 40)
    again = launch.resolve(arguments(*words, "--num-iterations", "90"))
    assert again.path == first.path and again.checkpoint is not None and again.checkpoint.name == "000040"
    assert again.state["before"] == {"accuracy": 0.25}
    assert (again.settings, again.config.lr, again.config.seed) == (["lr=1e-4"], 1e-4, 3)


@pytest.mark.parametrize("other", [("--seed", "4"), ("--set", "lr=1e-4"), ("--set", "lr=1e-4", "group_size=4")])
def test_another_command_has_another_folder(other: tuple[str, ...]) -> None:
    assert (
        launch.resolve(arguments("--restore", "auto", *other)).path
        != launch.resolve(arguments("--restore", "auto")).path
    )


def test_a_run_killed_before_its_first_checkpoint_starts_anew_in_its_folder() -> None:
    words = ("--restore", "auto", "--storage-path", "mine")
    leave_a_run(launch.resolve(arguments(*words)))
    again = launch.resolve(arguments(*words))
    assert (again.path, again.checkpoint) == (Path("mine"), None)
    assert not again.is_default_path and "before" in again.state


def test_auto_refuses_the_folder_of_another_command() -> None:
    words = ("--restore", "auto", "--storage-path", "mine")
    leave_a_run(launch.resolve(arguments(*words)), 20)
    with pytest.raises(ValueError, match=r"another settings: \[\] instead of \['lr=1e-4'\]"):
        launch.resolve(arguments(*words, "--set", "lr=1e-4"))
    with pytest.raises(ValueError, match="another seed: 0 instead of 7"):
        launch.resolve(arguments(*words, "--seed", "7"))


def test_a_folder_has_one_writer_and_is_free_again_when_that_is_killed(tmp_path: Path) -> None:
    code = "import sys\nfrom pathlib import Path\nfrom experiments.run_folder import RunFolder\n" + (
        "folder = RunFolder(Path(sys.argv[1]))\nfolder.claim()\nprint('mine', flush=True)\nsys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    with subprocess.Popen(
        command, cwd=ROOT, env=os.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "mine\n"
        with pytest.raises(ValueError, match=rf"Another run \(process {other.pid} on .*\) is writing to"):
            RunFolder(tmp_path / "run").claim()
        other.kill()
        other.wait()
        folder = RunFolder(tmp_path / "run")
        folder.claim()
        folder.close()


def test_a_restored_run_goes_on_to_the_iterations_it_was_begun_for(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    begun = launch.resolve(arguments("--storage-path", str(tmp_path / "run"), "--num-iterations", "7", "--seed", "3"))
    folder.save_state(begun.state)
    (tmp_path / "run" / "checkpoints" / "000002").mkdir(parents=True)
    found = launch.resolve(arguments("--restore", str(tmp_path / "run")))
    assert (found.config.num_iterations, found.config.seed) == (7, 3)
    more = launch.resolve(arguments("--restore", str(tmp_path / "run"), "--num-iterations", "9", "--set", "lr=1e-4"))
    assert more.config.num_iterations == more.state["num_iterations"] == 9
    assert more.state["settings"] == ["lr=1e-4"]  # so that the next restore has it too
    for words in (("--seed", "4"), ("--set", "seed=4")):
        with pytest.raises(ValueError, match="has seed 3"):
            launch.resolve(arguments("--restore", str(tmp_path / "run"), *words))
    # A restore may change what the run was begun with.
    folder.save_state(more.state)
    again = launch.resolve(arguments("--restore", str(tmp_path / "run"), "--set", "lr=2e-4"))
    assert again.config.lr == 2e-4


def finish(folder: RunFolder, iterations: int) -> None:
    folder.write_json("summary.json", {"iterations": iterations, "accuracy_before": 0.25, "accuracy_after": 0.9})


def contents(folder: Path) -> dict[Path, str]:
    return {path: path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("restore", ["auto", "mine"])
def test_a_finished_run_says_that_nothing_is_left_and_starts_and_writes_nothing(
    restore: str, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = launch.resolve(arguments("--storage-path", "mine", "--num-iterations", "40"))
    folder = leave_a_run(first, 20, 40)
    finish(folder, 40)
    monkeypatch.setattr(run.Run, "prepare", None)  # it would claim the folder
    words = ["--restore", restore, "--num-iterations", "40"] + (["--storage-path", "mine"] if restore == "auto" else [])
    before = contents(elsewhere)
    assert main(["quickstart", *words]) == 0
    assert contents(elsewhere) == before
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2
    assert f"{elsewhere / 'mine'} has its 40 iterations, accuracy 0.25 -> 0.90" in said[0]
    assert "the same command with `--num-iterations N`, N above 40" in said[1]


@pytest.mark.parametrize(
    "words",
    [
        ("--restore", "mine", "--num-iterations", "41"),  # more
        ("--restore", "mine/checkpoints/000020"),  # from an earlier checkpoint
    ],
)
def test_a_finished_run_goes_on_where_that_is_asked_for(words: tuple[str, ...]) -> None:
    folder = leave_a_run(launch.resolve(arguments("--storage-path", "mine", "--num-iterations", "40")), 20, 40)
    finish(folder, 40)
    assert not launch.resolve(arguments(*words)).summary


def test_a_run_killed_before_its_summary_is_not_finished() -> None:
    leave_a_run(launch.resolve(arguments("--storage-path", "mine", "--num-iterations", "40")), 20, 40)
    assert not launch.resolve(arguments("--restore", "mine")).summary


def test_a_setting_given_twice_is_refused_whatever_the_option() -> None:
    with pytest.raises(ValueError, match="`lr` is given twice: lr=1 and lr=2"):
        launch.resolve(arguments("--set", "lr=1", "--set", "lr=2"))
    with pytest.raises(ValueError, match="`seed` is given twice: seed=1 and seed=2"):
        launch.resolve(arguments("--set", "seed=1", "--seed", "2"))


@pytest.mark.parametrize("text", ["", "{}", "[1]"])
def test_a_run_json_that_no_run_wrote_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    (tmp_path / "checkpoints" / "000002").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"run.json is not what a run writes"):
        launch.resolve(arguments("--restore", str(tmp_path)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([], r"data/torl_data/train.parquet is not here. `git clone .* `--set problems=FILE` takes another"),
        (["problems=arithmetic"], r"data/torl_data/test.parquet is not here. .*`--set evaluation_problems=FILE`"),
    ],
)
def test_absent_files_of_the_paper_say_how_to_get_them_in_one_line(settings: list[str], message: str) -> None:
    words = ["--set", *settings] if settings else []
    config = launch.resolve(parse_arguments(["torl_math_7b", *words])).config
    with pytest.raises(FileNotFoundError, match=message) as caught:
        launch.load_problems(config)
    assert "\n" not in str(caught.value)


def test_the_papers_files_are_read_where_they_are_there(elsewhere: Path) -> None:
    rows = '{"id": "1", "question": "What is 1 + 1?", "answer": "2"}\n'
    (elsewhere / "mine.jsonl").write_text(rows)
    words = ["torl_math_1_5b", "--set", "problems=mine.jsonl", "evaluation_problems=arithmetic"]
    sets = launch.load_problems(launch.resolve(parse_arguments(words)).config)
    assert (len(sets["train"]), len(sets["test"])) == (1, 200)


class StartedError(Exception):
    """Raised in the place of a run's start."""


@pytest.mark.parametrize(
    ("nodes", "words", "warns"), [(2, (), True), (1, (), False), (2, ("--storage-path", "shared"), False)]
)
def test_results_on_one_of_several_nodes_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], nodes: int, words: tuple[str, ...], warns: bool
) -> None:
    def start(_: object) -> None:
        raise StartedError

    monkeypatch.setattr(run, "ray_session", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(run, "num_nodes", lambda: nodes)
    monkeypatch.setattr(run.ToRLConfig, "build_algo", start)
    prepared = prepare(*words)
    with pytest.raises(StartedError):
        prepared.execute()
    prepared.folder.close()
    output = capsys.readouterr().out
    assert f"run folder {prepared.folder.path}" in output
    assert ("WARNING: of 2 nodes only this one" in output) == warns


def test_a_run_killed_and_resumed_has_the_same_sandbox_and_another_run_another() -> None:
    first, other = (prepare("--restore", "auto", "--seed", seed) for seed in ("1", "2"))
    first.folder.close()
    again = prepare("--restore", "auto", "--seed", "1")
    assert first.own_sandbox == again.own_sandbox == again.config.sandbox_app != other.own_sandbox
    named = prepare("--set", "sandbox_app=mine")
    assert (named.own_sandbox, named.config.sandbox_app) == (None, "mine")
    for prepared in (other, again, named):
        prepared.folder.close()
