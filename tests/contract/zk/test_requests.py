"""Requests and updates survive a broken connection, and end at their deadline."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from support.faults import BackgroundCall, acquire_once, connected, session
from support.proxy import GET_DATA, MULTI, Proxy
from support.zoo import Zoo, eventually

from django_zklock import zk_lock
from django_zklock.core import clock
from django_zklock.core.zk.errors import NodeMissing
from django_zklock.core.zk.gateway import DirectoryState, Gateway
from django_zklock.core.zk.multi import Create, SetData
from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable
from django_zklock.locks.requests import (
    Commit,
    Done,
    FenceGone,
    OptimisticUpdate,
    Step,
    StillThere,
    WaitUntilGone,
    call,
    run,
    run_all,
)


def soon(seconds: float = 10) -> float:
    return clock.now() + seconds


def read(path: str, seconds: float = 10) -> Any:
    def send(gateway: Gateway, done: Any) -> None:
        gateway.read(path, done)

    return call(session(), send, soon(seconds))


def counting(path: str) -> OptimisticUpdate:
    """An update that adds one to the number in a node; its value is the sum."""
    name = str(uuid.uuid4())

    def decide(directory: DirectoryState | None, session_id: int) -> Step:
        number, writer = directory.data.decode().split() if directory is not None else ("0", "")
        if writer == name:
            return Done(int(number))
        data = f"{int(number) + 1} {name}".encode()
        if directory is None:
            return Commit((Create(path=path, data=data),), 1)
        return Commit((SetData(path=path, data=data, version=directory.version),), int(number) + 1)

    return OptimisticUpdate(session(), path, decide)


def test_a_request_whose_reply_is_lost_is_sent_again(zoo: Zoo, proxy: Proxy) -> None:
    zoo.client.create(f"{zoo.base}/node", b"data", makepath=True)
    fired = proxy.kill_after_op(GET_DATA)
    assert read(f"{zoo.base}/node").data == b"data"
    assert fired.is_set()


def test_a_request_returns_an_error_and_raises_at_the_deadline(zoo: Zoo, proxy: Proxy) -> None:
    assert isinstance(read(f"{zoo.base}/missing"), NodeMissing)
    proxy.hang = True
    with pytest.raises(ZooKeeperUnavailable):
        read(f"{zoo.base}/missing", 0.3)


@pytest.mark.parametrize("strike", ["kill_before_op", "kill_after_op"])
def test_an_update_whose_reply_is_lost_is_carried_out_once(zoo: Zoo, proxy: Proxy, strike: str) -> None:
    path = f"{zoo.base}/deep/number"
    assert run(counting(path), soon()) == 1, "the missing directory is created"
    fired = getattr(proxy, strike)(MULTI)
    assert run(counting(path), soon()) == 2
    assert fired.is_set()
    assert zoo.client.get(path)[0].startswith(b"2 ")


def test_updates_at_the_same_time_lose_nothing(zoo: Zoo, proxy: Proxy) -> None:
    path = f"{zoo.base}/number"
    assert sorted(run_all([counting(path) for _ in range(5)], soon())) == [1, 2, 3, 4, 5]


def test_an_update_writes_nothing_without_its_fence(zoo: Zoo, proxy: Proxy) -> None:
    path = f"{zoo.base}/deep/record"
    fence = zoo.client.create(f"{zoo.base}/fence", ephemeral=True, makepath=True)

    def decide(directory: DirectoryState | None, session_id: int) -> Step:
        return Done("there") if directory is not None else Commit((Create(path=path),), "new")

    def write() -> object:
        return run(OptimisticUpdate(session(), path, decide, fence=fence), soon())

    assert write() == "new"
    zoo.client.delete(path)
    zoo.client.delete(fence)
    with pytest.raises(FenceGone):
        write()
    assert zoo.client.exists(path) is None


def test_an_update_distinguishes_a_remaining_child_from_a_missing_reply(zoo: Zoo, proxy: Proxy) -> None:
    path = f"{zoo.base}/directory"
    zoo.client.create(f"{path}/child", makepath=True)

    def decide(directory: DirectoryState | None, session_id: int) -> Step:
        return WaitUntilGone("child") if directory is not None and "child" in directory.children else Done("gone")

    with pytest.raises(StillThere):
        run(OptimisticUpdate(session(), path, decide), soon(0.3))
    waiting = OptimisticUpdate(session(), path, decide)
    waiter = BackgroundCall(lambda: run(waiting, soon()))
    eventually(lambda: waiting.waiting)
    zoo.client.delete(f"{path}/child")
    assert waiter.result() == "gone"


@pytest.mark.parametrize(("name", "timeout"), [("create_and_list", 5), ("children", 0)])
def test_an_unsent_request_stops_no_other(zoo: Zoo, monkeypatch: pytest.MonkeyPatch, name: str, timeout: float) -> None:
    """A defect fails the one call that it strikes. The listing that was not sent is not waited for."""

    def fail_once(*args: object) -> None:
        monkeypatch.undo()
        raise RuntimeError("the test says so")

    monkeypatch.setattr(connected().gateway, name, fail_once)
    with pytest.raises(ZkLockError, match="the test says so"):
        zk_lock("k", timeout=timeout).__enter__()
    acquire_once("k", timeout=timeout)
    zoo.assert_empty()
