"""Read the queues of locks from a dev server in this process, without network requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_zklock.exceptions import UnreadableQueue
from django_zklock.queue import order
from django_zklock.queue.escaping import SEQUENCE_TAIL
from django_zklock.queue.holders import holder_indexes
from django_zklock.queue.nodes import Kind, Payload, own_limit

if TYPE_CHECKING:
    from django_zklock.testing.server import DevServer


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEntry:
    """One contender in the queue of a lock: a holder or a waiter."""

    path: str
    """The path of its znode."""
    payload: Payload | None
    """Its description of its process; None if it cannot be read, or if another client wrote it."""
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


def contenders(server: DevServer, below: str) -> list[str]:
    """Return the paths of all contenders below a directory, in order of arrival."""
    paths = [path for path in server.paths(below=below) if SEQUENCE_TAIL.search(path)]
    return sorted(paths, key=lambda path: int(path[-10:]))


def kinds(server: DevServer, directory: str) -> dict[str, tuple[bool, str]]:
    """Return whether each contender holds the lock, and its kind, by path and in order of arrival."""
    below = server.paths(below=directory)
    names = [path.rpartition("/")[2] for path in below if path.rpartition("/")[0] == directory]
    paths = [path for path in contenders(server, directory) if path.rpartition("/")[0] == directory]
    try:
        queue = order.ordered([name for name in names if SEQUENCE_TAIL.search(name) or name.startswith("!")])
    except UnreadableQueue:  # only the order is known; code under test gets an error
        return {path: (index == 0, Kind.LOCK.word) for index, path in enumerate(paths)}
    limits = {
        child.name: own_limit(server.content(f"{directory}/{child.name}") or b"")
        for child in queue
        if child.kind is Kind.PERMIT and queue.limit is None
    }
    held = holder_indexes(queue, limits)
    return {f"{directory}/{child.name}": (index in held, child.kind.word) for index, child in enumerate(queue)}
