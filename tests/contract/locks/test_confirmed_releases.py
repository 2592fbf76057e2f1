"""A call that others rely on returns when its release is confirmed. The end of a usual block does not wait: it logs."""

import asyncio
import contextlib
import os
import socket

import pytest
from django.db import transaction
from kazoo.exceptions import NoNodeError
from kazoo.security import OPEN_ACL_UNSAFE, make_acl
from support.faults import acquire_once, due, reconnect, session
from support.locking import zklock
from support.primitives import LOCK, PRIMITIVES
from support.proxy import DELETE, MULTI
from support.refused import on_real_server
from support.work import assert_refused
from support.zoo import eventually, guid_of, next_line

from django_zklock import zk_leader, zk_lock, zk_locked, zk_locks
from django_zklock.contrib.leases.access import ANYBODY
from django_zklock.contrib.leases.coordinator import Coordinator
from django_zklock.contrib.leases.lease import LeaseRequest
from django_zklock.core.log import flush
from django_zklock.core.protocol import contender
from django_zklock.core.protocol.registry import RETRY_DELETE, Registry
from django_zklock.core.queue.operator_hold import is_operator
from django_zklock.core.zk.gateway import Gateway
from django_zklock.exceptions import LockLost, LockTimeout
from django_zklock.locks.hold import held_of
from django_zklock.operations import break_lock, end_hold, hold_lock

pytestmark = pytest.mark.usefixtures("no_rests")

WHY = {"by": "ops", "reason": "test"}


def left(zoo):
    """Return what another client sees in the queue of `k` now, without an operator hold that has taken over."""
    with contextlib.suppress(NoNodeError):  # the server removes an empty directory
        return [name for name in zoo.client.get_children(f"{zoo.base}/k") if not is_operator(name)]
    return []


def coroutine(timeout):
    async def use():
        async with zk_lock("k", timeout=timeout):
            pass

    asyncio.run(use())


def skipped(timeout):
    with zk_lock("k", timeout=timeout, on_conflict="skip") as hold:
        assert hold is not None


async def nothing(*_): ...


def committed(timeout):
    with transaction.atomic(), zk_lock("k", timeout=timeout, release_on="commit"):
        pass


def nested(timeout):
    with zk_lock("k", timeout=timeout), zk_lock("k"):
        pass


def failed(timeout):
    with pytest.raises(KeyError), zk_lock("k", timeout=timeout):
        raise KeyError


BLOCKS = {
    "block": lambda timeout: acquire_once("k", timeout=timeout),
    "coroutine": coroutine,
    "one of one": lambda timeout: acquire_once(zk_locks("k", timeout=timeout)),
    "skipped": skipped,
    "decorated": lambda timeout: zk_locked("k", timeout=timeout)(lambda: None)(),
    "decorated coroutine": lambda timeout: asyncio.run(zk_locked("k", timeout=timeout)(nothing)()),
    "committed": committed,
    "nested": nested,
    "failed": failed,
}


def released():
    lock = zk_lock("k", timeout=5)
    lock.acquire()
    lock.release()


async def released_in_a_coroutine():
    lock = zk_lock("k", timeout=5)
    await lock.aacquire()
    await lock.arelease()


async def lease():
    coordinator = Coordinator()
    request = LeaseRequest(resource_path="k", client_id="node-1", session_timeout_ms=30_000, wait_limit_ms=5_000)
    granted = await coordinator.acquire(ANYBODY, request)
    await coordinator.release(ANYBODY, granted.id)


def broken():
    with contextlib.suppress(LockLost), zk_lock("k", timeout=30, abort_on="lost") as hold:  # it may not know yet
        break_lock("k", guid=guid_of(hold.path), token=hold.token, **WHY)


def held_by_operator():
    hold = hold_lock("k", seconds=60, **WHY)
    end_hold("k", token=hold.token, **WHY)


CALLS = {
    "permit": lambda: acquire_once("k", timeout=0, limit=2),
    "reader": lambda: acquire_once("k", timeout=0, kind="read"),
    "several": lambda: acquire_once(zk_locks("k", "l", "m", timeout=5)),
    "release": released,
    "arelease": lambda: asyncio.run(released_in_a_coroutine()),
    "leader": lambda: zk_leader("k").run(lambda hold: None),
    "leader's block": lambda: acquire_once(zk_leader("k")),  # as beat has it
    "leading coroutine": lambda: asyncio.run(zk_leader("k").arun(nothing)),
    "lease": lambda: asyncio.run(lease()),
    "command": lambda: zklock("run", "k", "--timeout", 5, "--", "true"),
    "break": broken,
    "operator hold": held_by_operator,
}


def delay(proxy, seconds):
    for opcode in (DELETE, MULTI):
        proxy.delay_op(opcode, seconds)


@pytest.fixture
def slow(proxy):
    delay(proxy, 0.15)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_others_see_the_release_when_the_call_returns(zoo, slow, call):
    call()
    assert left(zoo) == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("use", BLOCKS.values(), ids=BLOCKS)
def test_a_block_without_a_wait_ends_after_the_confirmation(zoo, slow, use):
    """Such code expects that busy means busy, and so do its rivals."""
    use(0)
    assert left(zoo) == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("use", BLOCKS.values(), ids=BLOCKS)
def test_a_block_that_waits_ends_before_the_confirmation(zoo, proxy, use):
    """Or the tests above would prove nothing. The process itself sees the release."""
    delay(proxy, 60)
    use(30)
    assert left(zoo) != []
    proxy.heal()
    assert not zk_lock("k").locked()
    assert left(zoo) == []


def test_another_process_that_is_told_finds_the_lock_free(zoo):
    script = """
import ast, sys
for line in sys.stdin:
    with zk_lock('k', timeout=0, **ast.literal_eval(line)):
        pass
    print("free", flush=True)
"""
    with zoo.running(script) as process:
        assert process.stdin is not None
        for primitive in PRIMITIVES:
            options = {**primitive.options, "linger": 0}
            for _ in range(100 if primitive is LOCK else 10):
                acquire_once("k", timeout=0, **options)
                process.stdin.write(f"{options}\n")
                process.stdin.flush()
                assert next_line(process) == "free", primitive


LATE = "had been deleted by another session"


def messages(caplog, part):
    return [record.getMessage() for record in caplog.records if part in record.getMessage()]


@on_real_server
def test_a_release_that_zookeeper_refuses_is_logged(zoo, caplog):
    directory = f"{zoo.base}/shop/1"
    no_deletes = make_acl("world", "anyone", read=True, write=True, create=True, admin=True)
    with zk_lock("shop/1") as hold:
        zoo.client.set_acls(directory, [no_deletes])  # an empty container might be deleted
        path = hold.path
    (message, *_) = eventually(lambda: messages(caplog, "deleting the znode"))
    held_of(hold).contender.abandon()  # once more, as after `max_hold`
    due(0)
    assert len(session().attached(Registry).deleting) == 1
    for part in (path, "NoAuthError", f"process {os.getpid()} on {socket.gethostname()}", "'shop/1'", directory):
        assert part in message
    (record,) = [record for record in caplog.records if record.getMessage() == message]
    assert (record.levelname, vars(record)["lock"]) == ("ERROR", "shop/1")
    why = assert_refused(zk_lock("shop/1", timeout=2.5 * RETRY_DELETE), LockTimeout)
    assert "which this process has released, but its znode is still there" in str(why)
    assert "NoAuthError" in str(why)
    assert "earlier call" not in str(why)
    logged = messages(caplog, f"deleting the znode {path} ")  # the refused waiter's own znode has its own message
    assert len(logged) == 1, "it is tried again each second"
    zoo.client.set_acls(directory, OPEN_ACL_UNSAFE)
    acquire_once("shop/1", timeout=30)


@on_real_server
def test_a_release_that_zookeeper_refuses_is_not_confirmed(zoo):
    """The holder would else tell others that the lock is free."""
    directory = f"{zoo.base}/shop/1"
    with zk_lock("shop/1") as hold, zk_lock("shop/2") as other:
        zoo.client.set_acls(directory, [make_acl("world", "anyone", read=True, write=True, create=True, admin=True)])
    assert not hold.wait_released()
    assert not hold.wait_released()
    assert not asyncio.run(hold.await_released())
    assert not other.wait_released(), "it is about all releases of the process"
    zoo.client.set_acls(directory, OPEN_ACL_UNSAFE)
    eventually(hold.wait_released)


def confirmed():
    """Wait until what was sent before has its replies, and is logged."""
    acquire_once("another", timeout=0)
    assert flush(5)


@pytest.mark.parametrize("seconds", [None, 0, 60], ids=["later", "after a cut", "slowly after a cut"])
def test_a_release_that_cannot_be_sent_is_repeated_once(zoo, proxy, monkeypatch, caplog, seconds):
    original = Gateway.delete
    failures = [OSError("no room")]

    def delete(self, *args):
        if failures:
            raise failures.pop()
        original(self, *args)

    monkeypatch.setattr(Gateway, "delete", delete)
    acquire_once("a")
    eventually(lambda: "failed, trying again: no room" in caplog.text)
    if seconds is not None:
        proxy.delay_op(DELETE, seconds)
        reconnect(proxy)
    due(RETRY_DELETE)
    proxy.heal()
    eventually(lambda: zoo.children("a") == [])
    connections = [frame.connection for frame in proxy.frames if frame.request and frame.opcode == DELETE]
    assert 1 <= len(connections) == len(set(connections))


def test_a_lock_whose_znode_was_deleted_is_told_after_a_short_hold(zoo, primitive, caplog, monkeypatch):
    """Before a hold is watched, only its release shows it."""
    monkeypatch.setattr(contender, "WATCH_SELF_AFTER", 60.0)
    with primitive.lock() as hold:
        zoo.client.delete(hold.path)
    (message,) = eventually(lambda: messages(caplog, LATE))
    assert f"process {os.getpid()} on {socket.gethostname()}" in message
    assert hold.path in message
    (record,) = [record for record in caplog.records if record.getMessage() == message]
    assert (record.levelname, vars(record)["lock"], vars(record)["token"]) == ("WARNING", hold.key, hold.token)


def test_a_release_without_a_connection_asks_for_one(zoo, proxy):
    """Otherwise the process may rest for a while after many refused connects, and its znode stays as long."""
    lock = zk_lock("k", abort_on="never")
    lock.acquire()
    proxy.refuse = True
    proxy.cut_all()
    eventually(lambda: not session().connected)
    lock.release()
    due(0)
    assert any(observer.needs_connection for observer in list(session().observers))
    proxy.heal()
    zoo.wait_contenders("k", 0)
    eventually(lambda: not any(observer.needs_connection for observer in list(session().observers)))
