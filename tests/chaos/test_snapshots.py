"""A thousand locks with twenty waiters each, looked at by a process that holds a lock of its own."""

from __future__ import annotations

import time
import uuid

import pytest
from support.faults import connected, proxied
from support.proxy import GET_CHILDREN, GET_DATA
from support.zoo import Zoo

from django_zklock import zk_lock
from django_zklock.inspection import Snapshot, snapshot
from django_zklock.queue import nodes
from django_zklock.queue.nodes import Payload

pytestmark = [pytest.mark.zookeeper, pytest.mark.chaos]

LOCKS, WAITERS = 1000, 20


def fill(zoo: Zoo, locks: int = LOCKS, contenders: int = WAITERS + 1, about: int = 0) -> None:
    """Put so many contenders into so many queues, by a plain client."""
    client = zoo.client
    client.ensure_path(f"{zoo.base}/inventory")
    pending = []
    for number in range(locks):
        directory = f"{zoo.base}/inventory/sku-{number:04}"
        parts = client.transaction()
        parts.create(directory)
        for place in range(contenders):
            guid = str(uuid.uuid4())
            payload = Payload(
                guid=guid,
                host=f"web-{place}",
                pid=number + 1,
                thread="MainThread",
                what="POST /buy/<sku>",
                since="2026-11-20T10:00:00.000+00:00",
                template="inventory/{sku}",
                about={"request": "POST buy/<sku>"},
            )
            data = payload.encode() + b" " * about
            parts.create(f"{directory}/{nodes.prefix(guid)}", data, ephemeral=True, sequence=True)
        pending.append(parts.commit_async())
        if len(pending) == 50:
            pending.pop(0).get(30)
    for each in pending:
        each.get(30)


def empty(zoo: Zoo) -> None:
    zoo.client.delete(f"{zoo.base}/inventory", recursive=True)


def timed(**more: int) -> tuple[float, Snapshot]:
    began = time.perf_counter()
    found = snapshot(max_age=0, patience=30, **more)
    return time.perf_counter() - began, found


def test_a_thousand_locks_take_few_round_trips_and_no_time(zoo: Zoo) -> None:
    """A list of all of them is made in 0.6 s, with the same requests however many wait."""
    fill(zoo)
    try:
        best = min(timed(max_waiters=0)[0] for _ in range(5))
        with proxied(zoo, 10) as proxy:
            connected()
            timed(max_waiters=0)
            proxy.reset()
            _, found = timed(max_waiters=0)
            assert proxy.counts[GET_CHILDREN] == LOCKS + 2
            assert proxy.counts[GET_DATA] == 2 * LOCKS
            assert proxy.round_trips() <= 60
    finally:
        empty(zoo)
    assert not found.problem
    assert (found.total, len(found.locks)) == (LOCKS, LOCKS)
    assert all(len(lock.holders) == 1 and lock.waiting == WAITERS for lock in found.locks)
    assert best < 0.6


@pytest.mark.parametrize(("locks", "contenders", "extra"), [(1000, 21, 0), (40, 2000, 0), (400, 1, 900_000)])
def test_a_lock_of_the_process_that_looks_is_safe(zoo: Zoo, locks: int, contenders: int, extra: int) -> None:
    """Its heartbeats do not wait behind what comes back: not behind long queues, nor behind megabytes."""
    fill(zoo, locks, contenders, extra)
    try:
        with zk_lock("mine") as hold:
            session = connected()
            before = session.session_id
            least = session.timeout
            for _ in range(3):
                snapshot(max_age=0, patience=5)
                least = min(least, hold.lease_remaining)
                hold.check()
            assert session.session_id == before
            assert least > 0
    finally:
        empty(zoo)
