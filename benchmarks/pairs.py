"""
Compare ours with a reference in pairs, and tell whether a figure is within its budget.

Both of a pair run in the same short moment, in random order, so that the load of the machine affects both. A round
gives one ratio. The figure is the median of the ratios, and its interval reaches from one of the sorted ratios to
another one: it has the true median with a confidence of 99 %, whatever their distribution is.

Rounds go on until no interval holds its budget, or the time is over. Then the median decides: "ok" or "OVER BUDGET". A
budget leaves room for the spread of its figure, 5 % at least. Where 5 % is enough, a loss of 10 % is over the budget,
which `--slower=10` proves. Counts are exact.
"""

from __future__ import annotations

import argparse
import itertools
import math
import signal
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

CONFIDENCE = 0.99
HIDDEN = argparse.SUPPRESS
OK, OVER = "ok", "OVER BUDGET"
ENSEMBLE: dict[str, Any] = {"tick": 2.0, "container_check": 60.0, "max_session_timeout": 60}
"""How the servers run: empty directories are swept once a minute, as ZooKeeper does by itself."""


def interval(values: Iterable[float]) -> tuple[float, float]:
    """Return the interval of the median; without bounds for fewer than eight values."""
    ordered = sorted(values)
    count, rank, outside = len(ordered), 0, 0.0
    while (outside := outside + 2 * math.comb(count, rank) / 2**count) <= 1 - CONFIDENCE:
        rank += 1
    return (ordered[rank - 1], ordered[-rank]) if rank else (-math.inf, math.inf)


@dataclass
class Figure:
    """A figure and its values, one for each round; without a budget, it is only shown."""

    what: str
    budget: float | None = None
    least: bool = False
    """Whether the budget is the least that the figure may be, and not the most."""
    exact: bool = False
    """Whether each value has to be within the budget: a count, or the longest of many times."""
    values: list[float] = field(default_factory=list)

    @property
    def bounds(self) -> tuple[float, float]:
        """The interval; the worst value, if each of them counts."""
        if self.exact:
            worst = min(self.values) if self.least else max(self.values)
            return worst, worst
        return interval(self.values)

    @property
    def value(self) -> float:
        """The median; the worst value, if each of them counts."""
        return self.bounds[0] if self.exact else statistics.median(self.values)

    @property
    def is_sure(self) -> bool:
        """Whether more rounds would hardly change the verdict."""
        low, high = self.bounds
        return self.budget is None or not low < self.budget < high

    @property
    def verdict(self) -> str:
        """Whether the figure is within its budget."""
        if self.budget is None:
            return ""
        return OK if (self.value >= self.budget if self.least else self.value <= self.budget) else OVER

    def __str__(self) -> str:
        low, high = self.bounds
        spread = "" if self.exact or math.isinf(low) else f"{low:.3f} to {high:.3f}"
        limit = "" if self.budget is None else f"at {'least' if self.least else 'most'} {self.budget:g}"
        return f"{self.what:68}{self.value:11,.3f}  {spread:18}{limit:15}  {self.verdict}".rstrip()


def rounds(figures: Collection[Figure], seconds: float) -> Iterator[int]:
    """
    Yield the numbers of the rounds, until all verdicts are sure or the time is over.

    The caller adds a value to each figure in each round.
    """
    end = time.monotonic() + seconds
    for number in itertools.count():
        yield number
        if time.monotonic() > end or all(figure.is_sure for figure in figures):
            return


def slowed(work: Callable[[], object], percent: float, clock: Callable[[], float] = time.perf_counter) -> float:
    """Do some work, then compute until it has taken so many percent longer; return the seconds by this clock."""
    began = clock()
    work()
    end = began + (clock() - began) * (1 + percent / 100)
    while clock() < end:
        pass
    return clock() - began


def parser(text: str | None, seconds: float) -> argparse.ArgumentParser:
    """Return a parser with the options of all benchmarks. SIGTERM now ends their with blocks, and so their servers."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail unless all figures are within their budgets")
    parser.add_argument("--slower", type=float, default=0.0, metavar="PERCENT", help="make ours slower, as a proof")
    parser.add_argument("--seconds", type=float, default=seconds, help="of the rounds, at most (default: %(default)g)")
    return parser


def finish(figures: Sequence[Figure], *, check: bool) -> int:
    """Print figures; return the status of a check: 1 if a figure is over its budget."""
    sys.stdout.writelines(f"{figure}\n" for figure in figures)
    sys.stdout.flush()
    return 1 if check and any(figure.verdict == OVER for figure in figures) else 0
