"""
Knows how the limit of a semaphore is set for all processes, while permits are taken and let go.

The limit is a child of the lock's directory, so whoever lists the queue has read it, and grants by it from then on. It
is replaced in one transaction, which writes the directory, too: those who wait watch its data, and look again.

Nobody loses a permit. Who has been granted by the limit before keeps its own, also if its answer is still on the way,
and so may exceed the new limit for a while. The sign names the last of them by its number (`through`), so that all
who look can tell: a contender up to that number has a permit, and others count their places by the new limit. When the
limit is cleared while some have permits beyond what they know of themselves, such a sign stays that sets none
(with the value 0). Whoever comes once they are all gone deletes it.

What makes `through` right. Of those in the queue at the moment of the change, the ones that have a permit by the old
limit are the first few; call the last of them L.

* It is never above L, which would grant permits that neither limit has. It is the last that has a permit in a queue
  that was read before the change. From then on contenders leave and others come behind, so nobody's place rises: who
  has had a permit in that queue has one at the change, or is gone.
* Below L it takes and grants nothing: who is granted looks no more, and everybody counts all who are ahead, whatever
  they are. Say z is the last in the queue of those that have a permit. If the new limit granted it, its place is below
  that, so there are no more permits in use than it has; if the old one did, no more than the old one has. But one
  between `through` and L would look as if it waited.
* So it is L, as long as the queue holds still between the look and the change. The transaction requires it: that all
  that have a permit, and the first that has none, are still there, and if there is room behind, that nobody has come;
  where own limits count and differ, there is room for who knows of more permits behind one that waits, too.
  For the last ZooKeeper has no word, but it numbers sequential nodes by the children ever made in the directory. So
  the transaction makes one and deletes it by the name that it has if nobody came; else all of it fails. Where the
  queue never holds still, or is too long to require it of all, the last word is the one above. The sign says so then,
  and whoever looks does not know of those that came before it whether they wait (`standing.may_hold`).
"""

from __future__ import annotations

from typing import Final

from django_zklock.exceptions import UnreadableQueue
from django_zklock.operations.client import AT_ONCE, QueueClient, children
from django_zklock.queue import limits, nodes, order, signs, standing
from django_zklock.queue.limits import Record, SetLimit
from django_zklock.queue.nodes import Child, Kind
from django_zklock.queue.order import Queue
from django_zklock.queue.signs import Limit
from django_zklock.zk.gateway import DirectoryState, Gateway, Node
from django_zklock.zk.multi import Check, Create, Delete, Operation, SetData
from django_zklock.zk.requests import Commit, Done, Step

STEADY: Final = 10
"""Tries for which the queue has to hold still; then the limit is changed as the queue was seen."""
MOST_REQUIRED: Final = 256 * 1024
"""Characters of the paths that one transaction requires; ZooKeeper takes a megabyte."""

_PROBE: Final = "!count:"


def set_limit(client: QueueClient, limit: int, record: Record) -> None:
    """Set the limit. Raises `UnreadableQueue` and `ZooKeeperUnavailable`."""
    setting = _Setting(client.parent, limit, record)
    while not client.run(setting):
        setting.limits.update(client.limits(setting.unknown))


def clear_limit(client: QueueClient) -> bool:
    """Have each contender's own limit count again; tell whether another one was set. Raises `ZooKeeperUnavailable`."""
    clearing = _Clearing(client.parent)
    while (done := client.run(clearing)) is None:
        clearing.limits.update(client.limits(clearing.unknown))
    client.session.post(lambda: client.session.attached(Gateway).delete_if_empty(client.parent))
    return done or clearing.tried


def limit_of(client: QueueClient) -> SetLimit | None:
    """Return the limit that is set, or None. Raises `ZooKeeperUnavailable`."""
    while True:
        found = order.limit_of(client.run(children))
        if found is None:
            return None
        node = client.read(found.name)
        if node is not None:  # else it was changed in between
            return limits.set_limit(found.name, node.data, node.ctime)


def may_hold(client: QueueClient, queue: Queue, child: Child, node: Node) -> bool:
    """Tell whether nobody can tell if one that has no permit by the rule has one. Raises `ZooKeeperUnavailable`."""
    place = queue.place(child.name)
    if place is None or queue.sign is None or queue.sign.sure:
        return False
    sign = client.read(queue.sign.name)
    return sign is not None and standing.may_hold(queue, place, node.czxid, sign.czxid)


class _Changing:
    """A plan that changes the limit; it has to know the limits of `unknown` contenders first."""

    def __init__(self, parent: str) -> None:
        self.limits: dict[str, int] = {}  # of contenders, by name: their own, which count as long as none is set
        self.unknown: tuple[str, ...] = ()
        self._parent = parent
        self._tries = 0

    def _still(self, found: DirectoryState, queue: Queue, many: int) -> tuple[Operation, ...]:
        """Return what requires that the same have permits at the change; empty if that was tried often enough."""
        self._tries += 1
        # Who comes behind these has none, unless it knows of more permits than anybody before.
        decisive = [self._path(child.name) for child in queue[: many + 1]]
        if self._tries > STEADY or sum(map(len, decisive)) > MOST_REQUIRED:
            return ()
        require = tuple(Check(path=path) for path in decisive)
        if not standing.has_room(queue, self.limits):
            return require
        probe = self._path(_PROBE)
        return (*require, Create(path=probe, sequential=True), Delete(path=nodes.numbered(probe, found.created)))

    def _gone(self, found: DirectoryState) -> tuple[Operation, ...]:
        return tuple(Delete(path=self._path(name)) for name in found.children if limits.is_limit(name))

    def _path(self, name: str) -> str:
        return f"{self._parent}/{name}"


class _Setting(_Changing):
    """Sets a limit; its value is False if it has to know more."""

    def __init__(self, parent: str, limit: int, record: Record) -> None:
        super().__init__(parent)
        self._limit = limit
        self._data = record.encode()  # of the sign and of the directory, by which the change is known for one's own

    def __call__(self, found: DirectoryState | None, session_id: int) -> Step:
        if found is None:
            return self._write((SetData(path=self._parent, data=self._data, version=0),), Limit(self._limit))
        if found.data == self._data:
            return Done(True)
        queue = order.ordered(found.children)
        many = standing.holders(queue, self.limits)
        self.unknown = standing.undecided(queue, self.limits)[:AT_ONCE]
        if self.unknown:
            return Done(False)
        write = SetData(path=self._parent, data=self._data, version=found.version)
        still = self._still(found, queue, many)
        limit = Limit(self._limit, _through(queue, many), _is_sure(queue, many, still))
        return self._write((write, *still, *self._gone(found)), limit)

    def _write(self, changes: tuple[Operation, ...], limit: Limit) -> Commit:
        return Commit((*changes, Create(path=self._path(limit.name), data=self._data)), True)


class _Clearing(_Changing):
    """Removes the limit; its value is whether it did, None if it has to know more."""

    def __init__(self, parent: str) -> None:
        super().__init__(parent)
        self.tried = False  # so if there is none any more, that may be the work of a request whose answer was lost

    def __call__(self, found: DirectoryState | None, session_id: int) -> Step:
        if found is None or not any(map(_sets, found.children)):
            return Done(False)
        try:
            queue = order.ordered(found.children)
        except UnreadableQueue:
            queue = Queue()  # nobody can tell who has a permit, and nobody is granted one
        many = standing.holders(queue)
        self.unknown = tuple(child.name for child in queue[1:many] if child.name not in self.limits)[:AT_ONCE]
        if self.unknown:
            return Done(None)
        self.tried = True
        write = SetData(path=self._parent, data=b"", version=found.version)
        still = self._still(found, queue, many)
        beyond = any(place >= self.limits[queue[place].name] for place in range(1, many))
        past = Limit(0, _through(queue, many), _is_sure(queue, many, still))
        keep = (Create(path=self._path(past.name)),) if beyond or not past.sure else ()
        return Commit((write, *still, *self._gone(found), *keep), True)


def _sets(name: str) -> bool:
    """Tell whether the name of a child sets a limit, if only one that nobody can read."""
    found = signs.sign(name)
    return limits.is_limit(name) and (found is None or bool(found.value))


def _is_sure(queue: Queue, many: int, still: tuple[Operation, ...]) -> bool:
    """Tell whether all who have permits are known: now, and by the change before if others are left from then."""
    before = queue.sign is None or queue.sign.sure or many == len(queue)
    return bool(still) and before


def _through(queue: Queue, many: int) -> int:
    """Return the number of the last that has a permit, or had one by a higher limit before."""
    last = queue[many - 1] if many else None
    return max(queue.through, last.sequence) if last is not None and last.kind is Kind.LEASE else queue.through
