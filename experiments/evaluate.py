"""Evaluate a model on problem sets: accuracy greedily, or avg@k and pass@k from several samples per problem.

How to run:
    python -m experiments.evaluate --model runs/quickstart-20260101-120000 --problems arithmetic
    python -m experiments.evaluate --model Qwen/Qwen2.5-Math-1.5B --suite aime24,aime25,math500,olympiadbench,amc23
    python -m experiments.evaluate --model experiments/tiny_base --recipe quickstart --problems arithmetic \
        --samples-per-problem 8 --temperature 1 --output figures.json
Prompt and limits are those of the run or of `--recipe`; without either the paper's (C = 1, 3,072 response tokens). The
samplers are those of training: vLLM, one engine per GPU, and the sandbox on Ray Serve.
The same command goes on where an earlier one was interrupted, and has the same figures in the end: every finished
episode is in the evaluation's folder (`experiments/evaluation_folder.py`) and is found again by problem and sample.
Results to expect: a table with 95% intervals over problems (`pass_at_k.interval_of_mean`), beside the paper's Table 3
where suites were run.
"""

import argparse
import math
import sys
from pathlib import Path

import psutil

from experiments.suites import SUITES

_STARTED = psutil.Process().create_time()
_OPTIONS = ("model", "problems", "seed", "temperature")  # settings of a recipe that are options of this command


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments.evaluate", description="Evaluate a model.")
    parser.add_argument("--model", help="run folder, Hugging Face folder or hub name")
    parser.add_argument("--suite", default="", metavar="NAMES", help=f"joined by commas: {','.join(SUITES)}")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="folder with <suite>.jsonl (default: the hub)")
    parser.add_argument(
        "--problems",
        action="append",
        default=[],
        metavar="FILE_OR_NAME",
        help="a further problem set: a file, hf:NAME, or arithmetic (the held-out built-in one)",
    )
    parser.add_argument("--num-problems", type=int, metavar="N", help="the first N of each set (default: all)")
    parser.add_argument("--max-tool-calls", type=int, metavar="C", help="programs per episode (default: the recipe's)")
    parser.add_argument("--samples-per-problem", type=int, default=1, metavar="K", help="default 1")
    parser.add_argument("--temperature", type=float, default=0.0, help="default 0: greedy, as in the paper")
    parser.add_argument("--seed", type=int, default=0, help="of sampling at a temperature (default 0)")
    parser.add_argument(
        "--recipe", help="take prompt, limits and resources from it (default: the run's, or the paper's)"
    )
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], dest="settings", metavar="KEY=VALUE", help="change a setting"
    )
    parser.add_argument("--storage-path", type=Path, help="folder of the episodes (default: in the run's, or in runs/)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the figures there as JSON")
    parser.add_argument("--address", help="Ray cluster to join, as in ray.init (default: start one)")
    arguments = parser.parse_args(argv)
    arguments.suite = [name for name in arguments.suite.split(",") if name]
    if arguments.model is None:
        from experiments.evaluated_model import options_text

        parser.error(options_text())
    if not arguments.suite and not arguments.problems:
        parser.error("name what to evaluate on: --suite or --problems.")
    for name, smallest in (("num_problems", 1), ("samples_per_problem", 1), ("max_tool_calls", 0), ("seed", 0)):
        value = getattr(arguments, name)
        if value is not None and value < smallest:
            parser.error(f"--{name.replace('_', '-')} must be at least {smallest}. Received {value}.")
    for key in (text.partition("=")[0].strip() for text in arguments.settings):
        if key in _OPTIONS:
            parser.error(f"--set {key} would do nothing here: an evaluation has --{key}.")
        if key == "max_tool_calls" and arguments.max_tool_calls is not None:
            parser.error("--set max_tool_calls would do nothing beside --max-tool-calls. Give one of them.")
    output = arguments.output
    if output is not None and (output.is_dir() or not output.absolute().parent.is_dir()):
        parser.error(f"--output {output} must be a file in a folder that is there.")
    if not 0 <= arguments.temperature < math.inf:
        parser.error(f"--temperature must be at least 0, and finite. Received {arguments.temperature}.")
    if arguments.samples_per_problem > 1 and arguments.temperature == 0:
        parser.error("--samples-per-problem above 1 needs a --temperature above 0: greedy samples are all the same.")
    return arguments


def main(argv: list[str] | None = None) -> int:
    """Run the command; return the exit status."""
    arguments = parse_arguments(argv)
    try:
        # After the arguments: a wrong one is answered at once, without half a minute of imports.
        from experiments.evaluation import Evaluation
        from experiments.progress import Progress
        from experiments.stopping import StopRequest

        evaluation = Evaluation.prepare(arguments)
    except (ValueError, OSError, ImportError) as error:
        print(f"experiments.evaluate: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Stopped before anything was started.", file=sys.stderr)
        return 130
    try:
        with evaluation.lock, StopRequest(), Progress(_STARTED) as progress:
            evaluation.execute(progress)
            evaluation.report(progress)
    except KeyboardInterrupt:
        print("Stopped. The same command goes on where this one was.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
