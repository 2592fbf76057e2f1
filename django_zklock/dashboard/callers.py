"""The callers behind an incident, by their work: the answer to "who is hurt?"."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from django_zklock.core import clock
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.report import lazy
from django_zklock.report.formatting import clean, work_kind
from django_zklock.shared import Shared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_zklock.inspection import LockInfo, ScannedContender
    from django_zklock.report.incident import Incident

MAX_WAITERS: Final = 50
"""Waiters of a queue that `look_at` reads."""
MAX_READS: Final = 3
"""Queues that a page reads in full, in `READ_WITHIN` seconds. The others name their first waiter."""
READ_WITHIN: Final = 1.0
FRESH: Final = 5.0
"""Seconds for which a page that is opened uses a queue again. A refresh uses it until the queue has doubled."""
MAX_GROUPS: Final = 4
MAX_HOSTS: Final = 3


class Group(NamedTuple):
    """Callers with the same work."""

    work: str
    """Empty if they did not say it."""
    size: int
    hosts: str
    longest: float
    """Seconds that the first of them has waited."""


class Callers(NamedTuple):
    """The callers behind an incident."""

    groups: Sequence[Group]
    others: int
    """How many more there are."""


class Reader:
    """Reads the queues of one page, and remembers them for the next one."""

    def __init__(self, *, refreshes: bool) -> None:
        self._max_age = math.inf if refreshes else FRESH
        self._left = MAX_READS
        self._until = clock.now() + READ_WITHIN

    def callers(self, incident: Incident, locks: Sequence[LockInfo]) -> Callers:
        """Return the callers of these locks, which the incident blocks."""
        waiters = [waiter for lock in locks for waiter in self._waiters(incident, lock)]
        groups = _by_work(waiters)[:MAX_GROUPS]
        return Callers(groups, max(0, incident.blocked - sum(group.size for group in groups)))

    def _waiters(self, incident: Incident, lock: LockInfo) -> Sequence[ScannedContender]:
        if len(lock.waiters) >= min(lock.waiting, MAX_WAITERS) or not self._left:
            return lock.waiters
        self._left -= 1
        asked = incident.identity, lock.key, lock.waiting.bit_length()
        try:
            return _queues.get(asked, max(0.1, self._until - clock.now()), self._max_age) or lock.waiters
        except ZooKeeperUnavailable:
            return lock.waiters


def _read(asked: tuple[str, str, int], timeout: float) -> Sequence[ScannedContender]:
    info = lazy.inspection.look_at(asked[1], reply_timeout=timeout)
    return info.waiters if info is not None else ()


_queues: Final = Shared(_read, most=100)
"""By the identity of an incident, the key, and the order of magnitude of the queue."""


def _by_work(waiters: Sequence[ScannedContender]) -> list[Group]:
    """Return the groups, the greatest first."""
    works: dict[str, list[ScannedContender]] = {}
    for waiter in waiters:
        works.setdefault(work_kind(waiter), []).append(waiter)
    groups = [_group(work, equal) for work, equal in works.items()]
    return sorted(groups, key=lambda group: -group.size)


def _group(work: str, equal: Sequence[ScannedContender]) -> Group:
    hosts = list(dict.fromkeys(clean(waiter.host) for waiter in equal if waiter.host))
    named = ", ".join(hosts[:MAX_HOSTS]) + (" …" if hosts[MAX_HOSTS:] else "")
    return Group(work, len(equal), named, max(waiter.age for waiter in equal))
