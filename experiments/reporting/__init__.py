"""The parts of `experiments.report`: runs and episodes read from disk, figures, and the page that shows them.

runs.py       run, sweep and evaluation folders -> `RunData`
curves.py     what is plotted against the iteration, seeds combined into intervals
points.py     what is plotted against a setting (a sweep), and the tables
images.py     PNG and CSV of every figure
behaviours.py filters and behaviours: stated rules on an episode's record
index.py      one pass over `episodes.jsonl`: what the choice needs of each episode
choice.py     which episodes the page holds
content.py    an episode as the page shows it: highlighted code, tokens, very long texts cut
page.py       one HTML file of all this; `page/` holds its template, styles and scripts
"""
