"""A call that others rely on returns when its release is confirmed. The end of a usual block does not wait."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError
from support.locking import zklock
from support.proxy import DELETE, MULTI, Proxy
from support.zoo import Zoo, guid_of

from django_zklock import zk_leader, zk_lock, zk_locked, zk_locks
from django_zklock.contrib.leases.access import ANYBODY
from django_zklock.contrib.leases.coordinator import Coordinator, LeaseRequest
from django_zklock.core.queue.operator_hold import is_operator
from django_zklock.exceptions import LockLost
from django_zklock.operations import break_lock, end_hold, hold_lock

pytestmark = [pytest.mark.zookeeper, pytest.mark.usefixtures("no_rests")]

WHY: dict[str, Any] = {"by": "ops", "reason": "test"}


def left(zoo: Zoo) -> list[str]:
    """Return what another client sees in the queue of `k` now, without an operator hold that has taken over."""
    with contextlib.suppress(NoNodeError):  # the server removes an empty directory
        return [name for name in zoo.client.get_children(f"{zoo.base}/k") if not is_operator(name)]
    return []


def block(**options: Any) -> None:
    with zk_lock("k", **options):
        pass


def skipping() -> None:
    with zk_lock("k", timeout=0, on_conflict="skip") as hold:
        assert hold


def several() -> None:
    with zk_locks("k", "l", timeout=0):
        pass


async def async_block(**options: Any) -> None:
    async with zk_lock("k", **options):
        pass


def method() -> None:
    lock = zk_lock("k")
    lock.acquire()
    lock.release()


async def async_method() -> None:
    lock = zk_lock("k")
    await lock.aacquire()
    await lock.arelease()


def lead() -> None:
    with zk_leader("k"):
        pass


async def a_lead() -> None:
    async def work(hold: object) -> None:
        pass

    await zk_leader("k").arun(work)


async def lease() -> None:
    coordinator = Coordinator()
    request = LeaseRequest(resource_path="k", client_id="node-1", session_timeout_ms=30_000, wait_limit_ms=5_000)
    granted = await coordinator.acquire(ANYBODY, request)
    await coordinator.release(ANYBODY, granted.id)


def hand_over() -> None:
    with zk_lock("k", timeout=5) as hold:
        hold.hand_over(within=60)


def broken() -> None:
    with pytest.raises(LockLost), zk_lock("k", timeout=5, abort_on="lost") as hold:
        break_lock("k", guid=guid_of(hold.path), token=hold.token, **WHY)


def held_by_operator() -> None:
    hold = hold_lock("k", seconds=60, **WHY)
    end_hold("k", token=hold.token, **WHY)


CALLS: dict[str, Callable[[], object]] = {
    "timeout=0": lambda: block(timeout=0),
    "skip": skipping,
    "permit": lambda: block(timeout=0, limit=2),
    "reader": lambda: block(timeout=0, kind="read"),
    "function": zk_locked("k", timeout=0)(lambda: None),
    "several": several,
    "coroutine": lambda: asyncio.run(async_block(timeout=0)),
    "release": method,
    "arelease": lambda: asyncio.run(async_method()),
    "leader": lambda: zk_leader("k").run(lambda hold: None),
    "leader's block": lead,  # as beat has it
    "leading coroutine": lambda: asyncio.run(a_lead()),
    "lease": lambda: asyncio.run(lease()),
    "command": lambda: zklock("run", "k", "--timeout", 5, "--", "true"),
    "hand-over": hand_over,
    "break": broken,
    "operator hold": held_by_operator,
}


@pytest.fixture
def slow(proxy: Proxy) -> None:
    """All that removes a znode takes its time."""
    for opcode in (DELETE, MULTI):
        proxy.delay_op(opcode, 0.3)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_another_client_sees_the_release_when_the_call_returns(
    zoo: Zoo, slow: None, call: Callable[[], object]
) -> None:
    """However long the delete takes, up to the release timeout."""
    call()
    assert left(zoo) == []


def test_another_client_need_not_see_the_end_of_a_usual_block(zoo: Zoo, slow: None) -> None:
    """Or the test above would prove nothing. The process itself sees it."""
    block(timeout=5)
    assert left(zoo) != []
    assert not zk_lock("k").locked()
    assert left(zoo) == []
