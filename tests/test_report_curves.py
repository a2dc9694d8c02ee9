"""The curves of a real run's report, read from what Plotly drew in a real browser, against the raw metrics."""

import json

import pytest

from experiments.reporting.curves import FIGURES
from tests.report_browser import READY, RUN, lines_of, needs_chromium, plotted

pytestmark = needs_chromium
GROUP = "quickstart kl_coeff=0 measure_kl=true"


def step_s(row):
    return sum(row["timings"][f"{block}_s"] for block in ("sample", "advantage", "update", "sync"))


READ = [
    ("accuracy", "sampled", lambda row: row["env_runners"]["accuracy"]),
    ("reward", "sampled", lambda row: row["env_runners"]["reward_mean"]),
    ("code_ratio", "sampled", lambda row: row["env_runners"]["code_ratio"]),
    ("pass_ratio", "all", lambda row: row["env_runners"]["pass_ratio"]),
    ("pass_ratio", "correct", lambda row: row["env_runners"]["pass_ratio_correct"]),
    ("pass_ratio", "incorrect", lambda row: row["env_runners"]["pass_ratio_incorrect"]),
    ("block_ratios", "executed", lambda row: row["env_runners"]["executed_code_ratio"]),
    ("block_ratios", "before the answer", lambda row: row["env_runners"]["before_answer_code_ratio"]),
    ("tool_calls", "", lambda row: row["env_runners"]["tool_calls_mean"]),
    ("response_length", "mean", lambda row: row["env_runners"]["response_tokens_mean"]),
    ("response_length", "longest", lambda row: row["env_runners"]["response_tokens_max"]),
    ("cut_off", "truncated", lambda row: row["env_runners"]["truncated_ratio"]),
    ("cut_off", "left out", lambda row: row["env_runners"]["excluded_ratio"]),
    ("kl", "", lambda row: row["learners"]["default_policy"]["kl"]),
    ("entropy", "", lambda row: row["learners"]["default_policy"]["entropy"]),
    ("grad_norm", "", lambda row: row["learners"]["default_policy"]["grad_norm"]),
    ("logp_diff_max", "", lambda row: row["learners"]["default_policy"]["logp_diff_max"]),
    ("step_s", "", step_s),
    ("waits", "for programs", lambda row: row["env_runners"]["tool_wait_s_sum"]),
    ("waits", "for grading", lambda row: row["env_runners"]["grade_s_sum"]),
    ("tokens_per_s", "", lambda row: row["env_runners"]["response_tokens_per_s"]),
    ("program_s", "p50", lambda row: row["env_runners"]["run_s_p50"]),
    ("program_s", "p99", lambda row: row["env_runners"]["run_s_p99"]),
    ("queue_s", "p50", lambda row: row["env_runners"]["queue_s_p50"]),
    ("queue_s", "p99", lambda row: row["env_runners"]["queue_s_p99"]),
]


@pytest.mark.parametrize(("figure", "trace", "read"), READ)
def test_a_curve_shows_the_raw_metric(curves_page, figure, trace, read):
    drawn = plotted(curves_page, figure)[" · ".join(filter(None, [GROUP, trace]))]
    for row in lines_of("quickstart")[:3]:
        value, iteration = read(row), row["training_iteration"]
        assert drawn.get(iteration) == (None if value is None else pytest.approx(value, rel=1e-12))


HELD_OUT = {"accuracy": "accuracy", "reward": "reward_mean", "code_ratio": "code_ratio"}


@pytest.mark.parametrize(("figure", "name"), HELD_OUT.items())
def test_a_curve_shows_the_evaluations_before_and_after(curves_page, figure, name):
    drawn = plotted(curves_page, figure)[f"{GROUP} · held out, greedy"]
    state, summary = (json.loads((RUN / "quickstart" / file).read_text()) for file in ("run.json", "summary.json"))
    assert drawn == {0: state["before"][name], 20: summary[f"{name}_after"]}


def parts_of(row):
    timings, sampled = row["timings"], row["env_runners"]
    decoding = min(timings["sample_s"], sampled["engine_busy_s"])
    waiting = sampled["tool_pending_s"] - sampled["tool_busy_s"]
    rest = timings["sample_s"] - decoding - waiting
    return [decoding, waiting, rest, timings["advantage_s"] + timings["update_s"], timings["sync_s"]]


def test_the_parts_of_a_step_are_the_raw_times(curves_page):
    data = json.loads(curves_page.locator("#data").text_content())
    (figure,) = (figure for figure in data["curves"] if figure["id"] == "step_parts")
    parts = [curve["y"] for curve in figure["curves"] if data["groups"][curve["group"]]["label"] == GROUP]
    for row, *drawn in zip(lines_of("quickstart")[:3], *parts, strict=False):
        assert drawn == pytest.approx(parts_of(row), rel=1e-9)


def test_no_curve_is_without_a_test():
    tested = {(figure, trace) for figure, trace, _ in READ} | {(figure, "held out, greedy") for figure in HELD_OUT}
    drawn = {
        (figure.id, series.name if len(figure.series) > 1 else "")
        for figure in FIGURES
        for series in figure.series
        if figure.id != "step_parts"
    }
    assert tested == drawn


@pytest.fixture(scope="module")
def curves_page(browser, report):
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(f"file://{report}")
    page.wait_for_selector(READY)
    yield page
    context.close()


def test_the_parts_of_a_step_are_bars_of_means(curves_page):
    plot = curves_page.locator("#plot-step_parts")
    plot.scroll_into_view_if_needed()
    curves_page.wait_for_selector("#plot-step_parts .main-svg")
    bars = plot.evaluate("plot => plot.data.map(t => t.x.reduce((sum, x) => sum + x, 0))")
    steps = [step_s(row) for run in ("quickstart", "quickstart_no_tool") for row in lines_of(run)[1:]]
    assert sum(bars) == pytest.approx(sum(steps) / 19)  # each run's mean over all iterations but the first


def test_smoothing_is_a_mean_over_the_iterations_before(report, open_page):
    page = open_page(report)
    page.select_option("#smooth", "3")
    accuracies = [row["env_runners"]["accuracy"] for row in lines_of("quickstart")]
    assert plotted(page, "accuracy")[f"{GROUP} · sampled"][4] == pytest.approx(sum(accuracies[1:4]) / 3)
    assert page.locator("#smooth option:checked").inner_text() == "mean of 3 iterations, back from each"
    assert page.faults == []
