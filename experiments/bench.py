"""Measure parts of the project on this machine.

How to run this script:
    python -m experiments.bench sandbox [--num-runs 300] [--clients 1 2 16 128] [--json FILE]

Results to expect: one table with the machine, the date and the versions above it. See `bench_sandbox.py` for what each
column means. Run it on an idle machine.
"""

import argparse
import sys

from experiments import bench_sandbox

_SUBJECTS = {"sandbox": bench_sandbox}


def main(arguments: list[str] | None = None) -> int:
    """Run one benchmark; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m experiments.bench", description=__doc__.splitlines()[0])
    subjects = parser.add_subparsers(dest="subject", required=True)
    for name, subject in _SUBJECTS.items():
        subject.add_arguments(subjects.add_parser(name, help=(subject.__doc__ or "").splitlines()[0]))
    options = parser.parse_args(arguments)
    return _SUBJECTS[options.subject].run(options)


if __name__ == "__main__":
    sys.exit(main())
