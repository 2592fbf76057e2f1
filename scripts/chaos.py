"""
Test the promises of the lock under faults: single faults, and a soak with random ones.

The run has its own network namespace, so that firewall rules affect nothing else. Where that is
not possible, the tests that need them are skipped with a message. `make chaos` is this script.

    scripts/chaos.py                            all tests, and a soak of 60 seconds
    scripts/chaos.py --seconds=600 --seed=7     a soak of ten minutes, and nothing else
    scripts/chaos.py -k mixed_versions --mixed-seconds=600
                                                the last release and this version together, for ten minutes
    scripts/chaos.py -k locks_in_one_order --nesting-seconds=1200
                                                locks inside locks for twenty minutes: no deadlock may be reported
    scripts/chaos.py --lock=kazoo               the tests that kazoo's own Lock must fail
    scripts/chaos.py -k firewall -x             the tests that pytest picks by these arguments
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
sys.path[:0] = [str(TESTS), str(ROOT), str(ROOT / "example_project")]

from support import debian  # noqa: E402
from support.chaos import namespaces  # noqa: E402
from support.chaos.firewall import IPTABLES  # noqa: E402
from support.chaos.preload import COMPILER  # noqa: E402

SOAK = 60  # seconds, unless told otherwise
SOAK_ALONE = ["-k", "test_soak"]
ROOM = "0.5"  # seconds that an answer may be late; `make test` allows more

#: What some tests need: where it is, if it is there, and Debian's packages with it.
TOOLS = ((IPTABLES, ("iptables",)), (shutil.which(COMPILER.split()[0]), ("gcc", "libc6-dev")))


def main(arguments: list[str]) -> None:
    """Replace this process by pytest, in a new namespace if possible. The exit status is that of pytest."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, help=f"length of the soak (default: {SOAK}); alone: run nothing else")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32), help="of the soak (default: a new one)")
    parser.add_argument("--lock", choices=("zklock", "kazoo"), default="zklock", help="the lock that is tested")
    options, selection = parser.parse_known_args(arguments)
    if namespaces.inside():
        namespaces.set_up()
        where = "in a network namespace of its own"
    else:
        ensure_tools()
        refused = namespaces.possible()
        if not refused:
            again = [sys.executable, __file__, *arguments, f"--seed={options.seed}"]
            become(namespaces.command(again), namespaces.environment())
        os.environ[namespaces.REFUSED] = refused
        where = f"without the tests that need a firewall ({refused})"
    seconds = SOAK if options.seconds is None else options.seconds
    what = f"the tests of pytest {' '.join(selection)}" if selection else "all tests"
    if not selection and options.seconds is not None:
        what, selection = "the soak alone", SOAK_ALONE
    say(f"chaos: {what}, on the lock of {options.lock}; the soak takes {seconds:g} s, its seed is {options.seed};")
    say(f"       {where}")
    pytest = [
        sys.executable,
        "-m",
        "pytest",
        str(TESTS),
        "-m",
        "chaos or timed",
        "-p",
        "support.chaos.report",
    ]
    pytest += [f"--ignore={TESTS / 'browser'}"]  # which `make browser` runs
    if selection != SOAK_ALONE:
        # Most of them wait most of the time. A file's tests stay together, as they share servers.
        pytest += ["-n", "2", "--dist", "loadfile"]
    ours = [f"--lock={options.lock}", f"--soak-seconds={seconds:g}", f"--soak-seed={options.seed}"]
    # The plugin is looked for before pytest has read its own `pythonpath`.
    env = {"PYTHONPATH": os.pathsep.join([str(TESTS), str(ROOT)]), "TEST_ROOM": ROOM}
    become([*pytest, *ours, *selection], env)


def become(command: list[str], env: Mapping[str, str]) -> None:
    """Replace this process by another program, which receives Ctrl-C and sets the exit status."""
    os.chdir(ROOT)
    os.execvpe(command[0], command, {**os.environ, **env})  # noqa: S606 - without a shell is what is wanted


def say(line: str) -> None:
    """Print a line at once: buffered output would be lost at the exec."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def ensure_tools() -> None:
    """Install missing tools if that is allowed; otherwise print the command that installs them."""
    missing = [package for tool, packages in TOOLS if tool is None for package in packages]
    if not missing or sys.platform != "linux":
        return
    if not debian.may_install():
        say(f"Some tests will be skipped. They need: sudo apt-get install {' '.join(missing)}")
        return
    try:
        debian.install(*missing)
    except SystemExit as problem:
        say(f"{problem} Some tests will be skipped.")


if __name__ == "__main__":
    main(sys.argv[1:])
