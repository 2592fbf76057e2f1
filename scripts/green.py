"""
Run all tests several times, and print one line for each run. `make green` is this script.

    scripts/green.py --runs=10           ten runs, each in another order
    scripts/green.py --runs=10 --busy    the same, while a process on each core computes

The log of each run is kept in `.green`. The exit status is 1 if a run failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / ".green"
SPIN = "while True: pass"


@contextlib.contextmanager
def busy_cores() -> Iterator[None]:
    """Keep each core busy for the length of a with block."""
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def run(number: int, busy: bool) -> bool:
    """Run all tests once, print the result, and return whether all passed."""
    seed = secrets.randbelow(2**32)
    log = LOGS / f"{time.strftime('%m%d-%H%M%S')}-{seed}.log"
    began = time.monotonic()
    with log.open("w") as output, busy_cores() if busy else contextlib.nullcontext():
        command = ["make", "pytest", f"SEED={seed}"]
        done = subprocess.run(command, cwd=ROOT, stdout=output, stderr=output, check=False)
    took = time.monotonic() - began
    lines = log.read_text(errors="replace").splitlines()
    ends = (re.match(r"=+ (.*) in [\d.]+s", line) for line in reversed(lines))
    said = next((end[1] for end in ends if end), "no result")
    verdict, load = "RED" if done.returncode else "green", "busy" if busy else "quiet"
    say(f"{number:2} {verdict:5} {said}; {took:.0f} s, {load}, SEED={seed}")
    if done.returncode:
        for line in lines:
            if line.startswith(("FAILED ", "ERROR ")):
                say(f"   {line}")
        say(f"   {log.relative_to(ROOT)}")
    return not done.returncode


def say(line: str) -> None:
    """Print a line at once, also where the output is a file."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """Run the tests several times; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="how often (default: 10)")
    parser.add_argument("--busy", action="store_true", help="keep each core busy meanwhile")
    options = parser.parse_args(arguments)
    LOGS.mkdir(exist_ok=True)
    passed = [run(number, options.busy) for number in range(1, options.runs + 1)]
    say(f"{sum(passed)} of {options.runs} runs were green")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
