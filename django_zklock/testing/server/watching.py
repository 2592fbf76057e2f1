"""The requests that are about watches only: to keep them, to check, to take away, and to set again after an absence."""

from __future__ import annotations

from typing import Final

from django_zklock.testing.server import records as r
from django_zklock.testing.server.codes import Error, Event, Op, Refused, Watch
from django_zklock.testing.server.jute import Reader
from django_zklock.testing.server.requests import Client, Database, Handler


def add_watch(db: Database, client: Client, reader: Reader) -> bytes:
    """Watch a node, or all below it, until told otherwise."""
    path, mode = r.read(r.ModeRequest, reader)
    if path is None or mode not in (0, 1):
        raise Refused(Error.MARSHALLING)
    db.watches.add(path, client, Watch(mode + 1))
    return Error.OK.to_bytes(4, "big")


def check_watches(db: Database, client: Client, reader: Reader) -> bytes:
    """Tell whether there is such a watch."""
    path, kind = r.read(r.ModeRequest, reader)
    if path is None or (path and "/" not in path):
        raise Refused(Error.MARSHALLING)
    if not any(table.watched(path) for table in db.watches.tables(kind)):  # by whomever: so it is in 3.8
        raise Refused(Error.NO_WATCHER)
    return b""


def remove_watches(db: Database, client: Client, reader: Reader) -> bytes:
    """Take watches away."""
    path, kind = r.read(r.ModeRequest, reader)
    removed = [table.remove(path or "", client) for table in db.watches.tables(kind)]  # from all, so no generator
    if not any(removed):
        raise Refused(Error.NO_WATCHER)
    return b""


def set_watches(db: Database, client: Client, reader: Reader) -> bytes:
    """Take up the watches of a client that was away."""
    zxid, data, exist, child = r.read(r.SetWatchesRequest, reader)
    if data is None or exist is None or child is None:
        raise Refused(Error.MARSHALLING)
    _watch_again(db, client, zxid, data, exist, child)
    return b""


def set_watches2(db: Database, client: Client, reader: Reader) -> bytes:
    """Take up the watches of a client that was away, those of addWatch among them."""
    zxid, data, exist, child, persistent, recursive = r.read(r.SetWatches2Request, reader)
    _watch_again(db, client, zxid, data or [], exist or [], child or [])
    for paths, kind in ((persistent, Watch.PERSISTENT), (recursive, Watch.RECURSIVE)):
        for path in paths or ():
            db.watches.add(path, client, kind)
    return b""


def _watch_again(db: Database, client: Client, zxid: int, data: list[str], exist: list[str], child: list[str]) -> None:
    """Set the watches of a client that was away since `zxid`, or tell it at once what it has missed."""
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


#: By operation: what carries it out. None is a transaction.
WATCHING: Final[dict[int, Handler]] = {
    Op.ADD_WATCH: add_watch,
    Op.CHECK_WATCHES: check_watches,
    Op.REMOVE_WATCHES: remove_watches,
    Op.SET_WATCHES: set_watches,
    Op.SET_WATCHES2: set_watches2,
}
