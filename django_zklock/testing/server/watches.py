"""
The watches of a server, and which of them fire when a node changes.

Nothing here sends events.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from django_zklock.testing.server.codes import Event, Watch

if TYPE_CHECKING:
    from django_zklock.testing.server.database import Client


class Table:
    """
    Watches by path.

    A watcher has at most one watch on a path. A new watch replaces the kind of the old one: in ZooKeeper 3.8, a read
    with a watch turns a persistent watch into one that fires once (ZOOKEEPER-4466).
    """

    def __init__(self) -> None:
        self.by_path: dict[str, dict[Client, Watch]] = {}
        self.by_watcher: dict[Client, set[str]] = {}

    def __len__(self) -> int:
        return sum(map(len, self.by_path.values()))

    def add(self, path: str, watcher: Client, kind: Watch) -> None:
        self.by_path.setdefault(path, {})[watcher] = kind
        self.by_watcher.setdefault(watcher, set()).add(path)

    def watched(self, path: str) -> bool:
        return path in self.by_path

    def remove(self, path: str, watcher: Client) -> bool:
        here = self.by_path.get(path)
        if here is None or watcher not in here:
            return False
        del here[watcher]
        if not here:
            del self.by_path[path]
        own = self.by_watcher[watcher]
        own.discard(path)
        if not own:
            del self.by_watcher[watcher]
        return True

    def forget(self, watcher: Client) -> None:
        for path in list(self.by_watcher.get(watcher, ())):
            self.remove(path, watcher)

    def fired(self, path: str, kind: Event) -> list[Client]:
        """Return the watchers of an event on the path. Remove the watches that fire once."""
        watchers: dict[Client, None] = {}
        for watcher, watch in list(self.by_path.get(path, {}).items()):
            if watch is not Watch.RECURSIVE or kind is not Event.CHILD:
                watchers[watcher] = None
            if watch is Watch.ONCE:
                self.remove(path, watcher)
        if kind is not Event.CHILD:
            for above in _above(path):
                here = self.by_path.get(above, {})
                watchers.update({watcher: None for watcher, watch in here.items() if watch is Watch.RECURSIVE})
        return list(watchers)


class Watches:
    """All watches of a server: on nodes (exists, getData), on children (getChildren), and those of addWatch."""

    def __init__(self) -> None:
        self.data = Table()
        self.child = Table()

    def __len__(self) -> int:
        return len(self.data) + len(self.child)

    def add(self, path: str, watcher: Client, kind: Watch) -> None:
        """Add a watch of addWatch: on a node and its children, or on all nodes below it."""
        self.data.add(path, watcher, kind)
        self.child.add(path, watcher, kind)

    def forget(self, watcher: Client) -> None:
        """Remove all watches of a watcher that is gone."""
        self.data.forget(watcher)
        self.child.forget(watcher)

    def tables(self, kind: int) -> tuple[Table, ...]:
        """Return the tables of a WatcherType: 1 is children, 2 data, 3 both. Raises ValueError for other numbers."""
        if kind not in (1, 2, 3):
            raise ValueError(f"there is no kind {kind} of watches")
        return ((self.child,), (self.data,), (self.data, self.child))[kind - 1]

    def fire(self, change: Event, path: str) -> Iterator[tuple[Client, Event, str]]:
        """Yield each watcher with its event and path, in the order in which the events must be sent."""
        notified: Collection[Client] = self.data.fired(path, change)
        for watcher in notified:
            yield watcher, change, path
        if change is Event.DELETED:
            for watcher in self.child.fired(path, change):
                if watcher not in notified:
                    yield watcher, change, path
        if change is not Event.CHANGED:
            parent = path.rpartition("/")[0] or "/"
            for watcher in self.child.fired(parent, Event.CHILD):
                yield watcher, Event.CHILD, parent


def _above(path: str) -> Iterator[str]:
    while path != "/":
        path = path.rpartition("/")[0] or "/"
        yield path
