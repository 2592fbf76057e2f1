"""The one place that knows whether the shop uses locks: `UNSAFE` takes them away, to show what they are for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from django.conf import settings

if TYPE_CHECKING:
    from django_zklock import Hold

NONE = settings.SHOP_UNSAFE in ("1", "true", "yes", "on")
BROKEN = settings.SHOP_UNSAFE == "broken"


def no_lock(_name: str, **_options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Take the place of `zk_locked` and change nothing."""
    return lambda function: function


def no_hold() -> Hold | None:
    """Take the place of `current_hold`."""
    return None


if NONE:
    locked, hold = no_lock, no_hold
else:
    from django_zklock import current_hold as hold
    from django_zklock import zk_locked as locked

if BROKEN:
    from django_zklock.queue import rules

    def everybody(_queue: Sequence[Any], _me: str, /) -> rules.Verdict:
        """Grant the lock to everybody at once; the tokens rise as ever."""
        return rules.Granted()

    rules.exclusive = everybody

__all__ = ["hold", "locked"]
