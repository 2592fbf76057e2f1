"""
The session of a worker's main process, and a contender of it, as a pool process sees them that works under its grant.

The lease is read from the page, by the clock, so that it ends by itself if the main process is stopped or dies. A
thread reads what happens to the locks twenty times a second, as long as there are any.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from django_zklock import clock
from django_zklock.contrib.celery.line.page import GrantPage
from django_zklock.locks import notify
from django_zklock.locks.protocol.grant import Grant
from django_zklock.locks.protocol.spec import Caller, QueueSpec
from django_zklock.queue.nodes import Kind, Payload
from django_zklock.queue.release_request import ReleaseRequest
from django_zklock.zk.loop import Loop, users_thread

READ_EVERY: Final = 0.05
"""Seconds between two looks at the records of the grants in use."""

CONFIRM_AFTER: Final = 0.001
"""Seconds until the first look whether the main process has released a lock."""

_Attached = TypeVar("_Attached")


class LeaseProxy:
    """The lease of the main process' session."""

    def __init__(self, page: GrantPage) -> None:
        self._page = page

    @property
    def until(self) -> float:
        """When it ends, on `clock.now()`."""
        return self._page.until

    @property
    def valid(self) -> bool:
        """Whether it lasts."""
        return clock.now() < self._page.until


class SessionProxy:
    """The session of the main process, as far as a grant needs it."""

    def __init__(self, page: GrantPage) -> None:
        self.pid = os.getpid()
        self.page = page
        self.lease = LeaseProxy(page)
        self.loop = Loop("zklock-proxy")
        self._dispatcher: Loop | None = None
        self._attached: dict[Any, Any] = {}
        self._in_use: dict[ContenderProxy, None] = {}  # loop's thread only
        self._looks = False  # likewise
        self.loop.start()

    @property
    def session_id(self) -> int:
        """The id of the session that the page has the lease of."""
        return self.page.session_id

    def post(self, call: Callable[..., object], *args: Any) -> None:
        """Run `call(*args)` on the loop; from any thread."""
        self.loop.post(call, *args)

    def dispatch(self, call: Callable[..., object], *args: Any) -> None:
        """Run `call(*args)` on the thread for users' code."""
        if self._dispatcher is None:
            self._dispatcher = Loop("zklock-signals", users_thread)
            self._dispatcher.start()
        self._dispatcher.post(call, *args)

    def attached(self, kind: Callable[[Any], _Attached]) -> _Attached:
        """Return the one object of this kind that belongs to the session."""
        if kind not in self._attached:
            self._attached[kind] = kind(self)
        found: _Attached = self._attached[kind]
        return found

    def watch(self, contender: ContenderProxy) -> None:
        """Read the record of this contender from now on; on the loop's thread."""
        self._in_use[contender] = None
        if not self._looks:
            self._look()

    def forget(self, contender: ContenderProxy) -> None:
        """Stop reading its record; on the loop's thread."""
        self._in_use.pop(contender, None)

    def _look(self) -> None:
        self._looks = bool(self._in_use)
        if self._looks:
            left = self.lease.until - clock.now()
            self.loop.call_later(left if 0 < left < READ_EVERY else READ_EVERY, self._look)
        for contender in list(self._in_use):
            contender.look()


class ContenderProxy:
    """The contender of the main process that a grant belongs to."""

    def __init__(self, session: SessionProxy, facts: Mapping[str, Any], caller: Caller) -> None:
        self.session = session
        self.spec = QueueSpec(key=facts["key"], parent=facts["path"].rpartition("/")[0], kind=Kind(facts["kind"]))
        self.caller = caller
        self.grant = Grant(session, facts["key"], facts["path"], facts["token"], self.spec.kind)
        self.grant.session_id = facts["session"]
        self.grant.since = facts["since"]
        self.grant.template = facts["template"]
        self.grant.what, self.grant.about = caller.what, caller.about
        self.waited: float = facts["waited"]
        self.ahead = Payload.decode(facts["ahead"].encode()) if facts["ahead"] else None
        self._place, self._number = facts["place"], facts["number"]
        self._version = 0
        self._ending = False  # written by its owner
        self._left = False

    def look(self) -> None:
        """Learn what has happened to the lock; on the loop's thread."""
        page = self.session.page
        if self._ending or self.grant.lost_reason is not None:
            return
        if not page.is_current(self._place, self._number):
            self.grant.lose("the worker's main process has released it")
        elif not self.session.lease.valid:
            self.grant.lose("the lease is over: no quorum has confirmed the session in time")
        elif page.version(self._place) != self._version:
            version, news = page.version(self._place), page.read(self._place)
            if news is not None and page.is_current(self._place, self._number):
                self._version = version
                self._tell(news)

    def _tell(self, news: Mapping[str, Any]) -> None:
        if "lost" in news:
            self.grant.lose(news["lost"])
        elif "suspect" in news:
            self.grant.suspect(news["suspect"])
        else:
            self.grant.confirmed()
        if "request" in news:
            request = ReleaseRequest(**news["request"])
            if request != self.grant.release_request:
                self.grant.request_release(request)
                notify.send_release_requested(self.grant, request)

    def abandon(self, left: Callable[[bool], object] | None = None) -> None:
        """Give the lock back; `left` is called with True when the main process has released it."""
        self._ending = True
        self.session.page.end(self._place, self._number)
        self.session.post(self._leave, left)

    def _leave(self, left: Callable[[bool], object] | None) -> None:
        if not self._left:
            self._left = True
            self.session.forget(self)
            self.grant.release()
        if left is not None:
            self._confirm(left, CONFIRM_AFTER)

    def _confirm(self, left: Callable[[bool], object], pause: float) -> None:
        if self.session.lease.valid and self.session.page.is_current(self._place, self._number):
            later = functools.partial(self._confirm, left, min(1.5 * pause, READ_EVERY))
            self.session.loop.call_later(pause, later)
        else:
            left(True)

    def share(self, *, asked: bool = False) -> None:
        """Go on as a reader; see `Contender.share`."""
        self.session.page.share(self._place, self._number, asked=asked)
        self.grant.kind = Kind.READ
