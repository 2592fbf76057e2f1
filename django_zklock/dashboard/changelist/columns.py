"""The columns of the list. Texts from ZooKeeper are cleaned, capped and escaped, and never marked as safe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from django.contrib import admin
from django.utils.html import format_html
from django.utils.translation import gettext, gettext_lazy, ngettext

from django_zklock.dashboard import past
from django_zklock.dashboard.formatting import STATE_LABELS, clean, duration, kind_text, process_of, use_of
from django_zklock.models import Lock

if TYPE_CHECKING:
    from datetime import datetime

    from django_zklock.inspection import ScannedContender

MAX_BARS: Final = 5


def age(seconds: float, since: datetime | None = None) -> str:
    """Return an age that the script of the page keeps up to date."""
    return format_html(
        '<time class="zklock-age" datetime="{}" data-age="{}">{}</time>',
        since.isoformat() if since else "",
        f"{max(seconds, 0):.1f}",
        duration(seconds),
    )


def age_of(contender: ScannedContender) -> str:
    """Return for how long a holder has held the lock, or a waiter has waited."""
    shown = age(contender.duration, contender.since)
    if not contender.at_most:
        return shown
    return format_html('<span class="zklock-age">{}</span>', format_html(gettext("at most {}"), shown))


class Columns:
    """The columns that `list_display` names; a part of `LockAdminMixin`."""

    long_held: float

    @admin.display(description=gettext_lazy("lock"), ordering="key")
    def shown_key(self, lock: Lock) -> str:
        return clean(lock.key, 200)

    @admin.display(description=gettext_lazy("state"))
    def state(self, lock: Lock) -> str:
        state = lock.info.state(self.long_held)
        # A long hold needs no colour if nobody waits and such holds usually are long.
        calm = state == "long" and not lock.info.waiting and not self._times_usual(lock)
        colour = f"{state} zklock-quiet" if calm else state
        shown = format_html('<span class="zklock-state zklock-{}">{}</span>', colour, STATE_LABELS[state])
        if lock.info.kind == "lock":
            return shown
        return format_html('{} <span class="zklock-work">{}</span>', shown, kind_text(lock.info))

    @admin.display(description=gettext_lazy("holder"), ordering="holder", empty_value="–")
    def holder(self, lock: Lock) -> str | None:
        holders = lock.info.holders
        if not holders:
            return None
        process, work = process_of(holders[0]), use_of(holders[0])
        url = self.host_url(holders[0].host, holders[0].pid)  # type: ignore[attr-defined]
        link = format_html('<a href="{}">{}</a>', url, process)
        others = len(holders) - 1
        rest = ngettext("and %(count)d more", "and %(count)d more", others) % {"count": others} if others else ""
        return format_html(
            '<span class="zklock-holder" dir="auto" title="{0} · {1}"><span>{3}</span> <span>{2}</span> '
            '<span class="zklock-work">{1}</span></span>',
            process,
            work,
            rest,
            link if holders[0].pid else process,
        )

    @admin.display(description=gettext_lazy("held for"), ordering="-held_for", empty_value="–")
    def held(self, lock: Lock) -> str | None:
        if lock.info.held_for is None:
            return None
        first = lock.info.holders[0]
        shown = age_of(first)
        times = self._times_usual(lock)
        return format_html('{} <span class="zklock-work">{}</span>', shown, times) if times else shown

    def _times_usual(self, lock: Lock) -> str:
        first = lock.info.holders[0]
        return past.times_usual(first.certain_duration, first.template)

    @admin.display(description=gettext_lazy("waiting"), ordering="-waiting")
    def waiters(self, lock: Lock) -> str:
        waiting = lock.info.waiting
        if not waiting:
            return "0"
        bars = "▮" * min(waiting, MAX_BARS)
        return format_html('<span class="zklock-bars" aria-hidden="true">{}</span> {}', bars, waiting)

    @admin.display(description=gettext_lazy("longest wait"), ordering="-longest_wait", empty_value="–")
    def waited(self, lock: Lock) -> str | None:
        return None if lock.info.longest_wait is None else age(lock.info.longest_wait)
