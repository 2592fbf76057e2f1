"""Several operations in one request: all or nothing (multi), and several reads (multiRead)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from django_zklock.testing.server import records as r
from django_zklock.testing.server.codes import Error, Mode, Op, Refused
from django_zklock.testing.server.jute import Malformed, Reader
from django_zklock.testing.server.requests import (
    Client,
    Database,
    Handler,
    check,
    create,
    delete,
    get_children,
    get_data,
    set_data,
)

_CREATES: Final = (Op.CREATE, Op.CREATE2, Op.CREATE_CONTAINER, Op.CREATE_TTL)
_CHANGES: Final[dict[int, Handler]] = {Op.DELETE: delete, Op.SET_DATA: set_data, Op.CHECK: check}
_READS: Final[dict[int, Handler]] = {Op.GET_DATA: get_data, Op.GET_CHILDREN: get_children}
_END: Final = r.multi_header(-1, True, -1)

#: What each part consists of.
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
    """Take the parts of a request apart, before any is carried out: one that is malformed spoils them all."""
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
    """Carry out all parts or none. The reply is a success either way; it has the error of each part."""
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
    if op != Op.CREATE_TTL:  # here the flags say whether it is a container, and create2 is but create
        flags = r.read(r.CreateRequest, Reader(reader.data)).flags
        op = Op.CREATE_CONTAINER if flags == Mode.CONTAINER else Op.CREATE
    path, stat = create(db, client, reader, op)
    if op == Op.CREATE:
        return r.multi_header(Op.CREATE, False, 0) + r.text_bytes(path)
    return r.multi_header(Op.CREATE2, False, 0) + r.text_bytes(path) + stat


def multi_read(db: Database, client: Client, reader: Reader) -> bytes:
    """Carry out all parts, each on its own."""
    results = []
    for op, body in _parts(reader, _READS):
        try:
            results.append(r.multi_header(op, False, 0) + _READS[op](db, client, Reader(body)))
        except Refused as refused:
            results.append(_error(refused.code))
    return b"".join(results) + _END


def _error(code: int) -> bytes:
    return r.multi_header(-1, False, code) + code.to_bytes(4, "big", signed=True)
