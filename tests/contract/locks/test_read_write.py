"""A read-write lock: readers together, writers alone, nobody is starved, and a writer may go on as a reader."""

import contextlib

import pytest
from support.faults import BackgroundCall, acquire_once, within
from support.primitives import KEY, end_session, foreign, queued, watched
from support.proxy import CREATE2, DELETE, GET_CHILDREN, GET_DATA, MULTI
from support.work import acquired, assert_refused, lose
from support.zoo import eventually, next_line

from django_zklock import ReadWriteLock, current_hold, zk_lock
from django_zklock.core.log import flush
from django_zklock.exceptions import LockBusy, LockLost, LockNotHeld, LockUpgradeRefused, ZkLockError

COMPAT = pytest.mark.parametrize("compat", [None, "kazoo"])


def both(compat=None):
    return ReadWriteLock(KEY, timeout=20, compat=compat)


@COMPAT
def test_neither_readers_nor_writers_starve(zoo, compat):
    lock = both(compat)
    order = [lock.read(), lock.read(), lock.write(), lock.read(), lock.read(), lock.write(), lock.read()]
    with foreign(zoo, compat=compat) as first, queued(zoo, *order) as takers:
        assert not any(taker.granted.is_set() for taker in takers)
        zoo.client.delete(first)
        for turn in ([0, 1], [2], [3, 4], [5], [6]):
            for number in turn:
                takers[number].wait_granted()
            assert not any(taker.granted.is_set() for taker in takers[turn[-1] + 1 :])
            for number in turn:
                takers[number].go()


def test_a_plain_lock_excludes_readers_and_writers_on_its_path(zoo):
    lock = both()
    plain, read = acquired(zk_lock(KEY)), acquired(lock.read())
    plain.release()  # its owner reads on, alone
    BackgroundCall(lambda: assert_refused(zk_lock(KEY, kind="read", timeout=0), LockBusy)).result()
    read.release()
    order = [lock.read(), zk_lock(KEY, timeout=20), lock.write(), zk_lock(KEY, limit=2, timeout=20), lock.read()]
    with queued(zoo, *order) as takers:
        for number, taker in enumerate(takers):
            taker.wait_granted()
            assert not any(taker.granted.is_set() for taker in takers[number + 1 :])
            taker.go()


def test_the_writer_may_also_read(zoo):
    lock = both()
    with lock.write() as outer, lock.read() as inner:
        assert (outer.kind, inner.kind) == ("write", "read")
        assert inner.token == outer.token
        inner.downgrade()  # it only reads already
        with lock.write() as again:
            assert again is outer
        with lock.read() as again:
            assert again is inner
        assert len(zoo.children(KEY)) == 1
    assert zoo.children(KEY) == []
    assert zoo.reading(KEY) == []
    with lock.write() as outer:
        with lock.read() as inner:
            inner.check()
        assert (inner.state, outer.state, outer.kind) == ("released", "held", "write")
        with pytest.raises(LockNotHeld):
            inner.check()
        outer.check()


def test_a_reader_that_wants_to_write_is_refused_at_once(zoo):
    """It would wait for its own release; it keeps what it has. A plain lock or a permit is no way round it."""
    lock = both()
    with lock.read() as hold:
        for other in (lock.write(), zk_lock(KEY), zk_lock(KEY, limit=3)):
            with within(1), pytest.raises(LockUpgradeRefused, match="holds a read lock on"), other:
                pass
        with pytest.raises(RuntimeError):
            lock.write().acquire(blocking=False)
        hold.check()
    with zk_lock(KEY, limit=3), pytest.raises(LockUpgradeRefused, match="holds a permit of"), zk_lock(KEY):
        pass


class Writer(contextlib.ExitStack):
    """A writer that goes on as a reader, in one of two ways, and releases the lock once."""

    def __init__(self, lock, way):
        super().__init__()
        self._lock = lock
        self._downgrades = way == "hold.downgrade()"
        self.hold = acquired(lock.write())
        self.callback((lock.write() if self._downgrades else lock.read()).release)

    def read_on(self):
        if self._downgrades:
            self.hold.downgrade()
        else:
            self.hold = acquired(self._lock.read())
            self._lock.write().release()
        return self.hold


@COMPAT
@pytest.mark.parametrize("downgrade", ["hold.downgrade()", "release of the write side first"])
def test_a_downgrade_grants_readers_just_behind_and_no_writer(zoo, compat, downgrade):
    lock = both(compat)
    order = [lock.read(), lock.read(), lock.write(), lock.read()]
    with Writer(lock, downgrade) as own, queued(zoo, *order) as (first, second, writer, last):
        eventually(lambda: len(watched(zoo)) >= 2)
        token = own.hold.token
        hold = own.read_on()
        assert (hold.kind, hold.token) == ("read", token)
        assert (lock.write().owned(), zk_lock(KEY).owned(), lock.read().owned()) == (False, False, True)
        for reader in (first, second):
            reader.wait_granted()
        hold.check()
        assert zoo.reading(KEY)
        first.go()
        second.go()
        assert not writer.granted.is_set()
        own.close()
        writer.wait_granted()
        assert not last.granted.is_set()
        writer.go()
        last.wait_granted()
    eventually(lambda: zoo.reading(KEY) == [])


def test_a_writer_waits_for_a_downgraded_writer(zoo):
    """The end of the write side is no grant for it (CURATOR-621); a reader behind it waits for it."""
    lock = both()
    with (
        Writer(lock, "release of the write side first") as own,
        queued(zoo, lock.write(), lock.read()) as (writer, reader),
    ):
        hold = own.read_on()
        with queued(zoo, lock.read()):  # who comes now, waits as well
            eventually(lambda: zoo.reading(KEY))
            hold.check()
            assert not writer.granted.is_set()
            assert not reader.granted.is_set()
            own.close()
            writer.wait_granted()
            assert not reader.granted.is_set()
            writer.go()
            reader.wait_granted()


def test_later_readers_join_a_downgraded_writer(zoo):
    lock = both()
    with lock.write() as hold:
        hold.downgrade()
        eventually(lambda: zoo.reading(KEY))
        BackgroundCall(lambda: acquire_once(KEY, kind="read", timeout=0)).result()
        BackgroundCall(lambda: assert_refused(zk_lock(KEY, kind="write", timeout=0), LockBusy)).result()


def test_a_downgrade_that_is_impossible_says_why(zoo):
    with zk_lock(KEY) as plain, pytest.raises(ZkLockError, match="kind"):
        plain.downgrade()
    lock = both()
    with lock.write() as hold:
        with lock.write(), pytest.raises(ZkLockError, match="more than once"):
            hold.downgrade()
        hold.downgrade()
        hold.downgrade()
        assert_refused(lock.write(), LockUpgradeRefused)
    with pytest.raises(LockNotHeld):
        hold.downgrade()
    with lock.read() as read:
        read.downgrade()  # it is one
    with contextlib.suppress(LockLost), zk_lock(KEY, kind="write", abort_on="never") as gone:
        lose(gone)
        eventually(lambda: gone.lost)
        with pytest.raises(LockLost):
            gone.downgrade()


@pytest.mark.parametrize("when", ["kill_before_op", "kill_after_op"])
def test_a_downgrade_survives_a_cut(zoo, warm_proxy, when, caplog):
    with zk_lock(KEY, kind="write", abort_on="lost") as hold, queued(zoo, zk_lock(KEY, kind="read")) as (reader,):
        eventually(lambda: hold.path in watched(zoo))
        fired = getattr(warm_proxy, when)(MULTI)
        hold.downgrade()
        assert fired.wait(30)
        reader.wait_granted()
        hold.check()
        assert len(zoo.reading(KEY)) == 1
    eventually(lambda: zoo.reading(KEY) == [])
    assert flush(5)
    assert "can share" not in caplog.text


def test_a_dead_process_leaves_no_reader_marker(zoo):
    """It goes with the session, in one transaction with the node, so that no reader is taken for alone too early."""
    script = """
import time
with zk_lock("warm/a", kind="write") as hold:
    hold.downgrade()
    print(hold.path)
    time.sleep(60)
"""
    with zoo.running(script) as process:
        path = next_line(process)
        eventually(lambda: zoo.reading(KEY))
        with queued(zoo, zk_lock(KEY, kind="write", timeout=20)) as (writer,):
            process.kill()
            end_session(zoo, zoo.client.get(path)[1].ephemeralOwner)
            writer.wait_granted()
            assert zoo.reading(KEY) == []


def test_a_downgrade_is_one_transaction_and_wakes_one_reader_each(zoo, warm_proxy):
    lock = both()
    with Writer(lock, "hold.downgrade()") as own, queued(zoo, lock.read(), lock.read(), lock.write()) as takers:
        # Each reads its own znode and one ahead.
        warm_proxy.wait_for(lambda: sum(f.opcode == GET_DATA and not f.request for f in warm_proxy.frames) == 6)
        warm_proxy.reset()
        own.read_on()
        for reader in takers[:2]:
            reader.wait_granted()
        assert warm_proxy.counts[GET_CHILDREN] == 2
        assert warm_proxy.counts[CREATE2] == warm_proxy.counts[DELETE] == 0
        for reader in takers[:2]:
            reader.go()
        own.close()


@pytest.mark.parametrize("way", ["downgrade", "release"])
@pytest.mark.parametrize("side", ["read", "write"])
def test_after_a_downgrade_the_owner_reads_and_no_longer_writes(zoo, way, side):
    lock = both()
    hold = acquired(lock.write())
    if way == "downgrade":
        hold.downgrade()
    else:
        lock.read().acquire()
        lock.write().release()
        side = "read"  # the write lock is released already
    assert not lock.write().owned()
    assert not zk_lock(lock.key).owned()
    assert lock.read().owned()
    assert current_hold(lock.key).kind == "read"
    with pytest.raises(LockUpgradeRefused):
        lock.write().acquire(timeout=5)
    with lock.read() as again:
        assert again.kind == "read"
    (lock.read() if side == "read" else lock.write()).release()
    assert not lock.read().owned()
    with pytest.raises(LockNotHeld):
        lock.read().release()
    with pytest.raises(LockNotHeld):
        lock.write().release()
    assert not lock.write().locked()


def test_a_reader_cannot_release_the_write_side_nor_a_writer_the_read_side(zoo):
    lock = both()
    for mine, other in ((lock.read(), lock.write()), (lock.write(), lock.read())):
        with mine, pytest.raises(LockNotHeld):
            other.release()
