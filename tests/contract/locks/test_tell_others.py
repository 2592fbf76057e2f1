"""Code that tells others something after a block waits for the release on its way, so they find the lock free."""

import asyncio
import contextlib
import threading
import time

import pytest
from celery import Celery, chain
from celery.signals import after_task_publish
from django.db import transaction
from kazoo.exceptions import NoNodeError
from kazoo.security import OPEN_ACL_UNSAFE, make_acl
from support.faults import acquire_once, session
from support.proxy import DELETE, MULTI
from support.refused import on_real_server
from support.zoo import eventually

from django_zklock import signals, zk_lock, zk_locks
from django_zklock.contrib.celery import connect
from django_zklock.core.protocol import releases
from django_zklock.core.queue.operator_hold import is_operator

pytestmark = pytest.mark.usefixtures("no_rests")

NEVER = 60.0  # seconds: a test that waits so long has failed
LATER = 0.2


def left(zoo, key="k"):
    """Return what another client sees in a queue now, without an operator hold."""
    with contextlib.suppress(NoNodeError):  # the server removes an empty directory
        return [name for name in zoo.client.get_children(f"{zoo.base}/{key}") if not is_operator(name)]
    return []


def nothing(): ...


@pytest.fixture
def app():
    connect()
    with Celery("told", broker="memory://", set_as_current=False) as app:
        app.task(name="task", shared=False)(nothing)  # else it is a task of all later apps, too
        yield app


@pytest.fixture
def patient(monkeypatch):
    """A caller that waits in vain does not go unnoticed."""
    monkeypatch.setattr(releases, "TIMEOUT", NEVER)
    monkeypatch.setattr(releases, "LOOP_TIMEOUT", NEVER)


@pytest.fixture
def lost(proxy, patient):
    """ZooKeeper confirms no release."""
    for opcode in (DELETE, MULTI):
        proxy.delay_op(opcode, NEVER)
    return proxy


@pytest.fixture
def late(proxy, patient):
    """ZooKeeper confirms each release, but late."""
    for opcode in (DELETE, MULTI):
        proxy.delay_op(opcode, LATER)
    return proxy


@contextlib.contextmanager
def at_once():
    began = time.monotonic()
    yield
    assert time.monotonic() - began < NEVER / 2


@contextlib.contextmanager
def published(zoo):
    """Record what another client sees in the queue of `k` when a message is published."""
    seen = []

    def on_publish(**kwargs):
        seen.append(left(zoo))

    after_task_publish.connect(on_publish)
    try:
        yield seen
    finally:
        after_task_publish.disconnect(on_publish)


def exception():
    with contextlib.suppress(KeyError), zk_lock("k"):
        raise KeyError


def timeout():
    with zk_lock("k"):
        thread = threading.Thread(target=lambda: zk_lock("k").acquire(timeout=0.01))
        thread.start()
        thread.join()


def other_thread():
    thread = threading.Thread(target=acquire_once, args=["k"])
    thread.start()
    thread.join()


async def coroutine():
    async with zk_lock("k"):
        pass


RELEASES = {
    "block": lambda: acquire_once("k"),
    "reader": lambda: acquire_once("k", kind="read"),
    "permit": lambda: acquire_once("k", limit=2),
    "minimum hold that is over": lambda: acquire_once("k", min_hold=0.001),
    "block that fails": exception,
    "waiter that gives up": timeout,
    "other thread": other_thread,
    "coroutine": lambda: asyncio.run(coroutine()),
}

MESSAGES = {
    "delay": lambda task: task.delay(),
    "send_task": lambda task: task.app.send_task("task"),
    "chain": lambda task: chain(task, task).apply_async(),
    "with an eta": lambda task: task.apply_async(countdown=5),
    "in a loop": lambda task: asyncio.run(in_a_loop(task.delay)),
    "in a thread of a loop": lambda task: asyncio.run(asyncio.to_thread(task.delay)),
}


async def in_a_loop(call):
    call()


@pytest.mark.parametrize("release", RELEASES.values(), ids=RELEASES)
def test_a_message_is_published_after_the_release(zoo, app, late, release):
    with published(zoo) as seen:
        release()
        app.signature("task").delay()
    assert seen == [[]]


@pytest.mark.parametrize("send", MESSAGES.values(), ids=MESSAGES)
def test_each_way_to_publish_waits_for_the_release(zoo, app, late, send):
    with published(zoo) as seen:
        acquire_once("k")
        send(app.signature("task"))
    assert seen == [[]]


def test_a_release_that_is_resent_after_a_cut_is_waited_for(zoo, app, late):
    late.kill_before_op(DELETE)
    with published(zoo) as seen:
        acquire_once("k")
        app.signature("task").delay()
    assert seen == [[]]


def stop(busy, go_on):
    busy.set()
    go_on.wait(NEVER)


def test_without_a_release_on_its_way_nothing_waits(zoo, app, lost):
    """Not for a lock that is held, lingers, or is left to others; nor while the protocol's thread is busy."""
    acquire_once("lingers", linger=60)
    with zk_lock("held"):
        busy, go_on = threading.Event(), threading.Event()
        session().post(lambda: stop(busy, go_on))
        assert busy.wait(NEVER)
        with at_once():
            app.signature("task").delay()
        go_on.set()
    lost.heal()


def test_an_outage_makes_one_message_wait_and_no_other(zoo, app, lost, monkeypatch):
    with zk_lock("l"):
        acquire_once("k")
        monkeypatch.setattr(releases, "TIMEOUT", LATER)
        began = time.monotonic()
        app.signature("task").delay()
        assert time.monotonic() - began >= LATER
        monkeypatch.setattr(releases, "TIMEOUT", NEVER)
        with at_once():
            app.signature("task").delay()
    with at_once():
        app.signature("task").delay()
    lost.heal()
    with at_once(), published(zoo) as seen:
        acquire_once("k", timeout=30)
        acquire_once("k", timeout=30)
        app.signature("task").delay()
    assert seen == [[]]


@on_real_server
def test_a_release_that_zookeeper_refuses_is_not_waited_for(zoo, app, proxy, patient):
    directory = f"{zoo.base}/refused"
    no_deletes = make_acl("world", "anyone", read=True, write=True, create=True, admin=True)
    with zk_lock("refused"):
        zoo.client.set_acls(directory, [no_deletes])
    with at_once():
        app.signature("task").delay()
    for opcode in (DELETE, MULTI):
        proxy.delay_op(opcode, LATER)
    with at_once(), published(zoo) as seen:  # the others are waited for all the same
        acquire_once("k")
        app.signature("task").delay()
    assert seen == [[]]
    zoo.client.set_acls(directory, OPEN_ACL_UNSAFE)
    proxy.heal()
    acquire_once("refused", timeout=30)


def test_an_event_loop_is_blocked_for_a_shorter_time(zoo, app, lost, monkeypatch):
    monkeypatch.setattr(releases, "LOOP_TIMEOUT", LATER)

    async def tell():
        await coroutine()
        app.signature("task").delay()

    with at_once():
        asyncio.run(tell())
    lost.heal()


def test_messages_wait_also_in_a_process_that_decorates_nothing(zoo):
    """Such a process imports Celery whenever it likes, also inside its first block."""
    script = """
with zk_lock("k"):
    from celery.signals import before_task_publish
print(len(before_task_publish.receivers))
"""
    assert zoo.output(script) == ["1"]


def test_a_hold_says_whether_its_release_is_confirmed(zoo, lost, monkeypatch):
    monkeypatch.setattr(releases, "TIMEOUT", LATER)  # the calls below wait for it
    with zk_lock("k") as hold:
        assert hold.wait_released()
    assert not hold.wait_released()
    assert not hold.wait_released()
    lost.heal()
    eventually(hold.wait_released)


def tell(has_told):
    releases.wait()
    has_told.set()


def test_the_protocols_thread_does_not_wait(zoo, app, lost):
    acquire_once("k")
    has_told = threading.Event()
    with at_once():
        session().post(lambda: tell(has_told))
        assert has_told.wait(NEVER / 2)
    lost.heal()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
def test_a_function_of_on_commit_runs_after_the_release_on_commit(zoo, late, several):
    seen = []
    with transaction.atomic():
        transaction.on_commit(lambda: seen.append(left(zoo)))
        acquire_once(zk_locks("k", "l", release_on="commit") if several else zk_lock("k", release_on="commit"))
    assert seen == [[]]


def test_the_signal_of_a_release_is_sent_when_it_is_confirmed(zoo, late):
    seen = []

    def on_released(*, lock, **kwargs):
        seen.append(left(zoo, lock))

    signals.lock_released.connect(on_released)
    try:
        for key in ("k", "l", "k"):
            acquire_once(key)
        eventually(lambda: len(seen) == 3)
    finally:
        signals.lock_released.disconnect(on_released)
    assert seen[:2] == [[], []]


WAITS = {
    "thread": lambda hold: hold.wait_released(),
    "coroutine": lambda hold: asyncio.run(hold.await_released()),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
def test_a_hold_waits_for_its_release(zoo, late, several, wait):
    lock = zk_locks("k") if several else zk_lock("k")
    with lock as hold:
        wait(hold)  # the lock is held, and nothing is on its way
        assert len(left(zoo)) == 1
    assert len(left(zoo)) == 1
    wait(hold)
    assert left(zoo) == []
    wait(hold)
