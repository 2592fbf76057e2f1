"""Queues that are made node by node, so that pages have something to show."""

from __future__ import annotations

import contextlib
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from django_zklock.contrib.celery.unique.reservations import lock_key
from django_zklock.core.queue import nodes, operator_hold
from django_zklock.core.queue.operator_hold import RESERVATIONS
from support.chaos.servers import looking_in
from support.waits import Waits
from support.zoo import eventually


@dataclass(frozen=True)
class Part:
    host: str = "web-1"
    pid: int = 4711
    thread: str = "MainThread"
    what: str = ""
    about: Mapping[str, str] = field(default_factory=dict)
    template: str = ""
    limit: int = 0
    session_timeout: int = 0
    waited: int = 0  # milliseconds; other than 0, it has said when it got the lock

    @classmethod
    def task(cls, name, host, pid):
        identity = str(uuid.uuid4())
        about = {"task": name, "id": identity, "queue": "celery", "retries": "0"}
        return cls(host, pid, "MainThread", f"{name}[{identity}]", about)

    @classmethod
    def view(cls, request, what, host, pid):
        return cls(host, pid, "Thread-3 (process_request_thread)", what, {"request": request})

    @property
    def owner(self):
        return zlib.crc32(repr(replace(self, waited=0)).encode()) // 2 or 1

    def data(self, guid):
        return nodes.Payload(
            guid=guid,
            host=self.host,
            pid=self.pid,
            thread=self.thread,
            what=self.what,
            since="2026-11-20T10:00:00+00:00",
            template=self.template,
            about=self.about,
            limit=self.limit,
            owner=self.owner,
            session_timeout=self.session_timeout,
            waited=self.waited,
        ).encode()


class Stage:
    def __init__(self, client, base):
        self._client, self._base, self._waits = client, base, Waits(client)

    def join_queue(self, key, part, kind=nodes.Kind.LOCK):
        guid = nodes.new_guid(nodes.Mark.OWN)
        path = self.join_queue_raw(key, nodes.prefix(guid, kind), part.data(guid))
        self._waits.joined(part.owner, key, guid, path)
        return path

    def reserve(self, task, lock, task_id):
        """Leave the reservation of a unique task, whose message may be lost."""
        guid = operator_hold.guid_of_task(task_id)
        payload = nodes.Payload.decode(Part("web-1", 77).data(guid))
        assert payload is not None
        reason = f"{task_id} is queued or runs; sent by POST /feeds/<slug:feed>/"
        data = operator_hold.hold_data(payload, by=f"task {task}", reason=reason, seconds=3600, task_id=task_id)
        path = f"{self._base}/{lock_key(f'task/{task}/{lock}')}/{nodes.prefix(guid)}"
        self._client.create(path, data, sequence=True, makepath=True)

    def join_queue_raw(self, key, name, data):
        path = self._client.create(f"{self._base}/{key}/{name}", data, ephemeral=True, sequence=True, makepath=True)
        return str(path)

    def quit_queue(self, path):
        self._client.delete(path)

    def crowd(self, locks, waiters, prefix="crowd"):
        self._client.ensure_path(f"{self._base}/{prefix}")
        under_way = []
        for number in range(locks):
            key = f"{self._base}/{prefix}/{number:04d}"
            batch = self._client.transaction()
            batch.create(key)
            for index in range(waiters + 1):
                guid = str(uuid.uuid4())
                part = replace(Part.task("shop.tasks.restock", f"worker-{index % 7}", 100 + index), waited=1)
                batch.create(f"{key}/{nodes.prefix(guid)}", part.data(guid), ephemeral=True, sequence=True)
            under_way.append(batch.commit_async())
        for answer in under_way:
            eventually(answer.ready, 60)
            failed = [error for error in answer.get() if isinstance(error, Exception)]
            assert not failed, failed


@contextlib.contextmanager
def staged(zoo):
    with looking_in(zoo.all_hosts, 30) as client:
        yield Stage(client, zoo.base)
        client.delete(f"{zoo.base}/{RESERVATIONS}", recursive=True)
