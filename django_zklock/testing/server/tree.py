"""
The znodes of a server, and the operations on them.

Nothing here uses sockets, threads or sessions. The caller passes session ids, zxids and times (milliseconds). An
operation that fails raises Refused and changes nothing. Error codes and the order of the checks are those of the real
server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from django_zklock.testing.server.codes import Error, Event, Mode, Refused
from django_zklock.testing.server.records import STAT, Acl

#: Containers have this number instead of a session id.
CONTAINER: Final = -(1 << 63)

_LAST_SEQUENCE: Final = (1 << 31) - 1

OPEN: Final = (Acl(31, "world", "anyone"),)
"""The ACL of the first nodes. ACLs are kept and told, and forbid nothing."""

#: Nodes that exist on every server and cannot be deleted.
FIXED: Final = ("/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config")

_FORBIDDEN: Final = re.compile("[\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]")


class Origin(NamedTuple):
    """The client of an operation, its transaction and its time in milliseconds."""

    session: int
    zxid: int
    now: int


class Change(NamedTuple):
    """A change of a node by an operation, and how to undo it."""

    event: Event
    path: str
    undo: Callable[[], None]


class Node:
    """One znode. Only the tree changes it."""

    def __init__(self, data: bytes | None, acl: tuple[Acl, ...], owner: int, zxid: int, now: int) -> None:
        self.data = data
        self.acl = acl
        self.owner = owner
        self.children: set[str] = set()  # unordered as on the real server, so that no code relies on an order
        self.czxid = self.mzxid = self.pzxid = zxid
        self.ctime = self.mtime = now
        self.version = self.aversion = 0
        self.creations = 0  # children created so far; also the next sequence number

    def stat(self) -> bytes:
        """Return the node's Stat as it is on the wire. cversion counts the creations and deletions of children."""
        return STAT.pack(
            self.czxid,
            self.mzxid,
            self.ctime,
            self.mtime,
            self.version,
            _int32(2 * self.creations - len(self.children)),
            self.aversion,
            self.owner if self.ephemeral else 0,  # clients do not see the other number
            len(self.data) if self.data else 0,
            len(self.children),
            self.pzxid,
        )

    @property
    def ephemeral(self) -> bool:
        """True if the node belongs to a session."""
        return self.owner > 0


class Tree:
    """
    All znodes of a server.

    `changes` collects what operations did, so that the caller can fire the watches. Until then `roll_back` undoes them.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.ephemerals: dict[int, dict[str, None]] = {}  # by session, in order of creation
        self.containers: set[str] = set()
        self.changes: list[Change] = []
        for path in FIXED:
            node = self.nodes[path] = Node(b"", OPEN, 0, 0, 0)
            if path != "/":
                parent, name = split(path)
                self.nodes[parent or "/"].children.add(name)
            if path == "/zookeeper/config":
                node.aversion = -1
        self.nodes[""] = self.nodes["/"]

    def node(self, path: str | None) -> Node:
        """Return a node. Raises Refused if there is none."""
        if path is None:
            raise Refused(Error.MARSHALLING)
        node = self.nodes.get(path)
        if node is None:
            raise Refused(Error.NO_NODE)
        return node

    def paths(self) -> list[str]:
        """Return the paths of all nodes, sorted."""
        return sorted(path for path in self.nodes if path)

    def create(
        self,
        path: str | None,
        data: bytes | None,
        acl: Sequence[Acl] | None,
        mode: Mode,
        origin: Origin,
        *,
        sequential: bool,
    ) -> str:
        """Create a node and return its path. With `sequential`, the server appends the number of the parent to it."""
        owner = CONTAINER if mode is Mode.CONTAINER else origin.session if mode.ephemeral else 0
        where, name = split(path)
        parent = self.node(where)
        if sequential:
            name += f"{parent.creations:010d}"
        path = validate(f"{where}/{name}")
        if path in self.nodes:
            raise Refused(Error.NODE_EXISTS)
        if parent.ephemeral:
            raise Refused(Error.NO_CHILDREN_FOR_EPHEMERALS)
        before = (parent.creations, parent.pzxid)
        node = self.nodes[path] = Node(data, tuple(acl or OPEN), owner, origin.zxid, origin.now)
        parent.children.add(name)
        if parent.creations < _LAST_SEQUENCE:  # the real server's counter stops there, too
            parent.creations += 1
            parent.pzxid = origin.zxid
        self._register(path, node)
        undo = partial(self._undo_create, path, parent, before)
        self.changes.append(Change(Event.CREATED, path, undo))
        return path

    def delete(self, path: str | None, version: int, origin: Origin) -> None:
        """Delete a node that has no children. Version -1 matches every version."""
        split(path)  # which refuses what is no path
        if path is None or path in FIXED:
            raise Refused(Error.BAD_ARGUMENTS)
        node = self.node(path)
        _match(node.version, version)
        if node.children:
            raise Refused(Error.NOT_EMPTY)
        self.remove(path, zxid=origin.zxid)

    def remove(self, path: str, *, zxid: int) -> None:
        """Delete a node without any checks, as the server itself does."""
        where, name = split(path)
        parent, node = self.nodes[where], self.nodes.pop(path)
        undo = partial(self._undo_remove, path, parent, node, parent.pzxid)
        parent.children.discard(name)
        parent.pzxid = max(parent.pzxid, zxid)
        self._unregister(path, node)
        self.changes.append(Change(Event.DELETED, path, undo))

    def set_data(self, path: str | None, data: bytes | None, version: int, origin: Origin) -> bytes:
        """Replace the data of a node. Return its Stat."""
        path = validate(path)
        node = self.node(path)
        _match(node.version, version)
        undo = partial(_undo_set, node, (node.data, node.version, node.mzxid, node.mtime))
        node.data, node.version = data, _int32(node.version + 1)
        node.mzxid, node.mtime = origin.zxid, origin.now
        self.changes.append(Change(Event.CHANGED, path, undo))
        return node.stat()

    def set_acl(self, path: str | None, acl: Sequence[Acl] | None, version: int, origin: Origin) -> bytes:
        """Replace the ACL of a node; `version` is the version of the ACL. No watch fires. Return the Stat."""
        path = validate(path)
        node = self.node(path)
        _match(node.aversion, version)
        node.acl, node.aversion = tuple(acl or OPEN), node.aversion + 1
        return node.stat()

    def check(self, path: str | None, version: int, origin: Origin) -> None:
        """Raise Refused unless the node exists and has that version."""
        node = self.node(validate(path))
        _match(node.version, version)

    def end_session(self, session: int, *, zxid: int) -> None:
        """Delete the ephemerals of a session."""
        for path in list(self.ephemerals.get(session, ())):
            self.remove(path, zxid=zxid)

    def empty_containers(self) -> list[str]:
        """Return the containers whose last child was deleted."""
        return [path for path in self.containers if self.nodes[path].creations and not self.nodes[path].children]

    def roll_back(self) -> None:
        """Undo the changes that are not reported yet."""
        for change in reversed(self.changes):
            change.undo()
        self.changes.clear()

    def _register(self, path: str, node: Node) -> None:
        if node.ephemeral:
            self.ephemerals.setdefault(node.owner, {})[path] = None
        elif node.owner:
            self.containers.add(path)

    def _unregister(self, path: str, node: Node) -> None:
        if node.ephemeral:
            own = self.ephemerals[node.owner]
            del own[path]
            if not own:
                del self.ephemerals[node.owner]
        else:
            self.containers.discard(path)

    def _undo_create(self, path: str, parent: Node, before: tuple[int, int]) -> None:
        self._unregister(path, self.nodes.pop(path))
        parent.children.discard(path.rpartition("/")[2])
        parent.creations, parent.pzxid = before

    def _undo_remove(self, path: str, parent: Node, node: Node, before: int) -> None:
        self.nodes[path] = node
        parent.children.add(path.rpartition("/")[2])
        parent.pzxid = before
        self._register(path, node)


def _undo_set(node: Node, before: tuple[bytes | None, int, int, int]) -> None:
    node.data, node.version, node.mzxid, node.mtime = before


def _match(version: int, wanted: int) -> None:
    if wanted not in (-1, version):
        raise Refused(Error.BAD_VERSION)


def _int32(value: int) -> int:
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def validate(path: str | None) -> str:
    """Return the path. Raise Refused if no node can have it."""
    if path == "/":
        return path
    if path is None or not path.startswith("/") or _FORBIDDEN.search(path):
        raise Refused(Error.BAD_ARGUMENTS)
    if not {"", ".", ".."}.isdisjoint(path[1:].split("/")):
        raise Refused(Error.BAD_ARGUMENTS)
    return path


def split(path: str | None) -> tuple[str, str]:
    """Return the path of the parent ("" for the root) and the name. Raise Refused if there is no slash."""
    if path is None:
        raise Refused(Error.MARSHALLING)
    if "\0" in path:
        raise Refused(Error.BAD_ARGUMENTS)
    parent, slash, name = path.rpartition("/")
    if not slash:
        raise Refused(Error.BAD_ARGUMENTS)
    return parent, name
