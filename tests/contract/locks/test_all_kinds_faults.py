"""Each kind of lock survives lost replies, dead processes and the end of a session: nobody is let in too many."""

import contextlib
import random
import threading

import pytest
from kazoo.exceptions import NoNodeError
from support.faults import BackgroundCall, expire, session, within
from support.primitives import KEY, SEMAPHORE, Taker, end_session, foreign, queued, watched
from support.proxy import CREATE2, DELETE, GET_CHILDREN, GET_DATA
from support.zoo import eventually

from django_zklock.core import clock
from django_zklock.core.queue.nodes import Kind
from django_zklock.exceptions import LockLost

pytestmark = pytest.mark.usefixtures("key_directory")


def acquire(zoo, primitive):
    """Take it, and see that its own node is the one that was granted, and the only one of this session."""
    with primitive.lock(timeout=10) as hold:
        hold.check()
        stat = zoo.client.exists(hold.path)
        assert (stat.czxid, stat.ephemeralOwner) == (hold.token, session().session_id)
        paths = [f"{zoo.base}/{KEY}/{name}" for name in zoo.children(KEY)]
        owners = [path.ephemeralOwner for path in map(zoo.client.exists, paths) if path]
        assert owners.count(session().session_id) == 1


@pytest.mark.parametrize("when", ["kill_before_op", "kill_after_op"])
@pytest.mark.parametrize("opcode", [CREATE2, GET_CHILDREN])
def test_a_create_survives_a_cut(zoo, proxy, primitive, opcode, when):
    fired = getattr(proxy, when)(opcode)
    acquire(zoo, primitive)
    assert fired.is_set()


@pytest.mark.parametrize("when", ["kill_before_op", "kill_after_op"])
@pytest.mark.parametrize("opcode", [GET_DATA, GET_CHILDREN])
def test_a_waiter_survives_a_cut_at_reads(zoo, proxy, primitive, opcode, when):
    with primitive.full(zoo) as blockers:
        proxy.reset()
        fired = getattr(proxy, when)(opcode)
        waiter = BackgroundCall(lambda: acquire(zoo, primitive))
        assert fired.wait(30)
        zoo.wait_contenders(KEY, len(blockers) + 1)
        eventually(lambda: watched(zoo) >= set(blockers))
        zoo.client.delete(blockers[-1])
        waiter.result()


@pytest.mark.parametrize("moment", ["with the one ahead", "before the one ahead", "while it is read again"])
def test_a_waiter_without_its_znode_is_not_granted(zoo, proxy, primitive, moment):
    with primitive.full(zoo) as blockers, queued(zoo, primitive.lock()) as (waiter,):
        (deleted,) = {f"{zoo.base}/{KEY}/{name}" for name in zoo.children(KEY)} - set(blockers)
        with foreign(zoo, primitive.blocker, compat=primitive.compat) as other:
            if moment == "while it is read again":
                eventually(lambda: watched(zoo) >= {deleted, *blockers})
                proxy.reset()
                proxy.delay_op(GET_DATA, 60)
                zoo.client.set(deleted, b"")
                proxy.wait_for(lambda: proxy.counts[GET_DATA])
            if moment == "with the one ahead":
                transaction = zoo.client.transaction()
                for path in (deleted, blockers[0]):
                    transaction.delete(path)
                assert transaction.commit() == [True, True]
            else:
                zoo.client.delete(deleted)
                zoo.client.delete(blockers[0])
                if moment == "while it is read again":
                    proxy.wait_for(lambda: proxy.watch_events >= 2)
                    proxy.heal()
            zoo.wait_contenders(KEY, len(blockers) + 1)
            eventually(lambda: other in watched(zoo))
            assert not waiter.granted.is_set()
        assert waiter.wait_granted().path != deleted


@pytest.mark.chaos
def test_a_waiter_without_its_znode_is_granted_nothing_at_any_moment(zoo, primitive):
    for number in range(200):
        with primitive.full(zoo) as blockers:
            waiter = Taker(primitive.lock())
            deleted = []
            until = clock.now() + random.Random(number).random() / 100
            while not deleted or clock.now() < until:  # after a new create, the next znode
                for path in {f"{zoo.base}/{KEY}/{name}" for name in zoo.names(f"{zoo.base}/{KEY}")} - set(blockers):
                    with contextlib.suppress(NoNodeError):
                        zoo.client.delete(path)
                        deleted.append(path)
            zoo.client.delete(blockers[0])
            hold = waiter.wait_granted()
            assert hold.path not in deleted
            hold.check()
            waiter.go()
        primitive.wait_released(zoo)


def test_a_wake_up_during_a_cut_is_not_missed(zoo, proxy, primitive):
    with primitive.full(zoo) as blockers:
        waiter = BackgroundCall(lambda: acquire(zoo, primitive))
        eventually(lambda: watched(zoo) >= set(blockers))
        proxy.go_away()
        zoo.client.delete(blockers[0])
        proxy.heal()
        waiter.result()


@pytest.mark.parametrize("when", ["kill_before_op", "kill_after_op"])
def test_a_release_survives_a_cut(zoo, proxy, primitive, when):
    lock = primitive.lock()
    lock.acquire()
    fired = getattr(proxy, when)(DELETE)
    with within(1.5):
        lock.release()
    assert fired.wait(20)
    eventually(lambda: zoo.children(KEY) == [], 3, "the node of a release that was cut stays")
    acquire(zoo, primitive)


def test_an_expired_session_stops_the_work_and_requeues_waiters(zoo, proxy, primitive):
    with foreign(zoo, Kind.LOCK, "other", compat=primitive.compat):
        waiter = Taker(primitive.lock("other", timeout=20))
        zoo.wait_contenders("other", 2)

        def work():
            with primitive.lock():
                BackgroundCall(lambda: expire(zoo))  # as what is done here is stopped half way
                with within(10):
                    threading.Event().wait(30)

        with pytest.raises(LockLost):
            work()
        eventually(lambda: len(zoo.children("other")) == 2 and session().connected)
    waiter.finish()
    acquire(zoo, primitive)


def test_all_permits_of_an_expired_session_are_granted_at_once(zoo):
    with queued(zoo, SEMAPHORE.lock()) as (kept,):
        kept.wait_granted()
        script = """
import threading, time
def have():
    with zk_lock("warm/a", limit=3, timeout=30):
        time.sleep(60)
for _ in range(2):
    threading.Thread(target=have, daemon=True).start()
time.sleep(60)
"""
        with zoo.running(script) as process:
            last = zoo.wait_contenders(KEY, 3, timeout=30)[-1]
            owner = zoo.client.get(f"{zoo.base}/{KEY}/{last}")[1].ephemeralOwner
            with queued(zoo, *(SEMAPHORE.lock(timeout=30) for _ in range(3))) as waiters:
                process.kill()
                end_session(zoo, owner)
                for waiter in waiters[:2]:
                    waiter.wait_granted()
                assert not waiters[2].granted.is_set()
                kept.go()
                waiters[2].wait_granted()
