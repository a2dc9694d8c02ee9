"""Cases and problem sets that some tests read: beside the project's folder, not in the repository."""

from pathlib import Path

import pytest

_SHARED = Path(__file__).resolve().parents[2] / "shared"
SANDBOX_CASES = _SHARED / "cases" / "sandbox_cases.jsonl"
GRADING_CASES = _SHARED / "cases" / "grading_cases.jsonl"
DATA = _SHARED / "data"

needs_shared_files = pytest.mark.skipif(
    not all(path.exists() for path in (SANDBOX_CASES, GRADING_CASES, DATA)),
    reason="needs ../shared/cases and ../shared/data, which are not part of the repository",
)
