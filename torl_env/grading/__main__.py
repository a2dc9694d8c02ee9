r"""Grade a file of cases and say where the verdicts differ from the expected ones.

    python -m torl_env.grading FILE.jsonl [--json]

A line is {"id", "gold", "prediction", "expected"}: `expected` is true or false, a missing `prediction` is an empty one,
and one without any "\boxed" is the answer itself. A verdict of *unknown* is a disagreement.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from types import UnionType
from typing import Any

from torl_env.grading import Verdict, grade

_FIELDS: tuple[tuple[str, type | UnionType, str], ...] = (
    ("gold", str, "text"),
    ("prediction", str | None, "text"),
    ("expected", bool, "true or false"),
)


def report(lines: list[str]) -> dict[str, Any]:
    """Return the counts, the times in milliseconds and the disagreements of JSON lines of cases.

    Raises:
        ValueError: naming the line that is no case.
    """
    times_ms, disagreements = [], []
    cases = [_case(line, number) for number, line in enumerate(lines, start=1) if line.strip()]
    grade("x + 1", "\\boxed{y + 1}")  # starts a worker, which is no case's time
    for case in cases:
        start = time.perf_counter()
        graded = grade(case["gold"], case.get("prediction") or "", require_box=False)
        times_ms.append((time.perf_counter() - start) * 1000)
        if graded.verdict is not (Verdict.CORRECT if case["expected"] else Verdict.INCORRECT):
            found = {"verdict": graded.verdict.value, "reason": graded.reason}
            disagreements.append({key: case.get(key) for key in ("id", "gold", "prediction", "expected")} | found)
    times_ms.sort()
    verdicts = [(entry["expected"], entry["verdict"]) for entry in disagreements]
    return {
        "cases": len(cases),
        "agree": len(cases) - len(disagreements),
        "false_positives": verdicts.count((False, "correct")),
        "false_negatives": verdicts.count((True, "incorrect")),
        "unknown": sum(verdict == "unknown" for _, verdict in verdicts),
        "median_ms": round(statistics.median(times_ms), 3) if times_ms else 0.0,
        "p99_ms": round(times_ms[min(len(times_ms) - 1, int(len(times_ms) * 0.99))], 3) if times_ms else 0.0,
        "disagreements": disagreements,
    }


def _case(line: str, number: int) -> dict[str, Any]:
    try:
        case = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"line {number}: not JSON ({error}); expected one JSON object a line.") from None
    if not isinstance(case, dict):
        raise ValueError(f"line {number}: got {line[:80]!r}; expected a JSON object.")
    for field, kinds, expected in _FIELDS:
        if not isinstance(case.get(field), kinds):
            got = repr(case[field])[:80] if field in case else "nothing"
            raise ValueError(f"line {number}: field `{field}` should be {expected}, got {got}.")
    return case


def main() -> None:
    """Read the arguments, print the report."""
    parser = argparse.ArgumentParser(prog="python -m torl_env.grading", description="Grade a file of cases.")
    parser.add_argument("file", type=Path, help="JSON Lines with id, gold, prediction, expected")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    try:
        # Not `splitlines`: a JSON string may hold U+2028 or U+0085 as they are. Some editors begin a file with a mark.
        found = report(arguments.file.read_text(encoding="utf-8-sig").split("\n"))
    except (OSError, ValueError) as error:
        parser.error(f"{arguments.file}: {error}")
    if arguments.json:
        print(json.dumps(found))  # in ASCII: half of a surrogate pair could not be written otherwise
        return
    for entry in found["disagreements"]:
        prediction = (entry["prediction"] or "")[-120:]
        print(
            f"{entry['id']!r}: {entry['verdict']}, expected {entry['expected']}: "
            f"{entry['gold'][:80]!r} | {prediction!r}"
        )
    for key in ("cases", "agree", "false_positives", "false_negatives", "unknown", "median_ms", "p99_ms"):
        print(f"{key:16}{found[key]}")
    print(f"{'agreement':16}{found['agree'] / max(1, found['cases']):.1%}")


if __name__ == "__main__":
    main()
