"""Set before a test imports torch: every process of a test run shares the same few cores, one thread each."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import learners  # noqa: F401  (switches usage statistics off, for tests that start Ray by themselves too)
from tests.report_browser import browser, open_page, report  # noqa: F401  (fixtures)
