"""
Measure what the order of locks costs: a block inside another one, with `LOCK_ORDER` "warn" and "off".

Both alternate in one process on one ZooKeeper server. The calls and the steps of Python of the caller's thread are
counted: these numbers do not depend on the machine. The processor time is that of the caller's thread.

`--check` fails unless all figures are within their budgets; `pairs.py` says how they are judged.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import pairs
from support.ensemble import Ensemble

WARM_UP = 50
TURNS = 40  # of each, in a round


def set_up(address: str) -> None:
    """Set up Django with only this package."""
    import django  # noqa: PLC0415
    from django.conf import settings  # noqa: PLC0415, TID251 - a program of its own, not a part of the package

    settings.configure(INSTALLED_APPS=["django_zklock"], ZKLOCK={"URL": f"zk://{address}/bench"})
    django.setup()


class Candidate:
    """A block inside another one, with these options of the session."""

    def __init__(self, lock_order: frozenset[tuple[str, str]] | None) -> None:
        from django_zklock import zk_lock  # noqa: PLC0415 - not before Django is set up
        from django_zklock.core.zk import process  # noqa: PLC0415

        self._session = process.current()
        self._options = replace(self._session.options, lock_order=lock_order)
        self._outer = zk_lock("orders/{order}", fields={"order": 1})
        self._inner = zk_lock("stock/{sku}", fields={"sku": "a"})

    def run(self) -> None:
        """Run it once."""
        self._session.options = self._options
        with self._outer, self._inner:
            pass

    def seconds(self) -> float:
        """Return the processor time of one run, in this thread."""
        began = time.thread_time()
        self.run()
        return time.thread_time() - began

    def steps(self) -> tuple[int, int]:
        """Return the calls, of Python and of C, and the steps of Python of one run."""
        counts = {"call": 0, "c_call": 0, "opcode": 0}

        def profile(_frame: Any, event: str, _argument: object) -> None:
            counts[event] = counts.get(event, 0) + 1

        def trace(frame: Any, event: str, _argument: object) -> Any:
            frame.f_trace_opcodes = True
            if event == "opcode":
                counts[event] += 1
            return trace

        sys.setprofile(profile)
        self.run()
        sys.setprofile(None)
        sys.settrace(trace)
        self.run()
        sys.settrace(None)
        return counts["call"] + counts["c_call"], counts["opcode"]


def main() -> int:
    """Compare both."""
    arguments = pairs.parser(__doc__, 20).parse_args()
    with Ensemble(**pairs.ENSEMBLE) as server:
        set_up(server.hosts)
        warn, off = Candidate(frozenset()), Candidate(None)
        for _ in range(WARM_UP):
            warn.run()
            off.run()
        calls, steps = (min(ours) / min(other) for ours, other in zip(*counted(warn, off), strict=True))
        figures = [
            pairs.Figure("calls, warn to off", 1.03, exact=True, values=[calls]),
            pairs.Figure("steps of Python, warn to off", 1.03, exact=True, values=[steps]),
            pairs.Figure("processor time of the caller, warn to off", 1.06),
        ]
        for _ in pairs.rounds(figures, arguments.seconds):
            figures[2].values.append(ratio(warn, off, arguments.slower))
    return pairs.finish(figures, check=arguments.check)


def counted(*candidates: Candidate) -> list[list[list[int]]]:
    """Return the calls and the steps of five runs of each candidate."""
    return [list(map(list, zip(*(candidate.steps() for _ in range(5)), strict=True))) for candidate in candidates]


def ratio(ours: Candidate, other: Candidate, slower: float) -> float:
    """Return the ratio of their processor times, in random order."""
    times = {ours: 0.0, other: 0.0}
    for candidate in random.sample([ours, other] * TURNS, 2 * TURNS):
        seconds = candidate.seconds()
        times[candidate] += seconds * (1 + slower / 100 if candidate is ours else 1)
    return times[ours] / times[other]


if __name__ == "__main__":
    sys.exit(main())
