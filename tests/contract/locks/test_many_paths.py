"""A process has no more bytes of ephemeral paths than servers can carry at the end of a session (ZOOKEEPER-4306)."""

import contextlib
import functools
import random
import threading

import pytest
from kazoo.exceptions import NoNodeError
from support.faults import BackgroundCall, acquire_once, connected, expire, proxied, reconnect, results, session, within
from support.primitives import PRIMITIVES
from support.proxy import CONNECTION_LOSS, CREATE2, DELETE, NO_AUTH, SYNC, with_error
from support.work import acquire_until, assert_refused
from support.zoo import eventually, settle

from django_zklock import zk_leader, zk_lock, zk_locks
from django_zklock.core.protocol.registry import NEARLY_FULL, PATH_EXTRA, Registry
from django_zklock.core.zk import process
from django_zklock.core.zk.client import GetEphemerals
from django_zklock.exceptions import LockBusy, TooManyLocks, ZkLockError, ZooKeeperUnavailable

LIMIT = 2**17  # bytes: the least that can be set
LONG = "/".join(["k" * 190] * 4)
ROOT = "/" + "/".join(["r" * 168] * 8)  # so long that a short key still fits when no long one does
SMALL = {"JUTE_MAXBUFFER": LIMIT, "ROOT": ROOT}
EXTRA = 46 + 1 + PATH_EXTRA  # bytes of a path besides the base and the key
SIZE = len(ROOT) + len(LONG) + 75  # bytes of the path of such a key, about


@pytest.fixture(autouse=True)
def _small(zoo):
    """The least limit; and the end of the session with the test."""
    zoo.base = zoo.chroot + ROOT
    with zoo.configured(**SMALL):
        connected()
        yield
        process.reset()


def registry():
    return session().attached(Registry)


def counted():
    """Return the bytes that are counted, which are always the sum of all registered znodes."""
    assert registry().path_bytes == sum(registry().guids.values())
    return registry().path_bytes


def carried(zoo):
    """Return the bytes of the paths that the server would write if the session ended now."""
    replies = []
    session().post(session().requests.send, (GetEphemerals(zoo.base), replies.append))
    (paths,) = eventually(lambda: replies)
    assert isinstance(paths, list)
    return sum(4 + len(path.encode()) for path in paths)


def first(count, prefix=""):
    return [f"{LONG}/{prefix}{number}" for number in range(count)]


def filled(stack, prefix="", **options):
    """Acquire locks until one is refused; return the error."""
    with pytest.raises(TooManyLocks) as refused:
        for key in first(80, prefix):
            stack.enter_context(zk_lock(key, abort_on="never", **options))
    return str(refused.value)


def test_locks_are_refused_before_they_are_too_many_and_the_error_has_the_figures(zoo):
    with contextlib.ExitStack() as stack:
        error = filled(stack, timeout=30)
        number = len(registry().guids)
        assert carried(zoo) == counted() <= LIMIT < counted() + SIZE + 55
        assert f"{number} locks and waiters" in error
        assert f"{counted():,} of {LIMIT:,} bytes" in error
        assert "shorter keys" in error
        assert "JUTE_MAXBUFFER" in error
        refused = assert_refused(zk_lock(f"{LONG}/more"), ZooKeeperUnavailable)
        assert refused.lock == f"{LONG}/more"
        with zoo.hold_elsewhere(f"{LONG}/busy"):
            assert_refused(zk_lock(f"{LONG}/busy", timeout=0), LockBusy)  # it would write nothing
        assert session().connected
        with zk_lock("k" + LONG[: LIMIT - counted() - len(zoo.base) - EXTRA - 1], abort_on="never"):  # it just fits
            assert counted() == LIMIT
    settle()
    assert counted() == carried(zoo) == 0


def test_each_kind_is_refused_and_leaves_nothing(zoo):
    too_much = {f"{LONG}/{'x' * 100}{number}": primitive for number, primitive in enumerate(PRIMITIVES)}
    with contextlib.ExitStack() as stack:
        filled(stack, timeout=30)
        before = counted(), dict(registry().guids)
        for key, primitive in too_much.items():
            for options in ({"timeout": 5}, {"timeout": 0}):
                with within(2), pytest.raises(TooManyLocks), primitive.lock(key, **options):
                    pytest.fail(primitive.name)
            assert (counted(), registry().guids) == before, primitive.name
            assert registry()._local_queues == {}, primitive.name
            assert zoo.children(key) == [], primitive.name
    for key, primitive in too_much.items():
        with primitive.lock(key, timeout=30):
            settle()
            assert counted() == carried(zoo)


def test_a_lock_fits_as_soon_as_the_delete_that_makes_room_is_sent(zoo, monkeypatch, caplog):
    """Nobody waits for the delete: the server has carried it out before it creates the next znode."""
    monkeypatch.setattr("django_zklock.core.protocol.registry.RETRY_DELETE", 60.0)
    with proxied(zoo, 20, **SMALL) as proxy, contextlib.ExitStack() as stack:
        connected()
        block = contextlib.ExitStack()
        stack.enter_context(block)
        block.enter_context(zk_lock(f"{LONG}/first", timeout=30))
        filled(stack, timeout=30)
        proxy.delay_op(DELETE, 0.3)
        for key in first(3, "next"):
            block.close()
            block.enter_context(zk_lock(key, timeout=30))
            settle()
            assert counted() == carried(zoo) <= LIMIT
        block.close()
        settle()
        proxy.alter_reply(CREATE2, with_error(CONNECTION_LOSS), carried_out=False)
        proxy.delay_op(SYNC, 60)
        assert acquire_until(lambda: proxy.counts[SYNC], zk_lock(f"{LONG}/lost")) is None
        assert_refused(zk_lock(f"{LONG}/more"), TooManyLocks)  # its znode is searched
        proxy.heal()
        settle()
        block.enter_context(zk_lock(f"{LONG}/kept", timeout=30))
        proxy.alter_reply(DELETE, with_error(NO_AUTH), carried_out=False)
        block.close()
        eventually(lambda: "deleting the znode" in caplog.text)
        assert_refused(zk_lock(f"{LONG}/more"), TooManyLocks)


def test_several_locks_as_one_are_refused_together(zoo):
    assert_refused(zk_locks(*first(80), timeout=20), TooManyLocks)
    eventually(lambda: counted() == 0)
    assert carried(zoo) == 0


def test_a_candidate_is_elected_once_there_is_room(zoo):
    elected = threading.Event()
    leader = zk_leader(f"{LONG}/leader")
    with contextlib.ExitStack() as stack:
        filled(stack, timeout=30)
        candidate = BackgroundCall(lambda: leader.run(lambda hold: elected.set()))
        assert not elected.wait(0.3)
    assert elected.wait(10)
    candidate.result(30)


async def test_coroutines_are_refused_as_threads_are(zoo):
    async with contextlib.AsyncExitStack() as stack:
        with pytest.raises(TooManyLocks):
            for key in first(80):
                lock = zk_lock(key, timeout=30)
                await stack.enter_async_context(lock)
    settle()
    assert counted() == 0


def test_idle_locks_that_linger_give_way(zoo):
    """A process that only keeps locks for later is not refused one that it needs now."""
    for key in first(100):
        acquire_once(key, linger=60, timeout=30)
        assert counted() <= LIMIT

    def is_filled():  # a lock whose call took long does not linger
        room = int(NEARLY_FULL * LIMIT) - counted() - len(zoo.base) - EXTRA - 1
        acquire_once(f"k{room}" if room > len(LONG) else "k" + LONG[:room], linger=60, timeout=30)
        settle()
        return counted() == NEARLY_FULL * LIMIT

    eventually(is_filled, 30)
    with contextlib.ExitStack() as stack:
        for number in range(LIMIT // (SIZE + 55)):
            stack.enter_context(zk_lock(f"{LONG}/plain{number}", timeout=30))


def test_waiters_of_a_full_process_wait_on_in_its_next_session(zoo):
    """The old session no longer counts, so none of them is refused when they queue again. So it is after a cut."""
    with proxied(zoo, 20, **SMALL) as proxy:
        connected()
        count = LIMIT // SIZE
        with contextlib.ExitStack() as stack:
            for key in first(count):
                stack.enter_context(zoo.hold_elsewhere(key))
            threads = [BackgroundCall(functools.partial(acquire_once, key, timeout=90)) for key in first(count)]
            eventually(lambda: len(zoo.contenders()) == 2 * count, 40)
            full = counted_on_loop()
            assert carried(zoo) == full > LIMIT - 6 * SIZE
            old = session().session_id
            expire(zoo)
            eventually(lambda: session().session_id not in (old, None))
            eventually(lambda: len(zoo.contenders()) == 2 * count and counted_on_loop() == full, 40)
            reconnect(proxy)
            eventually(lambda: len(zoo.contenders()) == 2 * count and counted_on_loop() == full, 40)
        results(threads, 30)
        settle()
        assert counted_on_loop() == 0


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.chaos) for seed in range(1, 6))])
def test_the_count_covers_what_the_server_carries_whatever_happens(zoo, seed):
    dice = random.Random(seed)
    zoo.client.ensure_path(f"{zoo.base}/{LONG}")
    with proxied(zoo, 4, **SMALL) as proxy:
        connected()
        stop = threading.Event()

        def contend(number):
            own = random.Random(100 * seed + number)
            while not stop.is_set():
                lock = zk_lock(f"{LONG}/{own.randrange(6)}", timeout=own.choice([0, 0.05, 5]), abort_on="lost")
                with contextlib.suppress(ZkLockError), lock:
                    stop.wait(own.random() / 50)

        threads = [BackgroundCall(functools.partial(contend, number)) for number in range(8)]
        try:
            for _ in range(6):
                dice.choice(FAULTS)(zoo, proxy)
                stop.wait(0.2)
                proxy.heal()
                connected()
                assert counted_on_loop() <= LIMIT
        finally:
            stop.set()
        results(threads, 15)
        eventually(lambda: counted_on_loop() == 0)
        assert carried(zoo) == 0


def counted_on_loop():
    """Return the bytes that are counted, between two steps of the protocol."""
    replies = []
    session().post(lambda: replies.append(counted()))
    return eventually(lambda: replies)[0]


def delete_one(zoo, proxy):
    for path in zoo.contenders()[:1]:
        with contextlib.suppress(NoNodeError):
            zoo.client.delete(path)


FAULTS = (
    lambda zoo, proxy: proxy.cut_all(),
    lambda zoo, proxy: proxy.kill_after_op(CREATE2).wait(1),
    lambda zoo, proxy: proxy.kill_before_op(DELETE).wait(1),
    lambda zoo, proxy: expire(zoo),
    delete_one,
)
