"""
The contenders of this process for one key that wait: at most `most_waiting` of them have a znode.

The others wait in the local queue here, and enter ZooKeeper's queue in the order in which they came.

With `linger`, only one contender has a znode: it waits for the lock or has it. When it leaves, the next one here gets
the znode. If there is none, the lock is idle: it stays here for `linger` seconds, or until another process queues. So
the next user of this process gets the lock without a request to ZooKeeper.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from django_zklock.core import clock
from django_zklock.core.errors import UnreadableQueue
from django_zklock.core.protocol.own_node import PUBLISH_AFTER, Description, OwnNode
from django_zklock.core.queue import order, release_request
from django_zklock.core.zk.errors import ZkError
from django_zklock.core.zk.loop import NEVER
from django_zklock.core.zk.session import SessionObserver

if TYPE_CHECKING:
    from django_zklock.core.protocol.contender import Contender
    from django_zklock.core.protocol.grant import Grant
    from django_zklock.core.protocol.registry import Registry
    from django_zklock.core.zk.client import Watch
    from django_zklock.core.zk.gateway import NamesReply, Node

MAX_WAITING = 32  # contenders of this process that wait in one directory, each with a znode
KEPT: Final = "kept for the next user"
"""The work that the znode shows while the lock is idle."""
SHORTEST_PAUSE: Final = 0.001  # seconds
LOOK_AFTER: Final = 0.25  # seconds of idle time until the znode is watched, and at most between two looks


@dataclass(slots=True, eq=False)
class LocalQueue:
    """The contenders of this process for one key. It exists as long as any wait."""

    _drop: Callable[[], object]  # called when no contender waits any more
    most_waiting: int = MAX_WAITING
    _admitted: dict[Contender, None] = field(default_factory=dict)  # those that may be in ZooKeeper's queue
    _queue: dict[Contender, None] = field(default_factory=dict)  # first come, first served
    _admitting: bool = False

    @property
    def length(self) -> int:
        """How many contenders wait here."""
        return len(self._queue)

    @property
    def waiting(self) -> int:
        """How many contenders of this process wait, here or in ZooKeeper."""
        return len(self._admitted) + self.length

    @property
    def first(self) -> Contender | None:
        """The contender that all others here wait for, if there is one; from any thread."""
        return None

    def admit(self, contender: Contender) -> bool:
        """Admit a contender if there is room. Return whether it may enter ZooKeeper's queue now."""
        if len(self._admitted) < self.most_waiting:  # then nobody waits here
            self._admitted[contender] = None
        return contender in self._admitted

    def has(self, contender: Contender) -> bool:
        """Return whether a contender waits here, and not in ZooKeeper's queue; from any thread."""
        return contender in self._queue

    def append(self, contender: Contender) -> None:
        """Have a contender wait until it is admitted."""
        self._queue[contender] = None

    def admit_now(self, contender: Contender) -> None:
        """Admit a contender that waits here, even if there is no room."""
        del self._queue[contender]
        self._admitted[contender] = None
        contender.on_admitted()

    def keeps(self, contender: Contender, own: OwnNode) -> bool:
        """Return whether a contender that has the lock now by its znode stays here. Otherwise it is removed."""
        self.remove(contender)
        return False

    def passes_on(self, contender: Contender, own: OwnNode) -> bool:
        """Return whether the znode of a contender that leaves stays here."""
        return False

    def remove(self, contender: Contender) -> None:
        """Remove a contender, and admit the next one."""
        self._admitted.pop(contender, None)
        self._queue.pop(contender, None)
        self._admit_next()

    def _admit_next(self) -> None:
        if self._admitting:
            return  # the loop below is running, and has called this
        self._admitting = True
        try:
            while self._queue and len(self._admitted) < self.most_waiting:
                LocalQueue.admit_now(self, next(iter(self._queue)))
        finally:
            self._admitting = False
        if self._is_empty:
            self._drop()

    @property
    def _is_empty(self) -> bool:
        return not self._admitted


class LingeringQueue(LocalQueue, SessionObserver):
    """The contenders with `linger` of this process for one key, and the lock while it is here."""

    def __init__(self, drop: Callable[[], object], registry: Registry, parent: str) -> None:
        super().__init__(drop, most_waiting=1)
        self._registry = registry
        self._session = registry.session
        self._parent = parent
        self._alone: dict[Contender, None] = {}  # those that wait here, and have a znode of their own
        self._own: OwnNode | None = None  # by which the lock is here
        self._has_others: bool | None = None  # whether another process waits for the lock; None: not known yet
        self._watch: Watch | None = None  # of the directory
        self._keeper: Contender | None = None  # the last one that had the lock
        self._idle_since = 0.0  # on clock.now()
        self._timer = NEVER

    @property
    def first(self) -> Contender | None:
        return next(iter(list(self._admitted)), None)

    def has(self, contender: Contender) -> bool:
        return contender in self._queue and contender not in self._alone

    @property
    def _is_empty(self) -> bool:
        return not self._admitted and self._own is None

    def admit(self, contender: Contender) -> bool:
        own = self._idle()
        if own is None:
            return contender in self._alone or super().admit(contender)
        self._admitted[contender] = None
        if self._session.suspect or not self._session.lease.valid:
            self.end()
        else:
            del self._registry.idle[self]
            if clock.now() - self._idle_since > LOOK_AFTER:
                self._timer.cancel()  # else it serves the next idle time, too: most end before
            contender.use(own)
        return True

    def admit_now(self, contender: Contender) -> None:
        """Let a contender enter ZooKeeper's queue, too. It keeps its place here."""
        self._alone[contender] = None
        contender.on_admitted()

    def remove(self, contender: Contender) -> None:
        self._alone.pop(contender, None)
        if self._own is not None and self._own.user is contender:
            self._forget()
        super().remove(contender)

    def keeps(self, contender: Contender, own: OwnNode) -> bool:
        if own is not self._own:  # ZooKeeper has just granted it
            self._queue.pop(contender, None)
            self._alone.pop(contender, None)
            self._admitted[contender] = None
            self._own = own
            self._session.observers[self] = None
            self._watch_others()
        self._look_later(LOOK_AFTER)
        return True

    # --- from user to user ------------------------------------------------------------------------------------------

    def passes_on(self, contender: Contender, own: OwnNode) -> bool:
        if not self._may_stay(contender, own):
            return False
        del self._admitted[contender]
        heir = next(iter(self._queue), None)
        if heir is not None:
            del self._queue[heir]
            self._alone.pop(heir, None)
            self._admitted[heir] = None
            heir.attempt(heir.continue_with, own)
            return True
        own.user = self
        self._keeper, self._idle_since = contender, clock.now()
        idle = self._registry.idle
        idle[self] = None
        self._look_later(min(contender.spec.linger, LOOK_AFTER))
        if len(idle) > self._session.options.max_lingering:
            next(iter(idle)).end()
        return True

    def _may_stay(self, contender: Contender, own: OwnNode) -> bool:
        """Return whether the next user can go on with the znode of this contender, and may."""
        if self._session.closing or contender not in self._admitted:
            return False
        grant = contender.grant
        if grant is None:  # what others know of its wait must not be taken for that of the next one
            return bool(self._queue) and not contender.tells_wait
        if own is not self._own or not _is_as_granted(grant):
            return False
        if self._has_others and not self._queue:
            return False
        return self._has_others is False or clock.now() < own.granted_at + contender.spec.linger

    # --- while the lock is idle -------------------------------------------------------------------------------------

    def _idle(self) -> OwnNode | None:
        """Return the znode by which the lock is here, if nobody uses it."""
        return self._own if self in self._registry.idle else None

    def _look_later(self, seconds: float) -> None:
        """Look in so many seconds at most. One timer serves all short uses and idle times."""
        if not self._timer.pending:
            self._timer = self._session.loop.call_later(max(seconds, SHORTEST_PAUSE), self._look)

    def _look(self) -> None:
        idle, own, user = self._idle(), self._own, self.first
        if idle is not None and self._keeper is not None:
            self._look_after(idle, self._keeper.spec.linger + self._idle_since - clock.now())
        elif own is not None and user is not None and user.grant is not None:
            lasted = clock.now() - user.grant.since
            if lasted < LOOK_AFTER:
                self._look_later(LOOK_AFTER - lasted)
            else:
                own.look()  # what it reads has the user describe itself

    def _look_after(self, own: OwnNode, remaining: float) -> None:
        """End the idle time when it is over. Until then, watch the znode, and show others that the lock is idle."""
        idle = clock.now() - self._idle_since
        if remaining <= 0:
            self.end()
            return
        if own.watch is None:
            own.look()
        if idle < PUBLISH_AFTER:
            self._look_later(min(remaining, LOOK_AFTER))
            return
        since = (datetime.now(UTC) - timedelta(seconds=idle)).isoformat(timespec="milliseconds")
        own.show(Description(os.getpid(), KEPT, idle=since))
        self._look_later(remaining)

    def end(self) -> None:
        """Release the lock if it is idle."""
        keeper = self._keeper
        if self in self._registry.idle and keeper is not None:
            self._forget()
            keeper.delete()
            self._admit_next()

    def _forget(self) -> None:
        """The lock is no longer here."""
        self._own = self._keeper = self._has_others = None
        self._unwatch()
        self._timer.cancel()
        self._registry.idle.pop(self, None)
        self._session.observers.pop(self, None)

    def attempt(self, call: Callable[..., object], *args: Any) -> None:
        call(*args)

    def on_node_read(self, node: Node) -> None:
        if release_request.requested(node.data) is not None:
            self.end()

    def on_node_missing(self) -> None:
        self._forget()
        self._admit_next()

    def on_node_refused(self, error: ZkError) -> None: ...

    def on_suspect(self, reason: str) -> None:
        self.end()

    def on_session_lost(self) -> None:
        own = self._idle()
        if own is not None:
            own.forget()
            self.on_node_missing()

    def on_connected(self, *, resumed: bool) -> None:
        self._watch_others()

    # --- waiters of other processes ---------------------------------------------------------------------------------

    def _watch_others(self) -> None:
        self._unwatch()
        self._has_others = None
        own = self._own

        def on_names(reply: NamesReply) -> None:
            if own is None or own.node is None or own is not self._own or isinstance(reply, ZkError):
                return  # without a connection, the lock is in doubt
            name = own.node.name
            try:
                self._has_others = any(child.name != name for child in order.ordered(reply))
            except UnreadableQueue:
                self._has_others = True
            if self._has_others:
                self._unwatch()
                self.end()

        def on_changed(deleted: bool) -> None:
            self._watch_others()

        self._watch = self._session.gateway.children(self._parent, on_names, on_changed)

    def _unwatch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()


def _is_as_granted(grant: Grant) -> bool:
    """Return whether nothing has happened to a lock, or was written into its znode, that is about its user alone."""
    return not grant.tells_wait and not grant.has_events and grant.why_invalid() is None
