"""The report as one HTML file: template, styles and scripts of `page/`, Plotly, the figures, the chosen episodes.

Nothing in it is fetched, and its policy lets no script run but the two it was written with. Figures and settings are a
JSON block; episodes are blocks of JSON, gzipped and base64-encoded, that the page unpacks (tokens when an episode is
opened). Everything that a model or a problem set wrote reaches the page as text, never as markup.
"""

import base64
import gzip
import hashlib
import html
import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs
from tokenizers import Tokenizer

from experiments.reporting import behaviours, choice, content
from experiments.reporting.curves import curves_of, figures_of
from experiments.reporting.index import Entry, groups, read_record
from experiments.reporting.points import evaluation_figures, sweep_figures, tables
from experiments.reporting.runs import RunData
from experiments.run_folder import jsonable

MAX_BYTES = 25_000_000
_MAX_HALVINGS = 5  # texts of 625 characters, tokens of the first 128: 500 episodes of those take less than the room
_CHUNK = 32
_PAGE = Path(__file__).parent / "page"
_SCRIPTS = ("core", "text", "curves", "list", "episode", "compare", "main")


def write_page(path: Path, runs: Sequence[RunData], entries: Sequence[Entry]) -> int:
    """Write the file, whole or not at all; return the number of episodes in it.

    Args:
        path: of the file.
        runs: in the order of the entries' indices.
        entries: all recorded episodes.

    Raises:
        ValueError: if a run's tokenizer cannot be read.
    """
    fixed = {
        "PLOTLY": get_plotlyjs(),
        "SCRIPT": '"use strict";\n(() => {\n' + "\n".join(_read(f"{name}.js") for name in _SCRIPTS) + "\n})();",
        "STYLE": _read("report.css"),
        "TITLE": html.escape(_title(runs)),
    }
    fixed["POLICY"] = _policy(fixed["PLOTLY"], fixed["SCRIPT"])
    tokenizers = [None if run.tokenizer is None else _tokenizer(run.tokenizer) for run in runs]
    figures = _figures(runs, tokenizers, entries)
    room = MAX_BYTES - sum(len(text.encode()) for text in (*fixed.values(), _json(figures), _read("report.html")))
    blocks, num_embedded = _episode_blocks(runs, tokenizers, entries, room - 100_000)  # for the counts below
    counts = {"recorded": len(entries), "embedded": sum(num_embedded)}
    for run, number in zip(figures["runs"], num_embedded, strict=True):
        run["embedded"] = number
    parts = {**fixed, "DATA": _json(figures | counts), "EPISODES": "\n".join(blocks)}
    # One pass: what is put in is never looked at for further places.
    text = re.sub(r"\{\{([A-Z]+)\}\}", lambda place: parts[place[1]], _read("report.html"))
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
    return counts["embedded"]


def _episode_blocks(
    runs: Sequence[RunData], tokenizers: Sequence[Tokenizer | None], entries: Sequence[Entry], room: int
) -> tuple[list[str], list[int]]:
    """Return the page's episode blocks, and how many episodes of each run are in them, within `room` bytes.

    Where fewer than `choice.MIN_EPISODES` fit, or an iteration would have none, long texts are cut shorter, and long
    episodes lose their tokens.
    """
    of_group, chosen = groups(entries), choice.choose(entries)
    places = {entry.place for entry in entries}
    for halvings in range(_MAX_HALVINGS + 1):
        blocks: list[str] = []
        num_embedded = [0] * len(runs)
        left = room
        for first in range(0, len(chosen), _CHUNK):
            texts, tokens = [], []
            for entry in chosen[first : first + _CHUNK]:
                record = read_record(runs[entry.run].path, entry)
                texts.append({"run": entry.run, "line": entry.line, "tags": entry.tags})
                texts[-1] |= content.shown(record, halvings)
                texts[-1]["mates"] = [
                    [mate.sample_index, mate.verdict, mate.reward, mate.advantage] for mate in of_group[entry.group]
                ]
                tokens.append(content.tokens(record, tokenizers[entry.run], halvings))
            new = [_block("episodes", texts), _block("tokens", tokens)]
            left -= sum(map(len, new)) + 2
            if left < 0:
                break
            blocks += new
            for entry in chosen[first : first + _CHUNK]:
                num_embedded[entry.run] += 1
        embedded = chosen[: sum(num_embedded)]
        are_enough = len(embedded) >= min(choice.MIN_EPISODES, len(chosen))
        if are_enough and {entry.place for entry in embedded} == places:
            break
    return blocks, num_embedded


def _figures(
    runs: Sequence[RunData], tokenizers: Sequence[Tokenizer | None], entries: Sequence[Entry]
) -> dict[str, Any]:
    names = list(dict.fromkeys(run.group for run in runs))
    recorded = Counter(entry.run for entry in entries)
    tagged = Counter(tag for entry in entries for tag in entry.tags)
    curves = []
    for figure in figures_of(runs):
        found = curves_of(figure, runs)
        if found:
            lines = [{**asdict(curve), "group": names.index(curve.group)} for curve in found]
            curves.append({**asdict(figure), "curves": lines})
    return {
        "title": _title(runs),
        "written": time.strftime("%Y-%m-%d %H:%M"),
        "groups": [{"label": n, "runs": [i for i, run in enumerate(runs) if run.group == n]} for n in names],
        "runs": [
            {
                "label": run.label,
                "group": names.index(run.group),
                "iterations": max(run.rows, default=0),
                "recorded": recorded[index],
                "specials": content.special_names(tokenizer),
            }
            for index, (run, tokenizer) in enumerate(zip(runs, tokenizers, strict=True))
        ],
        "curves": curves,
        "points": [asdict(figure) for figure in evaluation_figures(runs) + sweep_figures(runs)],
        "tables": [asdict(table) for table in tables(runs)],
        "rules": [
            {
                "id": rule.id,
                "name": rule.name,
                "sentence": rule.sentence,
                "behaviour": rule in behaviours.BEHAVIOURS,
                "recorded": tagged[rule.id],
            }
            for rule in behaviours.RULES
        ],
        "choice": choice.RULE,
    }


def _title(runs: Sequence[RunData]) -> str:
    names = list(dict.fromkeys(run.group if run.parent is None else run.parent.name for run in runs))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _policy(*scripts: str) -> str:
    """Return a content security policy: these scripts, styles (Plotly makes some), images made here; no network."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _block(kind: str, rows: Iterable[Any]) -> str:
    packed = gzip.compress(json.dumps(list(rows), separators=(",", ":")).encode(), compresslevel=6, mtime=0)
    return f'<script type="text/plain" class="{kind}">{base64.b64encode(packed).decode()}</script>'


def _json(value: Mapping[str, Any]) -> str:
    """Return JSON that ends no script element, whatever texts it holds."""
    return json.dumps(jsonable(value), separators=(",", ":")).replace("<", "\\u003c")


def _tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library has no narrower one
        raise ValueError(f"{path} is no tokenizer ({error}). Remove it to have the episodes without tokens.") from None


def _read(name: str) -> str:
    return (_PAGE / name).read_text(encoding="utf-8")
