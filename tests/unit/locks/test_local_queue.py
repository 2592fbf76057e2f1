"""The local queue: in which order the waiters of one process enter."""

from __future__ import annotations

from unittest import mock

from django_zklock.core import clock
from django_zklock.core.protocol.local_queue import MAX_WAITING, LocalQueue


class Caller:
    def __init__(self, name: str, deadline: float | None, entered: list[str]) -> None:
        self.deadline = deadline
        self._name = name
        self._entered = entered

    def on_admitted(self) -> None:
        self._entered.append(self._name)


def test_a_late_waiter_keeps_its_position_when_grants_are_fast_again() -> None:
    """One slow grant makes many waiters late. Those with time enough go before all who came after them."""
    entered: list[str] = []
    queue = LocalQueue(lambda: None)
    with mock.patch.object(clock, "now", return_value=0.0) as now:
        slow, *others = [Caller("", None, entered) for _ in range(MAX_WAITING)]
        assert all(queue.admit(waiter) for waiter in (slow, *others))
        first, patient = Caller("first", 100.0, entered), Caller("patient", None, entered)
        queue.append(first)
        queue.append(patient)
        now.return_value = 90.0
        queue.remove(slow, granted=True)
        assert entered == ["patient"]
        queue.append(Caller("newcomer", 200.0, entered))
        now.return_value = 91.0
        queue.remove(patient, granted=True)
        assert entered == ["patient", "first"]


def test_only_a_wait_that_was_granted_says_how_long_grants_take() -> None:
    entered: list[str] = []
    queue = LocalQueue(lambda: None, most_waiting=1)
    with mock.patch.object(clock, "now", return_value=0.0) as now:
        impatient = Caller("", None, entered)
        assert queue.admit(impatient)
        queue.append(Caller("hurried", 100.0, entered))
        queue.append(Caller("patient", None, entered))
        now.return_value = 90.0
        queue.remove(impatient)
    assert entered == ["hurried"]
