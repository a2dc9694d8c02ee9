"""Train a recipe.

How to run:
    python -m experiments.train quickstart
    python -m experiments.train quickstart --num-iterations 20 --seed 1 --set kl_coeff=0.01 max_tool_calls=2
    python -m experiments.train quickstart --restore runs/quickstart-20260101-120000
    python -m experiments.train torl_math_7b --dry-run
    ray job submit --working-dir . -- python -m experiments.train quickstart --restore auto

It starts a Ray of its own (and joins a cluster only with --address or inside a submitted job), the sandbox, the vLLM
actors and the learners; evaluates greedily before and after; and writes everything to the run folder
(`experiments/run_folder.py`).
"""

import argparse
import sys
import time
from pathlib import Path

import psutil

from experiments.trackers import add_flags

_STARTED = psutil.Process().create_time()  # the command's start, before the imports


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments.train", description="Train a recipe.")
    parser.add_argument("recipe", help="name of a recipe: quickstart, quickstart_no_tool, torl_math_1_5b, ...")
    parser.add_argument(
        "--num-iterations", type=int, help="training iterations in all, those before --restore included"
    )
    parser.add_argument("--seed", type=int, help="seed of problems, sampling and initialisation (default: 0)")
    parser.add_argument(
        "--storage-path", type=Path, help="run folder (default: runs/<recipe>-<time>; ~/torl-runs/... in a job)"
    )
    parser.add_argument(
        "--restore",
        metavar="PATH",
        help="run folder, or a checkpoint in one, to go on with; 'auto': what this same command has left, if anything",
    )
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], dest="settings", metavar="KEY=VALUE", help="change a setting"
    )
    parser.add_argument("--address", help="Ray cluster to join, as in ray.init (default: start one)")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the resolved settings and what the run needs, start nothing"
    )
    add_flags(parser)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run the command; return the exit status."""
    arguments = parse_arguments(argv)
    try:
        if arguments.dry_run:
            from experiments import plan

            print(plan.describe(arguments))
            return 0
        # After the arguments: a wrong one is answered at once, without half a minute of imports.
        from experiments.cluster import quiet_libraries
        from experiments.launch import resolve

        quiet_libraries()
        launch = resolve(arguments)
        if launch.summary:
            from experiments.report_text import nothing_left

            print(nothing_left(launch.path, launch.summary))
            return 0
        from experiments.run import Run

        run = Run.prepare(arguments, launch, started=_STARTED)
    except (ValueError, OSError, ImportError) as error:
        print(f"experiments.train: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Stopped before anything was started.", file=sys.stderr)
        return 130
    try:
        run.execute()
    except KeyboardInterrupt:
        print(f"Stopped. {run.how_to_go_on()}", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    status = main()
    print(f"Done in {time.time() - _STARTED:.0f} s." if status == 0 else f"Ended with status {status}.", flush=True)
    sys.exit(status)
