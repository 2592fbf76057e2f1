"""
Proxies for the process that runs a task: of the main process's session, and of the contenders that hold its locks.

The shared memory has the time when the lease ends. So the lease ends by itself if the main process is stopped or dies.
While tasks use grants, a thread reads twenty times a second what happens to their locks.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from django_zklock.contrib.celery.dispatch.shared_grants import GrantRecord, SharedGrants
from django_zklock.core import clock
from django_zklock.core.protocol.grant import Grant
from django_zklock.core.protocol.spec import Caller, QueueSpec
from django_zklock.core.queue.nodes import Kind, Payload
from django_zklock.core.queue.release_request import ReleaseRequest
from django_zklock.core.zk import troubles
from django_zklock.core.zk.loop import Loop, users_thread

READ_EVERY: Final = 0.05  # seconds between two looks at the records of the grants in use
CONFIRM_AFTER: Final = 0.001  # seconds until the first look whether the main process has released a lock

_Attached = TypeVar("_Attached")


class SessionProxy(Loop):
    """The session of the main process, as far as a grant needs it, and its own loop."""

    def __init__(self, shared: SharedGrants) -> None:
        super().__init__("zklock-proxy")
        self.loop: Loop = self
        self.pid = os.getpid()
        self.lease = shared
        self._dispatcher: Loop | None = None
        self._attached: dict[Any, Any] = {}
        self._in_use: dict[ContenderProxy, None] = {}  # loop's thread only
        self._is_reading = False  # whether `_read` is scheduled; loop's thread only
        self.start()

    @property
    def session_id(self) -> int:
        """The id of the session that has the lease."""
        return self.lease.session_id

    def dispatch(self, call: Callable[..., object], *args: Any) -> None:
        """Run `call(*args)` on the thread for users' code."""
        if self._dispatcher is None:
            self._dispatcher = Loop("zklock-signals", users_thread)
            self._dispatcher.start()
        self._dispatcher.post(call, *args)

    def stop(self) -> None:
        """End both threads after the events that are on their queues now."""
        if self._dispatcher is not None:
            self.post(self._dispatcher.stop)
        super().stop()

    def attached(self, kind: Callable[[Any], _Attached]) -> _Attached:
        """Return the one object of this kind that belongs to the session."""
        if kind not in self._attached:
            self._attached[kind] = kind(self)
        attached: _Attached = self._attached[kind]
        return attached

    def watch(self, contender: ContenderProxy) -> None:
        """Read the record of this contender from now on; on the loop's thread."""
        self._in_use[contender] = None
        if not self._is_reading:
            self._read()

    def forget(self, contender: ContenderProxy) -> None:
        """Stop reading its record; on the loop's thread."""
        self._in_use.pop(contender, None)

    def _read(self) -> None:
        self._is_reading = bool(self._in_use)
        if self._is_reading:
            remaining = self.lease.until - clock.now()
            self.call_later(remaining if 0 < remaining < READ_EVERY else READ_EVERY, self._read)
        for contender in list(self._in_use):
            contender.read()


class ContenderProxy:
    """The proxy of a contender of the main process, for the one grant that it has."""

    def __init__(self, session: SessionProxy, record: GrantRecord, payload: Mapping[str, Any], caller: Caller) -> None:
        self.session = session
        parent = payload["path"].rpartition("/")[0]
        self.spec = QueueSpec(key=payload["key"], parent=parent, kind=Kind(payload["kind"]))
        self.caller = caller
        self.grant = Grant(session, payload["key"], payload["path"], payload["token"], self.spec.kind)
        self.grant.session_id = payload["session"]
        self.grant.since = payload["since"]
        self.grant.template = payload["template"]
        self.grant.what, self.grant.about = caller.what, caller.about
        self.waited: float = payload["waited"]
        self.ahead = Payload.decode(payload["ahead"].encode()) if payload["ahead"] else None
        self._record = record
        self._read_to = 0  # bytes of the record's text
        self._ending = False  # written by its owner

    def read(self) -> None:
        """Learn what has happened to the lock; on the loop's thread."""
        record, grant = self._record, self.grant
        if self._ending or grant.lost_reason is not None:
            return
        events, self._read_to = record.events(self._read_to)
        suspect = record.is_suspect
        if not record.is_current:
            grant.lose("the worker's main process has released it")
        elif not self.session.lease.valid:
            grant.lose(troubles.LEASE_OVER)
        else:
            if suspect:
                grant.suspect(troubles.MAIN_PROCESS_SUSPECT)
            else:
                grant.confirmed()
            for event in events:
                self._on_event(event)

    def _on_event(self, event: Mapping[str, Any]) -> None:
        if "lost" in event:
            self.grant.lose(event["lost"])
        elif (request := ReleaseRequest(**event["request"])) != self.grant.release_request:
            self.grant.request_release(request)

    def abandon(self, done: Callable[[bool], object] | None = None) -> None:
        """Give the lock back; `done` gets True when the main process has released it, or the lease is over."""
        self._ending = True
        self._record.end()
        self.session.post(self._end, done)

    def _end(self, done: Callable[[bool], object] | None) -> None:
        self.session.forget(self)
        self.grant.release()
        if done is not None:
            self._confirm(done, CONFIRM_AFTER)

    def _confirm(self, done: Callable[[bool], object], pause: float) -> None:
        if self.session.lease.valid and self._record.is_current:
            later = functools.partial(self._confirm, done, min(1.5 * pause, READ_EVERY))
            self.session.call_later(pause, later)
        else:
            done(True)

    def downgrade(self, *, asked: bool = False) -> None:
        """Keep the lock as a reader; see `Contender.downgrade`."""
        self._record.share(asked=asked)
        self.grant.kind = Kind.READ
