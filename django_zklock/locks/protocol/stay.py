"""
The stay of a lock in this process: with `linger`, it is kept for the process' own next owners.

One contender is in ZooKeeper's queue for all of them. They line up in a queue of this process, a `Turn` for each:
the first in it has the lock while the lock is here. To enter is to append, and to leave is to remove, each a single
operation that no signal and no other thread interrupts. Each thread that has changed the queue tells the first one its
turn, so the lock is handed on without the protocol's thread. To tell it twice changes nothing.

Each owner has a grant of its own, with the token of the znode. Events of the session reach the contender's grant, and
from there that of the first turn. A turn looks at the contender's grant when it gets the lock: if there is any doubt,
the stay is over, and all that wait line up again.
"""

from __future__ import annotations

import copy
import math
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from django_zklock import clock
from django_zklock.exceptions import UnreadableQueue, ZooKeeperUnavailable
from django_zklock.locks.protocol.contender import Busy, Contender, Outcome
from django_zklock.locks.protocol.grant import Grant, GrantObserver
from django_zklock.locks.protocol.registry import Registry
from django_zklock.locks.protocol.spec import Caller, QueueSpec
from django_zklock.queue import order
from django_zklock.queue.nodes import Kind, Payload
from django_zklock.queue.operator_hold import OperatorHold
from django_zklock.queue.release_request import ReleaseRequest
from django_zklock.zk.errors import ZkError
from django_zklock.zk.gateway import NamesReply, Watch
from django_zklock.zk.loop import Timer
from django_zklock.zk.session import Session, SessionObserver

LOOK_EVERY: Final = 1.0
"""Seconds at most between two looks whether a stay has been idle for too long."""
SHORTEST_LOOK: Final = 0.001
"""Seconds at least between two of them."""
SHOW_AFTER: Final = 0.9
"""Seconds for which an owner or an idle time has to last, or the znode to be wrong, before it is written."""
KEPT: Final = "kept for the next user"
"""The work that the znode shows while the lock is idle."""
IN_TURN: Final = "several, one after another"
"""The work that the znode shows while no owner lasts and their work differs."""


class TurnGrant(Grant):
    """The grant of one owner of a stay. It is valid while that of the contender is."""

    def __init__(self, base: Grant, caller: Caller) -> None:
        super().__init__(base.session, base.key, base.path, base.token, base.kind)
        self.session_id = base.session_id
        self.what, self.about = caller.what, caller.about
        self.template = base.template
        self._base = base

    def why_invalid(self) -> str | None:
        if self.lost_reason is not None:
            return self.lost_reason
        return self._base.why_invalid() or (self.why_overdue if self.overdue else None)


class Turn:
    """One owner's place in the queue of this process; the owner uses it as its contender."""

    __slots__ = (
        "_done",
        "_outcomes",
        "_pid",
        "_was_placed",
        "caller",
        "gone",
        "on_queued",
        "session",
        "spec",
        "stay",
        "waits",
    )

    def __init__(
        self,
        session: Session,
        spec: QueueSpec,
        caller: Caller,
        done: Callable[[Outcome], object],
        *,
        waits: bool,
    ) -> None:
        self.session = session
        self.spec = spec
        self.caller = caller
        self.on_queued: Callable[[], object] | None = None  # called once if it has to wait
        self.stay: Stay | None = None
        self.gone = False
        self._done: Callable[[Outcome], object] | None = done  # may be called again with the same outcome
        self.waits = waits
        # In the present stay only. The first one counts; None: to line up again. Read it before `stay`, see `enter`.
        self._outcomes: dict[Stay | None, Outcome | None] = {}
        self._was_placed = False
        self._pid = os.getpid()  # the process of this machine that does the work

    def __repr__(self) -> str:
        return f"<turn for {self.spec.key!r}>"

    # --- from any thread ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Line up. If the lock is here and free, it is granted before this returns."""
        stay = self.session.attached(Stays).find(self.spec)
        if stay is None:
            self.session.post(self.line_up)
        else:
            stay.enter(self)
            self.wait_or_leave_busy(stay)
            if not self.session.connected:
                self.session.post(
                    self.session.loop.call_later, self.session.options.connect_timeout, self.on_no_session
                )

    def abandon(self, left: Callable[[bool], object] | None = None) -> None:
        """
        Pass the lock on, or give up the place; doing it again changes nothing.

        `left` is called as by `Contender.abandon`; at once if the lock stays here.
        """
        self.gone = True
        stay = self.stay
        if stay is not None:
            grant = self.grant
            if grant is not None:
                if stay.first is self and stay.must_end(self.spec, grant):
                    stay.over = True
                grant.released = True
                if grant.has_observers:
                    self.session.post(grant.tell_released)
            stay.leave(self)
            if stay.over:
                self.session.post(stay.end, left)
                return
        if left is not None:
            left(True)

    def share(self, *, asked: bool = False) -> None:
        """Make the write lock a read lock; see `Contender.share`. The stay ends with it."""
        stay, grant = self.stay, self.grant
        if stay is not None and grant is not None:
            stay.contender.share(asked=asked)
            grant.kind = Kind.READ

    def set_process(self, pid: int) -> None:
        """Show others in the queue that this process of the machine does the work."""
        self._pid = pid
        if self.stay is not None:
            self.session.post(self.stay.show_owner, self)

    def on_first(self, stay: Stay) -> None:
        """It is the first of this stay; this may be said more than once, by any thread."""
        outcomes, done = self._outcomes, self._done
        if self.stay is not stay:
            return  # it has lined up again
        if stay not in outcomes:
            outcomes.setdefault(stay, stay.new_grant(self.caller))
        outcome = outcomes[stay]
        if outcome is None:
            stay.over = True
            self.session.post(stay.end)
        elif isinstance(outcome, Grant) and done is not None:
            done(outcome)
            self._done = self.on_queued = None  # they refer to the hold, which may be dropped without a release
            if stay.has_news:
                self.session.post(stay.tell_news)  # they may have come just before the grant

    # --- read by the owner ----------------------------------------------------------------------------------------

    @property
    def grant(self) -> Grant | None:
        """Its grant, once it has the lock."""
        outcome = self._outcomes.get(self.stay)
        return outcome if isinstance(outcome, Grant) else None

    @property
    def description(self) -> Mapping[str, Any]:
        """What the payload of the znode says while it has the lock."""
        return _description(self._pid, self.caller.what, self.caller.thread, self.caller.about)

    @property
    def placed(self) -> bool:
        """Whether the position of this process in ZooKeeper's queue is known, or was known before it lined up again."""
        stay = self.stay
        return self._was_placed or (stay is not None and (stay.base is not None or stay.contender.placed))

    @property
    def ahead(self) -> Payload | None:
        """The contender just ahead, if it is known; None once it has the lock."""
        if self.stay is None or self.grant is not None:
            return None
        first = self.stay.first
        if self.stay.base is None or first is None or first is self:
            return self.stay.contender.ahead
        caller, host = first.caller, socket.gethostname()
        return Payload(
            guid="",
            host=host,
            pid=os.getpid(),
            thread=caller.thread,
            what=caller.what,
            since="",
            template="",
            about=caller.about,
        )

    @property
    def guid(self) -> str:
        """The guid of the znode of this process; empty if it has none."""
        return "" if self.stay is None else self.stay.contender.guid

    @property
    def operator(self) -> OperatorHold | None:
        """An operator hold ahead, if one is known."""
        return None if self.stay is None else self.stay.contender.operator

    @property
    def in_local_queue(self) -> bool:
        """Whether many other callers of this process wait."""
        return self.stay is not None and self.stay.contender.in_local_queue

    # --- on the protocol's thread, unless a stay was found before ---------------------------------------------------

    def line_up(self) -> None:
        """Line up in the stay there is, or in a new one."""
        self.session.attached(Stays).line_up([self])

    @property
    def is_outside(self) -> bool:
        """Whether it still wants the lock, and is in no stay."""
        return not self.gone and (self.stay is None or self.stay.over)

    def enter(self, stay: Stay) -> None:
        """Note that it is in this stay from now on."""
        self._was_placed = self.placed
        self.stay = stay
        self._outcomes = {}  # last, so that no outcome of an earlier stay gets in

    def waits_in(self, stay: Stay) -> bool:
        """Return whether it still waits there."""
        return not self.gone and self.stay is stay and self._outcomes.get(stay) is None

    def keeps(self, stay: Stay) -> bool:
        """Return whether it has the lock. If not, it does not get it from this stay any more."""
        return self.stay is stay and isinstance(self._outcomes.setdefault(stay, None), Grant) and not self.gone

    def on_no_session(self) -> None:
        """Give up if there is still no connection; those that came before the outage wait on."""
        stay = self.stay
        if stay is not None and self.waits_in(stay) and not self.session.connected:
            why = self.session.explain(self.session.options.connect_timeout)
            self.conclude(stay, ZooKeeperUnavailable(why, lock=self.spec.key))

    def wait_or_leave_busy(self, stay: Stay) -> None:
        """Wait, unless the caller does not, or enough wait already."""
        if stay in self._outcomes or stay.over:
            return
        busy = Busy(stay.waiting - 1 if self.waits else None)
        if self.is_refused(busy):
            self.conclude(stay, busy)
        else:
            self.tell_queued()

    def is_refused(self, outcome: Outcome) -> bool:
        """Return whether the outcome of the contender, which has the options of another turn, is that of this one."""
        if not isinstance(outcome, Busy) or not self.waits:
            return True
        waiters, most = outcome.waiters, self.spec.max_waiters
        return waiters is not None and most is not None and waiters >= most

    def tell_queued(self) -> None:
        """Tell the owner that it has to wait."""
        told, self.on_queued = self.on_queued, None
        if told is not None:
            told()

    def conclude(self, stay: Stay, outcome: Outcome) -> None:
        """Have it end with this outcome, unless it has the lock."""
        outcomes, done = self._outcomes, self._done
        if self.stay is stay and outcomes.setdefault(stay, outcome) is outcome and done is not None:
            self.gone = True
            stay.leave(self)
            done(outcome)


class Stay(GrantObserver):
    """The time from one grant by ZooKeeper until this process passes the lock on, and the wait before it."""

    def __init__(self, stays: Stays, founder: Turn) -> None:
        self.queue: deque[Turn | None] = deque()  # None: the protocol's thread, to end an idle stay
        self.over = False  # written by the first in the queue, if the lock is here
        self.first_waits = False  # it is known that it has to wait for another process
        self.base: Grant | None = None  # the contender's; None while this process waits for the lock
        self.wanted: bool | None = None  # whether another process waits for the lock; None: not known yet
        self.idle_since = clock.now()
        self.contender = Contender(
            founder.session,
            founder.spec,
            founder.caller._replace(owner=0),
            self._on_outcome,
            waits=founder.waits,
        )
        self.contender.on_queued = partial(self._on_queued, founder)
        self.contender.placed = founder.waits and founder.placed  # then it waits as long, and is not refused any more
        self._stays = stays
        self._session = founder.session
        self.spec = founder.spec
        self._linger = founder.spec.linger
        self._looks_at = math.inf  # on clock.now(): when it is next looked whether it has been idle for too long
        self._last = founder  # that had the lock
        self._ended = False
        # Protocol's thread only.
        self._watch: Watch | None = None
        self._timer: Timer | None = None
        self._shown: float | Mapping[str, Any] = founder.description  # in the znode: idle since then, or an owner
        self._wrong_since: float | None = None  # when a look found that the znode is wrong

    # --- from any thread ------------------------------------------------------------------------------------------

    def enter(self, turn: Turn) -> None:
        """Append a turn; it has the lock at once if it is the first."""
        turn.enter(self)
        self.queue.append(turn)
        if turn.gone:
            self.leave(turn)
        elif self.over:
            self._session.post(turn.line_up)
        else:
            self.tell_first()

    def leave(self, turn: Turn) -> None:
        """Remove a turn, and tell the one that is the first then; doing it again changes nothing."""
        self._linger, self.idle_since = turn.spec.linger, clock.now()
        if turn.grant is not None:
            self._last = turn
        try:
            self.queue.remove(turn)
        except ValueError:
            pass
        self.tell_first()
        if self.first is None:  # it may be the protocol's thread, just now
            if self.base is None or self.wanted:
                self._session.post(self.end_if_idle)
            elif self.idle_since + self._linger < self._looks_at:  # an earlier owner had a longer one
                self._session.post(self._look)

    def tell_first(self) -> None:
        """Tell the first in the queue that it has the lock, if the lock is here."""
        first = self.first  # read before `over`: the one that ends the stay sets that before it leaves the queue
        if first is not None and self.base is not None and not self.over:
            first.on_first(self)

    @property
    def first(self) -> Turn | None:
        """The turn that has the lock, or will have it next."""
        try:
            return self.queue[0]
        except IndexError:
            return None

    @property
    def waiting(self) -> int:
        """How many wait in this process. The first one does not while it may get the lock at once."""
        return len(self.queue) - (self.base is not None or not self.first_waits)

    def new_grant(self, caller: Caller) -> Grant | None:
        """Return a grant for this caller; None in doubt."""
        return None if self.base is None or self.in_doubt else TurnGrant(self.base, caller)

    @property
    def in_doubt(self) -> bool:
        """Whether it is not certain that this process has the lock."""
        base = self.base
        return base is None or self._session.suspect or base.why_invalid() is not None

    @property
    def has_news(self) -> bool:
        """Whether something has happened to the lock."""
        return self.base is not None and self.base.has_news

    def must_end(self, spec: QueueSpec, grant: Grant) -> bool:
        """Return whether the lock leaves this process when its owner, with this grant, releases it."""
        base = self.base
        if base is None or base.has_news or base.node_gone or self._session.closing:
            return True  # the end of the lease is seen by the next owner
        if grant.lost_reason is not None or grant.overdue or grant.kind is not spec.kind:
            return True
        if len(self.queue) == 1 and (self.wanted or self._stays.are_too_many):
            return True
        return self.wanted is not False and clock.now() - base.since >= spec.linger

    # --- on the protocol's thread ---------------------------------------------------------------------------------

    def _on_outcome(self, outcome: Outcome) -> None:
        if isinstance(outcome, Grant):
            outcome.is_quiet = True
            self.base = outcome
            outcome.attach(self)
            self.tell_first()
            self._stays.keep_few()
            self._watch_others()
            self._look()
            return
        self.over = self._ended = True
        self._stays.forget(self)
        turns = self.waiting_turns()
        for turn in turns:
            if turn.is_refused(outcome):
                turn.conclude(self, _copy(outcome))
        self._stays.line_up(turns)

    def _on_queued(self, founder: Turn) -> None:
        """The first has to wait as well. Then too many may wait, and the last ones are refused."""
        self.first_waits = True
        founder.tell_queued()
        waiting = 1
        for turn in self.waiting_turns()[1:]:
            busy = Busy(waiting)
            if turn.is_refused(busy):
                turn.conclude(self, busy)
            else:
                waiting += 1

    def end(self, left: Callable[[bool], object] | None = None) -> None:
        """
        Leave ZooKeeper's queue, unless an owner is at work: then its release does that.

        Those that wait line up again, in their order. Calling it twice does no harm.
        """
        if not any(turn is not None and turn.keeps(self) for turn in list(self.queue)):
            self.contender.abandon(left)
        if self._ended:
            return
        self._ended = True
        self._stays.forget(self)
        self._unwatch()
        if self._timer is not None:
            self._timer.cancel()
        self._stays.line_up(self.waiting_turns())

    def waiting_turns(self) -> list[Turn]:
        """Return those that wait."""
        return [turn for turn in list(self.queue) if turn is not None and turn.waits_in(self)]

    def end_if_idle(self) -> None:
        """End the stay unless somebody has the lock, or waits for it; those that come meanwhile line up again."""
        if self.over or self.queue:
            return
        self.queue.append(None)
        if self.first is None:
            self.over = True
        self.queue.remove(None)
        if self.over:
            self.end()
        else:
            self.tell_first()

    def _look(self) -> None:
        """End the stay when it has been idle for too long."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        left = self._linger
        if not self.queue:
            left += self.idle_since - clock.now()
            if left <= 0:
                self.end_if_idle()
        if not self.over:
            self._correct_shown()
            pause = min(max(left, SHORTEST_LOOK), LOOK_EVERY)
            self._looks_at = clock.now() + pause
            self._timer = self._session.loop.call_later(pause, self._look)

    def _correct_shown(self) -> None:
        """Write the znode if it has been wrong for some time; never for each of many short owners."""
        now, first = clock.now(), self.first
        grant = None if first is None else first.grant
        since = self.idle_since if first is None else now if grant is None else grant.since
        present, in_turn = (first or self._last).description, _description(os.getpid(), IN_TURN)
        if now - since >= SHOW_AFTER:
            state = self.idle_since if first is None else present
            if state != self._shown:
                self._show(state)
        elif self._shown in (present, in_turn):
            self._wrong_since = None
        elif self._wrong_since is None:
            self._wrong_since = now
        elif now - self._wrong_since >= SHOW_AFTER:
            self._show(in_turn)

    def show_owner(self, turn: Turn) -> None:
        """Show others in the queue this owner, if it has the lock."""
        if self.first is turn:
            self._show(turn.description)

    def _show(self, state: float | Mapping[str, Any]) -> None:
        def on_written() -> None:
            self._shown, self._wrong_since = state, None

        if not isinstance(state, float):
            fields = state
        else:
            idle_since = datetime.now(timezone.utc) - timedelta(seconds=clock.now() - state)
            fields = _description(os.getpid(), KEPT, idle=idle_since.isoformat(timespec="milliseconds"))
        self.contender.describe(fields, on_written)

    def _watch_others(self) -> None:
        self._unwatch()
        gateway = self._session.attached(Registry).gateway
        self._watch = gateway.children(self.spec.parent, self._on_names, self._on_children_changed)

    def _unwatch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()

    def _on_children_changed(self, deleted: bool) -> None:
        self._watch = None
        if not self.over and not self.wanted:
            self.wanted = None  # until the next listing
            self._watch_others()

    def _on_names(self, answer: NamesReply) -> None:
        if isinstance(answer, ZkError) or self.base is None:
            return  # without a connection, the stay is in doubt
        own = self.base.path.rpartition("/")[2]
        try:
            self.wanted = any(child.name != own for child in order.ordered(answer))
        except UnreadableQueue:
            self.wanted = True
        if self.wanted:
            self._unwatch()
            self.end_if_idle()

    # --- events of the contender's grant, for the owner that has the lock -------------------------------------------

    def on_suspect(self, reason: str) -> None:
        self.tell_news()

    def on_confirmed(self) -> None:
        self.tell_news()
        if not self.over:
            self._watch_others()  # the old watch ended with the connection

    def on_lost(self, reason: str) -> None:
        self.tell_news()
        if not self._session.closing:  # else nobody lines up again
            self.over = True
            self.end()  # those that wait do not wait for the end of the work that is aborted

    def on_release_requested(self, request: ReleaseRequest) -> None:
        self.tell_news()

    def tell_news(self) -> None:
        """Tell the owner what has happened to the lock; end an idle stay."""
        base, first = self.base, self.first
        grant = first.grant if first is not None else None
        if base is None or grant is None:
            self.end_if_idle()
            return
        if base.lost_reason is not None:
            grant.lose(base.lost_reason)
        elif base.suspect_since is not None:
            grant.suspect(base.suspect_reason)
        else:
            grant.confirmed()
        request = base.release_request
        if request is not None and request != grant.release_request:
            grant.request_release(request)
            if grant.on_release_request is not None:
                grant.on_release_request(grant, request)


def _description(
    pid: int, what: str, thread: str = "", about: Mapping[str, str] = MappingProxyType({}), idle: str = ""
) -> Mapping[str, Any]:
    """Return the fields of a payload that change while a stay lasts."""
    return {"pid": pid, "what": what, "thread": thread, "about": about, "idle": idle}


class Stays(SessionObserver):
    """The stays of one session: one for each lock at a time."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._stays: dict[tuple[str, Kind, str | None], Stay] = {}  # written on the protocol's thread

    def find(self, spec: QueueSpec) -> Stay | None:
        """Return the stay of a lock, if there is one; from any thread."""
        stay = self._stays.get(_place(spec))
        return None if stay is None or stay.over else stay

    def line_up(self, turns: list[Turn]) -> None:
        """Append these turns for one lock, in their order: to the stay there is, or to a new one."""
        if not turns:
            return
        spec = turns[0].spec
        before = self._stays.get(_place(spec))
        if before is not None and before.over:
            before.end()  # those that wait there come first; perhaps these are among them
        turns = [turn for turn in turns if turn.is_outside]
        stay = self.find(spec)
        if stay is not None:
            for turn in turns:
                stay.enter(turn)
                turn.wait_or_leave_busy(stay)
        elif turns:
            stay = Stay(self, turns[0])
            for turn in turns:
                stay.enter(turn)
            self._session.observers[self] = None
            self._stays[_place(spec)] = stay  # last: those that find it come after these
            stay.contender.start()

    def forget(self, stay: Stay) -> None:
        """Forget a stay that is over."""
        if self._stays.get(_place(stay.spec)) is stay:
            del self._stays[_place(stay.spec)]

    @property
    def are_too_many(self) -> bool:
        """Whether one that becomes idle has to end; from any thread."""
        return len(self._stays) > self._session.options.max_lingering

    def keep_few(self) -> None:
        """End the oldest idle stay if there are too many."""
        if self.are_too_many:
            idle = [stay for stay in self._stays.values() if not stay.queue]
            if idle:
                min(idle, key=lambda stay: stay.idle_since).end_if_idle()

    def end_idle(self) -> None:
        """End all that nobody uses."""
        for stay in list(self._stays.values()):
            stay.end_if_idle()

    def on_closed(self) -> None:
        """Nobody who waits would get the lock any more."""
        why = "The ZooKeeper session of this process was closed."
        for stay in list(self._stays.values()):
            for turn in stay.waiting_turns():
                turn.conclude(stay, ZooKeeperUnavailable(why, lock=turn.spec.key))


def _copy(outcome: Outcome) -> Outcome:
    """Return an outcome for one turn. An error that two threads raise would show the frames of both."""
    copied = copy.copy(outcome)
    if isinstance(copied, Exception) and isinstance(outcome, Exception):
        copied.__cause__ = outcome.__cause__
    return copied


def _place(spec: QueueSpec) -> tuple[str, Kind, str | None]:
    return spec.parent, spec.kind, spec.compat
