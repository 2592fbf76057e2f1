"""Notices: what may become an incident. They are no alarm, and change no verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from django.utils.translation import gettext as _

from django_zklock.report import formatting, queues

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from django_zklock.report.facts import Facts
    from django_zklock.report.incident import Incident

SOON: Final = queues.LONG_WAIT / 3
"""Seconds of the first waiter from which on a queue that moves may become a convoy."""
LEAST_WAITERS: Final = 3
MOST: Final = 5


class Notice(NamedTuple):
    """A sentence about a lock."""

    text: str
    key: str


def _convoys(facts: Facts) -> Iterator[Notice]:
    """Yield the queues in which all wait for long although no holder does."""
    text = _("%(count)d callers wait, the first for %(time)s; the present holder has it for %(held)s: a convoy?")
    for lock in facts.snapshot.locks:
        waited, held = lock.longest_wait or 0.0, lock.held_for
        moves = held is not None and not lock.lasts and held < waited / 2
        if moves and waited >= SOON and lock.waiting >= LEAST_WAITERS:
            times = {"time": formatting.duration(waited), "held": formatting.duration(held)}
            yield Notice(text % {"count": lock.waiting, **times}, lock.key)


def found(facts: Facts, present: Iterable[Incident]) -> list[Notice]:
    """Return the notices about locks that no incident names."""
    named = {key for incident in present for key in incident.keys}
    return [notice for notice in _convoys(facts) if notice.key not in named][:MOST]
