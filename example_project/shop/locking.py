"""Turn the shop's locks off if `UNSAFE` is set, to show what happens without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from django.conf import settings

if TYPE_CHECKING:
    from django_zklock import Hold

NONE = settings.SHOP_UNSAFE in ("1", "true", "yes", "on")
BROKEN = settings.SHOP_UNSAFE == "broken"


def no_lock(_name: str, **_options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replace `zk_locked`; change nothing."""
    return lambda function: function


def no_hold() -> Hold | None:
    """Replace `current_hold`."""
    return None


if NONE:
    locked, hold = no_lock, no_hold
else:
    from django_zklock import current_hold as hold
    from django_zklock import zk_locked as locked

if BROKEN:
    from django_zklock.core.queue import order

    def everybody(_queue: Sequence[Any], _me: str, _kind: object, _limit: int) -> order.Verdict:
        """Grant the lock to all callers at once. The tokens still rise."""
        return order.Granted()

    order.verdict = everybody

__all__ = ["hold", "locked"]
