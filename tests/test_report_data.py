"""What the report reads and computes: runs, sweeps, evaluations, curves with seeds, tables, the choice of episodes."""

import json

import pytest

from experiments.intervals import wilson
from experiments.reporting import choice
from experiments.reporting.curves import FIGURES, curves_of, figures_of
from experiments.reporting.index import read_entries, read_record
from experiments.reporting.points import evaluation_figures, sweep_figures, tables
from experiments.reporting.runs import derived, find_runs
from experiments.run_folder import flatten
from learners import records
from tests.reports import record, result_row, write_run

ANSWER = r"\boxed{2}"
FIGURE = {figure.id: figure for figure in FIGURES}


def table(runs, name):
    return next(found for found in tables(runs) if found.id == name)


def test_the_parts_of_a_step_add_up_to_it():
    parts = derived(dict(flatten(result_row(1))))
    # waiting: 0.9 s with a program pending, in 0.6 s of which the engine decoded; rest: 2.0 - 1.2 - 0.3
    assert parts["report/tool_idle_s"] == pytest.approx(0.3)
    assert parts["report/rest_s"] == pytest.approx(0.5)
    assert sum(value for name, value in parts.items() if name != "report/step_s") == pytest.approx(3.3)
    assert parts["report/step_s"] == pytest.approx(3.3)


def test_a_run_that_is_going_on_is_read_up_to_its_last_whole_line(tmp_path):
    folder = write_run(tmp_path / "a", [result_row(1)], [record(ANSWER)])
    for name in ("result.json", "episodes.jsonl"):
        with (folder / name).open("a") as file:
            file.write('{"training_iteration": 2, "cut')
    (run,) = find_runs([folder])
    assert (list(run.rows), len(read_entries([folder]))) == ([1], 1)


def test_a_run_that_has_just_begun_is_a_run(tmp_path):
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / "run.json").write_text('{"recipe": "quickstart", "settings": [], "seed": 0}')
    (run,) = find_runs([folder])
    assert (run.label, run.rows, run.held_out) == ("quickstart seed 0", {}, {})


def test_a_folder_without_a_run_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(ValueError, match=r"is no folder of a run.*Name the folder that the command printed"):
        find_runs([tmp_path])


@pytest.mark.parametrize(("name", "kind"), [("run.lock", "run"), ("sweep.json", "sweep")])
def test_what_has_only_just_started_is_no_stranger(tmp_path, name, kind):
    (tmp_path / name).write_text("{}")
    with pytest.raises(ValueError, match=f"is a {kind} without an episode or iteration so far; look again"):
        find_runs([tmp_path])


@pytest.mark.parametrize("line", ['{"iteration": 1, "cut', '{"iteration": 1}', "[1]", "", "\0\0"])
@pytest.mark.parametrize("name", ["result.json", "episodes.jsonl"])
def test_a_damaged_line_is_named(tmp_path, name, line):
    run = write_run(tmp_path / "run", [result_row(1)], [record(ANSWER)])
    (tmp_path / "evaluation.json").write_text("{}")
    with (run / name).open("a") as file:
        file.write(line + "\n")
    named = rf"{name}, line 2, is not what a run writes \(.*\)\. Remove the line to do without it"
    with pytest.raises(ValueError, match=named):
        read_entries([found.path for found in find_runs([run])])
    if name == "episodes.jsonl":
        with pytest.raises(ValueError, match=named):
            find_runs([tmp_path])


@pytest.mark.parametrize("text", ['{"recipe": "qui', "", "[1]"])
@pytest.mark.parametrize("name", ["run.json", "summary.json", "params.json"])
def test_a_damaged_file_is_named(tmp_path, name, text):
    run = write_run(tmp_path / "run", [result_row(1)])
    (run / name).write_text(text)
    with pytest.raises(ValueError, match=f"{name} is not what a run writes"):
        find_runs([run])


def test_an_evaluation_without_episodes_is_refused(tmp_path):
    (tmp_path / "evaluation.json").write_text("{}")
    with pytest.raises(ValueError, match="is an evaluation without an episode so far"):
        find_runs([tmp_path])


def test_held_out_figures_are_those_before_on_the_way_and_after(tmp_path):
    rows = [
        result_row(1),
        result_row(2, evaluation={"env_runners": {"accuracy": 0.6, "reward_mean": 0.2}}),
        result_row(3),
    ]
    folder = write_run(tmp_path / "a", rows)
    state = json.loads((folder / "run.json").read_text())
    state["before"] |= {"reward_mean": -0.5, "accuracy_source": {"aime24": 0.1, "math500": 0.4}, "episodes": []}
    (folder / "run.json").write_text(json.dumps(state))
    summary = {"iterations": 3, "accuracy_before": 0.25, "accuracy_after": 0.9, "reward_mean_after": 0.8}
    summary |= {"accuracy_source_after": {"aime24": 0.7, "math500": 1.0}, "wall_s": 100.0}
    (folder / "summary.json").write_text(json.dumps(summary))
    runs = find_runs([folder])
    assert FIGURE["accuracy"].series[1].values(runs[0]) == {0: 0.25, 2: 0.6, 3: 0.9}
    assert FIGURE["reward"].series[1].values(runs[0]) == {0: -0.5, 2: 0.2, 3: 0.8}
    suites = [figure for figure in figures_of(runs) if figure not in FIGURES]
    assert [figure.title for figure in suites] == ["aime24", "math500"]
    assert suites[1].series[0].values(runs[0]) == {0: 0.4, 3: 1.0}


def test_a_suite_is_a_figure_of_its_own_with_the_reward(tmp_path):
    names = {"accuracy_source/amc/23": 0.5, "reward_source/amc/23": 0.1, "accuracy_source/": 0.2}
    runs = find_runs([write_run(tmp_path / "a", [result_row(1, evaluation={"env_runners": names})])])
    first, second = (figure for figure in figures_of(runs) if figure not in FIGURES)
    assert (first.title, second.title) == ("(no source named)", "amc/23")
    assert [series.values(runs[0]) for series in second.series] == [{1: 0.5}, {1: 0.1}]


def test_seeds_become_their_mean_and_range(tmp_path):
    folders = [
        write_run(tmp_path / str(s), [result_row(1, a), result_row(2, a)], seed=s) for s, a in enumerate((0.2, 0.6))
    ]
    (curve, *_) = curves_of(FIGURE["accuracy"], find_runs(folders))
    assert (curve.group, curve.x) == ("quickstart", [1, 2])
    assert curve.y == pytest.approx([0.4, 0.4])
    assert (curve.low, curve.high) == ([0.2, 0.2], [0.6, 0.6])


def test_runs_with_other_settings_are_curves_of_their_own(tmp_path):
    folders = [
        write_run(tmp_path / "a", [result_row(1)]),
        write_run(tmp_path / "b", [result_row(1)], settings=["lr=1"]),
    ]
    groups = [curve.group for curve in curves_of(FIGURE["kl"], find_runs(folders))]
    assert groups == ["quickstart", "quickstart lr=1"]


def test_the_same_run_twice_gets_two_names(tmp_path):
    folders = [write_run(tmp_path / name, [result_row(1)]) for name in ("a", "b")]
    assert [run.label for run in find_runs(folders)] == ["quickstart seed 0 (a)", "quickstart seed 0 (b)"]


def test_what_was_not_measured_is_no_point(tmp_path):
    rows = [result_row(1), result_row(2, learners={"default_policy": {"kl": None}})]
    (curve,) = curves_of(FIGURE["kl"], find_runs([write_run(tmp_path / "a", rows)]))
    assert (curve.x, curve.y) == ([1], [0.01])


def test_a_run_without_one_program_is_the_baseline(tmp_path):
    rows = [result_row(1, evaluation={"env_runners": {"accuracy": 0.9}})]
    bare = [result_row(1, 0.1, num_tool_calls=0.0, evaluation={"env_runners": {"accuracy": 0.2}})]
    runs = find_runs([write_run(tmp_path / "a", rows), write_run(tmp_path / "b", bare, recipe="quickstart_no_tool")])
    assert [row[:5] for row in table(runs, "baseline").rows] == [
        ["with tool", "1", "0.25", "0.90", "0.50"],
        ["without tool", "1", "0.25", "0.20", "0.10"],
    ]
    assert "baseline" not in [found.id for found in tables(runs[:1])]


def sweep(folder, **figures):
    for calls, seed, accuracy in ((0, 0, 0.2), (1, 0, 0.8), (1, 1, 1.0)):
        trial = folder / f"C={calls},kl=0,seed={seed}_3f2a0_0000{calls + seed}"
        trial.mkdir(parents=True)
        config = {"env_config": {"max_tool_calls": calls}, "kl_coeff": 0.0, "seed": seed}
        row = result_row(1, evaluation={"env_runners": {"accuracy": accuracy} | figures}, config=config)
        # A restored trial did the iteration again: the later line counts.
        (trial / "result.json").write_text(json.dumps(row | {"evaluation": {}}) + "\n" + json.dumps(row) + "\n")
    return folder


def test_a_sweep_is_its_trials_by_setting_and_seed(tmp_path):
    runs = find_runs([sweep(tmp_path / "sweep")])
    assert [run.group for run in runs] == ["C=0 kl=0", "C=1 kl=0", "C=1 kl=0"]
    accuracy, step = sweep_figures(runs)
    assert (accuracy.id, accuracy.lines[0].x) == ("sweep_accuracy", ["0", "1"])
    assert accuracy.lines[0].y == pytest.approx([0.2, 0.9])
    assert (accuracy.lines[0].low, accuracy.lines[0].high) == ([0.2, 0.8], [0.2, 1.0])
    assert step.lines[0].y == pytest.approx([3.3, 3.3])
    # The paper's Table 4: 237 s with one program against 118 s without, 2.01 times.
    assert [row[-1] for row in table(runs, "sweep").rows] == ["118 s, 1.00 x", "237 s, 2.01 x"]


def test_a_single_trial_has_the_interval_of_the_sweeps_own_figure(tmp_path):
    runs = find_runs([sweep(tmp_path / "sweep", num_episodes=200, excluded_ratio=0.5)])
    (accuracy,) = sweep_figures(runs)[0].lines
    low, high = wilson(0.2, 100)  # 100 of the 200 were judged
    assert (accuracy.low, accuracy.high) == ([low, 0.8], [high, 1.0])  # of two seeds the lower and the higher
    assert 0.13 < low < 0.14 and 0.28 < high < 0.29


def test_trials_are_in_the_order_of_the_grid(tmp_path):
    for number, coeff in enumerate(("0", "0.1", "1")):
        trial = tmp_path / f"C=0,kl={coeff}_3f2a0_0000{number}"
        trial.mkdir()
        (trial / "result.json").write_text(json.dumps(result_row(1)) + "\n")
    assert [run.label for run in find_runs([tmp_path])] == ["C=0 kl=0", "C=0 kl=0.1", "C=0 kl=1"]


def test_an_evaluation_is_its_problem_sets(tmp_path):
    (tmp_path / "evaluation.json").write_text('{"model": "nowhere"}')
    lines = [record(ANSWER, problem_id="a"), record("no", problem_id="b", verdict="incorrect")]
    lines.append(record("", problem_id="c", verdict="unknown", stop_reason="sandbox_error"))
    (tmp_path / "aime24").mkdir()
    records.append(tmp_path / "aime24", lines)
    runs = find_runs([tmp_path])
    (figure,) = evaluation_figures(runs)
    assert (figure.lines[0].x, figure.lines[0].y) == (["aime24"], [0.5])  # one of two: the third was not judged
    assert [curves_of(figure, runs) for figure in FIGURES] == [[]] * len(FIGURES)
    (row,) = table(runs, "evaluation").rows
    assert row[:4] == ["aime24", "2", "1", "0.50"]
    assert row[4] == row[6] == f"{figure.lines[0].low[0]:.2f} to {figure.lines[0].high[0]:.2f}"  # pass@1 is accuracy
    assert row[-2:] == ["1.00", "0.00"]  # mean reward of the two (both records have 1), code ratio


def test_an_episode_recorded_twice_counts_once_as_it_was_last(tmp_path):
    folder = write_run(
        tmp_path / "a", [], [record("no", verdict="incorrect"), record("x", sample_index=1), record(ANSWER)]
    )
    entries = read_entries([folder])
    assert [(entry.sample_index, entry.verdict, entry.line) for entry in entries] == [
        (0, "correct", 3),
        (1, "correct", 2),
    ]
    assert read_record(folder, entries[0])["turns"][1] == ["response", ANSWER]


def many(tmp_path, num_iterations=3, num_groups=4):
    lines = [
        record(
            ANSWER,
            iteration=it,
            group_id=g,
            sample_index=s,
            verdict="incorrect" if (it, g, s) == (2, 3, 1) else "correct",
        )
        for it in range(1, num_iterations + 1)
        for g in range(num_groups)
        for s in range(2)
    ]
    return read_entries([write_run(tmp_path / "a", [], lines)])


def test_few_episodes_are_all_chosen(tmp_path):
    entries = many(tmp_path)
    assert sorted(choice.choose(entries), key=entries.index) == entries


def test_every_iteration_and_filter_is_represented_then_whole_groups_follow(tmp_path):
    entries = many(tmp_path)
    chosen = choice.choose(entries, max_episodes=6)
    assert {entry.iteration for entry in chosen} == {1, 2, 3}
    assert {tag for entry in chosen for tag in entry.tags} == {tag for entry in entries for tag in entry.tags}
    # The first of each iteration, the wrong one, and then the rest of the first group of as many iterations as fit.
    places = {(entry.iteration, entry.group_id, entry.sample_index) for entry in chosen}
    assert places == {(1, 0, 0), (2, 0, 0), (3, 0, 0), (2, 3, 1), (1, 0, 1), (2, 0, 1)}


def test_every_iteration_is_there_even_if_there_are_more_than_the_limit(tmp_path):
    assert len(choice.choose(many(tmp_path), max_episodes=1)) >= 3


def test_an_evaluation_gets_as_many_episodes_in_its_turn_as_a_training_group_has(tmp_path):
    lines = [record(ANSWER, group_id=g, sample_index=s) for g in range(3) for s in range(4)]
    lines += [record(ANSWER, split="evaluation", iteration=0, group_id=g) for g in range(12)]
    chosen = choice.choose(read_entries([write_run(tmp_path / "a", [], lines)]), max_episodes=16)
    assert [sum(entry.split == split for entry in chosen) for split in ("train", "evaluation")] == [8, 8]
