"""One grant of a lock by ZooKeeper: whether its lease is valid, and the observers of its changes."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from django_zklock.core import clock, hooks, log
from django_zklock.core.errors import LockLost
from django_zklock.core.execution.stack import Stack
from django_zklock.core.log import Logger
from django_zklock.core.queue import release_request
from django_zklock.core.queue.nodes import Kind
from django_zklock.core.queue.release_request import ReleaseRequest
from django_zklock.core.zk import troubles
from django_zklock.core.zk.lease import GrantSession

logger = Logger("django_zklock.locks")


def nobody() -> None:
    """Return None, as a weak reference does whose object is gone: nobody holds the lock."""


class GrantedContender(Protocol):
    """The part of a contender that a holder needs."""

    waits: bool
    """Whether its caller wanted to wait for the lock. If not, the end of a block waits for the confirmed release."""
    sends_release: bool
    """Whether its release is a request of this process, which may get lost with it after other requests."""

    @property
    def lingers(self) -> bool:
        """Whether the lock stays in this process after the release."""

    def abandon(self) -> None:
        """Release the lock; see `Contender.abandon`."""

    def when_released(self, done: Callable[[bool], object], *, confirmed: bool) -> None:
        """Call `done` after the release; see `Contender.when_released`."""


class GrantObserver:
    """An observer of a grant. Its methods are called on the protocol's thread; each does nothing unless overridden."""

    def on_suspect(self, reason: str) -> None:
        """No quorum confirms the session at the moment."""

    def on_confirmed(self) -> None:
        """A quorum has confirmed the session again."""

    def on_lost(self, reason: str) -> None:
        """The lock is lost, for good."""

    def on_released(self) -> None:
        """The holder has released the lock."""

    def on_release_requested(self, request: ReleaseRequest) -> None:
        """A release request has arrived."""


class Grant:
    """
    One grant of a lock by ZooKeeper. The protocol's thread and the holder share it.

    Any thread reads it. Only the protocol's thread writes it, except where a comment says otherwise. Each attribute is
    a plain value. `lost_reason` is final.
    """

    def __init__(self, session: GrantSession, key: str, path: str, token: int, kind: Kind = Kind.LOCK) -> None:
        self.session = session
        self.session_id = session.session_id
        self.key = key
        self.path = path
        self.token = token
        self.kind = kind
        self.what = ""  # the work that the lock was acquired for
        self.about: Mapping[str, str] = {}  # that work, item by item
        self.template = ""  # of the key
        self.since = clock.now()
        self.suspect_since: float | None = None  # on clock.now()
        self.suspect_reason = ""
        self.lost_reason: str | None = None
        self.max_hold = 0.0  # seconds, if it has a maximum hold
        self.ends_at: float | None = None  # of the maximum hold, on clock.now(); set before anybody has the hold
        self.release_request: ReleaseRequest | None = None  # the last one
        self.described = False  # its znode says when it was granted; protocol's thread only
        # Returns the held lock, which is in the room above, until it is released. Its owner writes this.
        self.held: Callable[[], Any] = nobody
        self.begun = False  # the work under the lock has begun; written by its owner
        self.released = False
        self.tells_wait = False  # its znode names what its owner waits for, or did; protocol's thread writes it
        self.logs_loss = True  # False: its user does it
        self._end = [None]  # the caller that reports its events from now on removes the item: a single step
        self.loss_reported = False  # `lock_lost` was sent; protocol's thread only
        self._observers: dict[GrantObserver, None] = {}  # changed by single operations

    @property
    def inherited(self) -> bool:
        """Whether this process is a forked child, which holds nothing of its parent."""
        return self.session.pid != os.getpid()

    def log_fields(self) -> dict[str, object]:
        """Return the extra fields of a log record about this grant."""
        return {"lock": self.key, "token": self.token, **log.work_fields(self.about)}

    def why_invalid(self) -> str | None:
        """Return why the lease is not valid now, or None. It reads the clock, so a paused process notices at once."""
        # Read the lease first. While this thread is paused, the lease may be extended after a loss, or become that of
        # the next session. But the attributes below are always set before that.
        valid = clock.now() < self.session.leased_until
        if self.lost_reason is not None:
            return self.lost_reason
        if self.inherited:
            return "it is the lock of the process that this one was forked from"
        if self.session.session_id != self.session_id:
            return troubles.SESSION_OVER
        if not valid:
            return self.session.why_over
        return None if self.ends_at is None or clock.now() < self.ends_at else self.why_overdue

    @property
    def overdue(self) -> bool:
        """Whether `max_hold` is over, by the clock."""
        return self.ends_at is not None and clock.now() >= self.ends_at

    @property
    def why_overdue(self) -> str:
        """The reason of a loss by `max_hold`."""
        return f"it was held for longer than max_hold, {self.max_hold:g} s"

    def check(self) -> None:
        """Raise `LockLost` unless the lease is valid now."""
        reason = self.why_invalid()
        if reason is not None:
            raise self.loss(reason)

    def loss(self, reason: str) -> LockLost:
        """Return the error for the holder."""
        return LockLost(f"The lock {self.key!r} was lost: {reason}.", lock=self.key)

    def first_to_report_end(self) -> bool:
        """Return True to the first caller only: it reports the end of the grant."""
        try:
            self._end.pop()
        except IndexError:
            return False
        return True

    # --- observers, from any thread -----------------------------------------------------------------------------

    def observe(self, observer: GrantObserver) -> None:
        """Add an observer. It soon gets the events that it has missed; some may come twice."""
        self._observers[observer] = None
        if self.has_events:
            self.session.post(self._tell_missed, observer)

    def detach(self, observer: GrantObserver) -> None:
        """Remove an observer."""
        self._observers.pop(observer, None)

    def release(self) -> None:
        """Mark the lock as released; from any thread. Its observers are told on the protocol's thread."""
        self.released = True  # an interrupted caller calls this again, so they may hear of it twice
        if self._observers:
            self.session.post(self._tell, lambda observer: observer.on_released())

    @property
    def has_events(self) -> bool:
        """Whether there is an event that a new observer has missed."""
        return self.suspect_since is not None or self.lost_reason is not None or self.release_request is not None

    # --- on the protocol's thread -------------------------------------------------------------------------------

    def attach(self, observer: GrantObserver) -> None:
        """Add an observer. It gets the events that it has missed at once."""
        self._observers[observer] = None
        self._tell_missed(observer)

    def _tell_missed(self, observer: GrantObserver) -> None:
        if observer not in self._observers:
            return
        if self.lost_reason is not None:
            observer.on_lost(self.lost_reason)
        elif self.suspect_since is not None:
            observer.on_suspect(self.suspect_reason)
        if self.release_request is not None:
            observer.on_release_requested(self.release_request)
        if self.released:
            observer.on_released()

    def suspect(self, reason: str) -> None:
        """Mark the hold as suspect: no quorum confirms the session at the moment."""
        if self.suspect_since is None and self.lost_reason is None:
            self.suspect_reason = reason
            self.suspect_since = clock.now()
            self._tell(lambda observer: observer.on_suspect(reason))

    def confirmed(self) -> None:
        """Mark the hold as held again: a quorum has confirmed the session."""
        if self.suspect_since is not None:
            self.suspect_since = None
            self._tell(lambda observer: observer.on_confirmed())

    def lose(self, reason: str, level: int = logging.WARNING) -> None:
        """Mark the lock as lost, for good, unless it was released before. `level` is that of the log record."""
        if self.lost_reason is not None or self.released:
            return
        self.lost_reason = reason
        self._tell(lambda observer: observer.on_lost(reason))
        if self.logs_loss:  # last, because a log handler may be slow
            logger.log(level, "lock %r is lost: %s", self.key, reason, about=self.about, extra=self.log_fields())

    def read_request(self, data: bytes) -> None:
        """Receive a release request, if these data of its znode have a new one."""
        request = release_request.requested(data)
        if request is not None and request != self.release_request:
            self.request_release(request)

    def report_deleted(self) -> None:
        """Log that another session had deleted the znode before the release."""
        logger.warning(
            "lock %r was released by process %d on %s, but its znode %s had been deleted by another session, so others "
            "may have held it meanwhile. If no operator broke it, find out who deletes znodes there, and restrict "
            "their ACL",
            self.key,
            self.session.pid,
            socket.gethostname(),
            self.path,
            about=self.about,
            extra=self.log_fields(),
        )

    def request_release(self, request: ReleaseRequest) -> None:
        """Record a release request. Report it where the work is: a pool process of Celery does so itself."""
        # Read before anybody learns of the request: the work may go on at once. Nobody holds the grant of a lock that
        # lingers, because its present owner has a grant of its own.
        stack = self.stack() if self._end and self.held() is not None else None
        self.release_request = request
        self._tell(lambda observer: observer.on_release_requested(request))
        if self._end:
            hooks.events.release_requested(self, request)
        if stack is not None:
            self._log_request(request, stack)

    def _log_request(self, request: ReleaseRequest, stack: Stack) -> None:
        logger.warning(
            "the holder of lock %r (token %d) is asked to release by %s; it is %s",
            self.key,
            self.token,
            request,
            stack.holder,
            about=self.about,
            extra={**self.log_fields(), "user": request.by, "reason": request.reason},
            stack=stack,
        )

    def stack(self) -> Stack:
        """Return the stack of the work under this grant; it is empty if there is no work in this process."""
        held = self.held()
        return Stack(None if held is None else held.owner)

    def _tell(self, call: Callable[[GrantObserver], None]) -> None:
        for observer in list(self._observers):
            try:
                call(observer)
            except Exception:
                # The failure of one observer must not keep the abort from the others.
                key, about, extra = self.key, self.about, self.log_fields()
                logger.exception("%r failed on a change of the hold on %r", observer, key, about=about, extra=extra)
