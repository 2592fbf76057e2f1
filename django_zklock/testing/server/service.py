"""
Serve the clients: four-letter commands, handshakes, requests, the ends of sessions, and injected faults.

The service does no input or output itself, and it runs on the server's thread only.
"""

from __future__ import annotations

from django_zklock.core import clock
from django_zklock.testing.server import records as r
from django_zklock.testing.server.codes import XID_PING, Error, Op
from django_zklock.testing.server.connection import BrokenFrame, Connection
from django_zklock.testing.server.database import Database, Session
from django_zklock.testing.server.four_letter import COMMANDS
from django_zklock.testing.server.records import Malformed, Reader
from django_zklock.testing.server.requests import OPERATIONS


class Service:
    """The server's side of all connections. Only the server's thread uses it."""

    def __init__(self, database: Database, *, container_check: float) -> None:
        self.db = database
        self.faults = database.faults
        self.connections: set[Connection] = set()
        self.dirty: set[Connection] = set()  # those with data to send
        self.by_session: dict[int, Connection] = {}
        self.wiped: set[int] = set()  # sessions that ended because the data was deleted
        self._container_check = container_check
        self._next_tick = 0.0
        self._next_container_check = clock.now() + container_check

    # connections

    def drop(self, connection: Connection) -> None:
        """Close a connection; its session lives on."""
        self.dirty.discard(connection)
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        self.db.watches.forget(connection)
        if self.by_session.get(connection.session_id) is connection:
            del self.by_session[connection.session_id]
        connection.close()

    def read(self, connection: Connection) -> None:
        """Read what a client has sent, and carry it out."""
        alive = connection.receive()
        if self.faults.stall or connection.closing:
            connection.discard_input()
        elif connection.handshaken or not self._four_letter(connection):
            try:
                while not connection.closing:
                    body = connection.next_frame()
                    if body is None:
                        break
                    reader = Reader(body)
                    if connection.session is None:
                        self._handshake(connection, reader)
                    else:
                        self._request(connection, connection.session, reader)
            except (BrokenFrame, Malformed):
                self.drop(connection)
        if not alive:
            self.drop(connection)

    def flush(self) -> None:
        """Send what is due, unless the server is stalled."""
        if self.faults.stall:
            return
        now = clock.now()
        for connection in list(self.dirty):
            if not connection.flush(now):
                self.drop(connection)
            elif connection.due is None:
                self.dirty.discard(connection)

    def end_stall(self) -> None:
        """Answer again. Drop connections whose requests were discarded: their replies would no longer match."""
        self.faults.stall = False
        for connection in [connection for connection in self.connections if connection.discarded]:
            self.drop(connection)

    # time

    def tick(self, now: float) -> None:
        """Expire sessions, and delete empty containers."""
        if now >= self._next_tick:
            self._next_tick = self.db.sessions.next_tick(now)
            for session in self.db.sessions.overdue(now):
                self.expire(session.id)
        if now >= self._next_container_check:
            self._next_container_check = now + self._container_check
            self.db.delete_empty_containers()

    def next_tick(self) -> float:
        """Return when `tick` or `flush` next has something to do."""
        times = [self._next_tick, self._next_container_check]
        if not self.faults.stall:
            times += [connection.due or 0.0 for connection in self.dirty]
        return min(times)

    def restart_timers(self, now: float) -> None:
        """Restart all timers after a pause, so that no session expires because of the pause."""
        for session in self.db.sessions.values():
            self.db.sessions.touch(session, now)
        self._next_container_check = now + self._container_check

    def wipe(self) -> None:
        """Delete all data. Clients find their earlier sessions expired."""
        sessions = self.db.sessions
        self.wiped.update(sessions)
        sessions.clear()
        self.db = Database(sessions, self.faults)

    def expire(self, session_id: int) -> bool:
        """End a session as if it had timed out. Return whether it existed."""
        if not self.db.end_session(session_id):
            return False
        connection = self.by_session.get(session_id)
        if connection is not None:
            self.drop(connection)
        return True

    # frames

    def _four_letter(self, connection: Connection) -> bool:
        """Answer a four-letter command. Return False for a handshake, and True if there is too little input to tell."""
        word = connection.first_word()
        if word is None:
            return True
        command = COMMANDS.get(word)
        if command is None:
            return False
        connection.handshaken = True
        connection.send(command(self).encode("utf-8", "replace"))
        connection.close_when_sent()
        return True

    def _handshake(self, connection: Connection, reader: Reader) -> None:
        _protocol, last_zxid, wanted = reader.int32(), reader.int64(), reader.int32()
        session_id, password = reader.int64(), reader.blob()
        connection.handshaken = True
        sessions = self.db.sessions
        if last_zxid > self.db.zxid and session_id not in self.wiped:
            self.drop(connection)  # the client has seen newer data than this server has, so it must try another server
            return
        earlier = self.by_session.get(session_id)
        if earlier is not None:
            self.drop(earlier)
        session = sessions.get(session_id)
        if session_id == 0:
            session = self.db.open_session()
        elif session is not None and session.password != password:
            session = None
        if session is None:
            reply = r.connect_reply(0, 0, bytes(16))
        else:
            session.timeout = min(max(wanted / 1000, sessions.shortest), sessions.longest)
            sessions.touch(session, clock.now())
            reply = r.connect_reply(round(session.timeout * 1000), session.id, session.password)
            connection.session = session
            self.by_session[session.id] = connection
        if reader.left:  # newer clients send one more byte, and expect one in the reply
            reply += b"\0"  # this server is not read-only
        self._send(connection, Op.CONNECT, r.frame(reply))
        if session is None:
            connection.close_when_sent()

    def _request(self, connection: Connection, session: Session, reader: Reader) -> None:
        xid, op = reader.int32(), reader.int32()
        self.db.sessions.touch(session, clock.now())
        operation = OPERATIONS.get(op)
        if operation is not None:
            if op == Op.PING:
                xid = XID_PING
            self._send(connection, op, self.db.reply_to(connection, xid, op, operation, reader))
        elif op == Op.AUTH:
            self._auth(connection, xid, reader)
        elif op == Op.CLOSE:
            del self.by_session[session.id]
            self.db.end_session(session.id)
            self._send(connection, op, r.reply(xid, self.db.zxid, 0))
            connection.close_when_sent()
        else:
            self._send(connection, op, r.reply(xid, -1, Error.UNIMPLEMENTED))
            connection.close_when_sent()

    def _auth(self, connection: Connection, xid: int, reader: Reader) -> None:
        """Accept any credentials of a known scheme: they give no rights here."""
        _kind, scheme = reader.int32(), reader.text()
        is_known = scheme in ("digest", "ip")
        self._send(connection, Op.AUTH, r.reply(xid, 0, 0 if is_known else Error.AUTH_FAILED))
        if not is_known:
            connection.close_when_sent()

    def _send(self, connection: Connection, op: int, data: bytes) -> None:
        """Send a reply, unless a fault drops it."""
        dropped = self.faults.pop_dropped_reply(op, connection.session_id)
        if dropped:
            connection.flush(clock.now())  # earlier replies are not lost
            self.drop(connection)
            dropped.done.set()
            return
        delay = self.faults.delays.get(op)
        connection.send(data, not_before=clock.now() + delay if delay else 0.0)
