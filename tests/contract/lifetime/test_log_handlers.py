"""A log handler may be slow, raise, or take a lock itself: the work under a lost lock stops all the same."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

import pytest
from support.faults import BackgroundCall, acquire_once, expire, proxied, results, within
from support.zoo import Zoo, eventually

from django_zklock import zk_lock
from django_zklock.core import clock, log
from django_zklock.exceptions import LockLost

SESSION_TIMEOUT = 2.0
LONGEST = 7.0  # seconds that a handler blocks


class Handler(logging.Handler):
    """Calls `act` at the record with this number, or at each one if that is None."""

    def __init__(self, act: Callable[[], object], at: int | None = None) -> None:
        super().__init__()
        self._act = act
        self._at = at
        self.count = 0

    def handle(self, record: logging.LogRecord) -> bool:
        number, self.count = self.count, self.count + 1
        if self._at in (None, number):
            self._act()
        return True


@contextlib.contextmanager
def handling(handler: logging.Handler) -> Iterator[None]:
    """Log to this handler at INFO, as the page about log messages configures it."""
    parent = logging.getLogger("django_zklock")
    parent.addHandler(handler)
    parent.setLevel(logging.INFO)
    try:
        yield
    finally:
        flushed = log.flush(LONGEST + 10)
        parent.removeHandler(handler)
        parent.setLevel(logging.NOTSET)
    assert flushed


def work() -> None:
    while True:
        threading.Event().wait(0.01)


def test_a_handler_that_blocks_delays_no_abort(zoo: Zoo) -> None:
    is_over = threading.Event()
    inside = [threading.Event(), threading.Event()]

    def work_elsewhere(number: int) -> None:
        with pytest.raises(LockLost), zk_lock(f"k{number}"):
            inside[number].set()
            work()

    with proxied(zoo) as proxy, handling(Handler(lambda: is_over.wait(LONGEST * 10))):
        calls = [BackgroundCall(lambda number=number: work_elsewhere(number)) for number in range(2)]  # type: ignore[misc]
        try:
            with pytest.raises(LockLost), zk_lock("k"):
                assert all(event.wait(10) for event in inside)
                proxy.refuse = True
                with within(1):
                    proxy.cut_all()
                    work()
            results(calls)
        finally:
            is_over.set()
            proxy.heal()


def test_a_handler_may_take_a_lock(zoo: Zoo) -> None:
    took: list[str] = []

    def acquire() -> None:
        took.append(acquire_once("audit", timeout=20).key)

    with handling(Handler(acquire, at=0)), zk_lock("k", warn_after=0.01):
        eventually(lambda: took)
    with handling(Handler(acquire)), pytest.raises(LockLost), zk_lock("k"):
        expire(zoo)
        work()
    assert len(took) > 1


def stays_alone(zoo: Zoo, act: Callable[[], object], at: int | None) -> int:
    """
    Cut the connection of a process that works under a lock. Return how many records its handler got.

    The work must stop before the server deletes the znode, which gives the lock to the next contender.
    """
    handler = Handler(act, at)
    gone: list[float] = []
    last = 0.0
    with proxied(zoo, SESSION_TIMEOUT) as proxy, handling(handler):
        try:
            with pytest.raises(LockLost), zk_lock("k", warn_after=0.01) as hold, zoo.hold_elsewhere("k"):
                zoo.client.exists(hold.path, watch=lambda event: gone.append(clock.now()))
                eventually(lambda: handler.count)
                proxy.go_away()
                while clock.now() < LONGEST + (last or clock.now()):
                    last = clock.now()
                    threading.Event().wait(0.01)
            eventually(lambda: gone, SESSION_TIMEOUT * 4)
        finally:
            proxy.heal()
        assert last <= gone[0], f"two owners for {last - gone[0]:.2f} s"
        acquire_once("k", timeout=20)
    return handler.count


def fail() -> None:
    raise OSError("no log server")


@pytest.mark.chaos
@pytest.mark.parametrize(
    "act",
    [lambda: threading.Event().wait(LONGEST), fail, lambda: acquire_once("audit", timeout=1)],
    ids=["block", "raise", "lock"],
)
def test_a_handler_may_do_anything_at_any_record(
    zoo: Zoo, act: Callable[[], object], capfd: pytest.CaptureFixture[str]
) -> None:
    records = stays_alone(zoo, lambda: None, None)
    assert records >= 4  # too long, suspended, lost, stopped
    for number in range(records):
        stays_alone(zoo, act, number)


def test_the_last_records_of_a_process_are_handled(zoo: Zoo) -> None:
    script = """
import logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
with zk_lock("k"):
    pass
"""
    assert zoo.output(script)[-1] == "connection to ZooKeeper: closed, was connected"
