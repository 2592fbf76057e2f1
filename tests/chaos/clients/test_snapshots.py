"""Many locks, many waiters and large payloads, looked at by a process that holds a lock of its own."""

import contextlib
import functools
import time
import tracemalloc
import uuid
from collections import deque

import pytest
from support.chaos.servers import looking_in
from support.ensemble import Ensemble
from support.faults import connected

from django_zklock import zk_lock
from django_zklock.core.queue import nodes
from django_zklock.core.queue.nodes import Payload
from django_zklock.inspection import scan, snapshot


@pytest.fixture(scope="module")
def single():
    """A server with room for large payloads: with the usual 128 MB, it dies of them."""
    with Ensemble(java_options=["-Xmx512m"]) as ensemble:
        yield ensemble


@contextlib.contextmanager
def filled(zoo, locks, contenders, extra):
    top = f"{zoo.base}/inventory"
    directories = [f"{top}/sku-{number:04}" for number in range(locks)]
    with looking_in(zoo.all_hosts, 20) as client:
        client.ensure_path(top)
        settle((functools.partial(put, client, path, contenders, extra) for path in directories), 5 if extra else 50)
        yield
    settle(functools.partial(zoo.client.delete_async, path) for path in directories)
    zoo.client.delete(top)


def put(client, directory, contenders, extra):
    parts = client.transaction()
    parts.create(directory)
    for index in range(contenders):
        guid = str(uuid.uuid4())
        payload = Payload(
            guid=guid,
            host=f"web-{index}",
            pid=index + 1,
            thread="MainThread",
            what="POST /buy/<sku>",
            since="2026-11-20T10:00:00.000+00:00",
            template="inventory/{sku}",
            about={"request": "POST buy/<sku>"},
        )
        data = payload.encode() + b" " * extra
        parts.create(f"{directory}/{nodes.prefix(guid)}", data, ephemeral=True, sequence=True)
    return parts.commit_async()


def settle(calls, most=50):
    pending = deque()
    for call in calls:
        pending.append(call())
        if len(pending) == most:
            pending.popleft().get(60)
    for call in pending:
        call.get(60)


@pytest.mark.parametrize(
    ("locks", "contenders", "extra"), [(10_000, 1, 0), (1000, 21, 0), (12, 1000, 0), (12, 1, 900_000)]
)
def test_a_large_scan_does_not_delay_heartbeats(zoo, locks, contenders, extra):
    """Its heartbeats do not wait behind what comes back: not behind long queues, nor behind megabytes."""
    with filled(zoo, locks, contenders, extra), zk_lock("mine") as hold:
        session = connected()
        before = session.session_id
        least = session.timeout
        for _ in range(3):
            began = time.monotonic()
            shown = snapshot(max_age=0, reply_timeout=5)
            print(f"{time.monotonic() - began:.2f} s, {len(shown.locks)} of {shown.total}, {shown.problem}")
            least = min(least, hold.lease_remaining)
            hold.check()
        assert session.session_id == before
        assert least > 0


@pytest.mark.parametrize(("locks", "extra", "most"), [(12, 900_000, 6_000_000), (60, 60_000, 2_000_000)])
def test_a_scan_holds_few_bytes_at_a_time(zoo, monkeypatch, locks, extra, most):
    """However much other clients have written into their znodes. The limits are those of a small scan here."""
    monkeypatch.setattr(scan, "TOGETHER", 2)
    monkeypatch.setattr(scan, "MAX_HELD", 500_000)
    with filled(zoo, locks, 1, extra):
        snapshot(max_age=0, reply_timeout=20)
        tracemalloc.start()
        try:
            shown = snapshot(max_age=0, reply_timeout=20)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(shown.locks) == locks
        assert peak < most
