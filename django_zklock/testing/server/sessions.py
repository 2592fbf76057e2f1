"""
The sessions of a server: their ids, passwords and deadlines.

Pure: times are given, as seconds of any clock that does not jump. It knows no nodes and no connections.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Session:
    """One session. Only its `Sessions` changes the deadline."""

    id: int
    timeout: float  # seconds
    password: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    deadline: float = 0.0

    def knows(self, password: bytes | None) -> bool:
        """Tell whether a client that wants the session back has its password."""
        return hmac.compare_digest(self.password, password or b"")


class Sessions:
    """
    All sessions of a server, in the order of their deadlines.

    As on the real server deadlines fall on whole ticks, so that a session ends up to a tick later than its timeout
    says, never earlier.
    """

    def __init__(self, *, tick: float, shortest: float, longest: float, first_id: int) -> None:
        self.tick = tick
        self.shortest = shortest
        self.longest = longest
        self.next_id = first_id
        self._all: dict[int, Session] = {}
        self._due: dict[float, set[Session]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._all.values()))

    def find(self, session_id: int) -> Session | None:
        """Return a session that has not ended, or None."""
        return self._all.get(session_id)

    def negotiate(self, timeout: float) -> float:
        """Return the timeout a client gets for the one it asked for."""
        return min(max(timeout, self.shortest), self.longest)

    def open(self, timeout: float, now: float) -> Session:
        """Start a session."""
        session = Session(self.next_id, timeout)
        self.next_id += 1
        self._all[session.id] = session
        self.touch(session, now)
        return session

    def touch(self, session: Session, now: float) -> None:
        """Put off the deadline of a session that was heard of. One that has ended stays ended."""
        if session.id not in self._all:
            return
        deadline = ((now + session.timeout) // self.tick + 1) * self.tick
        if deadline != session.deadline:
            self._forget(session)
            session.deadline = deadline
            self._due.setdefault(deadline, set()).add(session)

    def touch_all(self, now: float) -> None:
        """Start all timers anew, as a server does that comes up or becomes the leader."""
        for session in self._all.values():
            self.touch(session, now)

    def end(self, session_id: int) -> bool:
        """End a session; tell whether there was one."""
        session = self._all.pop(session_id, None)
        if session is None:
            return False
        self._forget(session)
        return True

    def overdue(self, now: float) -> list[Session]:
        """Return the sessions whose deadline has come, the longest due first."""
        return [session for due in sorted(due for due in self._due if due <= now) for session in self._due[due]]

    def next_deadline(self) -> float | None:
        """Return when the next session ends unless it is heard of."""
        return min(self._due, default=None)

    def _forget(self, session: Session) -> None:
        same = self._due.get(session.deadline)
        if same is not None:
            same.discard(session)
            if not same:
                del self._due[session.deadline]
