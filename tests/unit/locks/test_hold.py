"""A hold says what is true of it while another thread changes it; and the order of the waiters of one process."""

import contextlib
import os
from unittest import mock

import pytest

from django_zklock.core import clock
from django_zklock.core.execution.owner import current_owner
from django_zklock.core.locks.held import HeldLock, Use
from django_zklock.core.locks.spec import LockSpec, Policy
from django_zklock.core.protocol.grant import Grant
from django_zklock.core.protocol.local_queue import MAX_WAITING, LocalQueue
from django_zklock.core.queue.nodes import Kind
from django_zklock.exceptions import LockLost, LockNotHeld
from django_zklock.locks.hold import held_of, hold_of

WATCHED = Policy(abort_on="never")


class Turbulent:
    """A session with a valid lease, to which something happens at the moment somebody looks at the lease."""

    def __init__(self):
        self.session_id = 1
        self.pid = os.getpid()
        self.happens = lambda: None

    @property
    def leased_until(self):
        self.happens()
        return clock.now() + 1


class Leaver:
    """A contender that calls back when it is to leave: its node may be gone, and the lock another's, by then."""

    def __init__(self):
        self.on_abandon = lambda: None

    def abandon(self, left=None):
        self.on_abandon()


def held_in(session, contender=None, policy=WATCHED):
    grant = Grant(session, "key", "/key/node", 7)
    spec = LockSpec(key="key", parent="/key", kind=Kind.LOCK, policy=policy)
    return hold_of(HeldLock(contender or Leaver(), grant, current_owner(), spec, [Use()])), grant


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(("abort_on", "grace"), [("suspended", 60), ("suspended", None), ("lost", 60)])
def test_a_suspended_hold_is_trusted_until_its_grace_is_over(abort_on, grace):
    """Without one, and with `abort_on="lost"`, until its lease is over."""
    hold, grant = held_in(Turbulent(), policy=Policy(abort_on=abort_on, grace=grace))
    grant.suspect_since = clock.now() - 50
    hold.check()
    grant.suspect_since -= 20
    grant.suspect("again")
    with pytest.raises(LockLost) if (abort_on, grace) == ("suspended", 60) else contextlib.nullcontext():
        hold.check()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("what", ["lost", "another session"])
def test_a_lost_hold_does_not_use_a_lease_renewed_after_the_loss(what):
    """A thread paused in a check may find a later lease, or that of another session, valid."""
    session = Turbulent()
    hold, grant = held_in(session)
    hold.check()
    assert hold.lease_remaining > 0

    def happen():
        if what == "lost":
            grant.lost_reason = "the lease was over"
            grant.suspect("late")
        else:
            session.session_id = 2

    session.happens = happen
    assert hold.lease_remaining == 0
    assert grant.suspect_since is None
    session.session_id, grant.lost_reason = 1, None
    with pytest.raises(LockLost):
        hold.check()


def test_a_hold_is_invalid_as_soon_as_its_release_begins():
    """Another thread that works under the same hold is not told that all is well when the node is about to go."""
    contender = Leaver()
    hold, _ = held_in(Turbulent(), contender)
    seen = []

    def look():
        with pytest.raises(LockNotHeld):
            hold.check()
        assert hold.lease_remaining == 0
        seen.append(repr(hold))

    contender.on_abandon = look
    held_of(hold).release_uses()
    assert len(seen) == 1
    assert "released" in seen[0]


class Caller:
    def __init__(self, name, deadline, entered):
        self.deadline = deadline
        self._name = name
        self._entered = entered

    def on_admitted(self):
        self._entered.append(self._name)


def test_a_late_waiter_keeps_its_position_when_grants_are_fast_again():
    """One slow grant makes many waiters late. Those with time enough go before all who came after them."""
    entered = []
    queue = LocalQueue(lambda: None)
    with mock.patch.object(clock, "now", return_value=0.0) as now:
        slow, *others = [Caller("", None, entered) for _ in range(MAX_WAITING)]
        assert all(queue.admit(waiter) for waiter in (slow, *others))
        first, patient = Caller("first", 100.0, entered), Caller("patient", None, entered)
        queue.append(first)
        queue.append(patient)
        now.return_value = 90.0
        queue.remove(slow, granted=True)
        queue.append(Caller("lasting", None, entered))
        queue.remove(others[0], granted=True)
        queue.append(Caller("newcomer", 200.0, entered))
        now.return_value = 91.0
        queue.remove(patient, granted=True)
        queue.append(Caller("last", 200.0, entered))
        now.return_value = 199.0
        for other in others[1:3]:
            queue.remove(other, granted=True)
        assert entered == ["patient", "lasting", "first", "newcomer", "last"]


def test_only_a_wait_that_was_granted_says_how_long_grants_take():
    entered = []
    queue = LocalQueue(lambda: None, most_waiting=1)
    with mock.patch.object(clock, "now", return_value=0.0) as now:
        impatient = Caller("", None, entered)
        assert queue.admit(impatient)
        queue.append(Caller("hurried", 100.0, entered))
        queue.append(Caller("patient", None, entered))
        now.return_value = 90.0
        queue.remove(impatient)
    assert entered == ["hurried"]
