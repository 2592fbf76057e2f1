"""
Track since when each holder has held its lock.

ZooKeeper stores when a contender's znode was created, but not when it got the lock: to record that would cost a write.
A contender that was seen waiting got the lock later than that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from django_zklock.inspection.scan import ScanResult
from django_zklock.zk.session import Session

MAX_LOCKS: Final = 10_000  # locks that are remembered

HeldSince: TypeAlias = Mapping[tuple[str, str], float]
"""By key and name of the holder: seconds since 1970 by ZooKeeper's clock."""


@dataclass(frozen=True, slots=True)
class _LastScan:
    since: Mapping[str, float]  # by name of a holder
    at: float


class HeldSinceTracker:
    """The holders in the last scan of each lock of a session; used on the protocol's thread."""

    def __init__(self, session: Session) -> None:
        self._last: dict[str, _LastScan] = {}  # by key

    def update(self, result: ScanResult, *, complete: bool) -> HeldSince:
        """
        Remember the holders in this result, and return since when at most each has held its lock.

        With `complete`, locks that are not in the result are forgotten.
        """
        scanned = {key: self._compare(result, key) for key in result.queues}
        if complete or len(self._last) + len(scanned) > MAX_LOCKS:
            self._last = scanned
        else:
            self._last.update(scanned)
        return {(key, name): since for key, scan in scanned.items() for name, since in scan.since.items()}

    def _compare(self, result: ScanResult, key: str) -> _LastScan:
        last = self._last.get(key)
        since: dict[str, float] = {}
        queue = result.queues[key]
        for child in (queue[index] for index in result.holders(key)):
            node = result.nodes.get((key, child.name))
            if node is None:
                continue
            if last is None:
                since[child.name] = node.ctime
            else:
                since[child.name] = last.since.get(child.name, max(node.ctime, last.at))
        return _LastScan(since, result.began_at)
