"""The columns of the list of locks. What comes from ZooKeeper is cleaned, capped and escaped, never marked as safe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_zklock.dashboard import words
from django_zklock.models import Lock

if TYPE_CHECKING:
    from datetime import datetime

    from django_zklock.inspection import LockInfo

MOST_HOLDERS = 3
MOST_BARS = 5


def age(seconds: float, since: datetime | None = None) -> str:
    """Return an age that the script of the page lets grow."""
    return format_html(
        '<time class="zklock-age" datetime="{}" data-age="{}">{}</time>',
        since.isoformat() if since else "",
        f"{max(seconds, 0):.1f}",
        words.duration(seconds),
    )


def state_of(info: LockInfo | None, long_held: float) -> tuple[str, str]:
    """Return what is going on at a lock, as a class of the style sheet and in words."""
    if info is None or not (info.problem or info.holders or info.waiting):
        return "free", _("Free")
    if info.problem:
        return "broken", _("Unreadable")
    if not info.holders:
        return "passing", _("Handing over")
    if info.operator is not None:
        return "operator", _("Held by an operator")
    if (info.held_for or 0.0) >= long_held:
        return "long", _("Long held")
    return ("contended", _("Contended")) if info.contended else ("held", _("Held"))


class Columns:
    """What `list_display` names; a part of `LockAdminMixin`."""

    long_held: float

    @admin.display(description=gettext_lazy("lock"), ordering="key")
    def shown_key(self, lock: Lock) -> str:
        return words.clean(lock.key, 200)

    @admin.display(description=gettext_lazy("holder"), ordering="holder", empty_value="–")
    def holder(self, lock: Lock) -> str | None:
        if lock.info is None or not lock.info.holders:
            return None
        lines: list[tuple[Any, ...]] = [
            (words.place(each), words.work(each)) for each in lock.info.holders[:MOST_HOLDERS]
        ]
        more = len(lock.info.holders) - len(lines)
        if more > 0:
            lines.append((ngettext("and %(count)d more", "and %(count)d more", more) % {"count": more}, ""))
        return format_html_join("", '<div class="zklock-holder">{}<span class="zklock-work">{}</span></div>', lines)

    @admin.display(description=gettext_lazy("held for"), ordering="-held_for", empty_value="–")
    def held(self, lock: Lock) -> str | None:
        if lock.info is None or not lock.info.holders:
            return None
        return age(lock.info.held_for or 0.0, lock.info.holders[0].held_since or lock.info.holders[0].came)

    @admin.display(description=gettext_lazy("waiting"), ordering="-waiting")
    def waiters(self, lock: Lock) -> str:
        waiting = lock.info.waiting if lock.info else 0
        if not waiting:
            return "0"
        bars = "▮" * min(waiting, MOST_BARS)
        return format_html('<span class="zklock-bars" aria-hidden="true">{}</span> {}', bars, waiting)

    @admin.display(description=gettext_lazy("token"), ordering="-token", empty_value="–")
    def token(self, lock: Lock) -> str | None:
        tokens = [each.token for each in lock.info.holders] if lock.info else []
        return str(max(tokens)) if tokens else None

    @admin.display(description=gettext_lazy("kind"), ordering="kind", empty_value="–")
    def kind(self, lock: Lock) -> str | None:
        return words.kind(lock.info) if lock.info else None

    @admin.display(description=gettext_lazy("state"))
    def state(self, lock: Lock) -> str:
        return format_html('<span class="zklock-state zklock-{}">{}</span>', *state_of(lock.info, self.long_held))
