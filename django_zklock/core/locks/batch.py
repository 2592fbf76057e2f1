"""Contenders of several locks that one owner wants: those whose locks are free enter their queues together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django_zklock.core.errors import ZkLockError
from django_zklock.core.protocol.contender import Contender, Outcome, Phase
from django_zklock.core.protocol.grant import Grant
from django_zklock.core.queue import order


class BatchContender(Contender):
    """A contender that looks whether its lock is free, tells its `gate`, and enters the queue when it may `proceed`."""

    __slots__ = ("gate",)
    gate: Callable[[bool], object] | None  # set before the start; None: it enters as any other contender

    def _join_queue(self) -> None:
        if self.gate is None:
            super()._join_queue()
        else:
            self._begin_peek()

    def _on_peeked(self, queue: order.Queue | ZkLockError | None) -> None:
        is_free = queue is None or (isinstance(queue, order.Queue) and self._is_free(queue))
        if self.gate is not None and (is_free or (self.waits and isinstance(queue, order.Queue))):
            self.gate(is_free)
        else:
            super()._on_peeked(queue)

    def proceed(self) -> None:
        """Pass the gate, and enter the queue unless it has left. On the protocol's thread."""
        self.gate = None
        self._forget_replies()  # it may peek again, after a loss of the connection
        if self._phase is Phase.PREPARING:  # else it waits for a session, and enters then
            create = self._join_queue if self.waits else self._create
            self._run(create if self.session.connected else self._await_session)

    def _abandon(self) -> None:
        self.gate = None
        super()._abandon()


class Batch:
    """
    Contenders that are started together, in the order of their keys.

    If the caller waits, the first one enters its queue at once, and the others list theirs meanwhile. When the first
    lock is granted, they enter, up to the first one whose lock is not free. Those behind it are abandoned, and have
    written nothing. If the caller does not wait, all contenders enter when all locks are free.

    Another caller may enter between the list and the create. Then a contender has to wait, and those behind it leave
    their queues. So a caller that waits is in queues of smaller keys only, and callers never wait for each other.
    """

    def __init__(self, contenders: dict[Any, BatchContender]) -> None:
        self.contenders = contenders  # by their waiters; changed by single operations
        self._waits = next(iter(contenders.values())).waits
        self._grantable: dict[Any, bool] = {}  # by waiter: whether its lock is free or granted, once that is known
        self._is_open = False  # protocol's thread only, as all that follows `start`

    def start(self) -> None:
        """Start the contenders."""
        for index, (waiter, contender) in enumerate(list(self.contenders.items())):
            contender.wait.on_queued = partial(self._on_queued, waiter, contender.wait.on_queued)
            contender.gate = None if self._waits and not index else partial(self._set_grantable, waiter)
            contender.start()

    def set_outcome(self, waiter: Any, outcome: Outcome) -> Contender | None:
        """Record an outcome. Return its contender if the first one will have none, because none enters."""
        if waiter not in self.contenders:
            return None
        self._set_grantable(waiter, isinstance(outcome, Grant))
        return None if self._waits or self._is_open else self.contenders[waiter]

    def _set_grantable(self, waiter: Any, is_grantable: bool) -> None:
        self._grantable[waiter] = is_grantable
        waiters = list(self.contenders)
        if self._is_open or any(waiter not in self._grantable for waiter in waiters):
            return
        busy = next((waiter for waiter in waiters if not self._grantable[waiter]), None)
        if busy is not None and not self._waits:
            return
        self._is_open = True
        self._abandon_behind(busy)
        for waiter in waiters:
            contender = self.contenders.get(waiter)  # None: one ahead has to wait
            if contender is not None and contender.gate is not None:
                contender.proceed()

    def _on_queued(self, waiter: Any, report: Any) -> None:
        self._abandon_behind(waiter)
        report()

    def _abandon_behind(self, waiter: Any) -> None:
        waiters = list(self.contenders)
        if waiter in waiters:
            for behind in waiters[waiters.index(waiter) + 1 :]:
                self.contenders.pop(behind).abandon()
