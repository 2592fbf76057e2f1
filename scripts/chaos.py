"""
Test the promises of the lock under faults: single faults, and a soak with random ones. `make chaos` is this script.

    scripts/chaos.py                            all tests, and a soak of 60 seconds
    scripts/chaos.py --seconds=600 --seed=7     a soak of ten minutes, and nothing else
    scripts/chaos.py --lock=kazoo               the tests that kazoo's own Lock must fail
    scripts/chaos.py -k partition -x            the tests that pytest picks by these arguments
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"

SOAK = 60  # seconds, unless told otherwise
SOAK_ALONE = ["-k", "test_soak"]
ROOM = "0.5"  # seconds that an answer may be late; `make test` allows more


def main(arguments: list[str]) -> None:
    """Replace this process by pytest, which receives Ctrl-C and sets the exit status."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, help=f"length of the soak (default: {SOAK}); alone: run nothing else")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32), help="of the soak (default: a new one)")
    parser.add_argument("--lock", choices=("zklock", "kazoo"), default="zklock", help="the lock that is tested")
    options, selection = parser.parse_known_args(arguments)
    seconds = SOAK if options.seconds is None else options.seconds
    if not selection and options.seconds is not None:
        selection = SOAK_ALONE
    sys.stdout.write(f"chaos: the soak takes {seconds:g} s, its seed is {options.seed}\n")
    sys.stdout.flush()  # else it would be lost at the exec
    has_paths = any((ROOT / item.partition("::")[0]).exists() for item in selection)
    pytest = [sys.executable, "-m", "pytest", *([] if has_paths else [str(TESTS)]), "-m", "chaos or timed"]
    pytest += [f"--ignore={TESTS / 'browser'}"]  # which `make browser` runs
    if selection != SOAK_ALONE:
        # Most of them wait most of the time. A file's tests stay together, as they share servers.
        pytest += ["-n", "2", "--dist", "loadfile"]
    pytest += ["-p", "support.chaos.report", f"--lock={options.lock}"]
    pytest += [f"--soak-seconds={seconds:g}", f"--soak-seed={options.seed}", *selection]
    # The plugin is looked for before pytest has read its own `pythonpath`.
    path = os.pathsep.join([str(TESTS), str(ROOT)])
    os.chdir(ROOT)
    os.execvpe(pytest[0], pytest, {**os.environ, "PYTHONPATH": path, "TEST_ROOM": ROOM})  # noqa: S606 - no shell


if __name__ == "__main__":
    main(sys.argv[1:])
