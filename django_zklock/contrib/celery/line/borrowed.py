"""
The grant of a worker's main process, as its pool process works under it.

The session belongs to the main process. Here its lease is read from the page, by the clock, so that it ends by itself
if the main process is stopped or dies. A thread reads what happens to the locks twenty times a second, as long as
there are any.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeVar

from django_zklock import exceptions, signals
from django_zklock.contrib.celery.line.page import GrantPage
from django_zklock.exceptions import ZkLockError
from django_zklock.execution.owner import Owner, current_owner
from django_zklock.locks import maximum_hold, notify, table
from django_zklock.locks.base import check_transactions
from django_zklock.locks.held import HeldLock
from django_zklock.locks.multi import Locks, locks_of
from django_zklock.locks.protocol.grant import Grant
from django_zklock.locks.protocol.spec import Caller, QueueSpec
from django_zklock.queue.nodes import Kind
from django_zklock.queue.release_request import ReleaseRequest
from django_zklock.zk import clock
from django_zklock.zk.loop import Loop, users_thread

FACTS: Final = "zklock_line"
"""Key of a request: what the line of the worker has come to."""
READ_EVERY: Final = 0.05
"""Seconds between two looks at the records of the grants in use."""

_Attached = TypeVar("_Attached")


class BorrowedLease:
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


class BorrowedSession:
    """The session of the main process, as far as a grant needs it."""

    def __init__(self, page: GrantPage) -> None:
        self.pid = os.getpid()
        self.page = page
        self.lease = BorrowedLease(page)
        self.loop = Loop("zklock-borrowed")
        self._dispatcher: Loop | None = None
        self._attached: dict[Any, Any] = {}
        self._in_use: dict[BorrowedContender, None] = {}  # loop's thread only
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

    def watch(self, contender: BorrowedContender) -> None:
        """Read the record of this contender from now on; on the loop's thread."""
        self._in_use[contender] = None
        if not self._looks:
            self._look()

    def forget(self, contender: BorrowedContender) -> None:
        """Read its record no more; on the loop's thread."""
        self._in_use.pop(contender, None)

    def _look(self) -> None:
        self._looks = bool(self._in_use)
        if self._looks:
            left = self.lease.until - clock.now()
            self.loop.call_later(left if 0 < left < READ_EVERY else READ_EVERY, self._look)
        for contender in list(self._in_use):
            contender.look()


class BorrowedContender:
    """The contender of the main process that a grant belongs to."""

    def __init__(self, session: BorrowedSession, facts: Mapping[str, Any], caller: Caller) -> None:
        self.session = session
        self.spec = QueueSpec(key=facts["key"], parent=facts["path"].rpartition("/")[0], kind=Kind(facts["kind"]))
        self.caller = caller
        self.grant = Grant(session, facts["key"], facts["path"], facts["token"], self.spec.kind)
        self.grant.session_id = facts["session"]
        self.grant.since = facts["since"]
        self.grant.template = facts["template"]
        self.grant.about = caller.about
        self.waited: float = facts["waited"]
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
        """Give the lock back; `left` is called with True when the main process knows."""
        self._ending = True
        self.session.page.end(self._place, self._number)
        self.session.post(self._leave, left)

    def _leave(self, left: Callable[[bool], object] | None) -> None:
        if not self._left:
            self._left = True
            self.session.forget(self)
            self.grant.release()
        if left is not None:
            left(True)

    def share(self, *, asked: bool = False) -> None:
        """Go on as a reader; see `Contender.share`."""
        self.session.page.share(self._place, self._number, asked=asked)
        self.grant.kind = Kind.READ


class GrantedTask(Protocol):
    """A message whose task has its locks."""

    def leave(self) -> None:
        """Give the locks back."""

    def hand_over(self, owner: Owner) -> list[HeldLock]:
        """Give the locks to this owner, which takes them once more."""


class Adopted:
    """What the line of the worker has come to for one task, in the process or thread that runs it."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.looked = bool(facts.get("looked"))
        """Whether the line has looked for copies of the task."""
        self.again = bool(facts.get("again"))
        """Whether the task is to be sent again."""
        self.held: list[HeldLock] = []
        """The locks that the line has taken. They are listed weakly until their owner takes them."""
        self._facts = facts
        self._task: GrantedTask | None = None
        self._contenders: list[BorrowedContender] = []

    def begin(self, caller: Caller) -> None:
        """Begin to use the grants of the main process; none of them if one was lost meanwhile, or given back."""
        self._task = own_grants.pop(self._facts.get("number", 0), None)
        contenders: list[BorrowedContender] = []
        for each in self._facts.get("grants", ()):
            if page is None or not page.begin(each["place"], each["number"]):
                break
            contenders.append(BorrowedContender(_session_of(page), each, caller))
            if contenders[-1].grant.why_invalid() is not None:
                break
        else:
            self._contenders = contenders
            return
        self.end()

    @property
    def is_granted(self) -> bool:
        """Whether there are locks to take over."""
        return bool(self._contenders) or self._task is not None

    @property
    def is_late(self) -> bool:
        """Whether the task has waited for its locks, and had no process in time to use them."""
        return not self.is_granted and any(each in self._facts for each in ("grants", "number", "late"))

    @property
    def error(self) -> ZkLockError | None:
        """The error that the line got instead of the locks."""
        if "error" not in self._facts:
            return None
        kind: type[ZkLockError] = getattr(exceptions, self._facts["error"])
        return kind(self._facts["text"], lock=self._facts["lock"])

    def take(self, lock: Locks) -> None:
        """Take over the locks. Raises `LockInTransaction` if a transaction was begun before."""
        check_transactions(lock)
        if self._task is not None:
            self.held = self._task.hand_over(current_owner())
            return
        specs = {each.key: each.spec for each in locks_of(lock)}
        if not specs.keys() >= {contender.spec.key for contender in self._contenders}:  # a signal changed the arguments
            self.end()
            return
        for contender in self._contenders:
            spec = specs[contender.spec.key]
            part = listed(HeldLock(contender, contender.grant, current_owner(), spec.policy))
            self.held.append(part)
            contender.grant.begun = True
            if spec.is_bounded:
                maximum_hold.apply_bounds(contender.grant, contender, spec)
            contender.session.post(contender.session.watch, contender)
            notify.send(part, signals.lock_acquired, waited=contender.waited)

    def end(self) -> None:
        """Give back what no part holds; called at the end of the task, however it ended."""
        if self._task is not None and not self.held:
            self._task.leave()
        held = {part.grant.token for part in self.held if part.count > 0 or part.observer is not None}
        for each in self._facts.get("grants", ()):
            if page is not None and each["token"] not in held:
                page.end(each["place"], each["number"])


_session: BorrowedSession | None = None


def _session_of(page: GrantPage) -> BorrowedSession:
    """Return the session of the main process, as this process sees it."""
    global _session
    if _session is None or _session.pid != os.getpid():
        _session = BorrowedSession(page)
    return _session


page: GrantPage | None = None  # made by the main process before it forks
own_grants: dict[int, GrantedTask] = {}
"""The tasks that have locks, and go to a thread or greenlet of the main process itself."""


def adopted(request: Any, caller: Caller) -> Adopted | None:
    """Return what the line of this worker has come to for the task of this request; once."""
    facts = request.__dict__.pop(FACTS, None)
    (request.headers or {}).pop(FACTS, None)  # or it would be sent again with the task
    if facts is None or facts["worker"] not in (os.getpid(), os.getppid()):
        return None
    found = Adopted(facts)
    setattr(request, _ADOPTED, found)  # first: `end` is called whatever happens, such as a time limit in this line
    found.begin(caller)
    return found


def end(request: Any) -> None:
    """The task of this request has ended."""
    found: Adopted | None = request.__dict__.get(_ADOPTED)
    if found is not None:
        found.end()


_ADOPTED: Final = "_zklock_adopted"  # attribute of a request


def listed(part: HeldLock) -> HeldLock:
    """List a part that its owner has not taken yet, so that it takes it without a request."""
    part.count = 0
    table.held_locks.add(part, keep=False)
    return part
