"""The status bar above the list: the connection, and a summary of all locks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from django.utils.translation import gettext_lazy

from django_zklock.dashboard.formatting import clean, cycle_text, duration

if TYPE_CHECKING:
    from django_zklock.inspection import Snapshot

MAX_CYCLES: Final = 5
STATE_LABELS: Final = {
    "connected": gettext_lazy("Connected"),
    "connecting": gettext_lazy("Connecting"),
    "suspended": gettext_lazy("Suspended"),
    "lost": gettext_lazy("Session lost"),
}
"""Labels of the states of a connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusBar:
    """The status bar, as values for the template."""

    snapshot: Snapshot
    state: str
    """ "connected", "connecting", "suspended" or "lost", for the style sheet."""
    state_label: str
    held: int
    kept: int
    """Locks that a process keeps for its next user."""
    contended: int
    waiting: int
    longest_wait: str
    shown: int
    total: int
    problem: str
    age: str
    cycles: tuple[str, ...]


def status_bar(snapshot: Snapshot) -> StatusBar:
    """Return the status bar for a snapshot."""
    connection = snapshot.connection
    locks = snapshot.locks
    longest = max((lock.longest_wait or 0.0 for lock in locks), default=0.0)
    return StatusBar(
        snapshot=snapshot,
        state=connection.state,
        state_label=str(STATE_LABELS[connection.state]),
        held=sum(lock.held_for is not None for lock in locks),
        kept=sum(lock.idle_for is not None for lock in locks),
        contended=sum(lock.contended for lock in locks),
        waiting=sum(lock.waiting for lock in locks),
        longest_wait=duration(longest) if longest else "",
        shown=len(locks),
        total=max(snapshot.total, len(locks)),
        problem=clean(snapshot.problem),
        age=duration(snapshot.age),
        cycles=tuple(map(cycle_text, snapshot.cycles[:MAX_CYCLES])),
    )
