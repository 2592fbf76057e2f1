"""
The handlers of requests: what each operation does to the tree, the sessions and the watches.

Handlers use no sockets and no threads. A client is anything that can be sent bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Final

from django_zklock.testing.server import records as r
from django_zklock.testing.server.codes import Error, Mode, Op, Refused
from django_zklock.testing.server.database import Client, Database, Operation
from django_zklock.testing.server.records import Acl, Malformed, Reader
from django_zklock.testing.server.tree import Node, Tree


def create(
    op: Op,
    db: Database,
    client: Client,
    path: str | None,
    data: bytes | None,
    acl: Sequence[Acl] | None,
    flags: int,
) -> bytes:
    """Create a node of any kind. Return its path and, unless this is a plain create, its Stat."""
    try:
        mode = Mode(flags)
    except ValueError:
        raise Refused(Error.BAD_ARGUMENTS) from None
    sequential = mode.sequential
    if op == Op.CREATE_CONTAINER:  # the flags decide only whether the name gets a number
        mode = Mode.CONTAINER
    elif mode is Mode.CONTAINER:  # as on the real server, this request creates no container
        mode = Mode.PERSISTENT
    created = db.tree.create(path, data, acl, mode, db.origin(client), sequential=sequential)
    return r.text_bytes(created) + (b"" if op is Op.CREATE else db.tree.nodes[created].stat())


def _on_tree(method: Callable[..., bytes | None], db: Database, client: Client, *fields: Any) -> bytes:
    """Call this method of the tree. It returns the reply, or None for an empty one."""
    return method(db.tree, *fields, db.origin(client)) or b""


def _exists(db: Database, client: Client, path: str | None, watch: bool) -> bytes:
    if path is None:
        raise Refused(Error.MARSHALLING)
    if "\0" in path:
        raise Refused(Error.BAD_ARGUMENTS)
    if watch:
        db.watches.data[path][client] = None
    return db.tree.node(path).stat()


def _read(
    answer: Callable[[Node], bytes], db: Database, client: Client, path: str | None, watch: bool = False
) -> bytes:
    """Answer with a node, and watch what the answer is about: the node, or its children."""
    node = db.tree.node(path)
    if watch:
        watched = db.watches.data if answer is _data else db.watches.child
        watched[path or ""][client] = None
    return answer(node)


def _data(node: Node) -> bytes:
    return r.blob_bytes(node.data) + node.stat()


def _children(node: Node) -> bytes:
    return r.list_bytes([r.text_bytes(name) for name in node.children])


def _children2(node: Node) -> bytes:
    return _children(node) + node.stat()


def _acl(node: Node) -> bytes:
    return r.list_bytes([r.acl_bytes(acl) for acl in node.acl]) + node.stat()


def _sync(db: Database, client: Client, path: str | None) -> bytes:
    return r.blob_bytes(None) if path is None else r.text_bytes(path)


def _get_ephemerals(db: Database, client: Client, prefix: str | None) -> bytes:
    own = db.tree.ephemerals.get(client.session_id, {})
    return r.list_bytes([r.text_bytes(path) for path in own if path.startswith(prefix or "")])


# --- several operations in one request ---


_CREATES: Final = (Op.CREATE, Op.CREATE2, Op.CREATE_CONTAINER)
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
    db.faults.check(op, fields[0])
    if op not in _CREATES:
        return r.MULTI.pack(op, False, 0) + _CHANGES[op](db, client, *fields)
    # In a multi, the flags choose a container, and create2 is the same as create.
    container = fields[-1] == Mode.CONTAINER
    op, shown = (Op.CREATE_CONTAINER, Op.CREATE2) if container else (Op.CREATE, Op.CREATE)
    return r.MULTI.pack(shown, False, 0) + create(op, db, client, *fields)


def multi_read(db: Database, client: Client, parts: _Parts) -> bytes:
    """Carry out all parts, each independently."""
    results = []
    for op, fields in parts:
        try:
            db.faults.check(op, fields[0])
            results.append(r.MULTI.pack(op, False, 0) + OPERATIONS[op].handler(db, client, *fields))
        except Refused as refused:
            results.append(_error(refused.code))
    return b"".join(results) + _END


def _error(code: int) -> bytes:
    return r.MULTI.pack(-1, False, code) + code.to_bytes(4, "big", signed=True)


_PATH: Final = (Reader.text,)
_VERSION: Final = (Reader.text, Reader.int32)
_WATCH: Final = (Reader.text, Reader.flag)
_CREATE: Final = (Reader.text, Reader.blob, Reader.acls, Reader.int32)

OPERATIONS: Final[dict[int, Operation]] = {
    **{op: Operation(_CREATE, partial(create, op), writes=True) for op in _CREATES},
    Op.DELETE: Operation(_VERSION, _CHANGES[Op.DELETE], writes=True),
    Op.SET_DATA: Operation((Reader.text, Reader.blob, Reader.int32), _CHANGES[Op.SET_DATA], writes=True),
    Op.SET_ACL: Operation((Reader.text, Reader.acls, Reader.int32), partial(_on_tree, Tree.set_acl), writes=True),
    Op.CHECK: Operation(_VERSION, _CHANGES[Op.CHECK], writes=True),
    Op.EXISTS: Operation(_WATCH, _exists),
    Op.GET_DATA: Operation(_WATCH, partial(_read, _data)),
    Op.GET_ACL: Operation(_PATH, partial(_read, _acl)),
    Op.GET_CHILDREN: Operation(_WATCH, partial(_read, _children)),
    Op.GET_CHILDREN2: Operation(_WATCH, partial(_read, _children2)),
    Op.SYNC: Operation(_PATH, _sync),
    Op.PING: Operation((), lambda db, client: b""),
    Op.GET_EPHEMERALS: Operation(_PATH, _get_ephemerals),
    Op.MULTI: Operation((partial(_parts, (*_CREATES, *_CHANGES)),), multi, writes=True),
    Op.MULTI_READ: Operation((partial(_parts, (Op.GET_DATA, Op.GET_CHILDREN)),), multi_read),
}
