"""Recipes and entry points: `python -m experiments.train quickstart`."""

import learners  # noqa: F401  (switches usage statistics off before any entry point imports Ray or transformers)
