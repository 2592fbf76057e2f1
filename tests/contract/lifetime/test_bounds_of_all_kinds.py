"""Holds that last at least, or at most, a time, where they meet kinds of locks, several locks, and other clients."""

import uuid

import pytest
from support.faults import BackgroundCall, acquire_once, acquired_by_many, connected, die, proxied
from support.proxy import MULTI
from support.work import assert_refused
from support.zoo import eventually

from django_zklock import Lock, ReadWriteLock, zk_lock, zk_locks
from django_zklock.core.locks.acquisition import Acquisition
from django_zklock.core.queue import nodes
from django_zklock.core.queue.nodes import Kind, Payload
from django_zklock.core.queue.operator_hold import is_operator
from django_zklock.exceptions import LockBusy, LockTimeout
from django_zklock.locks.hold import held_of
from django_zklock.operations import hold_lock

pytestmark = pytest.mark.usefixtures("no_rests")

LONG = 300.0


def is_over(zoo, name, key="k"):
    """Tell whether what stays of a hold is over, by the server's clock."""
    data, stat = zoo.client.get(f"{zoo.base}/{key}/{name}")
    payload = Payload.decode(data)
    assert payload is not None
    now = zoo.client.exists(zoo.client.create(f"{zoo.chroot}/clock-", sequence=True)).ctime
    return bool(now > stat.mtime + 1000 * float(payload.about["seconds"]))


def wait_over(zoo, *names):
    eventually(lambda: all(is_over(zoo, name) for name in names))


def test_a_writer_waits_for_the_last_minimum_hold_and_names_it(zoo):
    acquire_once(Lock("k", kind="read", min_hold=3, what="short"))
    acquire_once(Lock("k", kind="read", min_hold=LONG, what="long"))
    names = zoo.wait_contenders("k", 2)
    die()
    wait_over(zoo, names[0])
    with zk_lock("k", kind="read", timeout=0):  # readers pass them, and do not look at them
        assert zoo.children("k")[:2] == names
    assert_refused(zk_lock("k", kind="write", timeout=0), LockBusy, "held by long until")


def test_a_try_gets_the_permit_whose_minimum_hold_has_expired(zoo):
    acquire_once("k", limit=2, min_hold=LONG)
    acquire_once("k", limit=2, min_hold=3)
    names = zoo.wait_contenders("k", 2)
    die()
    assert_refused(zk_lock("k", limit=2, timeout=0), LockBusy)
    wait_over(zoo, names[1])
    with zk_lock("k", limit=2, timeout=0) as hold:
        assert zoo.children("k") == [names[0], hold.path.rpartition("/")[2]]


def test_a_slow_reply_with_the_time_does_not_prolong_a_minimum_hold(zoo):
    """A process counts on from the time in a reply, which is late if the reply was slow; so it asks again."""
    acquire_once("k", min_hold=2)
    names = zoo.wait_contenders("k", 1)
    die()
    with proxied(zoo, 20) as proxy:
        proxy.delay = 0.2
        with zk_lock("other"):
            proxy.delay = 0
        wait_over(zoo, *names)
        with zk_lock("k", timeout=0):
            assert len(zoo.children("k")) == 1


@pytest.mark.parametrize("how", ["rest", "rests", "hold"])
def test_a_waiter_ends_an_expired_hold_for_another_client_ahead(zoo, how):
    """A client of Curator's does not end it, and nobody else may come: all would wait for ever."""
    if how == "rest":
        acquire_once("k", min_hold=1)
    elif how == "rests":
        with acquired_by_many("k", 2, 2, kind="read", min_hold=1):
            pass
    else:
        hold_lock("k", seconds=2, reason="deploy", by="somebody")
    die()
    connected()
    kind = "write" if how == "rests" else "lock"  # Curator reads nodes of its own recipe alone
    foreign = f"{zoo.base}/k/{nodes.prefix(str(uuid.uuid4()), Kind.WRITE if how == 'rests' else Kind.LOCK)}"
    theirs = zoo.client.create(foreign, b"foreign", ephemeral=True, sequence=True)
    waiter = BackgroundCall(lambda: zk_lock("k", kind=kind).acquire(timeout=20))
    eventually(lambda: zoo.children("k")[-1] != theirs.rpartition("/")[2])
    eventually(lambda: zoo.children("k")[0] == theirs.rpartition("/")[2])
    zoo.client.delete(theirs)
    hold = waiter.result()
    assert hold
    held_of(hold).release_uses()


def test_a_writer_with_a_read_block_leaves_the_minimum_hold_of_a_writer(zoo):
    rw = ReadWriteLock("k", min_hold=LONG)
    with rw.write():
        rw.read().acquire()
    rw.read().release()
    (name,) = zoo.children("k")
    assert Kind.WRITE.value in name
    assert_refused(zk_lock("k", kind="read", timeout=0), LockBusy)


def test_a_caller_that_gives_up_at_the_grant_leaves_no_minimum_hold(zoo):
    """Nothing was done under it, and nobody else could do it for all that time."""
    connected()
    lock = zk_lock("k", min_hold=LONG)
    acquisition = Acquisition()
    acquisition.waiter, acquisition.contender = acquisition._new_contender(lock.spec, 1)
    acquisition.contender.start()
    eventually(lambda: acquisition.waiter.value)
    acquisition.release()  # like a caller that is struck, or cancelled, before it has looked
    zoo.wait_contenders("k", 0)


@pytest.mark.parametrize("how", ["with", "acquire"])
def test_several_locks_leave_no_minimum_hold_if_one_was_not_acquired(zoo, how):
    """A job that could not begin on this host may begin on another one."""
    hasty, locks = (zk_locks("a", "b", timeout=timeout, min_hold=LONG) for timeout in (0.3, 30))
    with zoo.hold_elsewhere("b"):
        if how == "acquire":
            assert hasty.acquire(timeout=0.3) is None
        else:
            assert_refused(hasty, LockTimeout)
        zoo.wait_contenders("a", 0)
    if how == "acquire":
        assert locks.acquire()
        locks.release()
    else:
        acquire_once(locks)
    assert all(is_operator(name) for key in ("a", "b") for name in zoo.wait_contenders(key, 1))


def test_several_locks_leave_the_minimum_hold_of_one_held_before_untouched(zoo):
    with zk_lock("a", min_hold=LONG):
        with zoo.hold_elsewhere("b"), pytest.raises(LockTimeout), zk_locks("a", "b", timeout=0.3):
            pass
        assert not is_operator(zoo.wait_contenders("a", 1)[0])
    assert is_operator(zoo.wait_contenders("a", 1)[0])


def test_a_minimum_hold_that_began_with_a_lost_reply_ends_in_time(zoo, proxy):
    """ZooKeeper was away until it was over; the process that lives ends it, as nobody may ever come who would."""
    zoo.client.ensure_path(f"{zoo.base}/k")
    lock = zk_lock("k", min_hold=1)
    assert lock.acquire()
    fired = proxy.kill_after_op(MULTI)
    proxy.refuse = True
    lock.release()
    assert fired.wait(30)
    (name,) = zoo.wait_contenders("k", 1)
    assert is_operator(name)
    wait_over(zoo, name)
    proxy.refuse = False
    connected()
    zoo.wait_contenders("k", 0)
