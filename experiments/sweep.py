"""Sweep a recipe over a grid of settings, with Ray Tune.

How to run:
    python -m experiments.sweep quickstart --max-tool-calls 0 1 2 --kl-coeff 0 0.001 0.01
    python -m experiments.sweep quickstart --max-tool-calls 0 1 --seeds 3 --num-iterations 30
    python -m experiments.sweep quickstart --grid lr=1e-4,2e-4 group_size=4,8 --scheduler asha
    python -m experiments.sweep quickstart --restore runs/sweep-quickstart-20260101-120000
    ray job submit --working-dir . -- python -m experiments.sweep torl_math_1_5b --max-tool-calls 0 1 2

Each combination is a Tune trial of `ToRL`; as many run side by side as the CPUs and GPUs of the cluster hold. All of
them share one sandbox, which the sweep starts and removes. The KL to the base model is measured in every trial, and
the held-out problems are answered greedily after the last iteration. At C = 0 (`max_tool_calls=0`) the prompt asks for
no program, as in `quickstart_no_tool` (`sweep_grid.at`).

A sweep ends with tables on the screen, `trials.csv` and `sweep.png` in its folder, which is Tune's experiment folder:
`tune.Tuner.restore(folder, ToRL).get_results()` reads it. Ctrl-C, or a crash, loses the iterations since the last
checkpoints (`checkpoint_interval`); `--restore` goes on, and tries failed trials again. The exit status is 1 if a trial
failed, with the results of the others kept, and 130 after Ctrl-C. ASHA compares trials after a quarter of the
iterations, and stops three of four: they are done, without a held-out accuracy. A restored sweep compares those that go
on among themselves.
"""

import argparse
import sys
from pathlib import Path

from experiments.trackers import add_flags


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments.sweep", description="Sweep a recipe over a grid.")
    parser.add_argument("recipe", help="name of a recipe, as in experiments.train")
    grid = parser.add_argument_group("the grid, all combinations of")
    grid.add_argument("--max-tool-calls", nargs="+", metavar="C", help="values of max_tool_calls")
    grid.add_argument("--kl-coeff", nargs="+", metavar="KL", help="values of kl_coeff")
    grid.add_argument("--seeds", type=int, metavar="N", help="N seeds, from the recipe's on")
    grid.add_argument("--grid", nargs="+", action="extend", default=[], metavar="KEY=V1,V2", help="any other setting")
    parser.add_argument("--num-iterations", type=int, help="training iterations of a trial (default: the recipe's)")
    parser.add_argument("--scheduler", choices=("fifo", "asha"), help="asha stops trials of low return early")
    parser.add_argument("--storage-path", type=Path, help="folder of the sweep (default: runs/sweep-<recipe>-<time>)")
    parser.add_argument("--restore", type=Path, metavar="DIR", help="folder of a sweep to go on with")
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], dest="settings", metavar="KEY=VALUE", help="change a setting"
    )
    parser.add_argument("--address", help="Ray cluster to join, as in ray.init (default: start one)")
    add_flags(parser)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run the command; return the exit status."""
    arguments = parse_arguments(argv)
    try:
        # After the arguments: a wrong one is answered at once, without half a minute of imports.
        from experiments.sweep_run import Sweep

        sweep = Sweep.prepare(arguments)
    except (ValueError, OSError, ImportError) as error:
        print(f"experiments.sweep: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Stopped before anything was started.", file=sys.stderr)
        return 130
    try:
        return sweep.execute()
    except KeyboardInterrupt:
        print(f"Stopped. {sweep.how_to_go_on()}", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
