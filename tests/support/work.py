"""Work under a lock, and ways to make it lose the lock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from django_zklock.locks.hold import Hold


def lose(hold: Hold) -> None:
    """Lose one hold at once, as the protocol's thread does when the node is found deleted."""
    grant = hold._grant
    grant.session.post(grant.lose, "the test took it away")


def compute(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(100))


def sleep_in_pieces(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)


def run_in_thread(call: Callable[[], Any]) -> Any:
    """Return what `call()` returns in another thread; raise what it raises."""
    result: list[Any] = []

    def run() -> None:
        try:
            result.append((call(), None))
        except BaseException as error:
            result.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    value, error = result[0]
    if error is not None:
        raise error
    return value
