"""Write the report of runs: one HTML file with curves and episodes, and each figure as PNG and CSV.

How to run:
    python -m experiments.report runs/quickstart-20260101-120000
    python -m experiments.report runs/quickstart-* runs/quickstart_no_tool-*        # compared
    python -m experiments.report runs/sweep-20260101-120000 --output somewhere

RUN is the folder of a run (also one that is still going on), of a sweep or of an evaluation. The report is written to
`report/` in the first one, or to `--output`:

    report.html                opens from disk, needs nothing else and no network; at most 25 MB
    figures/<name>.png, .csv   each figure, as measured (smoothing is a choice on the page)

Runs that differ in the seed alone are shown as their mean, with the lowest and the highest seed as a band.
"""

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from experiments.progress import Progress


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.report", description="Write an HTML report of runs, with their curves and episodes."
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run, a sweep or an evaluation")
    parser.add_argument("--output", type=Path, metavar="DIR", help="where to write (default: report/ in the first RUN)")
    return parser.parse_args(argv)


def write_report(
    folders: list[Path],
    output: Path | None = None,
    stage: Callable[[str], AbstractContextManager[Any]] = nullcontext,
) -> tuple[Path, int, int]:
    """Write the report; return the HTML file, and how many of how many recorded episodes it holds.

    Args:
        folders: of runs, sweeps and evaluations.
        output: folder to write to; default: `report/` in the first of them.
        stage: entered with what is being done, for as long as it takes.

    Raises:
        ValueError: if a folder holds no run.
    """
    from experiments.reporting.images import write_images
    from experiments.reporting.index import read_entries
    from experiments.reporting.page import write_page
    from experiments.reporting.runs import find_runs

    with stage("reading the runs"):
        runs = find_runs(folders)
    output = (output or folders[0] / "report").resolve()
    (output / "figures").mkdir(parents=True, exist_ok=True)
    with stage("reading the episodes"):
        entries = read_entries([run.path for run in runs])
    with stage("drawing the figures"):
        write_images(output / "figures", runs)
    page = output / "report.html"
    with stage(f"writing the page, from {len(entries)} episodes"):
        return page, write_page(page, runs, entries), len(entries)


def main(argv: list[str] | None = None) -> int:
    """Run the command; return the exit status."""
    arguments = parse_arguments(argv)
    try:
        with Progress(time.time(), sys.stderr) as progress:
            page, num_shown, num_recorded = write_report(arguments.runs, arguments.output, progress.stage)
    except (ValueError, OSError) as error:
        print(f"experiments.report: error: {error}", file=sys.stderr)
        return 2
    size = page.stat().st_size / 1e6
    print(
        f"{page}\n{num_shown} of {num_recorded} recorded episodes, {size:.1f} MB; figures in {page.parent / 'figures'}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
