"""
What can be done to a running server from outside: faults to inject, and their end.

It knows the server's thread as something to hand calls over to; it starts and stops none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from django_zklock.testing.server import faults
from django_zklock.testing.server.loop import Loop
from django_zklock.testing.server.requests import Database
from django_zklock.testing.server.service import Service
from django_zklock.testing.server.sessions import Sessions

T = TypeVar("T")


class Controls:
    """The faults of a DevServer. They are the server thread's; before the start they are set for it."""

    _lock: threading.RLock  # for start, stop and restart, and for calls while there is no thread
    _loop: Loop | None  # guarded by _lock; None while stopped
    _service: Service

    def expire(self, session_id: int) -> bool:
        """
        End a session as if its timeout had passed; False if there is no such session.

        Its ephemerals are deleted, the watches of others fire, and its connection is closed.
        """
        return self._call(lambda: self._service.expire(session_id))

    def cut(self, session_id: int | None = None) -> int:
        """Close the connection of a session, or all connections, and return how many. Sessions live on."""

        def cut() -> int:
            found = [
                one
                for one in self._service.connections
                if session_id is None or (one.session is not None and one.session.id == session_id)
            ]
            for connection in found:
                self._service.drop(connection)
            return len(found)

        return self._call(cut)

    @property
    def refuse(self) -> bool:
        """Refuse connections, as a server that is down: connecting fails at once, and present ones are cut."""
        return self._service.faults.refuse

    @refuse.setter
    def refuse(self, refuse: bool) -> None:
        self._call(lambda: self._set_refuse(refuse))

    def _set_refuse(self, refuse: bool) -> None:
        self._service.faults.refuse = refuse
        if self._loop is None:
            return
        if refuse:
            self._loop.deafen()
        else:
            self._loop.listen()

    @property
    def stall(self) -> bool:
        """
        Accept and read, but do nothing and send nothing, as behind a network that loses everything.

        The timers of sessions go on. What clients send meanwhile is lost; when it ends, those who sent something are
        cut off, and the others get what there is for them.
        """
        return self._service.faults.stall

    @stall.setter
    def stall(self, stall: bool) -> None:
        self._call(lambda: self._set_stall(stall))

    def _set_stall(self, stall: bool) -> None:
        if stall:
            self._service.flush()  # what was done before has an answer
            self._service.faults.stall = True
        elif self._service.faults.stall:
            self._service.end_stall()

    def lose_reply(self, op: str, *, session_id: int | None = None) -> threading.Event:
        """
        Carry out the next such operation, of that session if one is given, and cut its connection in place of a reply.

        `op` is `create` (all kinds), `delete`, `get`, `set`, `exists`, `get_children`, `multi`, `sync`, `close`,
        `connect` and so on; ValueError if there is none of that name. The event returned is set when it has happened.
        """
        loss = faults.Loss(faults.operations(op), session_id)
        self._call(lambda: self._service.faults.lose(loss))
        return loss.done

    def delay(self, op: str, seconds: float) -> None:
        """Carry out each such operation at once, but answer it later; 0 ends it. Replies behind it wait for it."""
        ops = faults.operations(op)
        self._call(lambda: self._service.faults.delay(ops, seconds))

    def pause(self) -> None:
        """
        Stand still, as a process that got SIGSTOP.

        Connections stay open and new ones are accepted by the kernel, nothing is read or sent, no session expires.
        """
        self._call(lambda: self._set_paused(True))

    def resume(self) -> None:
        """Go on, with what has arrived meanwhile. The timers of all sessions start anew, as under a new leader."""
        self._call(lambda: self._set_paused(False))

    def _set_paused(self, paused: bool) -> None:
        if self._loop is None or self._loop.paused == paused:
            return
        self._service.flush()
        self._loop.paused = paused
        if not paused:
            self._service.rested(time.monotonic())

    def restart(self, *, keep_data: bool = True, down: float = 0.0) -> None:
        """
        Go down, cutting all connections, and come up again after `down` seconds, on the same port; returns then.

        With its data, sessions and their ephemerals live on, their timers start anew, and clients come back to them.
        Without, the tree is empty, zxids start anew, and clients find their sessions expired.
        """
        with self._lock:
            loop = self._loop
            if loop is None:
                return
            loop.call(lambda: self._go_down(loop))
            try:
                if down:
                    time.sleep(down)
            finally:
                loop.call(lambda: self._come_up(loop, keep_data))

    def _go_down(self, loop: Loop) -> None:
        loop.deafen()
        loop.paused = True

    def _come_up(self, loop: Loop, keep_data: bool) -> None:
        if not keep_data:
            self._service.wipe(self._database(self._service.db.sessions))
        loop.paused = False
        self._service.rested(time.monotonic())
        if not self._service.faults.refuse:
            loop.listen()

    def heal(self) -> None:
        """End all faults: nothing is refused, stalled, paused, delayed or lost from here on."""

        def heal() -> None:
            self._set_paused(False)
            self._set_stall(False)
            self._set_refuse(False)
            self._service.faults.losses.clear()
            self._service.faults.delays.clear()

        self._call(heal)

    def _call(self, function: Callable[[], T]) -> T:
        loop = self._loop
        if loop is not None:
            return loop.call(function)
        with self._lock:
            return function()

    def _database(self, before: Sessions | None) -> Database:
        raise NotImplementedError
