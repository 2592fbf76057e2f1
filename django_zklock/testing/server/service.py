"""
What a server says on its connections: handshakes, requests, sessions that end, and the faults on the way.

It knows connections and the database; it does not know how bytes come and go, nor threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from django_zklock.testing.server import records as r
from django_zklock.testing.server.acl import authenticate
from django_zklock.testing.server.codes import XID_PING, Error, Op, Refused
from django_zklock.testing.server.connection import BrokenFrame, Connection
from django_zklock.testing.server.faults import Faults
from django_zklock.testing.server.jute import Malformed, Reader, Writer
from django_zklock.testing.server.multi import multi, multi_read
from django_zklock.testing.server.requests import HANDLERS, Database, Handler
from django_zklock.testing.server.sessions import Session
from django_zklock.testing.server.watching import WATCHING
from django_zklock.testing.server.words import WORDS, Vitals

#: How long a connection may go without a handshake (seconds), as on the real server.
SILENCE: Final = 10.0

#: All operations on the tree: what carries it out, and whether it is a transaction.
OPERATIONS: Final[dict[int, tuple[Handler, bool]]] = {
    **HANDLERS,
    **{op: (handler, False) for op, handler in WATCHING.items()},
    Op.MULTI: (multi, True),
    Op.MULTI_READ: (multi_read, False),
}


class Service:
    """The server's side of all connections. Guarded by being the server thread's alone."""

    def __init__(
        self, database: Database, *, port: int, container_check: float, gone: Callable[[Connection], None]
    ) -> None:
        self.db = database
        self.port = port
        self.faults = Faults()
        self.connections: set[Connection] = set()
        self.strangers: set[Connection] = set()  # those without a session
        self.dirty: set[Connection] = set()  # those that have something to send
        self.by_session: dict[int, Connection] = {}
        self.wiped: set[int] = set()  # sessions that ended with the data they were in
        self.vitals = Vitals()
        self._gone = gone  # is told of connections that are closed
        self._container_check = container_check
        self._next_reap = time.monotonic() + container_check

    # connections

    def connected(self, connection: Connection) -> None:
        """Take a new connection."""
        self.connections.add(connection)
        self.strangers.add(connection)

    def drop(self, connection: Connection) -> None:
        """Close a connection; its session lives on."""
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        self.strangers.discard(connection)
        self.dirty.discard(connection)
        self.db.watches.forget(connection)
        if connection.session is not None and self.by_session.get(connection.session.id) is connection:
            del self.by_session[connection.session.id]
        self._gone(connection)
        connection.close()

    def read(self, connection: Connection) -> None:
        """Take what a client has sent, and do it."""
        alive = connection.receive()
        if self.faults.stall:
            connection.swallow()
        elif connection.greeted or not self._word(connection):
            try:
                while not connection.closed and not connection.closing:
                    body = connection.next_frame()
                    if body is None:
                        break
                    self._frame(connection, body)
            except (BrokenFrame, Malformed):
                self.drop(connection)
        if not alive:
            self.drop(connection)

    def flush(self) -> None:
        """Send what there is to send, as far as it may be."""
        if self.faults.stall:
            return
        now = time.monotonic()
        for connection in list(self.dirty):
            if not connection.flush(now):
                self.drop(connection)
            elif not connection.partial and connection.due() is None:
                self.dirty.discard(connection)

    def end_stall(self) -> None:
        """Answer again. Whoever was not heard meanwhile is cut off: its replies would be one too few."""
        self.faults.stall = False
        for connection in [one for one in self.connections if one.swallowed]:
            self.drop(connection)

    # time

    def tick(self, now: float) -> None:
        """Do what time asks for: end sessions, sweep containers, drop those that never greet."""
        for session in self.db.sessions.overdue(now):
            self.expire(session.id)
        if now >= self._next_reap:
            self._next_reap = now + self._container_check
            if self.db.tree.mortal:
                self.db.reap()
        for connection in [one for one in self.strangers if one.since + SILENCE <= now]:
            self.drop(connection)

    def next_tick(self) -> float:
        """Return when `tick` or `flush` next has something to do."""
        times = [self._next_reap]
        deadline = self.db.sessions.next_deadline()
        if deadline is not None:
            times.append(deadline)
        if not self.faults.stall:
            times += [due for one in self.dirty if (due := one.due()) is not None]
        times += [one.since + SILENCE for one in self.strangers]
        return min(times)

    def rested(self, now: float) -> None:
        """Go on after a time in which nothing was done: nobody is late for that."""
        self.db.sessions.touch_all(now)
        self._next_reap = now + self._container_check
        for connection in self.strangers:
            connection.since = now

    def wipe(self, database: Database) -> None:
        """Forget everything. Clients of the sessions that were are told that these have expired."""
        self.wiped.update(session.id for session in self.db.sessions)
        self.db = database

    def expire(self, session_id: int) -> bool:
        """End a session as if its time had passed; tell whether there was one."""
        if not self.db.end_session(session_id):
            return False
        connection = self.by_session.get(session_id)
        if connection is not None:
            self.drop(connection)
        return True

    # frames

    def _word(self, connection: Connection) -> bool:
        word = connection.first_word()
        if word is None:
            return True
        answer = WORDS.get(word)
        if answer is None:
            return False
        connection.greeted = True
        connection.received += 1
        connection.send(answer(self).encode("utf-8", "replace"))
        connection.close_when_sent()
        return True

    def _frame(self, connection: Connection, body: bytes) -> None:
        reader = Reader(body)
        if connection.session is None:
            self._greet(connection, reader)
            return
        xid, op = reader.int32(), reader.int32()
        self.vitals.received += 1
        connection.last_xid = xid
        loss = self.faults.losses and self.faults.take_loss(op, connection.session.id)
        if not loss:
            self._request(connection, connection.session, xid, op, reader)
            return
        connection.flush(time.monotonic())  # the replies before are not lost
        self._request(connection, connection.session, xid, op, reader)
        self.drop(connection)
        loss.done.set()

    def _greet(self, connection: Connection, reader: Reader) -> None:
        request = r.read(r.ConnectRequest, reader)
        newer = reader.left > 0
        connection.greeted = True
        sessions = self.db.sessions
        if request.last_zxid > self.db.zxid and request.session_id not in self.wiped:
            self.drop(connection)  # it has seen what this server has not: it shall look for another
            return
        timeout, now = sessions.negotiate(request.timeout / 1000), time.monotonic()
        session: Session | None
        if request.session_id == 0:
            session = self.db.open_session(timeout, now)
        else:
            before = self.by_session.get(request.session_id)
            if before is not None:
                self.drop(before)
            session = sessions.find(request.session_id)
            if session is not None and session.knows(request.password):
                session.timeout = timeout
                sessions.touch(session, now)
            else:
                session = None
        loss = self.faults.losses and self.faults.take_loss(Op.CONNECT, session.id if session else None)
        if loss:
            self.drop(connection)
            loss.done.set()
            return
        self._welcome(connection, session, newer)

    def _welcome(self, connection: Connection, session: Session | None, newer: bool) -> None:
        writer = Writer()
        if session is None:
            r.write(writer, r.ConnectReply(0, 0, 0, bytes(16)))
        else:
            r.write(writer, r.ConnectReply(0, round(session.timeout * 1000), session.id, session.password))
            connection.session = session
            self.by_session[session.id] = connection
            self.strangers.discard(connection)
        if newer:
            writer.flag(False)  # this server is not read-only
        self._send(connection, Op.CONNECT, r.frame(writer.data))
        if session is None:
            connection.close_when_sent()

    def _request(self, connection: Connection, session: Session, xid: int, op: int, reader: Reader) -> None:
        self.db.sessions.touch(session, time.monotonic())
        found = OPERATIONS.get(op)
        if found is not None:
            connection.last = Op(op).name
            handler, writes = found
            if op == Op.PING:
                xid = XID_PING
            answer = self.db.answer(connection, xid, reader, handler, writes=writes)
            self._send(connection, op, answer)
        elif op == Op.AUTH:
            self._auth(connection, xid, reader)
        elif op == Op.CLOSE:
            del self.by_session[session.id]
            self.db.end_session(session.id)
            self._send(connection, op, r.reply(xid, self.db.zxid, 0))
            connection.close_when_sent()
        elif op == Op.SASL:  # not set up, so that there is no challenge to answer
            self._send(connection, op, r.reply(xid, 0, 0, r.blob_bytes(None)))
        else:
            self._send(connection, op, r.reply(xid, -1, Error.UNIMPLEMENTED))
            connection.close_when_sent()

    def _auth(self, connection: Connection, xid: int, reader: Reader) -> None:
        request = r.read(r.AuthRequest, reader)
        try:
            credential = authenticate(request.scheme, request.auth, connection.address)
        except Refused as refused:
            self._send(connection, Op.AUTH, r.reply(xid, 0, refused.code))
            connection.close_when_sent()
            return
        if credential not in connection.credentials:
            connection.credentials.append(credential)
        self._send(connection, Op.AUTH, r.reply(xid, 0, 0))

    def _send(self, connection: Connection, op: int, data: bytes) -> None:
        self.vitals.sent += 1
        delay = self.faults.delays.get(op) if self.faults.delays else None
        connection.send(data, not_before=time.monotonic() + delay if delay else 0.0)
