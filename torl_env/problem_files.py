"""Read problems from JSON Lines, Parquet and Hugging Face data sets, row by row.

A row's fields are found by name: `question` (or `problem`), `answer`, and optionally `id`, `source`, `kind`; or in the
nested layout of ToRL and verl:

    {"data_source": s, "prompt": [{"role": "user", "content": q}], "reward_model": {"ground_truth": a},
     "extra_info": {"id": i}}

A solution that ends with "#### 72", as those of GSM8K do, has the answer 72. Other layouts are mapped:
`fields={"question": "task.text", "answer": "solution"}`, a dot going one level down.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HUB_PREFIX = "hf:"
PROBLEM_FIELDS = ("id", "question", "answer", "source", "kind")
_NESTED = {"id": "extra_info.id", "answer": "reward_model.ground_truth", "source": "data_source", "kind": "ability"}
_ROWS_AT_ONCE = 4096


def read_rows(source: str, split: str) -> Iterator[tuple[str, Any]]:
    """Return (where it stands, row) for each row of a file, or of a split of a data set "hf:NAME".

    Raises:
        ValueError: naming file and line of what is no row; or if the data set or its split cannot be had.
        FileNotFoundError: if there is no such file, or it is a folder.
        ImportError: if the extra that reads the format is not installed.
    """
    if source.startswith(HUB_PREFIX):
        return _read_hub(source.removeprefix(HUB_PREFIX), split)
    path = Path(source)
    if not path.is_file():
        found = " (it is a folder)" if path.is_dir() else ""
        raise FileNotFoundError(
            f"No problem file {source!r}{found}; expected a JSON Lines or Parquet file, {HUB_PREFIX!r} and a data "
            "set's name, or 'arithmetic'."
        )
    return _read_parquet(path) if path.suffix == ".parquet" else _read_json_lines(path)


def _read_json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                # A byte-order mark is what some editors begin a file with.
                row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except UnicodeDecodeError as error:
                raise ValueError(f"{where}: not UTF-8 ({error.reason}); expected JSON Lines in UTF-8.") from None
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{where}: not JSON ({error}); expected one JSON object a line.") from None
            yield where, row


def _read_parquet(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise ImportError(
            f"{path}: Parquet needs pyarrow; install it with the extra `datasets` (or `cpu`, `gpu`)."
        ) from None
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(_ROWS_AT_ONCE):  # never the whole file as Python objects
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", row
    except (ValueError, OSError, ArrowException) as error:  # what pyarrow raises for one that is damaged
        raise ValueError(
            f"{path}: no Parquet file, or damaged after row {number} ({error}); expected a whole Parquet file."
        ) from None


def _read_hub(name: str, split: str) -> Iterator[tuple[str, Any]]:
    try:
        import datasets
    except ImportError:
        raise ImportError(
            f"{name}: Hugging Face data sets need the package `datasets`; install it with the extra `datasets`."
        ) from None
    try:
        rows = datasets.load_dataset(name, split=split)
    except Exception as error:  # offline, misspelt, private, no such split: `datasets` has a dozen types for them
        raise ValueError(
            f"The data set {name!r}, split {split!r}, could not be loaded ({type(error).__name__}: {error}). Check the "
            "name, and the connection: offline, only what an earlier run downloaded is there."
        ) from error
    return ((f"{name}/{split}, row {number}", row) for number, row in enumerate(rows, start=1))


class RowReader:
    """Turns rows of one layout into the fields of a problem."""

    def __init__(self, fields: Mapping[str, str] | None) -> None:
        """Set where each field stands.

        Raises:
            ValueError: if `fields` maps something that problems do not have.
        """
        if unknown := sorted(set(fields or ()) - set(PROBLEM_FIELDS)):
            raise ValueError(f"`fields` maps {unknown}; a problem has the fields {list(PROBLEM_FIELDS)}.")
        self._fields = fields or {}

    def read(self, row: Any, where: str) -> dict[str, str]:
        """Return the fields as text; an `answer` may be blank, an absent `id` is the row's number.

        Raises:
            ValueError: naming file, line, field and what was expected.
        """
        if not isinstance(row, Mapping):
            raise ValueError(f"{where}: got {type(row).__name__}; expected a JSON object.")
        places = dict(self._fields)
        if isinstance(row.get("prompt"), list) and "reward_model" in row:
            places = _NESTED | places
        number = where.rpartition(" ")[2]
        question = places.get("question", "problem" if "problem" in row and "question" not in row else "question")
        if question == "question" and "reward_model" in row and "prompt" in row:
            found = _last_user_message(row["prompt"], where)
        else:
            found = _text(row, question, where)
        if not found.strip():
            raise ValueError(f"{where}: field `{question}` is empty; expected text.")
        return {
            "id": _text(row, places.get("id", "id"), where, default=number, numbers=True) or number,
            "question": found,
            "answer": _final(_text(row, places.get("answer", "answer"), where, numbers=True)),
            "source": _text(row, places.get("source", "source"), where, default=""),
            "kind": _text(row, places.get("kind", "kind"), where, default=""),
        }


def _final(answer: str) -> str:
    """Return what stands behind the last "####", with which the solutions of GSM8K end; all of it elsewhere."""
    return answer.rpartition("####")[2].strip() if "####" in answer else answer


def _last_user_message(prompt: Any, where: str) -> str:
    messages = prompt if isinstance(prompt, list) else []
    for message in reversed(messages):
        if isinstance(message, Mapping) and message.get("role") == "user" and isinstance(message.get("content"), str):
            return message["content"]
    raise ValueError(
        f"{where}: field `prompt` should be a list of {{role, content}} with a user's message, got {prompt!r}."
    )


def _text(row: Mapping[str, Any], field: str, where: str, default: str | None = None, numbers: bool = False) -> str:
    value: Any = row
    for part in field.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if value is None and default is not None:
        return default
    if numbers and isinstance(value, int | float) and not isinstance(value, bool):
        if isinstance(value, float) and math.isinf(value):  # 1e400 too, whose digits are lost
            raise ValueError(
                f"{where}: field `{field}` is infinite; expected a finite number, or text such as \\infty."
            )
        return str(value)
    if numbers and isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return ", ".join(value)  # an answer of several parts, as OlympiadBench has them
    if not isinstance(value, str):
        got = "nothing" if field not in row and value is None else repr(value)
        raise ValueError(f"{where}: field `{field}` should be a string, got {got}.")
    if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
        raise ValueError(f"{where}: field `{field}` has half of a surrogate pair, which is no character.")
    return value
