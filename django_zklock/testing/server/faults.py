"""Inject faults into a running server: expired sessions, cut connections, delays, refusals, dropped replies, pauses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from django_zklock.core import clock
from django_zklock.testing.server.codes import Error, Op, Refused

if TYPE_CHECKING:
    from django_zklock.testing.server.loop import Loop
    from django_zklock.testing.server.service import Service

T = TypeVar("T")

#: The operations by the protocol's names, and by kazoo's where these differ.
OPERATIONS_BY_NAME: Final[dict[str, tuple[Op, ...]]] = {
    **{op.name.lower(): (op,) for op in Op},
    "create": (Op.CREATE, Op.CREATE2, Op.CREATE_CONTAINER),
    "get": (Op.GET_DATA,),
    "set": (Op.SET_DATA,),
    "get_acls": (Op.GET_ACL,),
    "set_acls": (Op.SET_ACL,),
    "get_children": (Op.GET_CHILDREN, Op.GET_CHILDREN2),
}


def _operations(name: str) -> tuple[Op, ...]:
    """Return the operations of a name. Raises ValueError for an unknown name."""
    try:
        return OPERATIONS_BY_NAME[name]
    except KeyError:
        raise ValueError(f"{name!r} is not one of the operations {', '.join(OPERATIONS_BY_NAME)}") from None


@dataclass(slots=True, eq=False)
class DroppedReply:
    """One reply that the server will not send."""

    ops: tuple[Op, ...]
    session_id: int | None
    done: threading.Event = field(default_factory=threading.Event)


class Faults:
    """The active faults. Only the server's thread uses them."""

    def __init__(self) -> None:
        self.refuse = False
        self.stall = False
        self.dropped_replies: list[DroppedReply] = []
        self.delays: dict[int, float] = {}
        self.denials: list[tuple[tuple[Op, ...], str]] = []

    def check(self, op: int, path: object = None) -> None:
        """Raise Refused if this operation is denied at this path."""
        for ops, below in self.denials:
            if op in ops and f"{path}/".startswith(below):
                raise Refused(Error.NO_AUTH)

    def pop_dropped_reply(self, op: int, session_id: int) -> DroppedReply | None:
        """Return the fault that drops this reply, and remove it."""
        for dropped in self.dropped_replies:
            if op in dropped.ops and dropped.session_id in (None, session_id):
                self.dropped_replies.remove(dropped)
                return dropped
        return None


class FaultControls:
    """The faults of a DevServer. Faults that are set while it is stopped take effect when it starts."""

    _lock: threading.RLock  # for start, stop and restart, and for calls while there is no thread
    _loop: Loop | None  # guarded by _lock; None while stopped
    _service: Service

    def expire(self, session_id: int) -> bool:
        """
        End a session as if it had timed out. Return False if there is no such session.

        Its ephemerals are deleted, the watches of others fire, and its connection is closed.
        """
        return self._call(lambda: self._service.expire(session_id))

    def cut(self, session_id: int | None = None) -> int:
        """Close the connection of a session, or all connections. Return how many. The sessions continue."""

        def cut() -> int:
            connections = [
                connection for connection in self._service.connections if session_id in (None, connection.session_id)
            ]
            for connection in connections:
                self._service.drop(connection)
            return len(connections)

        return self._call(cut)

    @property
    def refuse(self) -> bool:
        """Refuse connections like a server that is down: connecting fails at once, and open connections are cut."""
        return self._service.faults.refuse

    @refuse.setter
    def refuse(self, refuse: bool) -> None:
        self._call(lambda: self._set_refuse(refuse))

    def _set_refuse(self, refuse: bool) -> None:
        self._service.faults.refuse = refuse
        if self._loop is None:
            return
        if refuse:
            self._loop.close_listener()
        else:
            self._loop.listen()

    @property
    def stall(self) -> bool:
        """
        Accept connections and read, but send nothing, like a network that loses everything.

        Sessions can expire meanwhile. Requests that arrive are lost. At the end, connections that sent a request are
        cut, and the others receive what is due to them.
        """
        return self._service.faults.stall

    @stall.setter
    def stall(self, stall: bool) -> None:
        self._call(lambda: self._set_stall(stall))

    def _set_stall(self, stall: bool) -> None:
        if stall:
            self._service.flush()  # earlier requests have their replies
            self._service.faults.stall = True
        elif self._service.faults.stall:
            self._service.end_stall()

    def lose_reply(self, op: str, *, session_id: int | None = None) -> threading.Event:
        """
        Carry out the next operation `op`, and cut its connection instead of sending the reply.

        `op` is `create` (all kinds), `delete`, `get`, `set`, `exists`, `get_children`, `multi`, `sync`, `close`,
        `connect` and so on; others raise ValueError. With `session_id`, only operations of that session count. The
        returned event is set when it has happened.
        """
        dropped = DroppedReply(_operations(op), session_id)
        self._call(lambda: self._service.faults.dropped_replies.append(dropped))
        return dropped.done

    def delay(self, op: str, seconds: float) -> None:
        """Reply to each operation `op` this many seconds later; 0 ends it. Replies after it wait for it."""
        delays: dict[int, float] = dict.fromkeys(_operations(op), seconds)
        self._call(lambda: self._service.faults.delays.update(delays))

    def deny(self, op: str, below: str = "/") -> None:
        """Refuse each operation `op` at a path and below it, as an ACL may do. The parts of a `multi` count alone."""
        denial = (_operations(op), f"{below.rstrip('/')}/")
        self._call(lambda: self._service.faults.denials.append(denial))

    def pause(self) -> None:
        """
        Pause like a process that received SIGSTOP.

        Connections stay open, and the kernel accepts new ones. Nothing is read or sent, and no session expires.
        """
        self._call(lambda: self._set_paused(True))

    def resume(self) -> None:
        """Continue, with what has arrived meanwhile. The timers of all sessions restart, as with a new leader."""
        self._call(lambda: self._set_paused(False))

    def _set_paused(self, paused: bool) -> None:
        if self._loop is None or self._loop.paused == paused:
            return
        self._service.flush()
        self._loop.paused = paused
        if not paused:
            self._service.restart_timers(clock.now())

    def restart(self, *, keep_data: bool = True, down: float = 0.0) -> None:
        """
        Stop, cut all connections, and start again after `down` seconds on the same port. Return after that.

        With `keep_data`, sessions and their ephemeral nodes remain, their timers restart, and clients can reconnect to
        them. Without it, the tree is empty, zxids restart, and clients find their sessions expired.
        """
        with self._lock:
            loop = self._loop
            if loop is None:
                return
            loop.call(lambda: self._go_down(loop))
            try:
                time.sleep(down)
            finally:
                loop.call(lambda: self._come_up(keep_data))

    def _go_down(self, loop: Loop) -> None:
        loop.close_listener()
        self._set_paused(True)

    def _come_up(self, keep_data: bool) -> None:
        if not keep_data:
            self._service.wipe()
        self._set_paused(False)
        self._set_refuse(self.refuse)  # it listens, unless it refuses connections

    def heal(self) -> None:
        """End all faults: refusals, stalls, pauses, delays, denials, and replies that would be dropped."""

        def heal() -> None:
            self._set_paused(False)
            self._set_stall(False)
            self._set_refuse(False)
            self._service.faults.dropped_replies.clear()
            self._service.faults.delays.clear()
            self._service.faults.denials.clear()

        self._call(heal)

    def _call(self, function: Callable[[], T]) -> T:
        loop = self._loop
        if loop is not None:
            return loop.call(function)
        with self._lock:
            return function()
