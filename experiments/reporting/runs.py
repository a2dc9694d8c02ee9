"""What a report reads of a run, sweep or evaluation folder: settings, metrics by iteration, held-out figures."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from experiments.evaluation_figures import set_figures
from experiments.run_folder import EVALUATION_FIGURES, RunFolder, as_written, flatten
from learners import records

HELD_OUT = "evaluation/env_runners/"
_SAMPLED = "env_runners/"
_RESULTS, _PARAMS, _RUN = "result.json", "params.json", "run.json"
_EVALUATION = "evaluation.json"
_STARTED = {"run.lock": "run", "sweep.json": "sweep"}  # written before there is anything to show
_TRIAL_SUFFIX = re.compile(r"_[0-9a-f]{5,}_\d{5}$")  # Tune's experiment and trial number
_SEED = re.compile(r"[ ,]*\bseed[= ]-?\d+")


@dataclass(frozen=True, slots=True)
class RunData:
    """One run or trial.

    Attributes:
        path: Its folder.
        label: How it is named in legends; no two runs of a report share one.
        group: The label without the seed: runs that share it differ in the seed alone.
        seed: None if unknown.
        settings: Setting -> value, as texts, of what is known to differ from the recipe.
        parent: Folder of the sweep it is a trial of, or of the evaluation it is a problem set of; else None.
        tokenizer: File of its tokenizer, or None.
        rows: Iteration -> name -> figure: RLlib's result dict under names joined with slashes, and `derived` ones.
        held_out: Iteration -> name -> figure of the greedy evaluation, names as in `episode_metrics`.
    """

    path: Path
    label: str
    group: str
    seed: int | None
    settings: Mapping[str, str] = field(default_factory=dict)
    parent: Path | None = None
    tokenizer: Path | None = None
    rows: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    held_out: Mapping[int, Mapping[str, float]] = field(default_factory=dict)

    @property
    def is_evaluation(self) -> bool:
        """True for a problem set of `experiments.evaluate`: its figures are `held_out[0]`."""
        return self.parent is not None and (self.parent / _EVALUATION).exists()

    @property
    def is_without_tool(self) -> bool:
        """True if it was trained and not one program was run: the paper's baseline."""
        return bool(self.rows) and not any(row.get(f"{_SAMPLED}num_tool_calls", 0) for row in self.rows.values())

    def setting(self, name: str) -> float | None:
        """Return a numeric setting, None if it is unknown."""
        try:
            return float(self.settings[name])
        except (KeyError, ValueError):
            return None


def find_runs(paths: Sequence[Path]) -> list[RunData]:
    """Return the runs in the folders, in their order: a sweep's trials as in its grid, an evaluation's sets by name.

    Raises:
        ValueError: if a folder is none of a run, a sweep or an evaluation, holds nothing to show yet, or what no run
            writes.
    """
    runs: list[RunData] = []
    for path in dict.fromkeys(path.resolve() for path in paths):
        if any((path / name).exists() for name in (_RESULTS, _RUN, records.FILE_NAME)):
            runs.append(read_run(path))
            continue
        if (path / _EVALUATION).exists():
            sets = [read_set(file.parent) for file in sorted(path.glob(f"*/{records.FILE_NAME}"))]
            if not sets:
                raise ValueError(f"{path} is an evaluation without an episode so far; look again when it has some.")
            runs += sets
            continue
        folders = [file.parent for file in path.glob(f"*/{_RESULTS}")]
        trials = sorted(folders, key=lambda folder: folder.name.rpartition("_")[::-1])  # Tune's number comes last
        for name in _STARTED:
            if not trials and (path / name).exists():
                raise ValueError(
                    f"{path} is a {_STARTED[name]} without an episode or iteration so far; look again when it has some."
                )
        if not trials:
            raise ValueError(
                f"{path} is no folder of a run, a sweep or an evaluation: it has no {_RUN}, {_RESULTS} or "
                f"{records.FILE_NAME}, nor trial folders with {_RESULTS}. Name the folder that the command printed."
            )
        runs += [read_run(trial, parent=path) for trial in trials]
    return _with_distinct_labels(runs)


def read_run(path: Path, parent: Path | None = None) -> RunData:
    """Read one folder, also while it is being written."""
    rows: dict[int, dict[str, float]] = {}
    config: Mapping[str, Any] = _json(path / _PARAMS)
    folder = RunFolder(path)
    for result in folder.results():
        config = result.pop("config", config)
        # What a restored trial did again counts the second time.
        rows[result["training_iteration"]] = dict(flatten(result))
    state = folder.state
    held_out = _held_out(rows, state, folder.summary)
    for row in rows.values():
        row.update(derived(row))
    settings = dict(text.partition("=")[::2] for text in state.get("settings", [])) | _of_config(config)
    seed = state.get("seed", config.get("seed"))
    if parent is not None:
        label = _TRIAL_SUFFIX.sub("", path.name).replace(",", " ")
    else:
        parts = [state.get("recipe", path.name), *state.get("settings", [])]
        label = " ".join(parts if seed is None else [*parts, f"seed {seed}"])
    tokenizer = _first_file(path / records.TOKENIZER_NAME, path / "model" / records.TOKENIZER_NAME)
    return RunData(path, label, _SEED.sub("", label) or label, seed, settings, parent, tokenizer, rows, held_out)


def read_set(path: Path) -> RunData:
    """Read one problem set of an evaluation; its figures are those that `experiments.evaluate` prints."""
    model = Path(_json(path.parent / _EVALUATION).get("model", ""))
    episodes = []
    with (path / records.FILE_NAME).open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n"):
                with as_written(path / records.FILE_NAME, number):
                    episodes.append(records.read_line(json.loads(line)))
    figures: dict[str, float] = {}
    if any(episode.counts for episode in episodes):
        found = set_figures(episodes, samples_per_problem=1 + max(episode.sample_index for episode in episodes))
        figures = dict(flatten(found))
        passed = found["pass_at_k"][found["samples_per_problem"]]
        for name, ends in (("accuracy", found["accuracy_interval"]), ("pass_at_k", passed["interval"])):
            figures |= zip((f"{name}_low", f"{name}_high"), ends, strict=True)
    names = (path, model, model / "model")
    tokenizer = _first_file(*(folder / records.TOKENIZER_NAME for folder in names))
    return RunData(path, path.name, path.name, None, {}, path.parent, tokenizer, held_out={0: figures})


def derived(row: Mapping[str, float]) -> dict[str, float]:
    """Return the parts of a step's seconds, which add up to `report/step_s`; empty where the times are not there.

    report/engine_s       the engine decodes
    report/tool_idle_s    a program is awaited and the engine has nothing to decode
    report/rest_s         the rest of sampling: grading, rendering, moving episodes
    report/update_s, report/sync_s   the learners' update (advantages included), the new weights' way to the engines
    """
    names = ("sample_s", "advantage_s", "update_s", "sync_s")
    if any(f"timings/{name}" not in row for name in names):
        return {}
    sample, advantage, update, sync = (row[f"timings/{name}"] for name in names)
    engine = min(sample, row.get(f"{_SAMPLED}engine_busy_s", math.nan))
    idle = row.get(f"{_SAMPLED}tool_pending_s", 0.0) - row.get(f"{_SAMPLED}tool_busy_s", 0.0)
    idle = min(max(0.0, idle), sample - engine)
    return {
        "report/step_s": sample + advantage + update + sync,
        "report/engine_s": engine,
        "report/tool_idle_s": idle,
        "report/rest_s": sample - engine - idle,
        "report/update_s": update + advantage,
        "report/sync_s": sync,
    }


def _held_out(
    rows: Mapping[int, Mapping[str, float]], state: Mapping[str, Any], summary: Mapping[str, Any]
) -> dict[int, dict[str, float]]:
    """Return the evaluations: before training, on the run's interval, after training."""
    found: dict[int, dict[str, float]] = {}
    if "before" in state:
        found[0] = _evaluation(state["before"], "", state["before"].get("num_problems"))
    for iteration, row in rows.items():
        figures = {name.removeprefix(HELD_OUT): value for name, value in row.items() if name.startswith(HELD_OUT)}
        if figures:
            found[iteration] = figures
    if known := _evaluation(summary, "_after", summary.get("num_evaluation_problems")):
        found[summary["iterations"]] = known | found.get(summary["iterations"], {})
    return found


def _evaluation(figures: Mapping[str, Any], suffix: str, num_problems: int | None) -> dict[str, float]:
    """Return what run.json or summary.json says of an evaluation, named as in a result dict."""
    known = {name: figures[name + suffix] for name in EVALUATION_FIGURES if name + suffix in figures}
    return dict(flatten(known | {"num_episodes": num_problems})) if known else {}


def _of_config(config: Mapping[str, Any]) -> dict[str, str]:
    environment = config.get("env_config", {})
    values = {
        "max_tool_calls": environment.get("max_tool_calls") if isinstance(environment, Mapping) else None,
        "kl_coeff": config.get("kl_coeff"),
    }
    return {name: str(value) for name, value in values.items() if value is not None}


def _with_distinct_labels(runs: Sequence[RunData]) -> list[RunData]:
    labels = [run.label for run in runs]
    return [
        run if labels.count(run.label) == 1 else _relabelled(run, f"{run.label} ({(run.parent or run.path).name})")
        for run in runs
    ]


def _relabelled(run: RunData, label: str) -> RunData:
    return replace(run, label=label, group=label)


def _first_file(*paths: Path) -> Path | None:
    return next((path for path in paths if path.is_file()), None)


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    with as_written(path):
        return dict(json.loads(path.read_text(encoding="utf-8")))
