"""The callers behind an incident, by their work: the answer to "who is hurt?"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from django_zklock.report.formatting import clean, work_kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from django_zklock.inspection import LockInfo, ScannedContender
    from django_zklock.report.incident import Incident

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


def callers_of(incident: Incident, locks: Iterable[LockInfo]) -> Callers:
    """Return the callers of these locks, which the incident blocks. A look has the first waiters of each queue."""
    groups = _by_work([waiter for lock in locks for waiter in lock.waiters])[:MAX_GROUPS]
    return Callers(groups, max(0, incident.blocked - sum(group.size for group in groups)))


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
