"""The one place that knows whether the shop uses locks: `UNSAFE=1` switches them off, to show what they are for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.conf import settings


def no_lock(_name: str, **_options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Take the place of `zk_locked` and change nothing."""
    return lambda function: function


if settings.SHOP_UNSAFE:
    locked = no_lock
else:
    from django_zklock import zk_locked as locked  # noqa: F401
