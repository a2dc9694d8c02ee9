"""The report on disk: an episode's texts and tokens, one self-contained file, its size, images and command line."""

import base64
import csv
import gzip
import hashlib
import html
import json
import random
import re

import pytest
from tokenizers import Tokenizer

from experiments import report
from experiments.reporting import choice, content, page
from experiments.reporting.index import read_entries
from experiments.reporting.runs import find_runs
from learners import records
from tests.reports import ROOT, TOKENIZER, record, response_with, result_row, write_run

TOKENS = Tokenizer.from_file(str(TOKENIZER))
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x00\x1b[31m\u202e"


def written(tmp_path, lines, rows=(), **settings):
    path, *_ = report.write_report([write_run(tmp_path / "run", rows, lines, **settings)])
    return path.read_text(encoding="utf-8")


def data_of(text):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text)[1])


def blocks_of(text, kind):
    found = re.findall(rf'<script type="text/plain" class="{kind}">(.*?)</script>', text)
    return [json.loads(gzip.decompress(base64.b64decode(block))) for block in found]


def pieces(turn, place):
    """Return the marked texts of a turn as (class, text), offsets being in UTF-16 code units."""
    units = turn["text"].encode("utf-16-le")
    return [(name, units[2 * start : 2 * end].decode("utf-16-le")) for start, end, name in place]


def test_code_is_highlighted_where_it_stands_in_the_text():
    text = response_with("x = 41  # why", "\N{PILE OF POO} I compute. ") + r" \boxed{x}"
    turn = content.shown(record(text))["turns"][1]
    marks = pieces(turn, turn["marks"])
    assert ("number", "41") in marks
    assert ("comment", "# why") in marks
    assert ("box", r"\boxed{x}") in marks
    assert "".join(text for name, text in marks if name == "fence") == "```python\n```"
    assert pieces(turn, [[*turn["blocks"][0], ""]]) == [("", "```python\nx = 41  # why\n```\n")]


def test_an_unclosed_block_is_code_up_to_the_marker():
    turn = content.shown(record("```python\nprint(1) ```output"))["turns"][1]
    assert pieces(turn, [[*turn["blocks"][0], ""]]) == [("", "```python\nprint(1) ")]


def test_tokens_cover_each_turn_and_carry_both_logps():
    line = record("No.", "\n2\n```\n", r"So \boxed{2}é")
    turns = content.tokens(line, TOKENS)
    for (_, text), (_, lengths, *_) in zip(line["turns"], turns, strict=True):
        assert sum(lengths) == len(text)
    assert [len(turn) for turn in turns] == [2, 4, 2, 4]  # log-probs for responses alone
    assert turns[1][2] == [-250_000] * len(turns[1][0])
    assert turns[3][3] == [-250_001] * len(turns[3][0])
    assert [id_ for ids, *_ in turns for id_ in ids] == line["token_ids"]


def test_a_special_token_stands_for_no_text():
    end = TOKENS.token_to_id("<|endoftext|>")
    line = record("Yes")
    line["token_ids"].append(end)
    line["loss_mask"].append(1)
    for name in ("action_logp", "logp"):
        line[name].append(-0.5)
    ids, lengths, *_ = content.tokens(line, TOKENS)[1]
    assert (ids[-1], lengths[-1], sum(lengths)) == (end, 0, 3)
    assert content.special_names(TOKENS)[end] == "<|endoftext|>"


def test_tokens_that_are_not_the_text_are_left_out():
    line = record("Yes")
    assert content.tokens(line, None) is None
    assert content.tokens(line | {"loss_mask": [0] * len(line["loss_mask"])}, TOKENS) is None
    line["turns"][1][1] = "Another text"
    assert content.tokens(line, TOKENS)[1] == []


def test_a_very_long_text_loses_its_middle_and_says_how_much():
    turn = content.shown(record("x" * 50 + "y" * 100_000 + "z"))["turns"][1]
    assert len(turn["text"]) <= content.MAX_TURN_CHARS
    assert turn["text"].endswith("z") and turn["text"].startswith("x")
    assert turn["cut"] == 100_051 - content.MAX_TURN_CHARS
    assert "cut" not in content.shown(record("short"))["turns"][1]


def test_the_file_fetches_nothing_and_lets_only_its_own_scripts_run(tmp_path):
    text = written(tmp_path, [record("Yes")], [result_row(1)])
    policy = html.unescape(re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1])
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert re.findall(r"'sha256-([^']+)'", policy) == hashes
    outside = text
    for script in scripts:
        outside = outside.replace(script, "")
    assert re.findall(r"(?:src|href)\s*=\s*[\"']?(?:https?:)?//", outside) == []


def test_hostile_texts_are_data(tmp_path):
    line = record(HOSTILE, question=HOSTILE, problem_id=HOSTILE, answer=HOSTILE, kind=HOSTILE, error=HOSTILE)
    text = written(tmp_path, [line], [result_row(1)], recipe=HOSTILE)
    assert "alert(1)</script>" not in text
    assert text.count("<script") == text.count("</script>") == 5  # data, episodes, tokens, Plotly, ours
    assert "<title>&lt;/script&gt;" in text
    assert blocks_of(text, "episodes")[0][0]["turns"][1]["text"] == HOSTILE
    assert data_of(text)["runs"][0]["label"] == f"{HOSTILE} seed 0"


def write_long_episodes(folder, monkeypatch, num_iterations=1):
    """100 episodes of about 20 kB each, random digits that do not compress, and room for about a third of them."""
    source = random.Random(0)
    texts = ["".join(source.choices("0123456789", k=19_000)) for _ in range(100)]
    lines = [
        record(text, group_id=group, token_ids=[], loss_mask=[], iteration=1 + group % num_iterations)
        for group, text in enumerate(texts)
    ]
    monkeypatch.setattr(page, "MAX_BYTES", 5_600_000)
    path, num_shown, num_recorded = report.write_report([write_run(folder, [result_row(1)], lines)])
    assert path.stat().st_size <= 5_600_000
    text = path.read_text()
    assert (data_of(text)["embedded"], data_of(text)["recorded"]) == (num_shown, num_recorded) == (num_shown, 100)
    shown = [episode for block in blocks_of(text, "episodes") for episode in block]
    assert len(shown) == num_shown
    return shown


def test_what_does_not_fit_is_left_out_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(choice, "MIN_EPISODES", 20)
    shown = write_long_episodes(tmp_path / "run", monkeypatch)
    assert 20 <= len(shown) < 100
    assert not any("cut" in turn for episode in shown for turn in episode["turns"])


def test_where_too_few_would_fit_texts_are_cut_shorter(tmp_path, monkeypatch):
    shown = write_long_episodes(tmp_path / "run", monkeypatch)
    assert len(shown) == 100
    assert all(len(episode["turns"][1]["text"]) <= 19_000 - episode["turns"][1]["cut"] for episode in shown)


def test_where_an_iteration_would_have_none_texts_are_cut_shorter(tmp_path, monkeypatch):
    monkeypatch.setattr(choice, "MIN_EPISODES", 20)
    shown = write_long_episodes(tmp_path / "run", monkeypatch, num_iterations=90)
    assert {episode["iteration"] for episode in shown} == set(range(1, 91))


def test_curves_on_the_page_and_in_the_csv_are_the_raw_metrics(tmp_path):
    rows = [result_row(iteration, accuracy=iteration / 7) for iteration in (1, 2, 3)]
    data = data_of(written(tmp_path, [], rows))
    accuracy = next(figure for figure in data["curves"] if figure["id"] == "accuracy")
    sampled = next(curve for curve in accuracy["curves"] if curve["series"] == 0)
    assert (sampled["x"], sampled["y"]) == ([1, 2, 3], [1 / 7, 2 / 7, 3 / 7])
    with (tmp_path / "run" / "report" / "figures" / "accuracy.csv").open() as file:
        lines = [line for line in csv.DictReader(file) if line["series"] == "sampled"]
    assert [(int(line["iteration"]), float(line["value"])) for line in lines] == [(1, 1 / 7), (2, 2 / 7), (3, 3 / 7)]


def test_every_figure_is_a_png_and_a_csv(tmp_path):
    written(tmp_path, [record("Yes")], [result_row(1), result_row(2)])
    figures = tmp_path / "run" / "report" / "figures"
    names = {path.stem for path in figures.glob("*.png")}
    assert names == {path.stem for path in figures.glob("*.csv")} >= {"accuracy", "kl", "step_parts", "logp_diff_max"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in figures.glob("*.png"))


def test_a_problem_set_with_dollars_in_its_name_is_no_formula(tmp_path):
    name = r"$\x$"
    records.append(tmp_path / name, [record("Yes", split="evaluation")])
    (tmp_path / "evaluation.json").write_text("{}")
    report.write_report([tmp_path])
    assert name in (tmp_path / "report" / "figures" / "evaluation.csv").read_text()


def test_a_report_is_written_anew_over_the_old_one(tmp_path):
    folder = write_run(tmp_path / "run", [result_row(1)], [record("Yes")])
    report.write_report([folder])
    path, *_ = report.write_report([folder])
    assert [entry.name for entry in sorted(path.parent.iterdir())] == ["figures", "report.html"]


def test_the_command_prints_where_the_report_is(tmp_path, capsys):
    folder = write_run(tmp_path / "run", [result_row(1)], [record("Yes")])
    assert report.main([str(folder), "--output", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == str(tmp_path / "out" / "report.html")
    assert lines[1].startswith("1 of 1 recorded episodes")


def test_an_output_that_cannot_be_made_ends_the_command_with_the_reason(tmp_path, capsys):
    (tmp_path / "run.json").write_text('{"recipe": "quickstart", "settings": [], "seed": 0}')
    (tmp_path / "file").touch()
    assert report.main([str(tmp_path), "--output", str(tmp_path / "file")]) == 2
    assert "experiments.report: error: " in capsys.readouterr().err


def test_a_damaged_tokenizer_ends_the_command_with_the_remedy(tmp_path, capsys):
    folder = write_run(tmp_path / "run", [], [record("Yes")])
    (folder / "tokenizer.json").write_text("")
    assert report.main([str(folder)]) == 2
    assert "tokenizer.json is no tokenizer" in capsys.readouterr().err


def test_a_wrong_folder_ends_the_command_with_the_reason(tmp_path, capsys):
    assert report.main([str(tmp_path)]) == 2
    assert "is no folder of a run" in capsys.readouterr().err


def contrast(one, other):
    """Return WCAG 2's contrast ratio of two colours `#rrggbb`."""

    def luminance(color):
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_have_the_contrast_that_wcag_asks_for(scheme):
    style = (ROOT / "experiments" / "reporting" / "page" / "report.css").read_text()
    roots = [dict(re.findall(r"--([\w-]+): ([^;]+);", block)) for block in re.findall(r":root \{(.*?)\}", style, re.S)]
    colors = roots[0] | (roots[1] if scheme == "dark" else {})
    pairs = [(ink, ground) for ink in ("ink", "soft") for ground in ("page", "card", "code", "tool", "accent-soft")]
    pairs += [(ink, "code") for ink in ("keyword", "string", "number", "comment", "function", "builtin")]
    pairs += [("accent", "card"), ("accent", "page"), ("accent", "accent-soft")]
    pairs += [("good", "good-soft"), ("bad", "bad-soft"), ("dim", "dim-soft")]
    found = [(pair, contrast(*(colors[name] for name in pair)), 4.5) for pair in pairs]
    # The hottest token of "Colour tokens by probability": the heat over the card, under the text.
    heat, share = (int(part) for part in colors["heat"].split(", ")), max(re.findall(r"var\(--heat\), (\.\d+)", style))
    card = (int(colors["card"][i : i + 2], 16) for i in (1, 3, 5))
    mixed = "".join(f"{round(float(share) * h + (1 - float(share)) * c):02x}" for h, c in zip(heat, card, strict=True))
    found.append(("heat", contrast(colors["ink"], f"#{mixed}"), 4.5))
    # The edges of controls, and lines in figures.
    graphics = ["edge", *(f"c{index}" for index in range(10))]
    found += [(name, contrast(colors[name], colors["card"]), 3) for name in graphics]
    assert [entry for entry in found if entry[1] < entry[2]] == []


def test_all_runs_and_entries_of_a_page_agree(tmp_path):
    folders = [write_run(tmp_path / str(seed), [result_row(1)], [record("Yes")], seed=seed) for seed in range(2)]
    runs = find_runs(folders)
    assert page.write_page(tmp_path / "page.html", runs, read_entries([run.path for run in runs])) == 2
    data = data_of((tmp_path / "page.html").read_text())
    assert data["groups"] == [{"label": "quickstart", "runs": [0, 1]}]
    assert [run["embedded"] for run in data["runs"]] == [1, 1]
