"""Exceptions that strike from outside (soft time limits, Ctrl-C) leave no contender, wherever they strike."""

import contextlib
import ctypes
import gc
import signal
import threading

import pytest
from support.faults import BackgroundCall, acquire_once, results, within
from support.strike import (
    LineStrike,
    Struck,
    alarm,
    assert_none_listed,
    functions_of,
    handled,
    strides,
    strike,
    strike_at_any_moment,
    sweep,
)
from support.zoo import eventually

from django_zklock import Leader, zk_leader, zk_locks
from django_zklock.core.execution import owner, waiters
from django_zklock.core.locks import acquisition, block, bounds, held
from django_zklock.core.zk import loop, process, session
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.locks import base, election, hold, lock
from django_zklock.locks.lock import Lock
from django_zklock.locks.release import Releasable

pytestmark = pytest.mark.filterwarnings("ignore:.*was dropped:ResourceWarning")


def assert_nothing_held(zoo):
    gc.collect()
    zoo.assert_empty()
    assert_none_listed()


def wait_for_lock():
    with Lock("busy", timeout=None):
        pass


def wait_until_lost():
    with Lock("free") as hold:
        hold.wait_lost()


def wait_to_lead():
    zk_leader("busy").run(lambda hold: None)


def test_an_exception_at_the_begin_of_exit_leaves_nothing(zoo):
    """It gets there when the last thing the block does is one long operation that calls nothing."""

    def work():
        a, b = big, bigger
        with SHARED:
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            a | b

    big, bigger = set(range(1_000_000)), set(range(300_000, 1_300_000))
    with handled(strike, signal.SIGALRM):
        with contextlib.suppress(Struck):
            work()
        assert_nothing_held(zoo)
        with SHARED, contextlib.suppress(Struck):
            work()  # taken once more: only what it took is given back
            assert SHARED.locked()
        assert_nothing_held(zoo)


SHARED = Lock("alarm")


@pytest.mark.parametrize("way", ["with", "acquire"])
@pytest.mark.parametrize(
    ("lock", "key", "rounds"),
    [(SHARED, "alarm", 1500), (zk_locks("alarm/b", "alarm/a"), "alarm/a", 600)],
    ids=["one", "several"],
)
@pytest.mark.chaos
def test_an_exception_at_any_moment_leaves_nothing(zoo, way, lock, key, rounds):
    with lock:
        pass
    strike_at_any_moment(lock, key, way, rounds)
    assert_nothing_held(zoo)
    with lock:
        pass


@pytest.mark.parametrize(
    ("wait", "unnoticed", "within_seconds"),
    [(wait_for_lock, False, 0.8), (wait_for_lock, True, 1.0), (wait_until_lost, True, 1.0), (wait_to_lead, True, 1.0)],
)
def test_a_signal_in_a_wait_or_just_before_it_ends_it(zoo, wait, unnoticed, within_seconds):
    """Python runs no handler of a signal that comes while a thread is about to block. The wait looks again itself."""
    with zoo.hold_elsewhere("busy"):
        with within(0.3 + within_seconds), pytest.raises(Struck), alarm(0.3, unnoticed=unnoticed):
            wait()
        zoo.wait_contenders("busy", 1, timeout=2)


def test_the_lock_can_be_acquired_again_in_the_exception_handler(zoo):
    functions = functions_of(lock, base, hold, Releasable, held, bounds, block, acquisition, waiters, owner)
    for at in range(20, 120, 3):
        try:
            with LineStrike(functions, at), Lock("again"):
                pass
        except Struck:
            with Lock("again", timeout=20) as fresh:
                fresh.check()
                names = zoo.children("again")
                assert fresh.path.rpartition("/")[2] in names
    gc.collect()


def test_an_asynchronous_exception_ends_the_wait_of_a_thread(zoo):
    with zoo.hold_elsewhere("busy"):
        waiting = BackgroundCall(lambda: acquire_once("busy", timeout=4))
        zoo.wait_contenders("busy", 2)
        assert waiting.ident
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(waiting.ident), ctypes.py_object(Struck))
        with pytest.raises(Struck):
            waiting.result()
        zoo.wait_contenders("busy", 1, timeout=25)


def threads():
    return [thread.name for thread in threading.enumerate() if thread.name == "zklock-loop"]


def test_a_signal_at_any_line_of_the_first_lock_raises_its_own_exception(zoo):
    functions = functions_of(process, session, loop, threading, waiters)
    at, struck = 0, True
    while struck:
        process.reset()
        strike = LineStrike(functions, at)
        with contextlib.suppress(Struck), strike, Lock(f"first/{at}"):
            pass
        struck, at = bool(strike.where), at + 1
        with Lock(f"second/{at}") as hold:
            hold.check()
        assert eventually(lambda: threads() == ["zklock-loop"]), strike.where
    assert at > 15


@pytest.mark.parametrize("delay", [0.0, 0.0005, 0.001, 0.002, 0.004])
def test_a_signal_at_any_time_of_the_first_lock_raises_its_own_exception(zoo, delay):
    process.reset()
    with contextlib.suppress(Struck), alarm(delay), Lock("first"):
        pass
    with Lock("second") as hold:
        hold.check()


def test_a_signal_handler_may_take_the_first_lock(zoo):
    def handler(number, frame):
        with Lock("handler"):
            done.append(number)

    class Ring(LineStrike):
        def _on_line(self, frame, event, argument):
            try:
                return super()._on_line(frame, event, argument)
            except Struck:
                signal.raise_signal(signal.SIGUSR1)
                return None

    done = []
    functions, at = functions_of(process, waiters), 0
    with handled(handler, signal.SIGUSR1):
        while len(done) == at:
            process.reset()
            with Ring(functions, at), Lock(f"first/{at}"):
                pass
            at += 1
    assert at > 15


def test_an_error_of_the_start_is_raised_in_the_caller(zoo, monkeypatch):
    def fail(_):
        raise RuntimeError("can't start new thread")

    process.reset()
    with monkeypatch.context() as patch, pytest.raises(ZooKeeperUnavailable, match="can't start"):
        patch.setattr(threading.Thread, "start", fail)
        Lock("first").acquire()
    with Lock("first") as hold:
        hold.check()


def test_many_threads_start_one_session(zoo):
    def work():
        barrier.wait()
        return process.current()

    process.reset()
    barrier = threading.Barrier(20)
    assert len(set(map(id, results([BackgroundCall(work) for _ in range(20)])))) == 1
    assert threads() == ["zklock-loop"]


@strides
def test_an_exception_at_any_line_of_a_leader_leaves_nothing(zoo, stride):
    made = {}

    def make(key):
        return made.setdefault(key, Leader(key))

    def check(key):
        assert_nothing_held(zoo)
        assert made[key].run(lambda hold: hold.key) == key

    sweep(functions_of(election), lambda leader: leader.run(lambda hold: None), check, stride, make=make, least=20)
