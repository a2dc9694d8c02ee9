"""A real browser (Debian's Chromium) for tests of the report, and the report of a real run to open in it.

`tests/report_run` is a real quickstart and its no-tool twin; its README says how they were made.
"""

import json
import os
import shutil

import pytest

from experiments.report import write_report
from tests.reports import ROOT, TOKENIZER

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MISSING = "no chromium, chromium-browser or google-chrome on the PATH; on Debian, `apt-get install chromium`"
needs_chromium = pytest.mark.skipif(CHROMIUM is None and "CI" not in os.environ, reason=MISSING)
RUN = ROOT / "tests" / "report_run"
READY = "html[data-ready]"


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        assert CHROMIUM is not None, MISSING
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for run in ("quickstart", "quickstart_no_tool"):
        shutil.copytree(RUN / run, folder / run)
        shutil.copy(TOKENIZER, folder / run)
    path, *_ = write_report([folder / "quickstart", folder / "quickstart_no_tool"])
    return path


@pytest.fixture
def open_page(browser):
    contexts = []

    def opened(path, fragment="", width=1280, **settings):
        context = browser.new_context(viewport={"width": width, "height": 900}, **settings)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.faults = []
        page.on("pageerror", lambda error: page.faults.append(str(error)))
        page.on("console", lambda message: message.type == "error" and page.faults.append(message.text))
        page.on("request", lambda request: request.url.startswith("http") and page.faults.append(request.url))
        page.goto(f"file://{path}{fragment}")
        page.wait_for_selector(READY)
        return page

    yield opened
    for context in contexts:
        context.close()


def wait_until(page, expression):
    """Wait for a condition; Playwright's own `wait_for_function` evaluates text in the page, which its policy bars."""
    for _ in range(400):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"In 20 s it never came to: {expression}")


def lines_of(run, file="result.json"):
    return [json.loads(line) for line in (RUN / run / file).read_text().splitlines()]


def plotted(page, figure):
    """Return {name: {x: y}} of what Plotly drew."""
    page.locator(f"#plot-{figure}").scroll_into_view_if_needed()
    page.wait_for_selector(f"#plot-{figure} .main-svg")
    read = "plot => plot.data.map(t => [t.name, [...t.x], [...t.y]])"
    drawn = page.locator(f"#plot-{figure}").evaluate(read)
    return {name: dict(zip(x, y, strict=True)) for name, x, y in drawn if x[0] is not None}
