"""
Run the benchmarks again and again with `--check`, and print one line for each run, with the figures that have a budget.

    benchmarks/repeat.py --runs=10               all must be green on a quiet machine
    benchmarks/repeat.py --runs=3 --slower=10    those with a figure of ours over time must be red

What they print goes to stderr. At the end come the least, the median and the most of each figure in all runs. A budget
is the usual figure, and 5 % of room.
The exit status is 1 if a run was not as it must be.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAMS = ("acquire", "hot_key", "crowd", "leases", "events", "celery_waiting")
LINE = re.compile(r"(?P<what>\S.*?)\s{2,}(?P<value>-?[\d,.]+) .*  at (most|least) \S+ +(?P<verdict>ok|[A-Z ]+)$")
GREEN, RED, FAILED = "green", "RED", "FAILED"
STATES = {0: GREEN, 1: RED}


def run(program: str, slower: float) -> tuple[str, list[tuple[str, float, str]]]:
    """Run a benchmark; return its state, and its figures with their verdicts."""
    command = [sys.executable, str(HERE / f"{program}.py"), "--check", f"--slower={slower}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    sys.stderr.write(done.stdout + done.stderr)
    lines = filter(None, map(LINE.match, done.stdout.splitlines()))
    figures = [(line["what"], float(line["value"].replace(",", "")), line["verdict"]) for line in lines]
    state = STATES.get(done.returncode, FAILED)
    return FAILED if state == RED and "OVER BUDGET" not in done.stdout else state, figures


def main() -> int:
    """Run them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--slower", type=float, default=0.0, metavar="PERCENT")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"of {', '.join(PROGRAMS)}; default: all")
    options = parser.parse_args()
    values: dict[str, list[float]] = defaultdict(list)
    good = True
    for number in range(options.runs):
        for program in options.programs or PROGRAMS:
            began = time.monotonic()
            state, figures = run(program, options.slower)
            took, load = time.monotonic() - began, os.getloadavg()[0]
            bad = [f"{what} {value:g} {verdict}" for what, value, verdict in figures if verdict != "ok"]
            for what, value, _ in figures:
                values[what].append(value)
            say(f"{number + 1:2} {program:15} {state:13} {took:4.0f} s  load {load:4.1f}  {'; '.join(bad)}".rstrip())
            good = good and state == (RED if options.slower else GREEN)
    for what, seen in values.items():
        say(f"{what:95} {min(seen):9.3f} {statistics.median(seen):9.3f} {max(seen):9.3f}")
    return 0 if good else 1


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
