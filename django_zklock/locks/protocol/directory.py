"""
Share the directory of one key among the contenders of this process: one listing, and a bounded number of waiters.

With n contenders in one directory, n listings of n names would keep the server and this process busy with little else.
So at most one listing is under way, and one reply serves all requests that are made meanwhile. At most `most_waiting`
contenders wait in ZooKeeper. The others wait in the local queue here, and enter in the order in which they came. A
waiter with too little time left for a grant lets the others go first. Otherwise, under overload, each would enter just
before it gives up, and the queue would be busy with them.

Runs on the protocol's thread.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

from django_zklock import clock
from django_zklock.queue.order import Queue, ordered
from django_zklock.zk.gateway import Callback, Gateway, NamesReply, NodeReply

logger = logging.getLogger("django_zklock.locks")

MAX_WAITING = 32  # contenders of this process that wait in one directory, each with a znode
ENOUGH = 1.25  # a contender that enters should have this many times the wait of the last grant left


class Waiter(Protocol):
    """A contender that may have to wait in the local queue."""

    deadline: float | None
    """When it gives up, on `clock.now()`."""

    def on_admitted(self) -> None:
        """There is room in the directory: create the znode now."""


class Directory:
    """The directory of one key, as the contenders of this process share it."""

    most_waiting = MAX_WAITING  # a Celery worker, whose main process waits for the tasks of all others, sets more
    __slots__ = (
        "_admitting",
        "_asked",
        "_drop",
        "_gateway",
        "_late",
        "_local_queue",
        "_next",
        "_next_synced",
        "_parsed",
        "_synced",
        "_took",
        "_users",
        "_waiting",
        "parent",
    )

    def __init__(self, gateway: Gateway, parent: str, drop: Callable[[Directory], object]) -> None:
        self.parent = parent
        self._gateway = gateway
        self._drop = drop  # called when no contender uses this any more
        self._users = 0
        self._waiting: dict[Waiter, float] = {}  # those in ZooKeeper's queue, or about to enter it, and since when
        self._local_queue: OrderedDict[Waiter, None] = OrderedDict()  # first come, first served
        self._late: OrderedDict[Waiter, None] = OrderedDict()  # those of the local queue with too little time left
        self._took = 0.0  # seconds that the last granted contender had waited in ZooKeeper
        self._admitting = False
        self._asked: list[Callback[NamesReply]] | None = None  # for the listing that is under way, if there is one
        self._synced = False  # whether that listing comes after a sync, and after each create
        self._next: list[Callback[NamesReply]] = []  # for the next listing
        self._next_synced = False
        self._parsed: tuple[Any, Queue] | None = None  # the names of a listing, and their queue

    # --- the contenders -------------------------------------------------------------------------------------------

    def join(self) -> Directory:
        """Count one more contender; return this object."""
        self._users += 1
        return self

    def leave(self, waiter: Waiter) -> None:
        """Forget a contender that is gone, and let the next one enter."""
        self._stop_waiting(waiter)
        self._users -= 1
        self._drop_if_idle()

    def _drop_if_idle(self) -> None:
        if not self._users and self._asked is None:
            self._drop(self)

    # --- the local queue ------------------------------------------------------------------------------------------

    @property
    def in_local_queue(self) -> int:
        """How many contenders wait in the local queue."""
        return len(self._local_queue) + len(self._late)

    @property
    def waiting(self) -> int:
        """How many contenders have room, and are not granted yet."""
        return len(self._waiting)

    def admitted(self, waiter: Waiter) -> bool:
        """Return whether a contender has room, and is not granted yet."""
        return waiter in self._waiting

    def admit(self, waiter: Waiter) -> bool:
        """Return whether a contender may create its znode now; if not, it is in the local queue."""
        if waiter in self._waiting:
            return True
        if len(self._waiting) < self.most_waiting and not self._local_queue and not self._late:
            self._waiting[waiter] = clock.now()
            return True
        self._local_queue[waiter] = None
        return False

    def granted(self, waiter: Waiter) -> None:
        """Give the room of a contender that was granted to the next one in the local queue."""
        if waiter in self._waiting:
            self._took = clock.now() - self._waiting[waiter]
        self._stop_waiting(waiter)

    def _stop_waiting(self, waiter: Waiter) -> None:
        self._waiting.pop(waiter, None)
        self._local_queue.pop(waiter, None)
        self._late.pop(waiter, None)
        if self._admitting:
            return  # the call that is in the loop below continues
        self._admitting = True
        try:
            while (self._local_queue or self._late) and len(self._waiting) < self.most_waiting:
                now = clock.now()
                admitted = self._next_in_local_queue(now)
                self._waiting[admitted] = now
                admitted.on_admitted()
        finally:
            self._admitting = False

    def _next_in_local_queue(self, now: float) -> Waiter:
        first_late = next(iter(self._late), None)
        if first_late is None or not self._has_time(first_late, now):  # grants may be faster now
            while self._local_queue:
                waiter, _ = self._local_queue.popitem(last=False)
                if self._has_time(waiter, now):
                    return waiter
                self._late[waiter] = None
        return self._late.popitem(last=False)[0]

    def _has_time(self, waiter: Waiter, now: float) -> bool:
        return waiter.deadline is None or waiter.deadline - now >= ENOUGH * self._took

    # --- the listing ----------------------------------------------------------------------------------------------

    @property
    def asking(self) -> int:
        """How many callbacks wait for a listing."""
        return len(self._asked or ()) + len(self._next)

    def enter(self, prefix: str, data: bytes, on_created: Callback[NodeReply], on_listed: Callback[NamesReply]) -> None:
        """Create a znode and list the directory, together if no listing is under way."""
        if self._asked is not None:
            self._gateway.create_and_list(self.parent, prefix, data, on_created, None)
            self._next.append(on_listed)  # the one under way was sent before the create
            self._synced = False  # it does not show either whether this create was carried out
            return
        self._asked, self._synced = [on_listed], False
        self._gateway.create_and_list(self.parent, prefix, data, on_created, self._on_listed)

    def names(self, callback: Callback[NamesReply]) -> None:
        """List the directory as it is after this call."""
        if self._asked is not None:
            self._next.append(callback)
        else:
            self._send([callback], synced=False)

    def names_after_sync(self, callback: Callback[NamesReply]) -> None:
        """
        List the directory as the leader of the ensemble knows it, after a sync on the present connection.

        It shows the outcome of requests whose replies were lost with an earlier connection. One listing serves all
        contenders that need it.
        """
        if self._asked is not None and self._synced:
            self._asked.append(callback)
        elif self._asked is not None:
            self._next.append(callback)
            self._next_synced = True
        else:
            self._send([callback], synced=True)

    def read(self, names: list[str]) -> Queue:
        """Return the queue of a listing, parsed once for all that got it."""
        if self._parsed is None or self._parsed[0] is not names:
            self._parsed = (names, ordered(names))
        return self._parsed[1]

    def _send(self, callbacks: list[Callback[NamesReply]], *, synced: bool) -> None:
        self._asked, self._synced = callbacks, synced
        if synced:
            self._gateway.children_after_sync(self.parent, self._on_listed)
        else:
            self._gateway.children(self.parent, self._on_listed)

    def _on_listed(self, answer: NamesReply) -> None:
        asked, self._asked = self._asked or [], None
        if self._next:
            callbacks, self._next = self._next, []
            synced, self._next_synced = self._next_synced, False
            self._send(callbacks, synced=synced)
        for callback in asked:
            try:
                callback(answer)
            except Exception:
                # The failure of one contender must not keep the reply from the others.
                logger.exception("%r failed on a listing", callback)
        self._parsed = None
        self._drop_if_idle()
