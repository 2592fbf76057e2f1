"""
Explores at length: `python -m model --schedules 20000 --seed 7`, `python -m model --depth 2 --setting small`.

To be run from the tests' directory. Ends with 1 if a schedule broke a rule, and tells that schedule.
"""

from __future__ import annotations

import argparse
import sys
import time

from model.explore import Report, exhaust, explore
from model.scenario import (
    CROWD,
    HANDING,
    HANDING_PERMITS,
    IDLE,
    IMPATIENT,
    LASTING,
    LINGERING,
    NESTED,
    PERMITS,
    READERS,
    SMALL,
    WAITING,
    drawn,
    drawn_nested,
)

SETTINGS = {
    "small": SMALL,
    "crowd": CROWD,
    "impatient": IMPATIENT,
    "lasting": LASTING,
    "waiting": WAITING,
    "idle": IDLE,
    "readers": READERS,
    "permits": PERMITS,
    "lingering": LINGERING,
    "handing": HANDING,
    "handing-permits": HANDING_PERMITS,
    **{f"nested-{name}": scenario for name, scenario in NESTED.items()},
}


def main() -> int:
    """Explore as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m model", description=__doc__)
    parser.add_argument("--schedules", type=int, default=0, help="so many by chance")
    parser.add_argument("--seed", type=int, default=1, help="of the first of them; the others follow")
    parser.add_argument("--nested", action="store_true", help="by chance: locks inside locks")
    parser.add_argument("--depth", type=int, default=None, help="every schedule with at most so many deviations")
    parser.add_argument("--setting", choices=SETTINGS, help="for --depth; each of them by default")
    parser.add_argument("--limit", type=int, help="for --depth: at most so many in each setting")
    options = parser.parse_args()
    report = Report()
    began = time.monotonic()
    if options.depth is None or options.schedules:
        report.merge(explore(options.schedules or 5000, options.seed, draw=drawn_nested if options.nested else drawn))
        print(f"by chance, seed {options.seed}: {report}", flush=True)
    if options.depth is not None:
        for name in [options.setting] if options.setting else SETTINGS:
            walked = exhaust(SETTINGS[name], options.depth, limit=options.limit)
            print(f"{name}, at most {options.depth} deviations: {walked}", flush=True)
            report.merge(walked)
    print(f"in {time.monotonic() - began:.0f} s")
    for finding in report.findings:
        print(finding.text())
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
