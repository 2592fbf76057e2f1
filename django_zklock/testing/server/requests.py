"""
The handlers of requests: what each operation does to the tree, the sessions and the watches.

Handlers use no sockets and no threads. A client is anything with credentials that can be sent bytes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from django_zklock.testing.server import records as r
from django_zklock.testing.server.acl import Credential, allows, masked, require
from django_zklock.testing.server.codes import Error, Event, Mode, Op, Perm, Refused, Watch
from django_zklock.testing.server.database import Client, Database, Handler, now
from django_zklock.testing.server.records import Malformed, Reader, Writer


def create(db: Database, client: Client, reader: Reader, op: int) -> tuple[str, bytes]:
    """Create a node of any kind. Return its path, and its Stat as bytes."""
    if op == Op.CREATE_TTL:
        path, data, acl, flags, ttl = r.read(r.CreateTtlRequest, reader)
    else:
        (path, data, acl, flags), ttl = r.read(r.CreateRequest, reader), -1
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
    created = db.tree.create(
        path,
        data,
        acl,
        mode,
        sequential=sequential,
        ttl=ttl,
        session=client.session.id if client.session else 0,
        credentials=client.credentials,
        zxid=db.zxid,
        now=now(),
    )
    return created, r.stat_bytes(db.tree.nodes[created].stat())


def delete(db: Database, client: Client, reader: Reader) -> bytes:
    """Delete a node."""
    path, version = r.read(r.VersionRequest, reader)
    db.tree.delete(path, version, credentials=client.credentials, zxid=db.zxid)
    return b""


def set_data(db: Database, client: Client, reader: Reader) -> bytes:
    """Set a node's data."""
    path, data, version = r.read(r.SetDataRequest, reader)
    return r.stat_bytes(db.tree.set_data(path, data, version, credentials=client.credentials, zxid=db.zxid, now=now()))


def check(db: Database, client: Client, reader: Reader) -> bytes:
    """Check a node's version."""
    path, version = r.read(r.VersionRequest, reader)
    db.tree.check(path, version, credentials=client.credentials)
    return b""


def _check_alone(db: Database, client: Client, reader: Reader) -> bytes:
    check(db, client, reader)
    raise Refused(Error.MARSHALLING)  # outside a multi, the real server has no reply for it


def _create(db: Database, client: Client, reader: Reader) -> bytes:
    return r.text_bytes(create(db, client, reader, Op.CREATE)[0])


def _create_of(op: Op) -> Handler:
    def handler(db: Database, client: Client, reader: Reader) -> bytes:
        path, stat = create(db, client, reader, op)
        return r.text_bytes(path) + stat

    return handler


def _set_acl(db: Database, client: Client, reader: Reader) -> bytes:
    path, acl, version = r.read(r.SetAclRequest, reader)
    return r.stat_bytes(db.tree.set_acl(path, acl, version, credentials=client.credentials))


def _exists(db: Database, client: Client, reader: Reader) -> bytes:
    path, watch = r.read(r.WatchRequest, reader)
    if path is None:
        raise Refused(Error.MARSHALLING)
    if "\0" in path:
        raise Refused(Error.BAD_ARGUMENTS)
    if watch:
        db.watches.data.add(path, client, Watch.ONCE)
    return r.stat_bytes(db.tree.node(path).stat())


def get_data(db: Database, client: Client, reader: Reader) -> bytes:
    """Read a node's data and Stat."""
    path, watch = r.read(r.WatchRequest, reader)
    node = db.tree.node(path)
    require(node.acl, Perm.READ, client.credentials)
    if watch:
        db.watches.data.add(path or "", client, Watch.ONCE)
    return r.blob_bytes(node.data) + r.stat_bytes(node.stat())


def get_children(db: Database, client: Client, reader: Reader) -> bytes:
    """Read the names of a node's children."""
    path, watch = r.read(r.WatchRequest, reader)
    node = db.tree.node(path)
    require(node.acl, Perm.READ, client.credentials)
    if watch:
        db.watches.child.add(path or "", client, Watch.ONCE)
    names = [r.text_bytes(name) for name in node.children]
    return len(names).to_bytes(4, "big") + b"".join(names)


def _get_children2(db: Database, client: Client, reader: Reader) -> bytes:
    at = reader.at
    body = get_children(db, client, reader)
    reader.at = at
    return body + r.stat_bytes(db.tree.node(r.read(r.WatchRequest, reader).path).stat())


def _get_acl(db: Database, client: Client, reader: Reader) -> bytes:
    node = db.tree.node(r.read(r.PathRequest, reader).path)
    require(node.acl, Perm.READ | Perm.ADMIN, client.credentials)
    shown = list(node.acl) if allows(node.acl, Perm.ADMIN, client.credentials) else masked(node.acl)
    writer = Writer()
    writer.vector(shown, r.write)
    return bytes(writer.data) + r.stat_bytes(node.stat())


def _sync(db: Database, client: Client, reader: Reader) -> bytes:
    path = r.read(r.PathRequest, reader).path
    return r.blob_bytes(None) if path is None else r.text_bytes(path)


def _get_ephemerals(db: Database, client: Client, reader: Reader) -> bytes:
    prefix = r.read(r.PathRequest, reader).path or ""
    own = db.tree.ephemerals.get(client.session.id, {}) if client.session else {}
    writer = Writer()
    writer.vector([path for path in own if path.startswith(prefix)], Writer.text)
    return bytes(writer.data)


def _get_all_children_number(db: Database, client: Client, reader: Reader) -> bytes:
    path = r.read(r.PathRequest, reader).path
    require(db.tree.node(path).acl, Perm.READ, client.credentials)
    count = len(db.tree.nodes) - 2 if path == "/" else sum(node.startswith(f"{path}/") for node in db.tree.nodes)
    return count.to_bytes(4, "big")


def _who_am_i(db: Database, client: Client, reader: Reader) -> bytes:
    def write(writer: Writer, credential: Credential) -> None:
        writer.text(credential.scheme)
        writer.text(credential.user)

    writer = Writer()
    writer.vector(client.credentials, write)
    return bytes(writer.data)


def _refuse(code: Error) -> Handler:
    def handler(db: Database, client: Client, reader: Reader) -> bytes:
        raise Refused(code)

    return handler


# --- watches ---


def add_watch(db: Database, client: Client, reader: Reader) -> bytes:
    """Add a watch on a node, or on a node and all below it, that lasts until it is removed."""
    path, mode = r.read(r.ModeRequest, reader)
    if path is None or mode not in (0, 1):
        raise Refused(Error.MARSHALLING)
    db.watches.add(path, client, Watch(mode + 1))
    return Error.OK.to_bytes(4, "big")


def check_watches(db: Database, client: Client, reader: Reader) -> bytes:
    """Succeed if there is such a watch."""
    path, kind = r.read(r.ModeRequest, reader)
    if path is None or (path and "/" not in path):
        raise Refused(Error.MARSHALLING)
    if not any(table.watched(path) for table in db.watches.tables(kind)):  # of any client, as in 3.8
        raise Refused(Error.NO_WATCHER)
    return b""


def remove_watches(db: Database, client: Client, reader: Reader) -> bytes:
    """Remove watches."""
    path, kind = r.read(r.ModeRequest, reader)
    removed = [table.remove(path or "", client) for table in db.watches.tables(kind)]
    if not any(removed):  # not any() of a generator: it would stop at the first table
        raise Refused(Error.NO_WATCHER)
    return b""


def set_watches(db: Database, client: Client, reader: Reader) -> bytes:
    """Set the watches of a client that has reconnected."""
    zxid, data, exist, child = r.read(r.SetWatchesRequest, reader)
    if data is None or exist is None or child is None:
        raise Refused(Error.MARSHALLING)
    _watch_again(db, client, zxid, data, exist, child)
    return b""


def set_watches2(db: Database, client: Client, reader: Reader) -> bytes:
    """Set the watches of a client that has reconnected, including those of addWatch."""
    zxid, data, exist, child, persistent, recursive = r.read(r.SetWatches2Request, reader)
    _watch_again(db, client, zxid, data or [], exist or [], child or [])
    for paths, kind in ((persistent, Watch.PERSISTENT), (recursive, Watch.RECURSIVE)):
        for path in paths or ():
            db.watches.add(path, client, kind)
    return b""


def _watch_again(db: Database, client: Client, zxid: int, data: list[str], exist: list[str], child: list[str]) -> None:
    """Set the watches of a client that last saw `zxid`. Send an event for each change that it missed."""
    nodes = db.tree.nodes
    for path in data:
        node = nodes.get(path)
        if node is None or node.mzxid > zxid:
            client.send(r.event(Event.DELETED if node is None else Event.CHANGED, path))
        else:
            db.watches.data.add(path, client, Watch.ONCE)
    for path in exist:
        if path in nodes:
            client.send(r.event(Event.CREATED, path))
        else:
            db.watches.data.add(path, client, Watch.ONCE)
    for path in child:
        node = nodes.get(path)
        if node is None or node.pzxid > zxid:
            client.send(r.event(Event.DELETED if node is None else Event.CHILD, path))
        else:
            db.watches.child.add(path, client, Watch.ONCE)


# --- several operations in one request ---


_CREATES: Final = (Op.CREATE, Op.CREATE2, Op.CREATE_CONTAINER, Op.CREATE_TTL)
_CHANGES: Final[dict[int, Handler]] = {Op.DELETE: delete, Op.SET_DATA: set_data, Op.CHECK: check}
_READS: Final[dict[int, Handler]] = {Op.GET_DATA: get_data, Op.GET_CHILDREN: get_children}
_END: Final = r.multi_header(-1, True, -1)

#: The record of each part.
_RECORDS: Final[dict[int, type[tuple[Any, ...]]]] = {
    Op.CREATE: r.CreateRequest,
    Op.CREATE2: r.CreateRequest,
    Op.CREATE_CONTAINER: r.CreateRequest,
    Op.CREATE_TTL: r.CreateTtlRequest,
    Op.DELETE: r.VersionRequest,
    Op.CHECK: r.VersionRequest,
    Op.SET_DATA: r.SetDataRequest,
    Op.GET_DATA: r.WatchRequest,
    Op.GET_CHILDREN: r.WatchRequest,
}


def _parts(reader: Reader, allowed: Collection[int]) -> list[tuple[Op, bytes]]:
    """Parse all parts of a request before any is carried out. If one is malformed, the request fails."""
    parts = []
    while not (header := r.read(r.MultiHeader, reader)).done:
        op = Op(header.type)
        if op not in allowed:
            raise Malformed(f"operation {op} in a multi")
        start = reader.at
        r.read(_RECORDS[op], reader)
        parts.append((op, reader.data[start : reader.at]))
    return parts


def multi(db: Database, client: Client, reader: Reader) -> bytes:
    """Carry out all parts or none. The reply is always a success; it contains the error of each part."""
    parts = _parts(reader, (*_CREATES, *_CHANGES))
    results: list[bytes] = []
    db.tree.begin()
    try:
        for op, body in parts:
            results.append(_change(db, client, op, Reader(body)))
    except Refused as refused:
        db.tree.roll_back()
        errors = [0] * len(results) + [refused.code]
        errors += [Error.RUNTIME_INCONSISTENCY] * (len(parts) - len(errors))
        return b"".join(map(_error, errors)) + _END
    db.tree.commit()
    return b"".join(results) + _END


def _change(db: Database, client: Client, op: Op, reader: Reader) -> bytes:
    if op not in _CREATES:
        return r.multi_header(op, False, 0) + _CHANGES[op](db, client, reader)
    if op != Op.CREATE_TTL:  # in a multi, the flags choose a container, and create2 is the same as create
        flags = r.read(r.CreateRequest, Reader(reader.data)).flags
        op = Op.CREATE_CONTAINER if flags == Mode.CONTAINER else Op.CREATE
    path, stat = create(db, client, reader, op)
    if op == Op.CREATE:
        return r.multi_header(Op.CREATE, False, 0) + r.text_bytes(path)
    return r.multi_header(Op.CREATE2, False, 0) + r.text_bytes(path) + stat


def multi_read(db: Database, client: Client, reader: Reader) -> bytes:
    """Carry out all parts, each independently."""
    results = []
    for op, body in _parts(reader, _READS):
        try:
            results.append(r.multi_header(op, False, 0) + _READS[op](db, client, Reader(body)))
        except Refused as refused:
            results.append(_error(refused.code))
    return b"".join(results) + _END


def _error(code: int) -> bytes:
    return r.multi_header(-1, False, code) + code.to_bytes(4, "big", signed=True)


#: The handler of each operation, and whether the operation is a transaction.
HANDLERS: Final[dict[int, tuple[Handler, bool]]] = {
    Op.CREATE: (_create, True),
    Op.CREATE2: (_create_of(Op.CREATE2), True),
    Op.CREATE_CONTAINER: (_create_of(Op.CREATE_CONTAINER), True),
    Op.CREATE_TTL: (_create_of(Op.CREATE_TTL), True),
    Op.DELETE: (delete, True),
    Op.SET_DATA: (set_data, True),
    Op.SET_ACL: (_set_acl, True),
    Op.CHECK: (_check_alone, True),
    Op.RECONFIG: (_refuse(Error.RECONFIG_DISABLED), True),
    Op.DELETE_CONTAINER: (_refuse(Error.BAD_ARGUMENTS), True),
    Op.EXISTS: (_exists, False),
    Op.GET_DATA: (get_data, False),
    Op.GET_ACL: (_get_acl, False),
    Op.GET_CHILDREN: (get_children, False),
    Op.GET_CHILDREN2: (_get_children2, False),
    Op.SYNC: (_sync, False),
    Op.PING: (lambda db, client, reader: b"", False),
    Op.GET_EPHEMERALS: (_get_ephemerals, False),
    Op.GET_ALL_CHILDREN_NUMBER: (_get_all_children_number, False),
    Op.WHO_AM_I: (_who_am_i, False),
    Op.ADD_WATCH: (add_watch, False),
    Op.CHECK_WATCHES: (check_watches, False),
    Op.REMOVE_WATCHES: (remove_watches, False),
    Op.SET_WATCHES: (set_watches, False),
    Op.SET_WATCHES2: (set_watches2, False),
    Op.MULTI: (multi, True),
    Op.MULTI_READ: (multi_read, False),
}
