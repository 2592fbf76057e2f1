"""A lock with `linger` stays in its process for the next owners there, and no longer than it may."""

import contextlib
import functools
import gc
import itertools
import os
import struct
import threading
import time
from typing import Any

import pytest
from kazoo.exceptions import NoAuthError
from support.faults import BackgroundCall, acquire_once, caught_up, connected, due, proxied, results, session, within
from support.primitives import KEY, Taker, foreign, lingering_lock, lingering_waiters, queued
from support.proxy import CREATE2, MULTI
from support.signalled import signalled
from support.strike import LineStrike, functions_of
from support.work import assert_refused, lose, seen
from support.zoo import eventually, next_line, settle

from django_zklock import zk_lock, zk_locks
from django_zklock.core import clock
from django_zklock.core.locks import lingering
from django_zklock.core.locks.lingering import LingeringLocks, LingeringWaiter
from django_zklock.core.protocol.contender import CallerWait
from django_zklock.core.protocol.spec import Caller
from django_zklock.core.queue.release_request import ReleaseRequest
from django_zklock.core.zk import process
from django_zklock.exceptions import LockBusy, LockLost, LockTimeout, ZooKeeperUnavailable
from django_zklock.operations import break_lock, request_release

LONG = 60.0  # seconds; no test waits for their end


def shown_version(zoo):
    """Return how often the znode of the lock was written after its create."""
    (name,) = zoo.children(KEY)
    version = zoo.client.exists(f"{zoo.base}/{KEY}/{name}").version
    return version


@pytest.fixture(autouse=True)
def _ended(zoo):
    """End the session with the test, and with it the locks that linger in it."""
    yield
    process.reset()


def test_a_lingering_lock_is_acquired_again_without_a_request(zoo, warm_proxy):
    lock = zk_lock(KEY, linger=LONG)
    tokens = {acquire_once(lock).token}
    eventually(lambda: warm_proxy.requests == 3)  # it watches the directory now
    for _ in range(10):
        tokens.add(acquire_once(lock).token)
    with queued(zoo, lock, lock) as takers:
        for taker in takers:
            tokens.add(taker.wait_granted().token)
            taker.go()
    assert len(tokens) == 1
    assert warm_proxy.requests == 3
    assert len(zoo.children(KEY)) == 1


def test_an_idle_lingering_lock_is_released_in_time(zoo):
    began = time.monotonic()
    token = acquire_once(KEY, linger=0.5).token
    zoo.wait_contenders(KEY, 0)
    assert time.monotonic() - began >= 0.5
    assert acquire_once(KEY, linger=0.5).token > token


def test_each_owner_of_a_lingering_lock_has_its_own_hold(zoo):
    lock = zk_lock(KEY, linger=LONG)
    with signalled("lock_acquired", "lock_released") as sent:
        with lock as first:
            assert first.state == "held"
        with lock as second:
            assert (first.state, second.state) == ("released", "held")
            assert second != first
        eventually(lambda: len(sent) == 4)
    assert sent.names == ["lock_acquired", "lock_released"] * 2


def test_a_try_names_the_local_holder(zoo):
    with queued(zoo, zk_lock(KEY, linger=LONG, what="the first work")) as (taker,):
        taker.wait_granted()
        assert_refused(zk_lock(KEY, linger=LONG, timeout=0), LockBusy, "the first work")
        assert_refused(zk_lock(KEY, linger=LONG, timeout=0.1), LockTimeout, "the first work")


def test_only_callers_with_max_waiters_are_refused(zoo):
    """Though they may come first, and all have one place in ZooKeeper's queue."""
    with foreign(zoo):
        connected()
        ready = threading.Event()
        session().post(ready.wait, 10)  # both come before the first one has looked at the queue
        refused = BackgroundCall(lambda: acquire_once(KEY, linger=LONG, max_waiters=0))
        refused.join(0.2)
        waiter = BackgroundCall(lambda: acquire_once(KEY, linger=LONG, timeout=30))
        waiter.join(0.2)
        attempt = BackgroundCall(lambda: acquire_once(KEY, linger=LONG, timeout=0))
        attempt.join(0.2)
        ready.set()
        for call, why in ((refused, "max_waiters is 0"), (attempt, "is held by")):
            with pytest.raises(LockBusy, match=why):
                call.result()
        zoo.wait_contenders(KEY, 2)
    waiter.result()


def test_a_waiter_is_not_refused_when_it_queues_again(zoo):
    lock = zk_lock(KEY, linger=0.01, max_waiters=1, timeout=30)
    holder = Taker(lock)
    holder.wait_granted()
    with queued(zoo, lock) as (waiter,), foreign(zoo) as path:
        with foreign(zoo):
            eventually(lambda: lingering_lock(lock).has_other_waiters)
            time.sleep(0.02)  # its time is over
            before = zoo.children(KEY)[0]
            holder.go()
            eventually(lambda: len(names := zoo.children(KEY)) == 3 and before not in names)
        zoo.client.delete(path)
        waiter.wait_granted()


@pytest.mark.filterwarnings("ignore:.*was dropped:ResourceWarning")
def test_a_dropped_hold_of_a_lingering_lock_is_released(zoo):
    lock = zk_lock(KEY, linger=LONG)
    token = acquire_once(lock).token
    with queued(zoo, lock) as (first,):
        first.wait_granted()
        locks = [zk_lock(KEY, linger=LONG)]
        waiter = BackgroundCall(lambda: bool(locks[0].__enter__()))
        eventually(lambda: len(lingering_waiters(lock)) == 2)
        first.go()
        waiter.result()
    locks.clear()
    gc.collect()
    with within(2):
        assert acquire_once(lock).token == token


def test_the_number_of_lingering_locks_is_bounded(zoo):
    keys = ["one", "two", "three"]
    with zoo.configured(MAX_LINGERING=2):
        for key in keys:
            acquire_once(key, linger=LONG)
        zoo.wait_contenders("one", 0)
        acquire_once(zk_locks("two", "three", linger=LONG))
        assert (len(zoo.children("two")), len(zoo.children("three"))) == (1, 1)
    with zoo.configured(MAX_LINGERING=1):
        acquire_once(zk_locks(*keys, linger=LONG))
        eventually(lambda: sum(len(zoo.children(key)) for key in keys) <= 1)


def test_an_idle_lingering_lock_is_released_for_another_waiter_at_once(zoo):
    token = acquire_once(KEY, linger=LONG).token
    with within(2):
        assert acquire_once(KEY).token > token
    acquire_once(KEY, linger=LONG)
    with foreign(zoo) as path, within(2):
        eventually(lambda: zoo.children(KEY) == [path.rpartition("/")[2]])
    acquire_once(KEY, linger=LONG)
    unknown = zoo.client.create(f"{zoo.base}/{KEY}/x-0000000001")  # perhaps one that waits
    with within(2):
        eventually(lambda: zoo.children(KEY) == ["x-0000000001"])
    zoo.client.delete(unknown)


def test_the_release_of_an_idle_lingering_lock_costs_two_requests(zoo, warm_proxy):
    lock = zk_lock(KEY, linger=LONG)
    acquire_once(lock)
    eventually(lambda: lingering_lock(lock).has_other_waiters is False)  # it watches the directory now
    assert warm_proxy.requests == 3
    with foreign(zoo) as path:
        eventually(lambda: zoo.children(KEY) == [path.rpartition("/")[2]])
        assert warm_proxy.requests == 5
        assert eventually(lambda: warm_proxy.watch_events) <= 2  # the second one is of its own delete


def test_an_idle_lingering_lock_costs_another_process_one_read_and_one_event(zoo, warm_proxy):
    """A free one takes one round trip. If the keeper has let it go before the look, a listing replaces the event."""
    script = f"""
import sys
with zk_lock({KEY!r}, linger={LONG}):
    pass
print("kept", flush=True)
sys.stdin.read()
"""
    with zoo.running(script) as keeper:
        assert next_line(keeper) == "kept"
        acquire_once("warm")  # the session of this process is connected
        settle()
        warm_proxy.delay = 0.1  # no reply comes between two requests that are sent together
        warm_proxy.reset()
        with within(5), zk_lock(KEY):
            assert warm_proxy.watch_events <= 1
            beats = warm_proxy.counts[MULTI]
            assert warm_proxy.round_trips() - beats <= 3 - warm_proxy.watch_events


@pytest.mark.parametrize("comes", ["before", "later"])
def test_a_used_lingering_lock_is_released_after_its_linger_time(zoo, comes):
    lock, grants, stop = zk_lock(KEY, linger=0.5, timeout=30), 0, threading.Event()

    def work():
        nonlocal grants
        while not stop.is_set():
            with lock:
                grants += 1
                time.sleep(0.01)

    with contextlib.ExitStack() as stack:
        blocker = stack.enter_context(foreign(zoo)) if comes == "before" else ""
        begun = clock.now()
        users = [BackgroundCall(work) for _ in range(3)]
        if comes == "before":
            zoo.wait_contenders(KEY, 2)
        else:
            eventually(lambda: grants > 3)
        path = stack.enter_context(foreign(zoo))
        if comes == "before":
            begun = clock.now()
            zoo.client.delete(blocker)
        eventually(lambda: zoo.children(KEY)[:1] == [path.rpartition("/")[2]])
        assert clock.now() - begun >= 0.5
        among = grants
        assert among > 1
        zoo.wait_contenders(KEY, 2)
        assert grants == among  # it waits behind the other one
    eventually(lambda: grants > among)
    stop.set()
    results(users)


def test_a_try_of_another_process_does_not_end_the_lingering(zoo):
    """A try writes nothing, so the process that keeps the lock does not learn of it."""
    token = acquire_once(KEY, linger=LONG).token
    assert_refused(zk_lock(KEY, timeout=0), LockBusy)
    assert acquire_once(KEY, linger=LONG).token == token


def test_a_waiter_does_not_wait_for_work_that_lost_the_lock(zoo):
    """A lock is broken because its owner hangs; then the next one gets it, in the same process, too."""
    lock = zk_lock(KEY, linger=LONG, timeout=30, abort_on="never")
    holder = Taker(lock)
    hold = holder.wait_granted()
    with queued(zoo, lock) as (waiter,):
        break_lock(KEY, guid=seen(KEY).holders[0].guid, token=hold.token, reason="a test", by="tester")
        assert waiter.wait_granted().token > hold.token
        holder.go()
        waiter.hold.check()
        assert zoo.children(KEY) == [waiter.hold.path.rpartition("/")[2]]


def test_an_idle_lingering_lock_is_shown_as_kept(zoo):
    lock = zk_lock(KEY, linger=LONG, what="the first work")
    began = time.monotonic()
    acquire_once(lock)
    eventually(lambda: seen(KEY).idle_for is not None)
    info = seen(KEY)
    assert info.idle_for is not None
    assert 0 <= info.idle_for <= time.monotonic() - began + 0.1
    assert info.held_for is None
    holder = info.holders[0]
    assert (holder.what, holder.thread, dict(holder.about), holder.owner) == ("kept for the next user", "", {}, 0)
    with zk_lock(KEY, linger=LONG, what="the second work", about={"task": "t", "id": "2"}):
        eventually(lambda: seen(KEY).holders[0].what == "the second work")
        holder = seen(KEY).holders[0]
        assert (holder.idle_since, holder.about["id"], holder.owner) == (None, "2", 0)
        assert holder.thread == threading.current_thread().name


def test_short_owners_of_a_lingering_lock_are_not_written_one_by_one(zoo):
    stop, grants = threading.Event(), 0

    def work():
        nonlocal grants
        while not stop.is_set():
            grants += 1
            acquire_once(KEY, linger=LONG, what=f"work {grants}")
            time.sleep(0.001)

    worker = BackgroundCall(work)
    eventually(lambda: zoo.children(KEY))
    eventually(lambda: seen(KEY).holders[0].what == "several, one after another")
    eventually(lambda: grants > 500, 30)
    written = shown_version(zoo)
    stop.set()
    worker.result()
    assert written <= 10  # three, and two more for each second in which the worker did not run


def test_the_working_process_of_a_lingering_lock_is_shown(zoo, monkeypatch):
    """At once, not by one of the checks that follow."""
    lock = zk_lock(KEY, linger=LONG)
    with lock, monkeypatch.context() as patched:
        patched.setattr(lingering, "PUBLISH_AFTER", LONG)
        (turn,) = lingering_waiters(lock)
        turn.set_process(4711)
        eventually(lambda: seen(KEY).holders[0].pid == 4711)
    eventually(lambda: seen(KEY).idle_for is not None)
    assert seen(KEY).holders[0].pid == os.getpid()
    written = []
    for _ in range(2):  # by then, it knows that it has written
        due(lingering.CHECK_EVERY + 0.1)
        caught_up()
        written.append(shown_version(zoo))
    assert written[0] == written[1]


def test_a_lingering_lock_does_not_overwrite_a_release_request(zoo, monkeypatch):
    acquire_once(KEY, linger=LONG, what="the first work")
    with zk_lock(KEY, linger=LONG, what="the second work") as hold:
        request_release(KEY, reason="a test", by="tester")
        assert hold.wait_release_requested(10) is not None
        monkeypatch.setattr(lingering, "PUBLISH_AFTER", 0.0)
        due(lingering.CHECK_EVERY + 0.1)
        caught_up()
        assert shown_version(zoo) == 1
        assert seen(KEY).holders[0].release_request is not None


def test_a_release_request_ends_the_lingering(zoo):
    lock = zk_lock(KEY, linger=LONG, abort_on="lost")
    acquire_once(lock)
    assert request_release(KEY, reason="a test", by="tester")
    zoo.wait_contenders(KEY, 0)
    with lock as hold, signalled("lock_release_requested") as sent:
        request_release(KEY, reason="a test", by="tester")
        request = hold.wait_release_requested(10)
        assert request is not None
        assert request.by == "tester"
        session().post(session().mark_suspect, "a test")
        eventually(lambda: hold.state == "held" and not session().suspect)
        due(0)
        assert len(sent) == 1  # not again with each event of the connection
    zoo.wait_contenders(KEY, 0)


def test_a_lingering_lock_is_not_granted_without_a_connection(zoo, proxy):
    lock = zk_lock(KEY, linger=LONG)
    token = acquire_once(lock).token
    proxy.go_away()
    eventually(lambda: session().suspect)
    assert_refused(zk_lock(KEY, linger=LONG, timeout=0.2), ZooKeeperUnavailable)
    proxy.heal()
    connected()
    assert acquire_once(lock).token > token
    shared = lingering_lock(lock)
    with pytest.raises(LockLost), lock as hold:
        shared.base.session_id = 0  # as if its session were over, and nobody told it yet
        hold.check()
    assert acquire_once(lock).token > hold.token


def test_in_an_outage_a_waiter_waits_on_and_a_new_caller_gives_up(zoo):
    """At the connect timeout. The holder has lost the lock."""
    with proxied(zoo, CONNECT_TIMEOUT=0.5) as proxy:
        connected()
        lock = zk_lock(KEY, linger=LONG, timeout=30, grace=0)
        holder = Taker(lock)
        lost = holder.wait_granted()
        with queued(zoo, lock) as (waiter,):
            proxy.go_away()
            eventually(lambda: session().suspect)
            with pytest.raises(LockLost):
                holder.go()
            with pytest.raises(ZooKeeperUnavailable):
                BackgroundCall(lambda: acquire_once(KEY, linger=LONG, timeout=3)).result(10)
            proxy.heal()
            assert waiter.wait_granted().token > lost.token


def test_during_a_suspension_its_owner_goes_on_and_nobody_else_gets_the_lock(zoo):
    with proxied(zoo, 20) as proxy:
        lock = zk_lock(KEY, linger=LONG, timeout=30)
        owner = Taker(lock)
        token = owner.wait_granted().token
        with queued(zoo, lock) as (waiter,):
            proxy.go_away()
            eventually(lambda: session().suspect)
            owner.go()
            due(0.1)
            assert not waiter.granted.is_set()
            proxy.heal()
            assert waiter.wait_granted().token > token


@pytest.mark.parametrize(("max_hold", "reason"), [(0.6, "max_hold"), (None, "took it away")])
def test_a_lost_hold_ends_the_lingering(zoo, max_hold, reason):
    lock = zk_lock(KEY, linger=LONG, max_hold=max_hold)
    token = acquire_once(lock).token
    with pytest.raises(LockLost, match=reason), lock as hold:
        if max_hold is None:
            lose(hold)
        threading.Event().wait(10)
    assert acquire_once(lock).token > token


def test_the_end_of_its_lease_does_not_free_a_lingering_lock(zoo):
    """The session lives on, and the work is not stopped yet: the end of the block gives the lock back."""
    lock = zk_lock(KEY, linger=LONG, abort_on="never")
    with contextlib.suppress(LockLost), lock as hold:
        shared, done = lingering_lock(lock), threading.Event()
        session().post(shared.base.lose, "its lease is over")
        session().post(done.set)
        assert done.wait(10)
        assert hold.lost
        assert zoo.children(KEY) == [shared.base.path.rpartition("/")[2]]
    zoo.wait_contenders(KEY, 0)


def test_the_end_of_the_session_ends_lingering(zoo):
    lock = zk_lock(KEY, linger=LONG, timeout=30)
    holder = Taker(lock)
    holder.wait_granted()
    waiter = BackgroundCall(lambda: acquire_once(lock))
    eventually(lambda: len(lingering_waiters(lock)) == 2)
    process.reset()
    with pytest.raises(ZooKeeperUnavailable, match="was closed") as raised:
        waiter.result()
    assert raised.value.lock == KEY
    zoo.wait_contenders(KEY, 0)
    with pytest.raises(LockLost):
        holder.go()


def test_local_waiters_do_not_share_an_exception(zoo, proxy):
    """Else the traceback of one would show the frames, and the variables, of the others. They share its cause."""
    proxy.alter_reply(CREATE2, lambda reply: reply[:12] + struct.pack(">i", NoAuthError.code), carried_out=False)
    ready = threading.Event()
    session().post(ready.wait, 10)  # both come before the queue is read
    waiters = [BackgroundCall(lambda: acquire_once(KEY, linger=LONG, timeout=30)) for _ in range(2)]
    waiters[1].join(1.5)
    ready.set()
    errors = []
    for waiter in waiters:
        with pytest.raises(ZooKeeperUnavailable) as raised:
            waiter.result()
        errors.append(raised.value)
    assert errors[0].__cause__ is errors[1].__cause__ is not None
    assert errors[0] is not errors[1]
    assert [str(error) for error in errors] == [str(errors[0])] * 2
    assert [error.lock for error in errors] == [KEY] * 2


def test_a_local_waiter_gets_no_error_at_the_exit_of_the_process(zoo):
    """It would only be noise, as the thread is about to end."""
    script = f"""
import threading, time
lock = zk_lock({KEY!r}, linger={LONG}, timeout=30)
lock.acquire()
threading.Thread(target=lambda: lock.__enter__(), daemon=True).start()
time.sleep(0.5)
"""
    assert zoo.output(script) == []


class Interleaved(LineStrike):
    """Callers of a lock that lingers, and what else happens to it; all on one thread, some at a line of another."""

    def __init__(self, zoo, at, gap, others):
        super().__init__([call for call in functions_of(lingering) if call.__name__ != "__init__"], at)
        self._lock = zk_lock(KEY, linger=LONG)
        acquire_once(self._lock)
        shared = lingering_lock(self._lock)
        self._locks = session().attached(LingeringLocks)
        self._steps = {
            "come": lambda: self._new().start(),
            "try": lambda: self._new(waits=False).start(),
            "queue": lambda: self._locks.queue_again([self._new()]),
            "go": lambda: next(waiter for waiter in self.came if not waiter.gone).abandon(),
            "give_up": lambda: next(reversed(self.came)).abandon(),
            "hold": lambda: self._held.append(shared.base),  # another lock
            "end": self._locks.end_idle,
            "ask": lambda: shared.base.request_release(ReleaseRequest(by="tester", reason="a test")),
            "grant": shared.grant_first,
            "doubt": lambda: setattr(shared.base, "session_id", 0),  # as if its session were over
            "delete": lambda: zoo.client.delete(shared.base.path),
            "lose": lambda: shared.base.lose("its lease is over"),
            "close": self._locks.on_closed,
        }
        self._gap, self.others, self._held = gap, others, list[Any]()
        self.came = []
        self._outcomes = {}

    def play(self, before, work):
        self._do(before)
        with self:
            self._do(work)

    def strike(self):
        self._do(self.others.pop(0))
        if self.others:
            self.where, self._left = "", self._gap

    def _do(self, steps):
        for step in steps.split():
            self._steps[step]()

    def _new(self, *, waits=True):
        spec, caller, outcomes = self._lock.spec, Caller(thread="", what=""), set[object]()
        held = functools.partial(dict.fromkeys, self._held.copy(), False)
        wait = CallerWait(outcomes.add, since=clock.now(), held=held)
        waiter = LingeringWaiter(self._locks.session, spec, caller, wait, waits=waits)
        self._outcomes[waiter] = outcomes
        self.came.append(waiter)
        return waiter

    def is_served(self, waiter):
        if waiter.grant is None or waiter.gone:
            return waiter.gone and len(self._outcomes[waiter]) <= 1
        events = {(grant.release_request, grant.lost_reason) for grant in (waiter.grant, waiter.lock.base)}
        return len(self._outcomes[waiter]) == len(events) == 1


@pytest.mark.parametrize(
    ("before", "work", "others", "gaps"),
    [
        ("", "end", ["come", "go come"], 4),
        ("end", "queue", ["go come"], 1),
        ("come come ask", "go", ["come"], 1),
        ("come come", "close", ["go"], 1),
        ("come", "try", ["delete lose"], 1),
        *(("", "come", [other], 1) for other in ("end", "ask", "grant lose", "doubt", "close")),
    ],
)
def test_at_any_line_other_threads_may_go_on(zoo, before, work, others, gaps):
    """Each caller is told one outcome. It gets the lock in its turn, is told what happens to it, and releases it."""
    connected()
    for gap in range(gaps):
        for at in itertools.count():
            callers = Interleaved(zoo, at, gap, others.copy())
            session().post(callers.play, before, work)
            due(0)
            for waiter in callers.came:
                eventually(functools.partial(callers.is_served, waiter))
                if not waiter.gone:
                    session().post(waiter.abandon)
            acquire_once(KEY, timeout=30)
            if callers.others == others:
                break
        assert at > 20


def test_a_waiter_without_another_lock_or_that_gave_up_gets_no_znode_of_its_own(zoo):
    with zoo.configured(DEADLOCK_TIMEOUT=0.01):
        connected()
        callers = Interleaved(zoo, 0, 0, [])
        session().post(callers.play, "come come hold come give_up", "")
        due(0.1)
        assert all(waiter.alone is None for waiter in callers.came)
        for waiter in callers.came:
            session().post(waiter.abandon)
        due(0)


@pytest.mark.usefixtures("told_waits")
def test_a_waiter_that_holds_another_lock_keeps_its_place(zoo):
    """Its own znode, which shows others that it waits, comes later in the queue."""
    lock = zk_lock(KEY, linger=LONG, timeout=30)

    def nested():
        with zk_lock("outer"), lock:
            return zoo.children(KEY)

    with zoo.configured(DEADLOCK_TIMEOUT=0.01), contextlib.ExitStack() as stack:
        holder = stack.enter_context(contextlib.ExitStack())
        holder.enter_context(foreign(zoo))
        (first,) = stack.enter_context(queued(zoo, lock))
        later = stack.enter_context(foreign(zoo))
        second = BackgroundCall(nested)
        zoo.wait_contenders(KEY, 4)
        holder.close()
        first.finish()
        assert later.rpartition("/")[2] in second.result()
