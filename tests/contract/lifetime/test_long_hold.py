"""A holder is told, once, that others have given up waiting for its lock, and nothing of those that go on waiting."""

import contextlib
import itertools
import logging

import pytest
from support.work import acquired, lose
from support.zoo import eventually

from django_zklock import zk_leader, zk_lock, zk_read
from django_zklock.core.protocol import contender, long_hold
from django_zklock.core.protocol.registry import Registry
from django_zklock.core.zk import process
from django_zklock.exceptions import LockLost, LockNotHeld
from django_zklock.locks.hold import Hold
from django_zklock.testing import flush_logs


class Looks:
    """The times at which holders look at their queues: each tenth of a second."""

    def __init__(self):
        self.count = 0  # of all holders
        self.stopped = False

    def __iter__(self):
        for number in itertools.count(1):
            if self.stopped:
                return
            self.count += 1
            yield number / 10

    def wait(self):
        """Wait until a look has begun and ended since this call."""
        seen = self.count
        eventually(lambda: self.count >= seen + 3)


@pytest.fixture
def looks(monkeypatch):
    looks = Looks()
    monkeypatch.setattr(contender, "WATCH_SELF_AFTER", 0.0)
    monkeypatch.setattr(contender, "DESCRIBE_GRANT_AFTER", 0.0)
    monkeypatch.setattr(long_hold, "LOOKS", looks)
    yield looks
    looks.stopped = True


def told(caplog):
    flush_logs()
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_holder_is_told_that_others_have_given_up(zoo, looks, caplog):
    with zk_lock("stock/{sku}", fields={"sku": 7}):
        with zoo.hold_elsewhere("stock/7"), zoo.hold_elsewhere("stock/7"):
            looks.wait()
        (text,) = eventually(lambda: told(caplog))
    assert text.startswith("lock 'stock/7' has been held for ")
    assert "have given up waiting for it" in text


def test_it_is_told_once_for_each_template(zoo, looks, caplog):
    with zk_lock("stock/{sku}", fields={"sku": "a"}):
        with zoo.hold_elsewhere("stock/a"):
            looks.wait()
        eventually(lambda: told(caplog))
    # The other holder looks on, also when that of "stock/b" does not.
    with zk_lock("other"), zk_lock("stock/{sku}", fields={"sku": "b"}):
        with zoo.hold_elsewhere("stock/b"):
            looks.wait()
            looks.wait()
        looks.wait()
        looks.wait()
    assert len(told(caplog)) == 1


def test_a_waiter_that_goes_on_waiting_is_not_told(zoo, looks, caplog):
    with zk_lock("k"), zoo.hold_elsewhere("k"):
        looks.wait()
        looks.wait()
    assert not told(caplog)


@pytest.mark.parametrize(
    "lock",
    [lambda: zk_read("k"), lambda: zk_lock("k", about={"task": "import"}), lambda: zk_leader("k")],
    ids=["reader", "task", "leader"],
)
def test_a_hold_for_which_others_wait_in_patience_is_not_looked_at(zoo, looks, caplog, lock):
    with lock(), zk_lock("other"):
        looks.wait()  # those of the other hold
        with zoo.hold_elsewhere("k"):
            looks.wait()
        looks.wait()
    assert not told(caplog)


def test_the_names_that_were_told_are_bounded(zoo, looks, caplog, monkeypatch):
    """A name with a value in it is no template, and there may be millions of them."""
    monkeypatch.setattr(long_hold, "MOST_NAMED", 2)
    for number in range(3):
        with zk_lock(f"order-{number}"):
            with zoo.hold_elsewhere(f"order-{number}"):
                looks.wait()
            eventually(lambda number=number: len(told(caplog)) == number + 1)
    assert len(process.current().attached(Registry).held_long) == 1


@pytest.mark.parametrize("end", [Hold.release, lose])
def test_waiters_that_leave_after_the_end_of_the_hold_have_not_given_up(zoo, looks, caplog, end):
    """They may have had the lock since."""
    with zk_lock("other"):
        hold = acquired(zk_lock("k"))
        with zoo.hold_elsewhere("k"):
            looks.wait()
            looks.wait()
            end(hold)
            looks.wait()  # those of the other hold
        looks.wait()
        looks.wait()
        with contextlib.suppress(LockLost, LockNotHeld):
            hold.release()
    assert "given up" not in " ".join(told(caplog))
