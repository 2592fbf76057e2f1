"""Aborts that come at the edges: as the block begins, as it ends, and after a pause of the whole process."""

import asyncio
import itertools
import os
import signal
import time

import pytest
from support.faults import acquire_once
from support.work import blocks_of, in_each_thread, lose, lose_later, sleep_in_pieces
from support.zoo import next_line

from django_zklock import zk_locks
from django_zklock.core.zk import process
from django_zklock.exceptions import LockLost
from django_zklock.locks.lock import Lock

pytestmark = pytest.mark.filterwarnings("ignore:.*was dropped:ResourceWarning")


@pytest.fixture
def robbed(zoo):
    """Take away every lock of this process as soon as it is granted, and again and again."""

    def rob():
        for member in list(session.observers):
            grant = getattr(member, "_grant", None)
            if grant is not None:
                grant.lose("robbed")
        if not over:
            session.loop.call_later(0.0001, rob)

    session, over = process.current(), list[bool]()
    session.post(rob)
    yield
    over.append(True)


@in_each_thread
@pytest.mark.usefixtures("robbed")
def test_a_loss_before_the_body_begins_raises_lock_lost(run):
    shared = Lock("robbed")
    lost = []

    def work():
        for count in itertools.count():
            if count >= 100 and lost:
                break
            try:
                with shared:
                    pass
            except LockLost:
                lost.append(1)
            assert not blocks_of(shared)
        time.sleep(0.06)

    run(work)
    assert lost


def lose_soon(hold):
    lose_later(hold, 0.2)


async def wait_in_loop():
    async with Lock("inner", timeout=None):
        pass


WAITS = {
    "with": lambda: acquire_once(Lock("inner", timeout=None)),
    "acquire": Lock("inner").acquire,
    "several": lambda: acquire_once(zk_locks("free", "inner", timeout=None)),
    "lingering": lambda: acquire_once(Lock("inner", timeout=None, linger=1)),
    "loop in the block": lambda: asyncio.run(wait_in_loop()),
}


def _ends_the_wait(zoo, run, work):
    """Show that the loss of the outer lock ends this work, which waits for the inner one. That stays busy."""
    with zoo.hold_elsewhere("inner"):
        with pytest.raises(LockLost) as caught:
            run(work)
        assert caught.value.lock == "outer"
        zoo.wait_contenders("inner", 1)


@in_each_thread
@pytest.mark.parametrize(("wait", "when"), [("with", lose), *((wait, lose_soon) for wait in WAITS)])
def test_the_loss_of_an_outer_lock_ends_the_wait_for_an_inner_one(zoo, run, wait, when):
    def work():
        with Lock("outer") as outer:
            when(outer)
            WAITS[wait]()

    _ends_the_wait(zoo, run, work)
    zoo.assert_empty()


def test_the_loss_of_an_outer_lock_ends_the_wait_of_a_coroutine(zoo):
    async def work():
        async with Lock("outer") as outer:
            lose_soon(outer)
            await wait_in_loop()

    _ends_the_wait(zoo, asyncio.run, work())


@in_each_thread
def test_the_loss_of_an_outer_lock_stops_work_that_handles_an_inner_loss(zoo, run):
    """The block of the inner lock has been left, so what handles its error is no clean-up of it, but work as any."""

    def work():
        with Lock("outer") as outer:
            try:
                with Lock("lost") as lost:
                    lose(lost)
                    sleep_in_pieces(20)
            except LockLost:
                lose_soon(outer)
                WAITS["with"]()

    _ends_the_wait(zoo, run, work)


@pytest.mark.parametrize("order", ["inner last", "inner first", "only inner then outer"])
async def test_two_successive_losses_leave_no_cancellation(zoo, order):
    for delay in (0, 0.0001, 0.0005, 0.001) * 5:
        with pytest.raises(LockLost):
            async with Lock("outer") as outer, Lock("inner") as inner:
                first, second = (outer, inner) if order == "inner last" else (inner, outer)
                lose(first)
                if order != "only inner then outer" or delay:
                    lose_later(second, delay)
                await asyncio.sleep(20)
        await asyncio.sleep(0.002)


HOLDER = """
import sys, time
from django_zklock.exceptions import LockLost
lock = zk_lock("paused", abort_on="never")
with lock as hold:
    print("held", flush=True)
    sys.stdin.readline()
    turns = 0
    while True:
        turns += 1
        try:
            hold.check()
        except LockLost as error:
            print(turns, hold.lost, hold.lease_remaining, flush=True)
            break
        time.sleep(0.001)
"""


def test_check_raises_at_once_after_a_pause_past_the_lease(zoo):
    holder = zoo.spawn(HOLDER, ZKLOCK_URL=zoo.url(session_timeout=4))
    assert holder.stdin
    assert next_line(holder) == "held"
    os.kill(holder.pid, signal.SIGSTOP)
    time.sleep(1.8)  # the lease is 0.4 of 4 seconds; this pause is what is tested
    holder.stdin.write("\n")
    holder.stdin.flush()
    os.kill(holder.pid, signal.SIGCONT)
    output, errors = holder.communicate(timeout=40)
    assert output == "1 True 0.0\n", errors


TRACED = """
import sys, threading, time
from django_zklock.exceptions import LockLost
def work():
    try:
        with zk_lock("traced") as hold:
            hold._held.grant.session.post(hold._held.grant.lose, "test")
            while True:
                sum(range(100))
    except LockLost:
        print("lost", flush=True)
thread = threading.Thread(target=work)
thread.start()
thread.join()
def traced():
    return 1
sys.settrace(lambda *arguments: None)
traced()
sys.settrace(None)
print("traced", flush=True)
"""


def test_tracing_works_after_an_abort(zoo):
    """Python 3.11 runs in circles under a trace function when an asynchronous exception was called off."""
    assert zoo.output(TRACED) == ["lost", "traced"]
