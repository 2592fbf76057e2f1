"""Knows what the status strip above the list says: the connection, and the sum of all locks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from django.utils.translation import gettext as _

from django_zklock.dashboard import words
from django_zklock.queue.printable import session_hex

if TYPE_CHECKING:
    from django_zklock.inspection import Snapshot, Wait

MOST_CYCLES = 5
STALE = 10.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """The status strip, ready to be shown."""

    state: str
    """ "connected", "connecting", "suspended" or "lost", for the style sheet."""
    state_label: str
    server: str
    session: str
    timeout: str
    hosts: tuple[str, ...]
    held: int
    contended: int
    waiting: int
    longest_wait: str
    shown: int
    total: int
    problem: str
    """Why this may be old or not all of it."""
    taken_at: datetime
    age: float
    age_label: str
    cycles: tuple[str, ...]
    """The deadlocks, in words."""


def strip(snapshot: Snapshot) -> Strip:
    """Return what is to be said of a snapshot."""
    connection = snapshot.connection
    labels = {
        "connected": _("Connected"),
        "connecting": _("Connecting"),
        "suspended": _("Suspended"),
        "lost": _("Session lost"),
    }
    locks = snapshot.locks
    longest = max((lock.longest_wait or 0.0 for lock in locks), default=0.0)
    return Strip(
        state=connection.state if connection.state in labels else "connecting",
        state_label=labels.get(connection.state, words.clean(connection.state, 40)),
        server=words.clean(connection.server, 100),
        session=session_hex(connection.session_id),
        timeout=words.duration(connection.timeout) if connection.timeout else "",
        hosts=tuple(words.clean(host, 100) for host in connection.hosts),
        held=sum(bool(lock.holders) for lock in locks),
        contended=sum(lock.contended for lock in locks),
        waiting=sum(lock.waiting for lock in locks),
        longest_wait=words.duration(longest) if longest else "",
        shown=len(locks),
        total=max(snapshot.total, len(locks)),
        problem=words.clean(snapshot.problem),
        taken_at=snapshot.taken_at,
        age=snapshot.age,
        age_label=words.duration(snapshot.age),
        cycles=tuple(_told(cycle) for cycle in snapshot.cycles[:MOST_CYCLES]),
    )


def _told(cycle: tuple[Wait, ...]) -> str:
    links = [
        _("%(who)s holds %(holds)s and waits for %(waits)s")
        % {"who": words.clean(wait.who), "holds": words.clean(wait.holds), "waits": words.clean(wait.waits_for)}
        for wait in cycle
    ]
    return "; ".join(links)
