"""The report in a real browser: its controls clicked on a report of a real run, a hostile episode, many episodes."""

import itertools
import json
import time

import pytest

from experiments.report import write_report
from tests.report_browser import lines_of, needs_chromium, plotted, wait_until
from tests.reports import PROMPT, record, result_row, write_run

pytestmark = needs_chromium


def test_a_point_leads_to_its_episodes_and_back(report, open_page):
    page = open_page(report)
    plotted(page, "reward")
    box = page.locator("#plot-reward .nsewdrag").first.bounding_box()
    place = (box["x"] + box["width"] * 2 / 20, box["y"] + box["height"] / 2)  # iteration 2 of 20, the axis from 0
    page.mouse.move(*place)
    page.wait_for_selector("#plot-reward .hoverlayer text")
    page.mouse.click(*place)
    page.wait_for_selector("#list a.row")
    iteration = page.locator("#f-it").input_value()
    assert iteration == "2"
    assert page.locator("#list-count").inner_text().startswith("32 episodes found")
    page.locator("#list a.row").first.click()
    page.click("#to-curves")
    page.wait_for_selector("#at:visible")
    assert f"Iteration {iteration} is marked" in page.inner_text("#at")
    # Above one another, each run's point leads to its own episodes.
    place_of = """([iteration, group]) => {
        const plot = document.getElementById("plot-reward");
        const { xaxis, yaxis } = plot._fullLayout;
        const trace = plot.data.find((one) => String(one.meta) === `${group},train`);
        const frame = plot.querySelector(".nsewdrag").getBoundingClientRect();
        return [frame.left + xaxis.d2p(iteration), frame.top + yaxis.d2p(trace.y[trace.x.indexOf(iteration)])]; }"""
    for group in (0, 1):
        page.goto(f"file://{report}#view=curves")
        plotted(page, "reward")
        place = page.evaluate(place_of, [18, group])
        page.mouse.move(*place)
        page.wait_for_selector("#plot-reward .hoverlayer text")
        page.mouse.click(*place)
        page.wait_for_selector("#episodes:visible")
        assert (page.input_value("#f-run"), page.input_value("#f-split")) == (f"g{group}", "train")
    assert page.faults == []


def test_filters_and_search_find_what_they_say(report, open_page):
    page = open_page(report, "#view=episodes")
    lines = lines_of("quickstart", "episodes.jsonl")
    page.select_option("#f-run", "g0")
    assert page.inner_text("#list-count").startswith(f"{len(lines)} episodes found")
    page.check("[data-rule=wrong] input")
    wrong = [line for line in lines if line["verdict"] == "incorrect"]
    assert page.inner_text("#list-count").startswith(f"{len(wrong)} episodes found")
    page.check("[data-rule=correct] input")  # of the outcomes any one may hold
    assert page.inner_text("#list-count").startswith(f"{len(lines)} episodes found")
    page.check("[data-rule=code_failed] input")
    failed = [line for line in lines if any(call["status"] != "success" for call in line["tool_calls"])]
    assert page.inner_text("#list-count").split()[0] == str(len(failed))
    page.click("#f-clear")
    page.fill("#f-q", "collatz print")
    found = [line for line in lines if all(w in json.dumps(line["turns"]).lower() for w in ("collatz", "print"))]
    page.select_option("#f-run", "g0")
    assert page.inner_text("#list-count").split()[0] == str(len(found)) != "0"
    page.select_option("#f-sort", "reward")
    # Not `inner_text`: rows are laid out, and so have one, when they are first painted.
    assert "correct" in page.locator("#list a.row").first.text_content()
    page.fill("#f-q", "no such text anywhere")
    assert "Nothing here matches" in page.text_content("#list")
    assert page.faults == []


def test_a_token_tells_its_id_logps_mask_and_version(report, open_page):
    page = open_page(report, "#view=episodes&ep=0.train.2.0.1")
    lines = lines_of("quickstart", "episodes.jsonl")
    place = (2, "train", 0, 1)
    (line,) = [ln for ln in lines if (ln["iteration"], ln["split"], ln["group_id"], ln["sample_index"]) == place]
    first = line["loss_mask"].index(1)
    page.locator(".turn.response .tok").nth(2).hover()
    tip = page.inner_text("#tip")
    assert f"token id\n{line['token_ids'][first + 2]}" in tip
    assert f"log-prob, sampler\n{line['action_logp'][2]:.6f}" in tip
    assert f"log-prob, learner\n{line['logp'][2]:.6f}" in tip
    assert "loss mask\n1" in tip
    assert f"policy version\n{line['policy_version']}" in tip
    page.locator(".turn.response .tok").first.focus()
    page.keyboard.press("ArrowRight")
    assert f"token id\n{line['token_ids'][first + 1]}" in page.inner_text("#tip")
    page.click("text=Whole prompt")
    page.locator(".turn.prompt .tok").first.hover()
    assert "0 · not trained on" in page.inner_text("#tip")
    assert page.faults == []


def test_an_episode_shows_its_facts_group_and_turns(report, open_page):
    page = open_page(report, "#view=episodes&ep=0.train.2.0.1")
    lines = lines_of("quickstart", "episodes.jsonl")
    group = [ln for ln in lines if (ln["iteration"], ln["split"], ln["group_id"]) == (2, "train", 0)]
    line = next(ln for ln in group if ln["sample_index"] == 1)
    page.wait_for_selector(".mates")
    for turn, (role, text) in enumerate(line["turns"][1:]):
        shown = page.locator(".turns > .turn .text").nth(turn).evaluate("box => box.textContent")
        assert shown.removesuffix("<|endoftext|>") == text, role
    assert [cells.split()[-1] for cells in page.locator(".mates tbody tr").all_inner_texts()] == [
        f"{mate['advantage']:.3f}" for mate in group
    ]
    assert page.locator(".facts").inner_text().count(line["answer"]) >= 1
    page.click(".mates tbody a >> nth=0")
    wait_until(page, "location.hash.includes('ep=0.train.2.0.0')")
    assert page.faults == []


def test_the_same_problem_side_by_side(report, tmp_path, open_page):
    page = open_page(report, "#view=episodes&ep=0.evaluation.0.1.0")
    page.click("#to-compare")
    page.wait_for_selector(".column >> nth=1")
    heads = page.locator(".column h3").all_inner_texts()
    assert heads[:2] == ["held out, iteration 0", "held out, iteration 20"]
    texts = page.locator(".column").all_inner_texts()
    assert len(texts) >= 2
    page.locator(".versions input").first.uncheck()
    wait_until(page, f"document.querySelectorAll('.column').length === {len(texts) - 1}")
    page.click(".column h3 a >> nth=0")
    page.wait_for_selector("#episode .turns")
    assert page.faults == []
    # Rows of files without ids have their numbers: held-out problem 1 is not training problem 1, nor is problem 10.
    lines = [
        record("Yes", question=f"What is {question}?", problem_id=id_, iteration=iteration, split=split, answer=answer)
        for question, id_, iteration, split, answer in (
            ("one", "1", 1, "train", "2"),
            ("one", "1", 2, "train", "2"),
            ("ten", "10", 3, "train", "2"),
            ("another", "1", 1, "evaluation", "2"),
        )
    ]
    path, *_ = write_report([write_run(tmp_path / "run", [result_row(1)], lines)])
    page = open_page(path, "#view=episodes&problem=1&ep=0.train.1.0.0")
    page.wait_for_selector(".elsewhere")
    elsewhere = page.locator(".elsewhere li").all_inner_texts()
    assert [text.split(" ✓")[0] for text in elsewhere] == ["training, iteration 1", "training, iteration 2"]
    assert page.inner_text("#list-count").startswith("3 episodes found")
    assert page.faults == []


def test_a_link_opens_the_same_view_again(report, open_page):
    page = open_page(report, "#view=episodes")
    page.select_option("#f-it", "2")
    page.check("[data-rule=correct] input")
    page.locator("#list a.row").nth(2).click()
    page.wait_for_selector("#episode .turns")
    fragment, title = page.evaluate("location.hash"), page.inner_text("#episode h2")
    again = open_page(report, fragment)
    again.wait_for_selector("#episode .turns")
    assert again.inner_text("#episode h2") == title
    assert again.locator("#f-it").input_value() == "2"
    assert again.locator("[data-rule=correct] input").is_checked()
    assert again.inner_text("#list-count") == page.inner_text("#list-count")
    # And the way back is the browser's own.
    page.go_back()
    wait_until(page, "!location.hash.includes('ep=')")
    assert "Choose an episode" in page.inner_text("#episode")
    page.go_forward()
    page.wait_for_selector("#episode .turns")
    # What no view, iteration or choice is called is passed over.
    for wrong in ("#view=nowhere", "#view=curves&it=1000000000&smooth=x", "#view=curves&it=x"):
        odd = open_page(report, wrong)
        plotted(odd, "accuracy")
        assert odd.locator("#plot-accuracy .shapelayer path").count() == 0
        assert (odd.locator("#curves").is_visible(), odd.input_value("#smooth"), odd.faults) == (True, "1", [])


def test_the_chosen_row_comes_into_sight_and_the_page_stays(report, open_page):
    page = open_page(report, "#view=episodes")
    for _ in range(20):
        page.keyboard.press("n")
    page.wait_for_selector("#episode .turns")
    inside = """() => { const [row, list] = ['#list [aria-current]', '#list'].map((q) =>
        document.querySelector(q).getBoundingClientRect());
        return row.top >= list.top - 1 && row.bottom <= list.bottom + 1; }"""
    assert page.evaluate(inside)
    assert page.evaluate("scrollY") == 0


def test_the_keyboard_moves_through_the_episodes(report, open_page):
    page = open_page(report)
    page.keyboard.press("e")
    page.wait_for_selector("#list a.row")
    keys = []
    for key in ("n", "n", "p"):
        page.keyboard.press(key)
        keys.append(page.evaluate("new URLSearchParams(location.hash.slice(1)).get('ep')"))
    assert keys[0] == keys[2] != keys[1]
    page.keyboard.press("/")
    wait_until(page, "document.activeElement.id === 'f-q'")
    page.keyboard.type("nn")
    assert page.locator("#f-q").input_value() == "nn"  # typed, not obeyed
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#help").is_visible()
    page.keyboard.press("c")
    page.wait_for_selector("#curves:visible")
    assert page.faults == []
    # In a narrow window, where list and episode take turns, the focus goes along and comes back.
    page = open_page(report, "#view=episodes", width=400)
    page.locator("#list a.row").nth(30).focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#episode .turns")
    assert page.evaluate("document.activeElement.id") == "episode"
    page.click("#back")
    wait_until(page, "document.activeElement === document.querySelectorAll('#list a.row')[30]")
    page.keyboard.press("Enter")
    page.wait_for_selector("#episode .turns")
    assert page.faults == []


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_is_wider_than_its_window(report, open_page, width, scheme):
    page = open_page(report, "", width, color_scheme=scheme)
    for fragment in (
        "#view=curves",
        "#view=episodes",
        "#view=episodes&ep=0.train.2.0.1",
        "#view=compare&cmp=0.train.2.0.1",
    ):
        page.evaluate(f"location.hash = '{fragment}'")
        wait_until(page, "document.querySelector('main > section:not([hidden])').childElementCount > 0")
        page.wait_for_timeout(100)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, fragment
    assert page.faults == []


@pytest.fixture(scope="module")
def several_seeds(tmp_path_factory):
    """With and without the tool, three seeds each: means with their lowest and highest make wide tables."""
    folder = tmp_path_factory.mktemp("seeds")
    runs = []
    for seed in range(3):
        rows = [result_row(it, evaluation={"env_runners": {"accuracy": 0.3 * seed}}) for it in (1, 2)]
        bare = [row | {"env_runners": row["env_runners"] | {"num_tool_calls": 0.0}} for row in rows]
        runs.append(write_run(folder / f"with{seed}", rows, seed=seed))
        runs.append(write_run(folder / f"without{seed}", bare, recipe="quickstart_no_tool", seed=seed))
    path, *_ = write_report(runs)
    return path


@pytest.mark.parametrize("width", [1280, 400])
def test_tables_fit_their_cards(several_seeds, open_page, width):
    tables = open_page(several_seeds, "", width).locator(".tables .scroll")
    too_wide = "boxes => boxes.filter((box) => box.scrollWidth > box.clientWidth).length"
    assert (tables.count(), tables.evaluate_all(too_wide)) == (2, 0)


def test_an_axis_of_few_iterations_has_whole_ticks_and_whole_markers(several_seeds, open_page):
    page = open_page(several_seeds)
    plotted(page, "accuracy")
    assert page.locator("#plot-accuracy .xtick").all_text_contents() == ["0", "1", "2"]
    assert page.locator("#plot-accuracy .point").count() == 6  # held out, at 0, 1 and 2, of two groups
    clipped = "points => points.filter((point) => point.closest('[clip-path]')).length"
    assert page.locator("#plot-accuracy .point").evaluate_all(clipped) == 0
    assert page.locator(".modebar").count() == 0
    # Zoomed in, and out again, the ticks are whole too.
    for low, high, ticks in ((0.9, 2.1, ["1", "2"]), (0, 50, ["0", "10", "20", "30", "40", "50"])):
        page.evaluate(f"Plotly.relayout('plot-accuracy', {{'xaxis.range': [{low}, {high}]}})")
        wait_until(page, f"document.querySelectorAll('#plot-accuracy .xtick').length === {len(ticks)}")
        assert page.locator("#plot-accuracy .xtick").all_text_contents() == ticks


def test_every_control_and_landmark_has_a_name(report, open_page):
    page = open_page(report, "#view=episodes&ep=0.train.2.0.1")
    page.wait_for_selector(".turns")
    nameless = """() => [...document.querySelectorAll('button, a, input, select, section, nav, [role]')]
        .filter((one) => one.offsetParent && !(one.getAttribute('aria-label') || one.getAttribute('aria-labelledby')
            || one.textContent.trim() || (one.labels && one.labels.length && one.labels[0].textContent.trim())))
        .map((one) => one.outerHTML.slice(0, 80))"""
    assert page.evaluate(nameless) == []
    assert [page.locator(tag).count() for tag in ("header.top", "nav", "main", "footer", "h1")] == [1] * 5


HOSTILE = (
    "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'><b>bold</b> "
    "\x1b[31mred\x1b[0m \x00 \u202eabc"
)


def test_a_hostile_episode_is_shown_and_does_nothing(tmp_path, open_page):
    line = record(HOSTILE, "\n" + HOSTILE, "x" * 1_000_000 + HOSTILE, question=HOSTILE, statuses=["failed"])
    line |= {
        "problem_id": HOSTILE,
        "kind": HOSTILE,
        "answer": HOSTILE,
        "error": HOSTILE,
        "reward_terms": {HOSTILE: 1.0},
    }
    folder = write_run(tmp_path / "run", [result_row(1)], [line, line | {"sample_index": 1}], recipe=HOSTILE)
    path, *_ = write_report([folder])
    page = open_page(path)
    plotted(page, "accuracy")
    page.keyboard.press("e")
    page.keyboard.press("n")
    page.wait_for_selector("#episode .turns")
    texts = page.locator(".turns > .turn .text").evaluate_all("boxes => boxes.map((box) => box.textContent)")
    shown = HOSTILE.replace("\x1b", "\u241b").replace("\x00", "\u2400").replace("\u202e", "U+202E")
    assert texts[0] == shown
    assert page.locator(".turn.response .text").first.locator("img, b, script").count() == 0
    folded = page.locator(".unfold")
    assert len(texts[2]) < 3000 and folded.count() == 1
    folded.click()
    whole = page.locator(".turns > .turn .text").nth(2).evaluate("box => box.textContent")
    assert 19_000 < len(whole) < 21_000 and "characters are left out of this report" in whole
    page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    page.click("#to-curves")
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    assert page.faults == []


def test_ten_thousand_episodes_are_written_fast_and_open_fast(tmp_path, open_page):
    """CPU time for the writing; the opening by the clock, with room for other work on the same cores."""
    lines = lines_of("quickstart", "episodes.jsonl")
    lines = [line for line in lines if line["split"] == "train"]
    many = [
        lines[i % len(lines)] | {"iteration": i // 128 + 1, "group_id": i % 128 // 8, "sample_index": i % 8}
        for i in range(10_000)
    ]
    folder = write_run(tmp_path / "run", [result_row(i) for i in range(1, 80)], many)
    start = time.process_time()
    path, num_shown, num_recorded = write_report([folder])
    assert time.process_time() - start < 30
    assert (num_recorded, num_shown >= 500) == (10_000, True)
    assert path.stat().st_size <= 25_000_000
    page = open_page(path, "#view=episodes")
    opened_ms = page.evaluate("performance.now()")
    assert opened_ms < 20_000
    page.locator("#list").hover()
    page.evaluate("window.frames_ms = []; (function frame(t) { frames_ms.push(t); requestAnimationFrame(frame); })(0)")
    for _ in range(30):
        page.mouse.wheel(0, 1200)
        page.wait_for_timeout(16)
    times = page.evaluate("frames_ms.slice(1)")
    # Without other work a frame takes 17 ms, the longest 34 ms.
    between = sorted(late - early for early, late in itertools.pairwise(times))
    assert (between[len(between) // 2] < 100, between[-1] < 1000) == (True, True), between
    wait_until(page, "document.querySelectorAll('#list li').length >= 300")
    assert page.faults == []


def test_the_prompt_is_folded_and_the_question_stands_out(tmp_path, open_page):
    lines = [record("Yes", question=question, group_id=i) for i, question in enumerate(("What is 1?", "What is 2?"))]
    path, *_ = write_report([write_run(tmp_path / "run", [result_row(1)], lines)])
    page = open_page(path, "#view=episodes&ep=0.train.1.1.0")
    page.wait_for_selector("#episode .turns")
    assert page.inner_text("#episode .question") == "What is 2?"
    assert not page.locator(".turn.prompt").is_visible()
    page.click("text=Whole prompt")
    assert page.locator(".turn.prompt .text").inner_text() == PROMPT.format(question="What is 2?")
