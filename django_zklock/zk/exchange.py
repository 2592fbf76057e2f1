"""Knows how a change is made for sure: look, decide, write, and once more where the answer was lost."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable
from django_zklock.zk.changes import Change
from django_zklock.zk.errors import NodeExists, NodeMissing, NotEmpty, OutcomeUnknown, Outdated, SessionGone, ZkError
from django_zklock.zk.gateway import Family, Gateway, Watch
from django_zklock.zk.session import Observer, Session

logger = logging.getLogger("django_zklock.zk")


@dataclass(frozen=True, slots=True)
class Answer:
    """There is nothing to write (any more); this is what came of it."""

    value: object


@dataclass(frozen=True, slots=True)
class Write:
    """Make these changes; if they can be made, `value` is what came of it."""

    changes: tuple[Change, ...]
    value: object


@dataclass(frozen=True, slots=True)
class Await:
    """Look again when this child of the node is gone."""

    child: str


Step: TypeAlias = Answer | Write | Await
Plan: TypeAlias = Callable[["Family | None", int], Step]
"""
From what is there, and the id of the session, to the next step; on the protocol's thread.

It is asked again after a write whose answer was lost, so it has to recognise its own work.
"""

UNKNOWN: Final = object()
"""No guess of what is there."""


MOST_MISSING: Final = 20
"""Writes that fail for want of a node until it is plain that it will not come: others are not first so often."""


class Exchange(Observer):
    """
    A plan for one node, followed until it is done, over any number of broken connections and sessions.

    `done` gets the value once, or an error. Who gives up waiting calls `abandon`: nothing is written after that,
    and `orphaned` gets the value of a write that was under way.
    """

    def __init__(
        self,
        session: Session,
        path: str,
        plan: Plan,
        done: Callable[[Any], object],
        *,
        guess: object = UNKNOWN,
        orphaned: Callable[[Any], object] | None = None,
        directory: str = "",
    ) -> None:
        self.awaiting = False  # for another one's end; read by any thread
        self._session = session
        self._path = path
        self._plan = plan
        self._directory = directory or path.rpartition("/")[0]  # made where a write finds it missing
        self._done: Callable[[Any], object] | None = done
        self._guess = guess
        self._orphaned = orphaned
        self._outcome: Any = UNKNOWN
        self._abandoned = False
        self._missing = 0  # how often a node was not there for a write
        self._idle = True  # no request is under way
        self._watch: Watch | None = None
        self._gateway: Gateway  # made on the protocol's thread

    def __repr__(self) -> str:
        return f"<exchange about {self._path}>"

    # --- from any thread ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin."""
        self._session.post(self._guarded, self._begin)

    def abandon(self) -> None:
        """Stop as soon as it is clear what is there."""
        self._session.post(self._guarded, self._abandon)

    # --- on the protocol's thread -------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._session.closing:
            self.on_closed()
            return
        self._gateway = self._session.attached(Gateway)
        self._session.observers[self] = None
        if not self._session.connected:
            return  # until on_connected
        if self._guess is UNKNOWN:
            self._look()
        else:
            self._decide(self._guess)

    def _abandon(self) -> None:
        self._abandoned = True
        if self._outcome is not UNKNOWN:
            self._orphan()
        elif self._idle:
            self._conclude(ZooKeeperUnavailable())

    def _look(self) -> None:
        self._ask(lambda: self._gateway.look(self._path, self._taking(self._on_looked)))

    def _on_looked(self, answer: Any) -> None:
        if isinstance(answer, ZkError):
            self._trouble(answer)
        else:
            self._decide(answer)

    def _decide(self, found: Any) -> None:
        step = self._plan(found, self._session.session_id or 0)
        if isinstance(step, Answer):
            self._conclude(step.value)
        elif self._abandoned:
            self._conclude(ZooKeeperUnavailable())
        elif isinstance(step, Write):
            self._ask(
                lambda: self._gateway.change(step.changes, self._taking(lambda answer: self._on_written(step, answer)))
            )
        else:
            self._await(step.child)

    def _on_written(self, step: Write, answer: Any) -> None:
        if answer is None:
            self._conclude(step.value)
        elif isinstance(answer, NodeMissing):
            # Somebody was first, or the directory is missing; it costs little to see to that one.
            self._missing += 1
            if self._missing > MOST_MISSING:
                self._conclude(
                    ZkLockError(f"A part of {self._path} is missing, deleted by hand perhaps; delete the rest of it.")
                )
                return
            self._ask(lambda: self._gateway.make_parents(self._directory, self._taking(self._on_made)))
        elif isinstance(answer, (NodeExists, NotEmpty, Outdated)):
            self._look()
        else:
            self._trouble(answer)

    def _on_made(self, answer: Any) -> None:
        if isinstance(answer, ZkError):
            self._trouble(answer)
        else:
            self._look()

    def _await(self, child: str) -> None:
        self.awaiting = True

        def on_read(answer: Any) -> None:
            if isinstance(answer, NodeMissing):
                again()
            elif isinstance(answer, ZkError):
                self._trouble(answer)

        def again(_deleted: bool = True) -> None:
            if self.awaiting and self._outcome is UNKNOWN:
                self._end_wait()
                self._look()

        self._idle = True
        self._watch = self._gateway.read(
            f"{self._path}/{child}", lambda answer: self._guarded(on_read, answer), lambda _: self._guarded(again)
        )

    def _end_wait(self) -> None:
        self.awaiting = False
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()

    def _trouble(self, error: ZkError) -> None:
        """Wait for the session's news, if the error is of its making; else give up."""
        if not isinstance(error, (OutcomeUnknown, SessionGone)):
            self._conclude(error)
        elif self._abandoned and not self._orphaned:
            self._conclude(ZooKeeperUnavailable())

    def _conclude(self, outcome: Any) -> None:
        if self._outcome is not UNKNOWN:
            return
        self._outcome = outcome
        self._end_wait()
        self._session.observers.pop(self, None)
        done, self._done = self._done, None
        if self._abandoned:
            self._orphan()
        elif done is not None:
            done(outcome)

    def _orphan(self) -> None:
        orphaned, self._orphaned = self._orphaned, None
        if orphaned is not None and not isinstance(self._outcome, BaseException):
            orphaned(self._outcome)

    def _ask(self, request: Callable[[], object]) -> None:
        self._idle = False
        request()

    def _taking(self, callback: Callable[[Any], object]) -> Callable[[Any], None]:
        def take(answer: Any) -> None:
            self._idle = True
            if self._outcome is UNKNOWN:
                self._guarded(callback, answer)

        return take

    def _guarded(self, call: Callable[..., object], *args: Any) -> None:
        try:
            call(*args)
        except ZkLockError as error:
            self._conclude(error)
        except Exception as error:
            logger.exception("%r failed", self)
            self._conclude(ZkLockError(f"The protocol failed: {error!r}."))

    # --- the session's news -------------------------------------------------------------------------------------

    def on_connected(self, *, resumed: bool) -> None:
        """Look, whatever was under way: what came of it is there to be seen."""
        if self._idle:
            self._end_wait()
            self._guarded(self._look)

    def on_closed(self) -> None:
        """Nobody will carry this on."""
        self._conclude(ZooKeeperUnavailable("The ZooKeeper session of this process was closed."))
