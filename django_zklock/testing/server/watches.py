"""
The watches of a server, and which of them fire when a node changes.

Nothing here sends events.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from django_zklock.testing.server.codes import Event

if TYPE_CHECKING:
    from django_zklock.testing.server.database import Client

#: The watchers of each path, in the order in which they came.
Table = defaultdict[str, dict["Client", None]]


class Watches:
    """All watches of a server: on nodes (exists, getData), and on children (getChildren). Each fires once."""

    def __init__(self) -> None:
        self.data: Table = defaultdict(dict)
        self.child: Table = defaultdict(dict)

    def forget(self, watcher: Client) -> None:
        """Remove all watches of a watcher that is gone."""
        for table in (self.data, self.child):
            for path in [path for path, watchers in table.items() if watcher in watchers]:
                del table[path][watcher]
                if not table[path]:
                    del table[path]

    def fire(self, change: Event, path: str) -> Iterator[tuple[Client, Event, str]]:
        """Yield each watcher with its event and path, in the order in which the events must be sent."""
        notified = self.data.pop(path, {})
        if change is Event.DELETED:
            notified |= self.child.pop(path, {})
        for watcher in notified:
            yield watcher, change, path
        if change is not Event.CHANGED:
            parent = path.rpartition("/")[0] or "/"
            for watcher in self.child.pop(parent, {}):
                yield watcher, Event.CHILD, parent
