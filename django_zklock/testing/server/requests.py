"""
The handlers of requests: what each operation does to the tree, the sessions and the watches.

Handlers use no sockets and no threads. A client is anything with credentials that can be sent bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final

from django_zklock.testing.server import records as r
from django_zklock.testing.server.acl import allows, masked, require
from django_zklock.testing.server.codes import Error, Event, Mode, Op, Perm, Refused, Watch
from django_zklock.testing.server.database import Client, Database, Operation
from django_zklock.testing.server.records import Acl, Malformed, Reader
from django_zklock.testing.server.tree import Node, Tree
from django_zklock.testing.server.watches import Table


def create(
    op: Op,
    db: Database,
    client: Client,
    path: str | None,
    data: bytes | None,
    acl: Sequence[Acl] | None,
    flags: int,
    ttl: int = -1,
) -> bytes:
    """Create a node of any kind. Return its path and, unless this is a plain create, its Stat."""
    try:
        mode = Mode(flags)
    except ValueError:
        raise Refused(Error.BAD_ARGUMENTS) from None
    sequential = mode.sequential
    if op == Op.CREATE_CONTAINER and not mode.ttl:  # the flags decide only whether the name gets a number
        mode = Mode.CONTAINER
    elif op != Op.CREATE_TTL and mode is Mode.CONTAINER:  # as on the real server, this request creates no container
        mode = Mode.PERSISTENT
    elif op == Op.CREATE_TTL and not mode.ttl:  # such a request ends the real server
        raise Refused(Error.BAD_ARGUMENTS)
    created = db.tree.create(path, data, acl, mode, db.origin(client), sequential=sequential, ttl=ttl)
    return r.text_bytes(created) + (b"" if op is Op.CREATE else db.tree.nodes[created].stat())


def _on_tree(method: Callable[..., bytes | None], db: Database, client: Client, *fields: Any) -> bytes:
    """Call this method of the tree. It returns the reply, or None for an empty one."""
    return method(db.tree, *fields, db.origin(client)) or b""


def _check_alone(db: Database, client: Client, path: str | None, version: int) -> bytes:
    db.tree.check(path, version, db.origin(client))
    raise Refused(Error.MARSHALLING)  # outside a multi, the real server has no reply for it


def _exists(db: Database, client: Client, path: str | None, watch: bool) -> bytes:
    if path is None:
        raise Refused(Error.MARSHALLING)
    if "\0" in path:
        raise Refused(Error.BAD_ARGUMENTS)
    if watch:
        db.watches.data.add(path, client, Watch.ONCE)
    return db.tree.node(path).stat()


def get_data(db: Database, client: Client, path: str | None, watch: bool) -> bytes:
    """Read a node's data and Stat."""
    node = db.tree.node(path)
    require(node.acl, Perm.READ, client.credentials)
    if watch:
        db.watches.data.add(path or "", client, Watch.ONCE)
    return r.blob_bytes(node.data) + node.stat()


def get_children(db: Database, client: Client, path: str | None, watch: bool) -> bytes:
    """Read the names of a node's children."""
    node = db.tree.node(path)
    require(node.acl, Perm.READ, client.credentials)
    if watch:
        db.watches.child.add(path or "", client, Watch.ONCE)
    return r.list_bytes([r.text_bytes(name) for name in node.children])


def _get_children2(db: Database, client: Client, path: str | None, watch: bool) -> bytes:
    return get_children(db, client, path, watch) + db.tree.node(path).stat()


def _get_acl(db: Database, client: Client, path: str | None) -> bytes:
    node = db.tree.node(path)
    require(node.acl, Perm.READ | Perm.ADMIN, client.credentials)
    shown = node.acl if allows(node.acl, Perm.ADMIN, client.credentials) else masked(node.acl)
    return r.list_bytes([r.acl_bytes(acl) for acl in shown]) + node.stat()


def _sync(db: Database, client: Client, path: str | None) -> bytes:
    return r.blob_bytes(None) if path is None else r.text_bytes(path)


def _get_ephemerals(db: Database, client: Client, prefix: str | None) -> bytes:
    own = db.tree.ephemerals.get(client.session_id, {})
    return r.list_bytes([r.text_bytes(path) for path in own if path.startswith(prefix or "")])


def _get_all_children_number(db: Database, client: Client, path: str | None) -> bytes:
    require(db.tree.node(path).acl, Perm.READ, client.credentials)
    count = len(db.tree.nodes) - 2 if path == "/" else sum(node.startswith(f"{path}/") for node in db.tree.nodes)
    return count.to_bytes(4, "big")


def _who_am_i(db: Database, client: Client) -> bytes:
    known = client.credentials
    return r.list_bytes([r.text_bytes(credential.scheme) + r.text_bytes(credential.user) for credential in known])


def _refuse(code: Error, db: Database, client: Client) -> bytes:
    raise Refused(code)


# --- watches ---

_Paths = Sequence[str] | None


def add_watch(db: Database, client: Client, path: str | None, mode: int) -> bytes:
    """Add a watch on a node, or on a node and all below it, that lasts until it is removed."""
    if path is None or mode not in (0, 1):
        raise Refused(Error.MARSHALLING)
    db.watches.add(path, client, Watch(mode + 1))
    return Error.OK.to_bytes(4, "big")


def check_watches(db: Database, client: Client, path: str | None, kind: int) -> bytes:
    """Succeed if there is such a watch."""
    if path is None or (path and "/" not in path):
        raise Refused(Error.MARSHALLING)
    if not any(table.watched(path) for table in db.watches.tables(kind)):  # of any client, as in 3.8
        raise Refused(Error.NO_WATCHER)
    return b""


def remove_watches(db: Database, client: Client, path: str | None, kind: int) -> bytes:
    """Remove watches."""
    removed = [table.remove(path or "", client) for table in db.watches.tables(kind)]
    if not any(removed):  # not any() of a generator: it would stop at the first table
        raise Refused(Error.NO_WATCHER)
    return b""


def set_watches(db: Database, client: Client, zxid: int, data: _Paths, exist: _Paths, child: _Paths) -> bytes:
    """Set the watches of a client that has reconnected."""
    if data is None or exist is None or child is None:
        raise Refused(Error.MARSHALLING)
    return set_watches2(db, client, zxid, data, exist, child, (), ())


def set_watches2(
    db: Database,
    client: Client,
    zxid: int,
    data: _Paths,
    exist: _Paths,
    child: _Paths,
    persistent: _Paths,
    recursive: _Paths,
) -> bytes:
    """
    Set the watches of a client that has reconnected, including those of addWatch.

    The client last saw `zxid`. It gets an event for each change that it missed.
    """
    parts: tuple[tuple[_Paths, Table, Callable[[Node | None], Event | None]], ...] = (
        (data, db.watches.data, partial(_change_since, zxid, Event.CHANGED, attrgetter("mzxid"))),
        (exist, db.watches.data, _existence),
        (child, db.watches.child, partial(_change_since, zxid, Event.CHILD, attrgetter("pzxid"))),
    )
    for paths, table, event_of in parts:
        for path in paths or ():
            missed = event_of(db.tree.nodes.get(path))
            if missed is None:
                table.add(path, client, Watch.ONCE)
            else:
                client.send(r.event(missed, path))
    for paths, kind in ((persistent, Watch.PERSISTENT), (recursive, Watch.RECURSIVE)):
        for path in paths or ():
            db.watches.add(path, client, kind)
    return b""


def _existence(node: Node | None) -> Event | None:
    """Return the event of a node that exists by now."""
    return None if node is None else Event.CREATED


def _change_since(zxid: int, change: Event, changed_in: Callable[[Node], int], node: Node | None) -> Event | None:
    """Return the event of a node that was deleted, or changed in a later transaction than `zxid`."""
    if node is None:
        return Event.DELETED
    return change if changed_in(node) > zxid else None


# --- several operations in one request ---


_CREATES: Final = (Op.CREATE, Op.CREATE2, Op.CREATE_CONTAINER, Op.CREATE_TTL)
_CHANGES: Final[dict[Op, Callable[..., bytes]]] = {
    Op.DELETE: partial(_on_tree, Tree.delete),
    Op.SET_DATA: partial(_on_tree, Tree.set_data),
    Op.CHECK: partial(_on_tree, Tree.check),
}
_END: Final = r.MULTI.pack(-1, True, -1)
_Parts = list[tuple[Op, list[Any]]]


def _parts(allowed: Collection[Op], reader: Reader) -> _Parts:
    """Read the operations of a request, and their fields. If one is malformed, the request fails."""
    parts: _Parts = []
    while True:
        kind, done, _error_code = reader.int32(), reader.flag(), reader.int32()
        if done:
            return parts
        op = Op(kind)
        if op not in allowed:
            raise Malformed(f"operation {op} in a multi")
        parts.append((op, OPERATIONS[op].read(reader)))


def multi(db: Database, client: Client, parts: _Parts) -> bytes:
    """Carry out all parts or none. The reply is always a success; it contains the error of each part."""
    results: list[bytes] = []
    try:
        for op, fields in parts:
            results.append(_change(db, client, op, fields))
    except Refused as refused:
        db.tree.roll_back()
        errors = [0] * len(results) + [refused.code]
        errors += [Error.RUNTIME_INCONSISTENCY] * (len(parts) - len(errors))
        return b"".join(map(_error, errors)) + _END
    return b"".join(results) + _END


def _change(db: Database, client: Client, op: Op, fields: list[Any]) -> bytes:
    if op not in _CREATES:
        return r.MULTI.pack(op, False, 0) + _CHANGES[op](db, client, *fields)
    if op != Op.CREATE_TTL:  # in a multi, the flags choose a container, and create2 is the same as create
        flags = fields[-1]
        op = Op.CREATE_CONTAINER if flags == Mode.CONTAINER else Op.CREATE
    return r.MULTI.pack(Op.CREATE if op is Op.CREATE else Op.CREATE2, False, 0) + create(op, db, client, *fields)


def multi_read(db: Database, client: Client, parts: _Parts) -> bytes:
    """Carry out all parts, each independently."""
    results = []
    for op, fields in parts:
        try:
            results.append(r.MULTI.pack(op, False, 0) + OPERATIONS[op].handler(db, client, *fields))
        except Refused as refused:
            results.append(_error(refused.code))
    return b"".join(results) + _END


def _error(code: int) -> bytes:
    return r.MULTI.pack(-1, False, code) + code.to_bytes(4, "big", signed=True)


_PATH: Final = (Reader.text,)
_VERSION: Final = (Reader.text, Reader.int32)
_WATCH: Final = (Reader.text, Reader.flag)
_MODE: Final = (Reader.text, Reader.int32)
_CREATE: Final = (Reader.text, Reader.blob, Reader.acls, Reader.int32)
_SEEN: Final = (Reader.int64, Reader.texts, Reader.texts, Reader.texts)

OPERATIONS: Final[dict[int, Operation]] = {
    **{op: Operation(_CREATE, partial(create, op), writes=True) for op in _CREATES},
    # Its requests have one more field.
    Op.CREATE_TTL: Operation((*_CREATE, Reader.int64), partial(create, Op.CREATE_TTL), writes=True),
    Op.DELETE: Operation(_VERSION, _CHANGES[Op.DELETE], writes=True),
    Op.SET_DATA: Operation((Reader.text, Reader.blob, Reader.int32), _CHANGES[Op.SET_DATA], writes=True),
    Op.SET_ACL: Operation((Reader.text, Reader.acls, Reader.int32), partial(_on_tree, Tree.set_acl), writes=True),
    Op.CHECK: Operation(_VERSION, _check_alone, writes=True),
    Op.RECONFIG: Operation((), partial(_refuse, Error.RECONFIG_DISABLED), writes=True),
    Op.DELETE_CONTAINER: Operation((), partial(_refuse, Error.BAD_ARGUMENTS), writes=True),
    Op.EXISTS: Operation(_WATCH, _exists),
    Op.GET_DATA: Operation(_WATCH, get_data),
    Op.GET_ACL: Operation(_PATH, _get_acl),
    Op.GET_CHILDREN: Operation(_WATCH, get_children),
    Op.GET_CHILDREN2: Operation(_WATCH, _get_children2),
    Op.SYNC: Operation(_PATH, _sync),
    Op.PING: Operation((), lambda db, client: b""),
    Op.GET_EPHEMERALS: Operation(_PATH, _get_ephemerals),
    Op.GET_ALL_CHILDREN_NUMBER: Operation(_PATH, _get_all_children_number),
    Op.WHO_AM_I: Operation((), _who_am_i),
    Op.ADD_WATCH: Operation(_MODE, add_watch),
    Op.CHECK_WATCHES: Operation(_MODE, check_watches),
    Op.REMOVE_WATCHES: Operation(_MODE, remove_watches),
    Op.SET_WATCHES: Operation(_SEEN, set_watches),
    Op.SET_WATCHES2: Operation((*_SEEN, Reader.texts, Reader.texts), set_watches2),
    Op.MULTI: Operation((partial(_parts, (*_CREATES, *_CHANGES)),), multi, writes=True),
    Op.MULTI_READ: Operation((partial(_parts, (Op.GET_DATA, Op.GET_CHILDREN)),), multi_read),
}
