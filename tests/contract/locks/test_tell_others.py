"""Code that tells others something after a block waits for the release on its way, so they find the lock free."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery, chain
from celery.canvas import Signature
from celery.signals import after_task_publish, before_task_publish
from django.db import transaction
from kazoo.exceptions import NoNodeError
from kazoo.security import OPEN_ACL_UNSAFE, make_acl
from support.faults import BackgroundCall, acquire_once, reconnect, session
from support.proxy import DELETE, MULTI, Proxy
from support.zoo import Zoo, eventually

from django_zklock import signals, zk_lock, zk_locks
from django_zklock.contrib.celery import connect
from django_zklock.core.protocol import releases
from django_zklock.core.queue.operator_hold import is_operator

pytestmark = pytest.mark.usefixtures("no_rests")

NEVER = 60.0  # seconds: a test that waits so long has failed
LATER = 0.2


def left(zoo: Zoo, key: str = "k") -> list[str]:
    """Return what another client sees in a queue now, without a hold for an adopter."""
    with contextlib.suppress(NoNodeError):  # the server removes an empty directory
        return [name for name in zoo.client.get_children(f"{zoo.base}/{key}") if not is_operator(name)]
    return []


def nothing() -> None: ...


@pytest.fixture
def app() -> Iterator[Celery]:
    connect()
    with Celery("told", broker="memory://", set_as_current=False) as app:
        app.task(name="task", shared=False)(nothing)  # else it is a task of all later apps, too
        yield app


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that waits in vain does not go unnoticed."""
    monkeypatch.setattr(releases, "TIMEOUT", NEVER)
    monkeypatch.setattr(releases, "LOOP_TIMEOUT", NEVER)


@pytest.fixture
def lost(proxy: Proxy, patient: None) -> Proxy:
    """ZooKeeper confirms no release."""
    for opcode in (DELETE, MULTI):
        proxy.delay_op(opcode, NEVER)
    return proxy


@pytest.fixture
def late(proxy: Proxy, patient: None) -> Proxy:
    """ZooKeeper confirms each release, but late."""
    for opcode in (DELETE, MULTI):
        proxy.delay_op(opcode, LATER)
    return proxy


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < NEVER / 2


@contextlib.contextmanager
def published(zoo: Zoo) -> Iterator[list[list[str]]]:
    """Record what another client sees in the queue of `k` when a message is published."""
    seen: list[list[str]] = []

    def on_publish(**kwargs: object) -> None:
        seen.append(left(zoo))

    after_task_publish.connect(on_publish)
    try:
        yield seen
    finally:
        after_task_publish.disconnect(on_publish)


def exception() -> None:
    with contextlib.suppress(KeyError), zk_lock("k"):
        raise KeyError


def timeout() -> None:
    with zk_lock("k"):
        thread = threading.Thread(target=lambda: zk_lock("k").acquire(timeout=0.01))
        thread.start()
        thread.join()


def other_thread() -> None:
    thread = threading.Thread(target=acquire_once, args=["k"])
    thread.start()
    thread.join()


async def coroutine() -> None:
    async with zk_lock("k"):
        pass


RELEASES: dict[str, Callable[[], object]] = {
    "block": lambda: acquire_once("k"),
    "reader": lambda: acquire_once("k", kind="read"),
    "permit": lambda: acquire_once("k", limit=2),
    "minimum hold that is over": lambda: acquire_once("k", min_hold=0.001),
    "block that fails": exception,
    "waiter that gives up": timeout,
    "other thread": other_thread,
    "coroutine": lambda: asyncio.run(coroutine()),
}

MESSAGES: dict[str, Callable[[Signature], object]] = {
    "delay": lambda task: task.delay(),
    "send_task": lambda task: task.app.send_task("task"),
    "chain": lambda task: chain(task, task).apply_async(),
    "with an eta": lambda task: task.apply_async(countdown=5),
    "in a loop": lambda task: asyncio.run(in_a_loop(task.delay)),
    "in a thread of a loop": lambda task: asyncio.run(asyncio.to_thread(task.delay)),
}


async def in_a_loop(call: Callable[[], object]) -> None:
    call()


@pytest.mark.parametrize("release", RELEASES.values(), ids=RELEASES)
def test_a_message_is_published_after_the_release(
    zoo: Zoo, app: Celery, late: Proxy, release: Callable[[], object]
) -> None:
    with published(zoo) as seen:
        release()
        app.signature("task").delay()
    assert seen == [[]]


@pytest.mark.parametrize("send", MESSAGES.values(), ids=MESSAGES)
def test_each_way_to_publish_waits_for_the_release(
    zoo: Zoo, app: Celery, late: Proxy, send: Callable[[Signature], object]
) -> None:
    with published(zoo) as seen:
        acquire_once("k")
        send(app.signature("task"))
    assert seen == [[]]


def test_a_release_that_is_resent_after_a_cut_is_waited_for(zoo: Zoo, app: Celery, late: Proxy) -> None:
    late.kill_before_op(DELETE)
    with published(zoo) as seen:
        acquire_once("k")
        app.signature("task").delay()
    assert seen == [[]]


def stop(busy: threading.Event, go_on: threading.Event) -> None:
    busy.set()
    go_on.wait(NEVER)


def test_without_a_release_on_its_way_nothing_waits(zoo: Zoo, app: Celery, lost: Proxy) -> None:
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


def test_an_outage_makes_one_message_wait_and_no_other(
    zoo: Zoo, app: Celery, lost: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_release_that_zookeeper_refuses_is_not_waited_for(zoo: Zoo, app: Celery, proxy: Proxy, patient: None) -> None:
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


def test_the_loss_of_the_session_ends_the_wait(zoo: Zoo, app: Celery, lost: Proxy) -> None:
    acquire_once("k")
    publishing = threading.Thread(target=app.signature("task").delay)
    publishing.start()
    eventually(lambda: releases._waiting)
    session().post(session()._end_of_session)
    publishing.join(NEVER / 2)
    assert not publishing.is_alive()
    lost.heal()
    reconnect(lost)


def test_an_event_loop_is_blocked_for_a_shorter_time(
    zoo: Zoo, app: Celery, lost: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releases, "LOOP_TIMEOUT", LATER)

    async def tell() -> None:
        await coroutine()
        app.signature("task").delay()

    with at_once():
        asyncio.run(tell())
    lost.heal()


def test_a_coroutine_that_has_waited_does_not_block_its_loop(zoo: Zoo, app: Celery, late: Proxy) -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(LATER / 20)

    async def tell() -> None:
        running = asyncio.create_task(others())
        async with zk_lock("k") as hold:
            pass
        before = turns
        await hold.await_released()
        assert turns > before + 2
        assert not releases._under_way
        app.signature("task").delay()
        running.cancel()

    with published(zoo) as seen:
        asyncio.run(tell())
    assert seen == [[]]


def test_messages_wait_also_in_a_process_that_decorates_nothing(zoo: Zoo) -> None:
    """Such a process imports Celery whenever it likes, also inside its first block."""
    script = """
with zk_lock("k"):
    from celery.signals import before_task_publish
print(len(before_task_publish.receivers))
"""
    assert zoo.output(script) == ["1"]


def test_a_hold_says_whether_its_release_is_confirmed(zoo: Zoo, lost: Proxy) -> None:
    with zk_lock("k") as hold:
        assert hold.wait_released()
    assert not hold.wait_released()
    assert not hold.wait_released()
    lost.heal()
    eventually(hold.wait_released)


def tell(has_told: threading.Event) -> None:
    releases.wait()
    has_told.set()


def test_the_protocols_thread_does_not_wait(zoo: Zoo, app: Celery, lost: Proxy) -> None:
    acquire_once("k")
    has_told = threading.Event()
    with at_once():
        session().post(lambda: tell(has_told))
        assert has_told.wait(NEVER / 2)
    lost.heal()


def test_other_receivers_get_the_message_although_an_exception_strikes_the_wait(
    zoo: Zoo, app: Celery, lost: Proxy
) -> None:
    """Celery logs what a receiver raises, and publishes."""
    got: list[object] = []

    def receiver(*, sender: object, headers: object, **kwargs: Any) -> None:
        got.append(sender)

    def strike(*args: object) -> None:
        raise KeyError

    def strike_the_wait() -> None:
        eventually(lambda: releases._waiting)
        signal.pthread_kill(main_thread, signal.SIGALRM)

    main_thread = threading.get_ident()
    previous = signal.signal(signal.SIGALRM, strike)
    before_task_publish.connect(receiver)
    try:
        with published(zoo) as seen, at_once():
            acquire_once("k")
            striking = BackgroundCall(strike_the_wait)
            app.signature("task").delay()
            striking.result()
    finally:
        before_task_publish.disconnect(receiver)
        signal.signal(signal.SIGALRM, previous)
    assert got == ["task"]
    assert len(seen) == 1
    assert not releases._waiting
    lost.heal()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
def test_a_function_of_on_commit_runs_after_the_release_on_commit(zoo: Zoo, late: Proxy, several: bool) -> None:
    seen = []
    with transaction.atomic():
        transaction.on_commit(lambda: seen.append(left(zoo)))
        acquire_once(zk_locks("k", "l", release_on="commit") if several else zk_lock("k", release_on="commit"))
    assert seen == [[]]


def test_the_signal_of_a_release_is_sent_when_it_is_confirmed(zoo: Zoo, late: Proxy) -> None:
    seen = []

    def on_released(*, lock: str, **kwargs: object) -> None:
        seen.append(left(zoo, lock))

    signals.lock_released.connect(on_released)
    try:
        for key in ("k", "l", "k"):
            acquire_once(key)
        eventually(lambda: len(seen) == 3)
    finally:
        signals.lock_released.disconnect(on_released)
    assert seen[:2] == [[], []]


def test_the_text_of_a_hand_over_is_returned_after_other_releases(zoo: Zoo, late: Proxy) -> None:
    with zk_lock("given", timeout=30) as hold:
        acquire_once("k")
        hold.hand_over()
        assert left(zoo) == []


WAITS: dict[str, Callable[[Any], object]] = {
    "thread": lambda hold: hold.wait_released(),
    "coroutine": lambda hold: asyncio.run(hold.await_released()),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
def test_a_hold_waits_for_its_release(zoo: Zoo, late: Proxy, several: bool, wait: Callable[[Any], object]) -> None:
    lock: Any = zk_locks("k") if several else zk_lock("k")
    with lock as hold:
        wait(hold)  # the lock is held, and nothing is on its way
        assert len(left(zoo)) == 1
    assert len(left(zoo)) == 1
    wait(hold)
    assert left(zoo) == []
    wait(hold)
