"""Wrong calls end at once with an error, and leave nobody in the queue."""

import asyncio
import copy
import functools
import os
import pickle
import socket
import threading

import pytest
from django.utils.functional import cached_property
from support.faults import BackgroundCall, connected, session
from support.work import assert_refused
from support.zoo import eventually

from django_zklock import current_hold, zk_lock, zk_locked, zk_locks
from django_zklock.core.protocol.contender import Contender
from django_zklock.core.protocol.registry import Registry
from django_zklock.core.queue import nodes, order
from django_zklock.core.zk.gateway import Gateway
from django_zklock.exceptions import InvalidLockName, LockBusy, LockNotHeld, LockTimeout, ZkLockError
from django_zklock.operations import request_release


def test_a_negative_timeout_does_not_wait(zoo):
    """`deadline - now` may be negative: even -1, which means for ever to a thread's own lock, ends at once."""
    with zk_lock("own") as hold, zk_locks("a", "b") as several:
        for seconds in (0, -0.5, -1, -1.0, -2):
            assert BackgroundCall(functools.partial(hold.wait_lost, seconds)).result(30) is False
            assert BackgroundCall(functools.partial(several.wait_lost, seconds)).result(30) is False
            assert BackgroundCall(functools.partial(hold.wait_release_requested, seconds)).result(30) is None


def test_an_error_says_what_was_wrong_and_what_to_do(zoo):
    with pytest.raises(ValueError, match=r"^timeout must be .* \(0 = do not wait, None = no limit; .*\); got -1\."):
        zk_lock("k", timeout=-1)
    names = ["a", "b"]
    with pytest.raises(InvalidLockName, match=r"zk_locks\(\*names\)"):
        zk_lock(names).acquire()
    with pytest.raises(InvalidLockName, match=r"zk_locks\(\*names\)"):
        zk_locks(names).acquire()
    with pytest.raises(LockNotHeld, match="'k'"):
        zk_lock("k").release()
    with pytest.raises(LockNotHeld, match="'k'"):
        current_hold("k")
    with pytest.raises(LockNotHeld, match="no lock"):
        current_hold()


def test_the_log_of_a_failed_callback_names_the_lock(zoo, caplog):
    with zk_lock("k") as hold:

        def fail(hold):
            raise ZeroDivisionError

        hold.add_release_request_callback(fail)
        request_release("k", "enough", by="anna")
        (record,) = eventually(lambda: [record for record in caplog.records if record.exc_info])
    assert "callback of the hold on 'k' " in record.message
    assert "fail" in record.message


@pytest.mark.parametrize(("owner", "step"), [(Contender, "_wait_for_turn"), (Gateway, "create_and_list")])
def test_a_defect_of_the_protocol_leaves_no_contender(zoo, monkeypatch, caplog, owner, step):
    connected()
    monkeypatch.setattr(owner, step, lambda *arguments: 1 / 0)
    with pytest.raises(ZkLockError, match="protocol failed: ZeroDivisionError"):
        zk_lock("k").acquire()
    (record,) = eventually(lambda: [record for record in caplog.records if record.exc_info])
    assert record.message == "the protocol failed for lock 'k'"
    zoo.assert_empty()
    eventually(lambda: not session().attached(Registry).guids)
    monkeypatch.setattr(order, "ordered", lambda names: 1 / 0)
    with zoo.hold_elsewhere("k"), pytest.raises(ZkLockError, match="The protocol failed: ZeroDivisionError"):
        zk_lock("k").locked()


def test_a_lock_has_no_truth_value(zoo):
    """`if zk_lock(...)` would always be true and lock nothing."""
    for lock in (zk_lock("k", timeout=0), zk_locks("a", "b")):
        with pytest.raises(TypeError, match=r'"with zk_lock\(\.\.\.\):", "if lock\.acquire\(timeout=0\):" or'):
            if lock:
                raise AssertionError
        with pytest.raises(TypeError, match="A lock cannot be pickled"):
            pickle.dumps(lock)
        assert lock.acquire(timeout=0)
        lock.release()


@pytest.mark.parametrize("linger", [0, 1])
def test_an_error_says_that_this_process_is_ahead(zoo, linger):
    holder, lock = (zk_lock("k", timeout=timeout, linger=linger, what="w") for timeout in (None, 1))
    name = threading.current_thread().name

    async def inner():
        async with lock:
            pass

    with holder:
        for call in (lock.__enter__, lambda: asyncio.run(inner())):
            with pytest.raises(LockTimeout, match=f"ahead is 'w' in thread {name} of this process"):
                BackgroundCall(call).result()
        if not linger:
            with pytest.raises(LockBusy, match=f"held by 'w' in thread {name} of this process"):
                BackgroundCall(zk_lock("k", timeout=0).__enter__).result()

    async def outer():
        async with holder:
            with pytest.raises(LockTimeout, match="ahead is 'w' in another task of this process"):
                await asyncio.create_task(inner())

    asyncio.run(outer())


def test_an_error_names_another_process_by_its_number(zoo):
    """Also if it runs on this host, and even if it has the number of this process in another container."""
    guid = nodes.new_guid(nodes.Mark.OWN)
    payload = nodes.Payload(
        guid=guid, host=socket.gethostname(), pid=os.getpid(), thread="t", what="w", since="", template=""
    )
    with zoo.hold_elsewhere("k", guid=guid) as path:
        zoo.client.set(path, payload.encode())
        expected = f"held by 'w' on {socket.gethostname()}, process {os.getpid()}"
        assert_refused(zk_lock("k", timeout=0), LockBusy, expected)


def test_a_hold_cannot_be_pickled(zoo):
    for make in (pickle.dumps, copy.copy, copy.deepcopy):
        with zk_lock("k") as hold, zk_locks("a", "b") as several:
            for kept in (hold, several):
                with pytest.raises(TypeError, match=r"hold\.token"):
                    make(kept)
            hold.check()


@pytest.mark.parametrize(
    "kind", [classmethod, staticmethod, property, functools.cached_property, functools.partialmethod, cached_property]
)
def test_a_lock_above_a_descriptor_is_refused(kind):
    """It is no function of its own yet: its calls would get an argument too many, or none."""

    def work(self):
        return 1

    with pytest.raises(TypeError, match=r"locks functions, not .* Put it below @staticmethod"):
        zk_locked("k")(kind(work))
    below = kind(zk_locked("k")(work))
    assert type(below) is kind
