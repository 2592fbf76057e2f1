"""
The state of a server: sessions, tree, watches and the last transaction id.

Nothing here does input or output. Times are given by the caller, as seconds of a monotonic clock.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol

from django_zklock.core import clock
from django_zklock.testing.server import records as r
from django_zklock.testing.server.codes import Error, Refused
from django_zklock.testing.server.faults import Faults
from django_zklock.testing.server.records import Malformed, Reader
from django_zklock.testing.server.tree import Origin, Tree
from django_zklock.testing.server.watches import Watches

_EPOCH: Final = time.time() - clock.now()  # so a test that freezes the time of this process does not freeze the server


@dataclass(slots=True, eq=False)
class Session:
    """The session of one client. It ends at the deadline, which only `Sessions` changes."""

    id: int
    timeout: float = 0.0  # seconds
    password: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    deadline: float = 0.0


class Sessions(dict[int, Session]):
    """
    All sessions of a server that have not ended, by id.

    As on a real server, deadlines are whole ticks. So a session ends up to one tick later than its timeout says, and
    never earlier.
    """

    def __init__(self, *, tick: float, shortest: float, longest: float, first_id: int) -> None:
        super().__init__()
        self.tick = tick
        self.shortest = shortest
        self.longest = longest
        self.next_id = first_id

    def open(self) -> Session:
        """Start a session. The caller sets its timeout, and renews its deadline."""
        session = self[self.next_id] = Session(self.next_id)
        self.next_id += 1
        return session

    def touch(self, session: Session, now: float) -> None:
        """Renew the deadline of a session after a request."""
        session.deadline = self.next_tick(now + session.timeout)

    def overdue(self, now: float) -> list[Session]:
        """Return the sessions whose deadline has passed, oldest deadline first."""
        return sorted((session for session in self.values() if session.deadline <= now), key=attrgetter("deadline"))

    def next_tick(self, now: float) -> float:
        """Return when the present tick ends."""
        return (now // self.tick + 1) * self.tick


class Client(Protocol):
    """A connection, as far as requests need it. Watches use the connection itself as their key."""

    @property
    def session_id(self) -> int:
        """The id of its session."""

    def send(self, data: bytes) -> None:
        """Send a frame after all earlier ones."""


class Database:
    """The tree, the sessions, the watches, and the id of the last transaction."""

    def __init__(self, sessions: Sessions, faults: Faults) -> None:
        self.tree = Tree()
        self.sessions = sessions
        self.watches = Watches()
        self.faults = faults
        self.zxid = 0

    def open_session(self) -> Session:
        """Start a session. It counts as a transaction."""
        self.zxid += 1
        return self.sessions.open()

    def origin(self, client: Client) -> Origin:
        """Return the origin of an operation of this client, in the present transaction."""
        return Origin(client.session_id, self.zxid, now())

    def end_session(self, session_id: int) -> bool:
        """End a session and delete its ephemeral nodes. Return whether it existed."""
        if self.sessions.pop(session_id, None) is None:
            return False
        self.zxid += 1
        self.tree.end_session(session_id, zxid=self.zxid)
        self.fire()
        return True

    def delete_empty_containers(self) -> None:
        """Delete the containers whose last child was deleted."""
        for path in self.tree.empty_containers():
            self.zxid += 1
            self.tree.remove(path, zxid=self.zxid)
        self.fire()

    def fire(self) -> None:
        """Send watch events for all changes."""
        changes, self.tree.changes = self.tree.changes, []
        for change in changes:
            for client, kind, where in self.watches.fire(change.event, change.path):
                client.send(r.event(kind, where))

    def reply_to(self, client: Client, xid: int, op: int, operation: Operation, reader: Reader) -> bytes:
        """Carry out a request and return the reply as a frame."""
        if operation.writes:
            self.zxid += 1  # also if it fails
        try:
            fields = operation.read(reader)
            self.faults.check(op, *fields[:1])
            body = operation.handler(self, client, *fields)
        except Refused as refused:
            return r.reply(xid, self.zxid, refused.code)
        except (Malformed, ValueError):
            return r.reply(xid, self.zxid, Error.MARSHALLING)
        self.fire()
        return r.reply(xid, self.zxid, 0, body)


class Operation(NamedTuple):
    """An operation of the protocol."""

    fields: tuple[Callable[[Reader], Any], ...]
    """How each field of its request is read."""
    handler: Callable[..., bytes]
    """Gets the database, the client and the fields; returns the body of the reply, or raises Refused."""
    writes: bool = False
    """Whether it uses a transaction id."""

    def read(self, reader: Reader) -> list[Any]:
        """Return the fields of a request. Raises Malformed."""
        return [read(reader) for read in self.fields]


def now() -> int:
    """Return the wall clock's time in milliseconds, as znodes store it."""
    return int((_EPOCH + clock.now()) * 1000)
