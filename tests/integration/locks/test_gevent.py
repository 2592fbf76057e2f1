"""Greenlets own locks as threads do, where gevent has patched the standard library; in processes of their own."""

import json
from collections.abc import Callable

import pytest
from support.zoo import Zoo, next_line

pytest.importorskip("gevent")
FIRST = "from gevent import monkey; monkey.patch_all()"
PRELUDE = """
import os, threading, time, gevent.event
from django_zklock.exceptions import LockLost, LockBusy, LockNotHeld
from django_zklock.core.locks.held import held_locks
from django_zklock.core.protocol.registry import Registry
from django_zklock.core.zk import process
"""

SERVER = """
import contextlib, io, json, sys, traceback
from django.test import override_settings
for line in sys.stdin:
    settings, script = json.loads(line)
    printed = io.StringIO()
    with override_settings(ZKLOCK=settings), contextlib.redirect_stdout(printed):
        try:
            exec(script, {"zk_lock": zk_lock})
        except BaseException:
            traceback.print_exc(file=printed)
    print(json.dumps(printed.getvalue().splitlines()), flush=True)
"""

Run = Callable[[Zoo, str], list[str]]


@pytest.fixture(scope="module")
def run(single):
    """Run a script under gevent, in one process for all; return what it printed."""

    def run(zoo, script):
        assert process.stdin is not None
        print(json.dumps([zoo.settings(), PRELUDE + script]), file=process.stdin, flush=True)
        lines = json.loads(next_line(process))
        return lines

    with Zoo(single.hosts, single) as zoo, zoo.running(SERVER, first=FIRST) as process:
        yield run


def test_greenlets_take_turns_in_the_order_they_came(zoo, run):
    script = """
lock = zk_lock("fifo", timeout=None)
order, inside, most = [], [], []
def work(number):
    with lock as outer, lock as inner:
        assert inner == outer
        order.append(number)
        inside.append(number)
        most.append(len(inside))
        gevent.sleep(0.002)
        inside.remove(number)
with lock:
    greenlets = []
    for number in range(20):
        greenlets.append(gevent.spawn(work, number))
        gevent.sleep(0.02)
gevent.joinall(greenlets, raise_error=True)
print(order == list(range(20)), max(most), not lock._blocks, not held_locks._guards)
"""
    assert run(zoo, script) == ["True 1 True True"]


def test_one_greenlet_of_a_circle_gets_the_deadlock(zoo, run):
    script = """
from django_zklock.exceptions import LockDeadlock
def work(number):
    with zk_lock(f"ring/{number}"):
        ready.append(number)
        while len(ready) < 3:
            gevent.sleep(0.01)
        try:
            with zk_lock(f"ring/{(number + 1) % 3}", timeout=40):
                return 0
        except LockDeadlock as error:
            return len(error.circle)
ready = []
greenlets = [gevent.spawn(work, number) for number in range(3)]
gevent.joinall(greenlets, raise_error=True, timeout=45)
print(sorted(greenlet.value for greenlet in greenlets))
"""
    assert run(zoo, script) == ["[0, 0, 3]"]


def test_a_greenlet_logs_its_own_stack(zoo, run):
    script = """
import logging
from django_zklock.operations import request_release
from django_zklock.testing import flush_logs
records = []
class Handler(logging.Handler):
    def emit(self, record):
        records.append(record)
logger, handler = logging.getLogger("django_zklock.locks"), Handler()
logger.addHandler(handler)
held, end = threading.Event(), threading.Event()
def hang():
    with zk_lock("k") as hold:
        held.set()
        hold.wait_release_requested(30)
        end.wait()
greenlet = gevent.spawn(hang)
held.wait()
request_release("k", "why", by="anna")
while not records:
    gevent.sleep(0.02)
    flush_logs()
logger.removeHandler(handler)
end.set()
greenlet.get()
(record,) = records
text = record.stack_info
print("; it is greenlet " in record.getMessage(), "in hang" in text, "request_release(" in text)
"""
    assert run(zoo, script) == ["True True False"]


def test_a_greenlet_is_an_owner_of_its_own(zoo, run):
    script = """
lock = zk_lock("owner")
def other():
    assert lock.acquire(blocking=False) is None
    try:
        lock.release()
    except LockNotHeld:
        return "not held"
with lock:
    print(gevent.spawn(other).get())
assert lock.acquire().token == lock.acquire().token
lock.release(); lock.release()
print(lock.locked())
"""
    assert run(zoo, script) == ["not held", "False"]


def test_signals_still_reach_a_program_of_greenlets(zoo, run):
    script = 'import signal\nwith zk_lock("mask"): print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))'
    assert run(zoo, script) == ["set()"]


@pytest.mark.parametrize("how", [pytest.param("timeout", marks=pytest.mark.chaos), "kill"])
def test_a_greenlet_stopped_while_it_waits_leaves_no_contender(zoo, run, how):
    script = f"""
how = {how!r}
def work(delay):
    try:
        with gevent.Timeout(delay if how == "timeout" else None), zk_lock("busy", timeout=None):
            gevent.sleep(0.001)
    except gevent.Timeout:
        pass
for count in range(60):
    greenlet = gevent.spawn(work, count * 0.0002)
    if how == "kill":
        gevent.sleep(count * 0.0002)
        greenlet.kill()
    else:
        greenlet.join()
registry = process.current().attached(Registry)
end = time.monotonic() + 15
while time.monotonic() < end and registry.guids:
    gevent.sleep(0.01)
print(len(registry.guids))
"""
    with zoo.hold_elsewhere("busy"):
        assert run(zoo, script) == ["0"]
        zoo.wait_contenders("busy", 1, timeout=2)
    assert run(zoo, script) == ["0"]


def test_a_loss_stops_a_greenlet_where_it_waits(zoo, run):
    script = """
def lose(hold):
    process.current().post(hold._held.grant.lose, "test")
def waiter(wait):
    began = time.monotonic()
    try:
        with zk_lock("a") as hold:
            lose(hold)
            try:
                wait(20)
            except Exception:
                return "seen"
    except LockLost:
        gevent.sleep(0.06)
        return time.monotonic() - began < 10
def swallower():
    try:
        with zk_lock("c") as hold:
            lose(hold)
            try:
                gevent.sleep(20)
            except BaseException:
                pass
            gevent.sleep(0.1)
    except LockLost:
        return True
def edge():
    import random
    lost = 0
    for _ in range(200):
        try:
            with zk_lock("d") as hold:
                session, grant = hold._held.grant.session, hold._held.grant
                moment = random.uniform(0, 0.002)
                session.post(lambda: session.loop.call_later(moment, lambda: grant.lose("test")))
                gevent.sleep(random.uniform(0, 0.002))
        except LockLost:
            lost += 1
        gevent.sleep(0.001)
    return 0 < lost < 200
works = (waiter, gevent.sleep), (waiter, gevent.event.Event().wait), (swallower,), (edge,)
print([gevent.spawn(*work).get() for work in works])
print(edge())
"""
    assert run(zoo, script) == ["[True, True, True, True]", "True"]


def test_greenlets_of_others_than_gevent_own_locks_too(zoo):
    """Nobody can stop a bare one, so LockLost comes at its end. gevent stops its own even if it has patched nothing."""
    script = """
import contextlib, greenlet, sys, time
from django_zklock.exceptions import LockLost
lock = zk_lock("plain")
def work():
    try:
        with lock as hold:
            hold._held.grant.session.post(hold._held.grant.lose, "test")
            hold.wait_lost(5)
            time.sleep(0.1)
            return "ended by itself"
    except LockLost:
        return "lost"
print(greenlet.greenlet(work).switch())
print("gevent" in sys.modules)
import gevent.monkey
def waiting(wait):
    with contextlib.suppress(LockLost), lock as hold:
        hold._held.grant.session.post(hold._held.grant.lose, "test")
        wait(5)
        print("not stopped")
gevent.spawn(waiting, gevent.sleep).join()
waiting(time.sleep)
bare = greenlet.greenlet(waiting)
bare.switch(lambda seconds: bare.parent.switch())
gevent.sleep(0.3)
bare.switch()
"""
    assert zoo.output(script) == ["lost", "False", "not stopped"]


def test_no_abort_interrupts_the_commit_of_a_greenlet(zoo, run):
    """A greenlet that waits for the answer to a COMMIT is not thrown into; the abort comes after it."""
    script = """
from django.db import connection
def work():
    def commit():
        outer._held.grant.session.post(outer._held.grant.lose, "taken away")
        gevent.sleep(0.3)
        print("committed", flush=True)
    try:
        with zk_lock("outer") as outer:
            with zk_lock("inner", atomic=True):
                connection._commit = commit
            del connection._commit
            gevent.sleep(10)
            print("not stopped")
    except LockLost as error:
        print(error.lock)
gevent.spawn(work).get()
"""
    assert run(zoo, script) == ["committed", "outer"]


def test_a_fork_leaves_the_session_to_the_parent(zoo):
    script = """
from django_zklock.core.zk.loop import Loop
with zk_lock("held", abort_on="lost") as hold:
    client = process.current()._client
    for state in "held", "suspect":
        while hold.state != state: time.sleep(client.drop_connection() or 0)
        loop, ran = Loop("another"), []
        loop.start(), loop.post(loop.call_later, 1, lambda: ran.append("in the child"))
        child, sent = os.fork(), client._connection._connect_sent_at
        if not child:
            with zk_lock("own"): time.sleep(2)
            os._exit(client._connection._connect_sent_at != sent or len(ran))
        print(os.waitpid(child, 0)[1], hold.check())
"""
    assert zoo.output(PRELUDE + script, first=FIRST) == ["0 None"] * 2


def test_a_greenlet_that_waits_for_a_release_lets_others_run(zoo, run):
    script = """
from django_zklock.core.protocol import releases
releases.begin("r")
gevent.spawn(releases.end, "r")
releases.TIMEOUT = 60
began = time.monotonic()
releases.wait()
print(time.monotonic() - began < 30, len(releases._waiting))
"""
    assert run(zoo, script) == ["True 0"]
