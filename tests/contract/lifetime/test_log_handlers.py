"""A log handler may be slow, raise, or take a lock itself: the work under a lost lock stops all the same."""

import contextlib
import logging
import threading

import pytest
from support.faults import BackgroundCall, acquire_once, expire, proxied, results, within
from support.work import sleep_in_pieces
from support.zoo import eventually

from django_zklock import zk_lock
from django_zklock.core import log
from django_zklock.exceptions import LockLost


@contextlib.contextmanager
def handling(act):
    """Have a handler act so at each record from INFO on, as the page about log messages configures it."""
    parent, handler = logging.getLogger("django_zklock"), logging.Handler()
    handler.handle = lambda record: bool(act())
    parent.addHandler(handler)
    parent.setLevel(logging.INFO)
    try:
        yield
    finally:
        flushed = log.flush(20)
        parent.removeHandler(handler)
        parent.setLevel(logging.NOTSET)
    assert flushed


@pytest.mark.timed
@pytest.mark.parametrize("raises", [False, True], ids=["blocks", "raises"])
def test_a_handler_that_blocks_or_raises_delays_no_abort(zoo, raises):
    is_over = threading.Event()
    inside = [threading.Event(), threading.Event()]

    def act():
        if raises:
            raise OSError("no log server")
        is_over.wait(70)

    def work_elsewhere(number):
        with pytest.raises(LockLost), zk_lock(f"k{number}"):
            inside[number].set()
            sleep_in_pieces(60)

    with proxied(zoo) as proxy, handling(act):
        calls = [BackgroundCall(lambda number=number: work_elsewhere(number)) for number in range(2)]
        try:
            with pytest.raises(LockLost), zk_lock("k", warn_after=0.01):
                assert all(event.wait(10) for event in inside)
                proxy.refuse = True
                with within(1):
                    proxy.cut_all()
                    sleep_in_pieces(60)
            results(calls)
        finally:
            is_over.set()
            proxy.heal()


def test_a_handler_may_take_a_lock(zoo):
    took = []

    def acquire():
        took.append(acquire_once("audit", timeout=20).key)

    with handling(acquire), zk_lock("k", warn_after=0.01):
        eventually(lambda: took)
    with handling(acquire), pytest.raises(LockLost), zk_lock("k"):
        expire(zoo)
        sleep_in_pieces(60)
    assert len(took) > 1


def test_the_last_records_of_a_process_are_handled(zoo):
    script = """
import logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
with zk_lock("k"):
    pass
"""
    assert zoo.output(script)[-1] == "connection to ZooKeeper: closed, was connected"
