"""
From a request to its reply: what each operation does to the tree, the sessions and the watches.

It knows clients as something that has credentials and can be sent bytes; it knows no sockets and no threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

from django_zklock.testing.server import records as r
from django_zklock.testing.server.acl import Credential, allows, masked, permit
from django_zklock.testing.server.codes import Error, Event, Mode, Op, Perm, Refused, Watch
from django_zklock.testing.server.jute import Malformed, Reader, Writer
from django_zklock.testing.server.sessions import Session, Sessions
from django_zklock.testing.server.tree import Tree
from django_zklock.testing.server.watches import Watches


class Client(Protocol):
    """A connection, as far as requests are concerned. It is its own key among the watchers."""

    session: Session | None
    credentials: list[Credential]

    def send(self, data: bytes) -> None:
        """Send a frame, after all that was sent before."""


class Database:
    """All that a server knows: tree, sessions, watches, and the number of the last transaction."""

    def __init__(self, sessions: Sessions) -> None:
        self.tree = Tree()
        self.sessions = sessions
        self.watches: Watches[Client] = Watches()
        self.zxid = 0

    def open_session(self, timeout: float, now: float) -> Session:
        """Start a session, which is a transaction."""
        self.zxid += 1
        return self.sessions.open(timeout, now)

    def end_session(self, session_id: int) -> bool:
        """End a session, its ephemerals with it; tell whether there was one."""
        if not self.sessions.end(session_id):
            return False
        self.zxid += 1
        self.tree.end_session(session_id, zxid=self.zxid)
        self.fire()
        return True

    def reap(self) -> None:
        """Delete the containers and nodes with a time to live that are over."""
        for path in self.tree.leftovers(now()):
            self.zxid += 1
            self.tree.remove(path, zxid=self.zxid)
        self.fire()

    def fire(self) -> None:
        """
        Tell the watchers what has changed.

        Those that may not read a node hear nothing of it (CVE-2024-23944), but their watches are used up.
        """
        changes, self.tree.changes = self.tree.changes, []
        for change in changes:
            for client, kind, where in self.watches.fire(change.event, change.path):
                acl = change.parent_acl if kind is Event.CHILD else change.acl
                if allows(acl, Perm.READ, client.credentials):
                    client.send(r.event(kind, where))

    def answer(self, client: Client, xid: int, reader: Reader, handler: Handler, *, writes: bool) -> bytes:
        """Carry out a request and return the reply as a frame. What `writes` is a transaction, which takes a zxid."""
        if writes:
            self.zxid += 1  # also if it fails
        try:
            body = handler(self, client, reader)
        except Refused as refused:
            return r.reply(xid, self.zxid, refused.code)
        except (Malformed, ValueError):
            return r.reply(xid, self.zxid, Error.MARSHALLING)
        if self.tree.changes:
            self.fire()
        return r.reply(xid, self.zxid, 0, body)


Handler = Callable[[Database, Client, Reader], bytes]


def now() -> int:
    """Return the time as nodes carry it."""
    return int(time.time() * 1000)


def create(db: Database, client: Client, reader: Reader, op: int) -> tuple[str, bytes]:
    """Create a node of any kind; return its path, and its Stat as bytes."""
    if op == Op.CREATE_TTL:
        path, data, acl, flags, ttl = r.read(r.CreateTtlRequest, reader)
    else:
        (path, data, acl, flags), ttl = r.read(r.CreateRequest, reader), -1
    try:
        mode = Mode(flags)
    except ValueError:
        raise Refused(Error.BAD_ARGUMENTS) from None
    sequential = mode.sequential
    if op == Op.CREATE_CONTAINER and not mode.ttl:  # what its flags say does not matter otherwise, but for the number
        mode = Mode.CONTAINER
    elif op != Op.CREATE_TTL and mode is Mode.CONTAINER:  # as the real server has it, this way it makes no container
        mode = Mode.PERSISTENT
    elif op == Op.CREATE_TTL and not mode.ttl:  # which ends the real server
        raise Refused(Error.BAD_ARGUMENTS)
    made = db.tree.create(
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
    return made, r.stat_bytes(db.tree.nodes[made].stat())


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
    raise Refused(Error.MARSHALLING)  # outside of a multi the real server has no reply for it


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
    permit(node.acl, Perm.READ, client.credentials)
    if watch:
        db.watches.data.add(path or "", client, Watch.ONCE)
    return r.blob_bytes(node.data) + r.stat_bytes(node.stat())


def get_children(db: Database, client: Client, reader: Reader) -> bytes:
    """Read the names of a node's children."""
    path, watch = r.read(r.WatchRequest, reader)
    node = db.tree.node(path)
    permit(node.acl, Perm.READ, client.credentials)
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
    permit(node.acl, Perm.READ | Perm.ADMIN, client.credentials)
    shown = list(node.acl) if allows(node.acl, Perm.ADMIN, client.credentials) else masked(node.acl)
    writer = Writer()
    writer.vector(shown, r.write)
    return bytes(writer.data) + r.stat_bytes(node.stat())


def _sync(db: Database, client: Client, reader: Reader) -> bytes:
    return _text(r.read(r.PathRequest, reader).path)


def _text(value: str | None) -> bytes:
    writer = Writer()
    writer.text(value)
    return bytes(writer.data)


def _get_ephemerals(db: Database, client: Client, reader: Reader) -> bytes:
    prefix = r.read(r.PathRequest, reader).path or ""
    own = db.tree.ephemerals.get(client.session.id, {}) if client.session else {}
    writer = Writer()
    writer.vector([path for path in own if path.startswith(prefix)], Writer.text)
    return bytes(writer.data)


def _get_all_children_number(db: Database, client: Client, reader: Reader) -> bytes:
    path = r.read(r.PathRequest, reader).path
    permit(db.tree.node(path).acl, Perm.READ, client.credentials)
    count = len(db.tree.nodes) - 2 if path == "/" else sum(one.startswith(f"{path}/") for one in db.tree.nodes)
    return count.to_bytes(4, "big")


def _who_am_i(db: Database, client: Client, reader: Reader) -> bytes:
    def write(writer: Writer, one: Credential) -> None:
        writer.text(one.scheme)
        writer.text(one.user)

    writer = Writer()
    writer.vector(client.credentials, write)
    return bytes(writer.data)


def _refuse(code: Error) -> Handler:
    def handler(db: Database, client: Client, reader: Reader) -> bytes:
        raise Refused(code)

    return handler


#: By operation, without those of `multi` and `watching`: what carries it out, and whether it is a transaction.
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
}
