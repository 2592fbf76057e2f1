"""More time for ZooKeeper to answer calls that do not wait: for tests, and the processes that they start."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from django.apps import AppConfig

ADDED = "TEST_REPLY_TIMEOUT"  # the variable with the seconds that a process adds to both limits when it starts


def add(seconds: float, set_: Callable[[Any, str, float], object] = setattr) -> None:
    """Add seconds to the time for an answer to a call that does not wait, and for the confirmation of a release."""
    from django_zklock.core.locks import acquisition, held

    set_(acquisition, "REPLY_TIMEOUT", acquisition.REPLY_TIMEOUT + seconds)
    set_(held, "RELEASE_TIMEOUT", held.RELEASE_TIMEOUT + seconds)


class ReplyTimeout(AppConfig):
    name = "support.reply_timeout"

    def ready(self) -> None:
        if seconds := float(os.environ.get(ADDED, "0")):
            add(seconds)
