"""Work under a lock, and ways to make it lose the lock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from django_zklock.locks.hold import Hold
from support.faults import BackgroundCall


@dataclass(frozen=True)
class FixedFence:
    """A fence of a lock that grants everybody."""

    token: int
    key: str = "k"


def lose(hold: Hold) -> None:
    """Lose one hold at once, as the protocol's thread does when the node is found deleted."""
    grant = hold._held.grant
    grant.session.post(grant.lose, "the test took it away")


def lose_later(hold: Hold, delay: float) -> None:
    grant = hold._held.grant
    session = grant.session
    session.post(lambda: session.loop.call_later(delay, lambda: grant.lose("the test took it away")))


def compute(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(100))


def sleep_in_pieces(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)


def run_in_thread(call: Callable[[], Any]) -> Any:
    return BackgroundCall(call).result(40)


in_each_thread = pytest.mark.parametrize("run", [lambda call: call(), run_in_thread], ids=["main thread", "thread"])
"""Test `run(call)` in the main thread and in another one. An abort strikes each of them in a way of its own."""
