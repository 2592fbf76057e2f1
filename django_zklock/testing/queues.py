"""Read the queues of locks from a dev server in this process, without network requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_zklock.core.queue import order
from django_zklock.core.queue.escaping import SEQUENCE_TAIL
from django_zklock.core.queue.nodes import Kind, Payload, own_limit
from django_zklock.exceptions import UnreadableQueue
from django_zklock.locks.holders import holder_indexes

if TYPE_CHECKING:
    from django_zklock.testing.server import DevServer


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEntry:
    """One contender in the queue of a lock: a holder or a waiter."""

    path: str
    """The path of its znode."""
    payload: Payload | None
    """The description of its process; None if it cannot be read, or if another client wrote it."""
    holds: bool = False
    """Whether it holds the lock: alone, as a reader, or with a permit."""
    kind: str = "lock"
    """The kind of its request: "lock", "read", "write" or "semaphore"."""

    def __str__(self) -> str:
        payload = self.payload
        if payload is None:
            return self.path.rpartition("/")[2]
        process = " ".join(filter(None, [f"pid {payload.pid}", payload.thread]))
        shares = "" if self.kind == "lock" else f", {self.kind}"
        return f"{payload.what} ({payload.host}, {process}, since {payload.since}{shares})"


def entries(server: DevServer, directory: str) -> list[QueueEntry]:
    """Return the contenders of one lock, in order of arrival."""
    split = (path.rpartition("/") for path in server.paths(below=directory))
    names = [name for parent, _, name in split if parent == directory]
    data = {name: server.content(f"{directory}/{name}") or b"" for name in names if SEQUENCE_TAIL.search(name)}
    kinds, holders = _kinds_and_holders(names, data)
    return [
        QueueEntry(path=f"{directory}/{name}", payload=Payload.decode(data[name]), holds=name in holders, kind=kind)
        for name, kind in kinds.items()
    ]


def _kinds_and_holders(names: list[str], data: dict[str, bytes]) -> tuple[dict[str, str], set[str]]:
    """Return the kinds of the contenders, in order of arrival, and who of them holds the lock."""
    try:
        queue = order.ordered([name for name in names if name in data or name.startswith("!")])
    except UnreadableQueue:  # code under test gets this error. Here, the order is enough
        in_order = sorted(data, key=lambda name: int(name[-10:]))
        return dict.fromkeys(in_order, Kind.LOCK.word), set(in_order[:1])
    limits = {child.name: own_limit(data[child.name]) for child in queue} if queue.limit is None else {}
    holders = {queue[index].name for index in holder_indexes(queue, limits)}
    return {child.name: child.kind.word for child in queue}, holders
