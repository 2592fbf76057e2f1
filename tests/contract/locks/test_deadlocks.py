"""Owners that wait for each other's locks: one of them gets LockDeadlock, and the others go on."""

import asyncio
import contextlib
import signal
import threading
from dataclasses import replace
from functools import partial

import pytest
from support.faults import BackgroundCall, acquire_once, connected, due, expire, proxied
from support.primitives import watched
from support.proxy import GET_CHILDREN, GET_DATA, MULTI, NO_AUTH, SYNC, with_error
from support.signalled import signalled
from support.work import acquire_until, acquired, lose
from support.zoo import eventually, next_line, settle

from django_zklock import zk_leader, zk_lock, zk_locks, zk_read, zk_write
from django_zklock.core.protocol import deadlock
from django_zklock.core.protocol.registry import Registry
from django_zklock.core.queue.nodes import Kind, Mark, Payload, new_guid
from django_zklock.core.zk import heartbeat
from django_zklock.exceptions import LockDeadlock, LockLost, LockTimeout

SOON = 0.3  # seconds of DEADLOCK_TIMEOUT in tests that do not measure it


@pytest.fixture(autouse=True)
def soon(zoo):
    with zoo.configured(DEADLOCK_TIMEOUT=SOON, DEFAULTS={"timeout": 40}):
        yield


def nested(outer, inner, ready=int):
    """Acquire locks inside others, once all owners have the first ones. Return the deadlock, if any."""
    with outer:
        ready()
        try:
            with inner:
                return None
        except LockDeadlock as error:
            return error


def outcomes(*pairs):
    """Run one thread for each pair of locks, which acquires one inside the other."""
    ready = partial(threading.Barrier(len(pairs)).wait, 10)
    calls = [BackgroundCall(partial(nested, outer, inner, ready)) for outer, inner in pairs]
    return [call.result() for call in calls]


def only_victim(outcomes):
    (victim,) = [outcome for outcome in outcomes if outcome is not None]
    return victim


def ring(count):
    return [(f"ring/{index}", f"ring/{(index + 1) % count}") for index in range(count)]


def assert_is_ring(victim, count):
    """See that the error names each owner once, what it holds and what it waits for, in the order of the circle."""
    holds = [link.holds for link in victim.circle]
    assert sorted(holds) == [f"ring/{index}" for index in range(count)]
    assert [link.waits_for for link in victim.circle] == [*holds[1:], holds[0]]
    assert (victim.lock, str(victim.ahead)) == (holds[1], str(victim.circle[1].holder))


@pytest.mark.parametrize("count", [2, 5])
def test_one_thread_of_a_circle_is_the_victim(zoo, count):
    with zoo.configured(DEFAULTS={"timeout": 40}):
        victim = only_victim(outcomes(*[(zk_lock(outer), zk_lock(inner)) for outer, inner in ring(count)]))
    assert_is_ring(victim, count)
    zoo.assert_empty()


def test_one_coroutine_of_a_circle_is_the_victim(zoo):
    count = 3

    async def run(outer, inner, ready):
        async with zk_lock(outer):
            held.append(outer)
            if len(held) == count:
                ready.set()
            await ready.wait()
            try:
                async with zk_lock(inner):
                    return None
            except LockDeadlock as error:
                return error

    async def main():
        ready = asyncio.Event()
        return await asyncio.gather(*(run(outer, inner, ready) for outer, inner in ring(count)))

    held = []
    assert_is_ring(only_victim(asyncio.run(main())), count)
    zoo.assert_empty()


NESTED = """
import os, sys
from django_zklock.core.protocol import deadlock
from django_zklock.exceptions import LockDeadlock
from django.test.utils import override_settings
from django.conf import settings
deadlock.LOOK_AFTER = float(os.environ.get("LOOK_AFTER", "0.1"))
timeout = float(os.environ.get("DEADLOCK_TIMEOUT", "0.3")) or None
with override_settings(ZKLOCK={**settings.ZKLOCK, "DEADLOCK_TIMEOUT": timeout}), zk_lock(sys.argv[1]):
    print("held")
    input()
    try:
        with zk_lock(sys.argv[2], timeout=40):
            print("acquired")
    except LockDeadlock as error:
        print(len(error.circle))
"""


def test_one_of_several_processes_is_the_victim(zoo):
    *others, (outer, inner) = ring(3)
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(zoo.running(NESTED, *keys)) for keys in others]

        def begin():
            for process in processes:
                assert next_line(process) == "held"
            for process in processes:
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()

        own = nested(zk_lock(outer), zk_lock(inner), begin)
        printed = [next_line(process) for process in processes]
        for process in processes:
            process.wait(30)  # its session ends with it
    assert sorted([*printed, str(len(own.circle)) if own else "acquired"]) == ["3", "acquired", "acquired"]


def crosswise(first, second):
    return (first, second), (second, first)


CIRCLES = {
    "a writer waits for a reader": lambda: ((zk_read("a"), zk_write("b")), (zk_read("b"), zk_write("a"))),
    "a reader waits for a writer": lambda: ((zk_write("a"), zk_read("b")), (zk_write("b"), zk_read("a"))),
    "several locks inside one": lambda: ((zk_lock("a"), zk_locks("b", "c")), (zk_lock("c"), zk_lock("a"))),
    "a lock that lingers": lambda: crosswise(zk_lock("a", linger=30), zk_lock("b")),
    "locks that linger": lambda: crosswise(zk_lock("a", linger=30), zk_lock("b", linger=30)),
    "a key in kazoo's grammar": lambda: crosswise(zk_lock("a", compat="kazoo"), zk_lock("b")),
}


@pytest.mark.parametrize("name", CIRCLES)
def test_one_owner_of_a_circle_of_any_kind_is_the_victim(zoo, name):
    assert len(only_victim(outcomes(*CIRCLES[name]())).circle) == 2
    eventually(lambda: not zoo.contenders())  # a waiter of a circle has a znode of its own, which does not linger


@contextlib.contextmanager
def by_call(lock):
    """Any thread may release what a call has acquired, but not as long as that call waits for more."""
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


@pytest.mark.parametrize("use", [lambda locks: locks, by_call], ids=["block", "call"])
@pytest.mark.parametrize(("keys", "awaited"), [("ab", "b"), ("abc", "b"), ("abc", "c")])
def test_locks_that_zk_locks_has_so_far_are_part_of_a_circle(zoo, use, keys, awaited):
    calls = []

    def wait_for_both():
        calls.append(BackgroundCall(partial(nested, contextlib.nullcontext(), use(zk_locks(*keys)))))
        zoo.wait_contenders("a", 1)
        zoo.wait_contenders(awaited, 2)

    own = nested(zk_lock(awaited), zk_lock("a"), wait_for_both)
    other = calls[0].result()
    assert {link.holds for link in only_victim([own, other]).circle} == {"a", awaited}


def test_a_lock_that_was_acquired_twice_is_held_until_the_last_release(zoo):
    lock, ready = zk_lock("a"), threading.Barrier(2)

    def end_inner_block():
        acquire_once(lock)
        ready.wait(10)

    other = BackgroundCall(partial(nested, zk_lock("b"), zk_lock("a"), partial(ready.wait, 10)))
    only_victim([nested(lock, zk_lock("b"), end_inner_block), other.result()])


def test_a_reader_waits_for_a_reader_behind_a_writer(zoo):
    """No reader passes a waiting writer, so the circle goes through a writer that holds nothing."""
    ready = threading.Event()
    other = BackgroundCall(partial(nested, zk_read("a"), zk_lock("b"), partial(ready.wait, 10)))
    zoo.wait_contenders("a", 1)
    with zk_lock("b"):
        ready.set()
        zoo.wait_contenders("b", 2)
        writer = BackgroundCall(partial(nested, contextlib.nullcontext(), zk_write("a")))
        zoo.wait_contenders("a", 2)
        own = nested(contextlib.nullcontext(), zk_read("a"))
    victim = only_victim([own, other.result()])
    assert sorted(link.holds for link in victim.circle) == ["a", "b"]
    assert writer.result() is None


@pytest.mark.parametrize("limit", [1, None], ids=["of permits", "of too many holders"])
def test_a_circle_that_is_not_followed_is_not_ended(zoo, monkeypatch, limit):
    """Another holder may release its permit. So both wait until their timeouts; the page shows it."""
    monkeypatch.setattr(deadlock, "MOST", 100 if limit else 0)
    ready = partial(threading.Barrier(2).wait, 10)
    pairs = crosswise(zk_lock("a", limit=limit, timeout=1.5), zk_lock("b", limit=limit, timeout=1.5))
    calls = [BackgroundCall(partial(nested, outer, inner, ready)) for outer, inner in pairs]
    for call in calls:
        call.join(10)
    assert any(isinstance(call._error, LockTimeout) for call in calls)


def test_a_lock_lingers_only_if_its_znode_names_no_wait(zoo):
    """The wait of one owner would be taken for that of the next one."""
    lock = zk_lock("a", linger=30)
    with zoo.hold_elsewhere("b"), lock as first:
        assert acquire_until(lambda: bool(text_of(zoo, "a")), zk_lock("b")) is None
        assert text_of(zoo, "a")["key"] == "b"
    with lock as second:
        assert second.path != first.path


def test_waiters_in_the_local_queue_get_a_znode_for_it(zoo):
    """Many waiters of this process may be ahead of it, and do not have to leave first."""
    connected().attached(Registry).most_waiting = 1
    ready = threading.Event()
    other = BackgroundCall(partial(nested, zk_lock("a"), zk_lock("b"), partial(ready.wait, 10)))
    zoo.wait_contenders("a", 1)
    with zk_lock("b"):
        bystander = BackgroundCall(partial(nested, contextlib.nullcontext(), zk_lock("a")))
        zoo.wait_contenders("a", 2)
        ready.set()
        own = nested(contextlib.nullcontext(), zk_lock("a"))
    only_victim([own, other.result()])
    assert bystander.result() is None


@pytest.fixture
def often(monkeypatch):
    """Look often, but twice at a circle with some time in between."""
    monkeypatch.setattr(deadlock, "LOOK_RARELY", 0.2)
    monkeypatch.setattr(deadlock, "LOOK_SOON", 2.0)


def text_of(zoo, key):
    """Return what the holder of a lock says that its owner waits for."""
    payload = next(iter(zoo.payloads(key)), None)
    return dict(payload.waits_for) if payload is not None else {}


@contextlib.contextmanager
def younger_process(zoo, **env):
    """Yield a process that holds "b", and a function that makes it wait for "a" after this process waits for "b"."""

    def wait_last():
        zoo.wait_contenders("b", 2)
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        zoo.wait_contenders("a", 2)

    with zoo.running(NESTED, "b", "a", **env) as process:
        assert next_line(process) == "held"
        yield process, wait_last


@pytest.mark.usefixtures("often")
def test_the_next_youngest_ends_the_circle_of_a_paused_victim(zoo):
    """It looks again."""
    with younger_process(zoo, LOOK_AFTER="60") as (process, wait_last):
        own = BackgroundCall(partial(nested, zk_lock("a"), zk_lock("b")))
        wait_last()
        eventually(lambda: text_of(zoo, "b"))
        process.send_signal(signal.SIGSTOP)
        assert only_victim([own.result()]).lock == "b"


@pytest.mark.usefixtures("often")
def test_a_process_without_a_timeout_for_deadlocks_is_no_victim(zoo):
    """It still says what it waits for: the pages show that, and another process ends the circle."""
    with younger_process(zoo, DEADLOCK_TIMEOUT="0") as (process, wait_last):
        own = BackgroundCall(partial(nested, zk_lock("a"), zk_lock("b")))
        wait_last()
        assert only_victim([own.result()]).lock == "b"
        assert next_line(process) == "acquired"
        process.wait(30)


@pytest.mark.parametrize(
    ("step", "when"),
    [
        *((step, "kill_after_op") for step in ("read", "write", "sync", "list", "leave")),
        *((step, "kill_before_op") for step in ("write", "leave")),
    ],
)
def test_a_cut_ends_no_circle_twice(zoo, monkeypatch, step, when):
    monkeypatch.setattr(deadlock, "LOOK_AFTER", 1.5)
    monkeypatch.setattr(heartbeat, "BEAT_SHARE", 0.39)

    def is_ready(key):
        return step != "leave" or bool(text_of(zoo, key))

    opcode = {"read": GET_DATA, "sync": SYNC, "list": GET_CHILDREN}.get(step, MULTI)
    with proxied(zoo, 20, DEADLOCK_TIMEOUT=SOON, DEFAULTS={"abort_on": "lost", "timeout": 40}) as proxy:
        connected()
        ready = partial(threading.Barrier(2).wait, 10)
        calls = [
            BackgroundCall(partial(nested, zk_lock(outer), zk_lock(inner), ready)) for outer, inner in ("ab", "ba")
        ]
        for key in "ab":
            zoo.wait_contenders(key, 2)
            eventually(partial(is_ready, key))
        fired = getattr(proxy, when)(opcode)
        victim = only_victim([call.result() for call in calls])
        assert fired.is_set()
    assert len(victim.circle) == 2


def test_an_ended_session_is_no_deadlock(zoo):
    with younger_process(zoo, DEADLOCK_TIMEOUT="0") as (process, wait_last):
        own = BackgroundCall(partial(nested, zk_lock("a"), zk_lock("b")))
        wait_last()
        eventually(lambda: text_of(zoo, "a"))
        expire(zoo)
        assert next_line(process) == "acquired"
        with pytest.raises(LockLost):
            own.result()


NAMES = {"host": "web-9", "pid": 9, "thread": "", "what": "other work", "since": "", "template": "b"}
PAYLOAD = Payload(guid=new_guid(Mark.OWN), session_timeout=20_000, **NAMES)


@contextlib.contextmanager
def others(zoo, waits_for, queue="a", **more):
    """Put the holder of "b", which says that its owner waits for this, and a waiter into queues; yield their paths."""
    with contextlib.ExitStack() as stack:
        holder = stack.enter_context(zoo.hold_elsewhere("b", guid=PAYLOAD.guid))
        waiter = stack.enter_context(zoo.hold_elsewhere(queue, guid=WAITER))
        zoo.client.set(holder, replace(PAYLOAD, waits_for=waits_for, **more).encode())
        yield holder, waiter


WAITER = new_guid(Mark.OWN)
BELIEVED = {"key": "a", "guid": WAITER, "czxid": "1"}


def test_the_text_of_another_owner_is_believed(zoo):
    with signalled("lock_failed") as sent:
        with zk_lock("a"), others(zoo, BELIEVED), pytest.raises(LockDeadlock) as caught:
            zk_lock("b").acquire()
        ((_, event),) = eventually(lambda: sent)
    own, other = caught.value.circle
    assert (own.holds, own.waits_for, own.holds_template, own.waits_for_template) == ("a", "b", "a", "b")
    assert (other.holds, other.waits_for, other.holder.what, other.holder.pid) == ("b", "a", "other work", 9)
    assert str(other) == "'other work' on web-9, process 9 holds 'b' and waits for 'a'."
    assert all(str(link) in str(caught.value) for link in caught.value.circle)
    assert (event["lock"], event["circle"]) == ("b", caught.value.circle)


def test_a_forged_text_hides_no_circle(zoo):
    """One reader of "b" claims to be the waiter of the other, in a queue where that does not wait."""
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(zoo.hold_elsewhere("b", Kind.READ)) for _ in range(2)]
        stack.enter_context(zk_lock("a"))
        stack.enter_context(zoo.hold_elsewhere("a", guid=WAITER))
        for path, key in zip(readers, ("c", "a"), strict=True):
            zoo.client.set(path, replace(PAYLOAD, waits_for={**BELIEVED, "key": key}).encode())
        with pytest.raises(LockDeadlock) as caught:
            zk_write("b").acquire(timeout=20)
    assert [link.holds for link in caught.value.circle] == ["a", "b"]


@contextlib.contextmanager
def block(**options):
    with zk_lock("a", **options):
        yield


def acquired_on(stack, lock):
    hold = acquired(lock)
    stack.callback(hold.release)
    return hold


def block_in_acquire(stack):
    hold = acquired(zk_lock("a"))
    stack.enter_context(block())
    hold.release()


def acquire_in_block(stack):
    stack.enter_context(block())
    acquired_on(stack, zk_lock("a"))


def left_by_block(stack):
    with block():
        acquired_on(stack, zk_lock("a"))


ONLY_ITS_OWNER = {
    "block": lambda stack: stack.enter_context(block()),
    "block that lingers": lambda stack: stack.enter_context(block(linger=5)),
    "stack": lambda stack: stack.enter_context(zk_lock("a")),
    "block in acquire": block_in_acquire,
    "acquire in block": acquire_in_block,
    "several": lambda stack: stack.enter_context(zk_locks("a", "c")),
    "leader": lambda stack: stack.enter_context(zk_leader("a")),
    "until COMMIT": lambda stack: acquired_on(stack, zk_lock("a", release_on="commit")),
}
ANY_THREAD = {
    "acquire": lambda stack: acquired_on(stack, zk_lock("a")),
    "acquire twice": lambda stack: [acquired_on(stack, zk_lock("a")) for _ in range(2)],
    "acquire that lingers": lambda stack: acquired_on(stack, zk_lock("a", linger=5)),
    "several": lambda stack: acquired_on(stack, zk_locks("a", "c")),
    "left by block": left_by_block,
}


@pytest.mark.parametrize("way", ONLY_ITS_OWNER)
def test_a_lock_that_only_its_owner_releases_is_part_of_a_circle(zoo, way):
    with contextlib.ExitStack() as stack:
        ONLY_ITS_OWNER[way](stack)
        with others(zoo, BELIEVED), pytest.raises(LockDeadlock):
            zk_lock("b").acquire()


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("way", ANY_THREAD)
def test_a_lock_that_any_thread_may_release_is_in_no_circle(zoo, way):
    """The pages still show that its owner waits."""
    with contextlib.ExitStack() as stack:
        ANY_THREAD[way](stack)
        with others(zoo, BELIEVED):
            waits = acquire_until(lambda: bool(text_of(zoo, "a")), zk_lock("b")), zk_lock("b").acquire(timeout=1)
            assert waits == (None, None)
            assert text_of(zoo, "a")["may_end"] == "1"


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("is_block", [True, False])
def test_a_lock_of_a_task_is_part_of_a_circle_if_it_is_that_of_a_block(zoo, is_block):
    async def wait():
        with others(zoo, BELIEVED):
            return await zk_lock("b").aacquire(timeout=2)

    async def main():
        if is_block:
            async with zk_lock("a"):
                return await wait()
        hold = await zk_lock("a").aacquire()
        assert hold is not None
        try:
            return await wait()
        finally:
            await hold.arelease()

    with pytest.raises(LockDeadlock) if is_block else contextlib.nullcontext():
        assert asyncio.run(main()) is None


def test_a_lock_that_was_lost_is_in_no_deadlock(zoo):
    lock = zk_lock("a")
    lose(acquired(lock))
    with others(zoo, BELIEVED):
        assert zk_lock("b").acquire(timeout=5 * SOON) is None
    with contextlib.suppress(LockLost):
        lock.release()


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(
    ("waits_for", "queue"),
    [
        ({}, "a"),
        ({**BELIEVED, "guid": new_guid(Mark.OWN)}, "a"),  # has left the queue
        (BELIEVED, "c"),  # waits for another lock
        ({**BELIEVED, "key": "c"}, "c"),  # is granted that lock
        ({**BELIEVED, "key": "c"}, "a"),
        ({**BELIEVED, "key": "../a"}, "a"),
        ({**BELIEVED, "key": "b", "guid": PAYLOAD.guid}, "a"),  # is the holder itself
        ({**BELIEVED, "czxid": "x"}, "a"),
        ({**BELIEVED, "until": "1700000000000"}, "a"),  # has given up, and its znode is still there
        ({**BELIEVED, "may_end": "1"}, "a"),  # another thread may release the lock meanwhile
    ],
)
def test_a_text_that_the_queue_does_not_confirm_is_no_deadlock(zoo, waits_for, queue):
    with proxied(zoo, 20, DEADLOCK_TIMEOUT=SOON) as proxy, zk_lock("a"), others(zoo, waits_for, queue):
        # It has looked, and has looked again, when it begins to look once more.
        assert acquire_until(lambda: proxy.counts[SYNC] > 2, zk_lock("b")) is None


def test_a_circle_of_others_is_followed_once(zoo):
    """A holder waits for its own lock. The next look comes after 5 s."""
    with proxied(zoo, 20, DEADLOCK_TIMEOUT=SOON) as proxy, zk_lock("a"), others(zoo, {**BELIEVED, "key": "b"}, "b"):
        assert zk_lock("b").acquire(timeout=1) is None
        assert proxy.counts[SYNC] <= 2


@pytest.mark.parametrize("change", ["break", "write", "abandon", "refuse"])
def test_a_circle_that_ends_meanwhile_is_no_deadlock(zoo, monkeypatch, change):
    """ZooKeeper carries out the victim's transaction only if the circle is still there. If refused, none follows."""
    monkeypatch.setattr(deadlock, "LOOK_AFTER", 1.5)
    monkeypatch.setattr(heartbeat, "BEAT_SHARE", 0.39)  # so that the next transaction is that of the victim
    ready = threading.Event()
    with proxied(zoo, 20, DEADLOCK_TIMEOUT=SOON, DEFAULTS={"timeout": 40}) as proxy:
        own = BackgroundCall(partial(nested, zk_lock("a"), zk_lock("b"), partial(ready.wait, 30)))
        zoo.wait_contenders("a", 1)
        with others(zoo, BELIEVED) as (holder, waiter):
            ready.set()
            eventually(lambda: text_of(zoo, "a"))
            proxy.reset()
            if change == "refuse":
                proxy.alter_reply(MULTI, with_error(NO_AUTH), carried_out=False)
            else:
                proxy.delay_op(MULTI, 60)
            proxy.wait_for(lambda: proxy.counts[MULTI])
            if change == "break":
                zoo.client.delete(holder)
            elif change == "write":
                zoo.client.set(holder, PAYLOAD.encode())
            elif change == "abandon":
                zoo.client.delete(waiter)
            else:
                proxy.reset()
                due(1)
                assert not proxy.counts[SYNC]
            proxy.heal()
        assert own.result() is None


def test_a_wait_inside_a_lock_costs_one_write_and_two_reads_a_link(zoo):
    """There is one look every 5 s. The holder's watch reads its znode once again."""
    with proxied(zoo, 20, DEADLOCK_TIMEOUT=SOON) as proxy, zoo.hold_elsewhere("b"), zk_lock("a"):
        zk_lock("b").acquire(timeout=0.05)
        eventually(lambda: [payload and payload.waited for payload in zoo.payloads("a")] > [0])
        path = f"{zoo.base}/a/{zoo.children('a')[0]}"
        eventually(lambda: path in watched(zoo))  # it has read this, too
        before = zoo.client.exists(path).version
        proxy.reset()
        acquire_until(lambda: proxy.counts[SYNC] and proxy.counts[GET_CHILDREN] > 1, zk_lock("b", timeout=40))
        counts = proxy.counts
        assert (zoo.client.exists(path).version, counts[SYNC]) == (before + 1, 1)
        assert counts[GET_CHILDREN] == 1 + 1  # that of the contender itself
        assert counts[GET_DATA] <= 2 + 2 + 1  # those of the contender itself, and that of the watch


@pytest.mark.parametrize("inner", [None, "free", "b"])
def test_other_locks_and_waits_cost_nothing(zoo, caplog, inner):
    with proxied(zoo, 20, DEADLOCK_TIMEOUT=0.05) as proxy, zoo.hold_elsewhere("b"):
        connected()
        outer = contextlib.nullcontext() if inner == "b" else zk_lock("a")
        with outer, contextlib.suppress(LockTimeout), zk_lock(inner or "c", timeout=0.5):
            pass
        settle()
        assert (proxy.counts[MULTI], proxy.counts[SYNC]) == (0, 0)
    assert "failed" not in caplog.text
