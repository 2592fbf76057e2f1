"""Knows how to ask whether anybody holds a lock or waits for it, without taking part."""

from __future__ import annotations

from typing import Any

from django_zklock.locks.attempt import Attempt
from django_zklock.locks.contender import Busy, Outcome
from django_zklock.locks.terms import Terms
from django_zklock.locks.waiting import TaskWaiter, ThreadWaiter
from django_zklock.owner import current_owner
from django_zklock.zk import process


def look(terms: Terms) -> bool:
    """Tell whether anybody is in the queue now. Raises `ZooKeeperUnavailable`."""
    attempt = _begin(terms, ThreadWaiter[Outcome]())
    try:
        outcome = attempt.waiter.wait(attempt.timeout)
    finally:
        attempt.contender.abandon()
    return _is_busy(attempt, outcome)


async def alook(terms: Terms) -> bool:
    """Tell whether anybody is in the queue now. Raises `ZooKeeperUnavailable`."""
    attempt = _begin(terms, TaskWaiter[Outcome]())
    try:
        outcome = await attempt.waiter.wait(attempt.timeout)
    finally:
        attempt.contender.abandon()
    return _is_busy(attempt, outcome)


def _begin(terms: Terms, waiter: Any) -> Attempt[Any]:
    session = process.current()
    attempt = Attempt(session, terms, waiter, timeout=session.options.connect_timeout, only_look=True)
    attempt.contender.start()
    return attempt


def _is_busy(attempt: Attempt[Any], outcome: Outcome | None) -> bool:
    if outcome is None or isinstance(outcome, Exception):
        attempt.conclude(outcome, current_owner())
    return isinstance(outcome, Busy)
