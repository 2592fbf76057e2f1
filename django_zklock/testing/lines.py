"""Knows the queues on a dev server, without asking the network: who is in line, who of them holds, of what kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_zklock.exceptions import UnreadableQueue
from django_zklock.queue import order
from django_zklock.queue.escaping import SEQUENCE_TAIL
from django_zklock.queue.holders import holder_places
from django_zklock.queue.nodes import Kind, Payload, own_limit

if TYPE_CHECKING:
    from django_zklock.testing.server import DevServer


@dataclass(frozen=True, slots=True, kw_only=True)
class InLine:
    """One contender in the queue of a lock: one that holds it, alone or beside others, or one that waits."""

    path: str
    """The path of its znode."""
    payload: Payload | None
    """What it says of itself; None where that cannot be read, or is not written by this package."""
    holds: bool = False
    """Whether it has the lock: it is the first, or shares it as a reader, or with a permit."""
    kind: str = "lock"
    """What it wants: "lock", "read", "write" or "semaphore"."""

    def __str__(self) -> str:
        who = self.payload
        if who is None:
            return self.path.rpartition("/")[2]
        process = " ".join(filter(None, [f"pid {who.pid}", who.thread]))
        shares = "" if self.kind == "lock" else f", {self.kind}"
        return f"{who.what} ({who.host}, {process}, since {who.since}{shares})"


def contenders(server: DevServer, below: str) -> list[str]:
    """Return the paths of all contenders below a directory, first come first."""
    found = [path for path in server.paths(below=below) if SEQUENCE_TAIL.search(path)]
    return sorted(found, key=lambda path: int(path[-10:]))


def kinds(server: DevServer, directory: str) -> dict[str, tuple[bool, str]]:
    """Return of each contender in a queue, first come first, by its path, whether it holds the lock, and its kind."""
    below = server.paths(below=directory)
    names = [path.rpartition("/")[2] for path in below if path.rpartition("/")[0] == directory]
    paths = [path for path in contenders(server, directory) if path.rpartition("/")[0] == directory]
    try:
        queue = order.ordered([name for name in names if SEQUENCE_TAIL.search(name) or name.startswith("!")])
    except UnreadableQueue:  # code under test will be told; of the queue, nothing but the order is known
        return {path: (place == 0, Kind.LOCK.word) for place, path in enumerate(paths)}
    limits = {
        child.name: own_limit(server.content(f"{directory}/{child.name}") or b"")
        for child in queue
        if child.kind is Kind.LEASE and queue.limit is None
    }
    held = holder_places(queue, limits)
    return {f"{directory}/{child.name}": (place in held, child.kind.word) for place, child in enumerate(queue)}
