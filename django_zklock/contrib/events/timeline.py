"""The last grants of a lock as bars, with those who wait now. The template draws them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from django.utils import timezone
from django.utils.translation import gettext as _

from django_zklock.contrib.events.models import Event
from django_zklock.report.formatting import duration, process_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from django_zklock.inspection import LockInfo

SHORTEST: Final = 5.0
"""Seconds that the picture shows at least."""
NARROWEST: Final = 0.4
"""Percent of its width: a hold of a moment must be seen, too."""


class Bar(NamedTuple):
    """A hold or a wait; its place is in percent of the width."""

    what: str
    """ "hold", "lost" or "wait"."""
    x: str
    width: str
    text: str


class Timeline:
    """The bars of the last grants, of which the newest is first, and of the waiters in the queue."""

    def __init__(self, grants: Sequence[Event], lock: LockInfo) -> None:
        self.grants = grants
        self.held_now = {holder.token for holder in lock.holders}
        self._now = timezone.now()
        waits = [(grant.who, self._ago(grant.at) + grant.waited, grant.waited) for grant in grants if grant.waited]
        waits += [(process_of(waiter), waiter.age, waiter.age) for waiter in lock.waiters]
        ages = [began for _who, began, _lasted in waits] + [self._ago(grant.at) for grant in grants]
        self._span = max([SHORTEST, *ages])
        self.waits = [self._bar("wait", began, lasted, who) for who, began, lasted in waits]
        self.holds = [self._hold(grant, newer) for grant, newer in zip(grants, [None, *grants[:-1]], strict=True)]
        self.ticks = [(f"{percent}%", f"-{duration(self._span * (100 - percent) / 100)}") for percent in (25, 50, 75)]

    @property
    def label(self) -> str:
        text = _("The last grants, from %(time)s ago until now. The table below has the same in words.")
        return text % {"time": duration(self._span)}

    def _ago(self, time: datetime) -> float:
        return max(0.0, (self._now - time).total_seconds())  # the clocks of two hosts differ

    def _hold(self, grant: Event, newer: Event | None) -> Bar:
        """Return the bar of a hold. One without an end lasts until now, or until the next grant at the longest."""
        began = self._ago(grant.at)
        if grant.token in self.held_now and grant.outcome == Event.HELD:
            return self._bar("hold", began, began, grant.who)
        until_next = 0.0 if newer is None else max(0.0, began - self._ago(newer.at))
        has_ended_well = grant.outcome == Event.RELEASED or (
            grant.outcome == Event.HELD and not grant.misses_end(newer)
        )
        lasted = until_next if grant.held is None else grant.held
        text = f"{grant.who} · {grant.label}"
        return self._bar("hold" if has_ended_well else "lost", began, lasted, text)

    def _bar(self, what: str, began: float, lasted: float, who: str) -> Bar:
        x = min(100.0 - 100.0 * began / self._span, 100.0 - NARROWEST)
        width = max(NARROWEST, min(100.0 * lasted / self._span, 100.0 - x))
        return Bar(what, f"{x:.2f}%", f"{width:.2f}%", f"{who}: {duration(lasted)}")
