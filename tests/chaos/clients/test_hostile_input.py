"""Hostile names, nodes that an operator deletes, and callbacks that fail do not affect other locks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.chaos.worker_pool import LockWorker, WorkerFailed, WorkerPool
from support.faults import BackgroundCall
from support.proxy import CREATE2, CREATE_CONTAINER, GET_CHILDREN, Proxy
from support.zoo import Zoo, eventually

from django_zklock import Hold, zk_lock
from django_zklock.exceptions import LockLost

pytestmark = pytest.mark.zookeeper

T = 3.0  # seconds, the session timeout; the lease is 1.2
Figure = Callable[..., None]


def test_a_callback_that_fails_or_blocks_delays_no_other(zoo: Zoo, figure: Figure) -> None:
    """Another one of the hold is called, other work is stopped, and the lock is handed on, while one sleeps."""
    gate, called = threading.Event(), threading.Event()
    blocked = threading.Event()

    def fail(hold: Hold) -> None:
        raise RuntimeError("a callback's own trouble")

    def block(hold: Hold) -> None:
        blocked.set()
        gate.wait(60)

    def acquire_next() -> None:
        with zk_lock("a", timeout=10):
            pass

    lock = zk_lock("a")
    hold = lock.acquire()
    assert hold
    hold.add_lost_callback(fail)
    hold.add_lost_callback(lambda hold: called.set())
    hold.add_lost_callback(block)
    try:
        with pytest.raises(LockLost), zk_lock("b") as other:
            waiter = BackgroundCall(acquire_next)
            zoo.wait_contenders("a", 2)
            deleted = time.monotonic()
            zoo.client.delete(hold.path)
            waiter.result(5)
            figure("next holder after", time.monotonic() - deleted, "s")
            assert blocked.wait(5)
            assert called.is_set()
            zoo.client.delete(other.path)
            time.sleep(20)
        assert time.monotonic() - deleted < 5
        assert not gate.is_set()
        with pytest.raises(LockLost):
            lock.release()
    finally:
        gate.set()


# --- names ------------------------------------------------------------------------------------------------------------

HOSTILE: dict[str, Any] = {
    "slash": "/",
    "dots": "..",
    "parent": "a/../k",
    "NUL": "a\0b",
    "newline": "a\nb",
    "bidirectional": "a\u202eb",
    "empty": "",
    "none": None,
    "number": 7,
    "truth": True,
    "huge": "x" * 100_000,
    "lone surrogate": "\ud83d",
}
HARMLESS = {"slash", "parent", "number", "truth"}  # as the value of a field, where it is escaped


def try_name(worker: LockWorker, key: Any, **options: Any) -> str:
    """Have a process acquire and release a lock of this name; return how that ended."""
    call = worker.tell("turn", **{"as": "other"}, key=key, timeout=1, seconds=0.0, **options)
    eventually(call.done, 10, f"a call for the lock {ascii(key)[:20]} does not end")
    try:
        answer = call.result()
    except WorkerFailed as failed:
        return str(failed).splitlines()[0]
    return "granted" if answer["granted"] else str(answer["error"])


@pytest.mark.convicts_kazoo
def test_a_hostile_name_harms_no_other_lock(pool: WorkerPool, proxy: Proxy) -> None:
    """It is refused before anything is sent. The process keeps its other locks for longer than a session."""
    a, b = pool.start_one("A", hosts=proxy.address, session_timeout=T), pool.start_one("B")
    a.must_acquire()
    working = a.work()
    waiting = b.acquire(timeout=60)
    pool.wait_contenders(2)
    proxy.reset()
    for what, name in HOSTILE.items():
        answer = try_name(a, name)
        if pool.lock == "zklock":
            assert answer == "InvalidLockName", f"{what}: {answer}"
            answer = try_name(a, "key/{value}", fields={"value": name})
            expected = "granted" if what in HARMLESS else "InvalidLockName"
            assert answer == expected, f"{what}, as a value: {answer}"
            if what not in HARMLESS:
                sent = {opcode: proxy.counts[opcode] for opcode in (CREATE2, CREATE_CONTAINER, GET_CHILDREN)}
                assert not any(sent.values()), f"{what}: {sent}"
            proxy.reset()
        assert not working.done(), f"{what}: the other lock of the process is lost"
    time.sleep(T + 1)
    assert not working.done(), "the other lock of the process is lost"
    assert not waiting.done(), "the other lock of the process was given away"
    a.stop_work()
    assert a.check()
    a.release().result()
    assert waiting.result()["granted"]
    pool.assert_kept()
