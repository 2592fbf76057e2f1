"""Inject faults into a running server: expired sessions, cut connections, delays, refusals, dropped replies, pauses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from django_zklock.core import clock
from django_zklock.testing.server.codes import Error, Op, Refused

if TYPE_CHECKING:
    from django_zklock.testing.server.loop import Loop
    from django_zklock.testing.server.service import Service

P = ParamSpec("P")
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


def on_thread(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Have the server's thread run a method of a `FaultControls`; the caller while the server is stopped."""

    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        loop: Loop | None = self._loop  # it may stop meanwhile
        function = partial(method, self, *args, **kwargs)
        if loop is not None:
            return loop.call(function)
        with self._lock:
            return function()

    return call


class FaultControls:
    """The faults of a DevServer. Faults that are set while it is stopped take effect when it starts."""

    _lock: threading.RLock  # for start, stop and restart, and for calls while there is no thread
    _loop: Loop | None  # guarded by _lock; None while stopped
    _service: Service

    @on_thread
    def expire(self, session_id: int) -> bool:
        """
        End a session as if it had timed out. Return False if there is no such session.

        Its ephemerals are deleted, the watches of others fire, and its connection is closed.
        """
        return self._service.expire(session_id)

    @on_thread
    def cut(self, session_id: int | None = None) -> int:
        """Close the connection of a session, or all connections. Return how many. The sessions continue."""
        service = self._service
        chosen = [connection for connection in service.connections if session_id in (None, connection.session_id)]
        for connection in chosen:
            service.drop(connection)
        return len(chosen)

    @property
    def refuse(self) -> bool:
        """Refuse connections like a server that is down: connecting fails at once, and open connections are cut."""
        return self._service.faults.refuse

    @refuse.setter
    @on_thread
    def refuse(self, refuse: bool) -> None:
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
    @on_thread
    def stall(self, stall: bool) -> None:
        if stall:
            self._service.flush()  # earlier requests have their replies
            self._service.faults.stall = True
        elif self._service.faults.stall:
            self._service.end_stall()

    @on_thread
    def lose_reply(self, op: str, *, session_id: int | None = None) -> threading.Event:
        """
        Carry out the next operation `op`, and cut its connection instead of sending the reply.

        `op` is `create` (all kinds), `delete`, `get`, `set`, `exists`, `get_children`, `multi`, `sync`, `close`,
        `connect` and so on; others raise ValueError. With `session_id`, only operations of that session count. The
        returned event is set when it has happened.
        """
        dropped = DroppedReply(_operations(op), session_id)
        self._service.faults.dropped_replies.append(dropped)
        return dropped.done

    @on_thread
    def delay(self, op: str, seconds: float) -> None:
        """Reply to each operation `op` this many seconds later; 0 ends it. Replies after it wait for it."""
        self._service.faults.delays.update(dict.fromkeys(_operations(op), seconds))

    @on_thread
    def deny(self, op: str, below: str = "/") -> None:
        """Refuse each operation `op` at a path and below it, as an ACL may do. The parts of a `multi` count alone."""
        self._service.faults.denials.append((_operations(op), f"{below.rstrip('/')}/"))

    @on_thread
    def pause(self) -> None:
        """
        Pause like a process that received SIGSTOP.

        Connections stay open, and the kernel accepts new ones. Nothing is read or sent, and no session expires.
        """
        if self._loop is not None:
            self._service.flush()
            self._loop.paused = True

    @on_thread
    def resume(self) -> None:
        """Continue, with what has arrived meanwhile. The timers of all sessions restart, as with a new leader."""
        if self._loop is not None and self._loop.paused:
            self._loop.paused = False
            self._service.restart_timers(clock.now())

    def restart(self, *, keep_data: bool = True, down: float = 0.0) -> None:
        """
        Stop, cut all connections, and start again after `down` seconds on the same port. Return after that.

        With `keep_data`, sessions and their ephemeral nodes remain, their timers restart, and clients can reconnect to
        them. Without it, the tree is empty, zxids restart, and clients find their sessions expired.
        """
        with self._lock:
            if self._loop is None:
                return
            self._loop.call(self._loop.close_listener)
            self.pause()
            try:
                time.sleep(down)
            finally:
                self._come_up(keep_data)

    @on_thread
    def _come_up(self, keep_data: bool) -> None:
        if not keep_data:
            self._service.wipe()
        self.resume()
        self.refuse = self.refuse  # it listens, unless it refuses connections

    @on_thread
    def heal(self) -> None:
        """End all faults: refusals, stalls, pauses, delays, denials, and replies that would be dropped."""
        self.resume()
        self.stall = self.refuse = False
        self._service.faults.dropped_replies.clear()
        self._service.faults.delays.clear()
        self._service.faults.denials.clear()
