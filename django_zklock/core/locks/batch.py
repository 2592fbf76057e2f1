"""The contenders of several locks that one owner wants: those whose locks are free enter their queues together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from django_zklock.core.protocol.contender import Contender, Outcome
from django_zklock.core.protocol.grant import Grant


class Batch:
    """
    Contenders that are started together, in the order of their keys. After `start`, the protocol's thread changes it.

    If the caller waits, the first contender enters its queue at once, and the others list theirs meanwhile. When the
    first lock is granted, the others enter, up to the first one whose lock is not free. Those behind it are abandoned,
    and have written nothing: the caller starts them again when that lock is granted. If the caller does not wait, all
    contenders enter when all locks are free.

    Another caller may enter a queue between the list and the create. Then a contender has to wait, and those behind it
    leave their queues. So a caller that waits is in queues of smaller keys only, and callers never wait for each other.
    """

    __slots__ = ("_free", "_has_entered", "_waits", "contenders")

    def __init__(self, contenders: Mapping[Any, Contender]) -> None:
        self.contenders = contenders  # by their waiters; replaced when some are abandoned
        self._waits = next(iter(contenders.values())).waits
        self._free: dict[Any, bool] = {}  # by waiter: whether its lock is free or granted, if that is known
        self._has_entered = False

    def start(self) -> None:
        """Start the contenders."""
        for index, (waiter, contender) in enumerate(self.contenders.items()):
            contender.on_queued = partial(self._on_queued, waiter, contender.on_queued)
            if index or not self._waits:
                contender.gate = partial(self._set_free, waiter)
            contender.start()

    def find(self, key: str) -> tuple[Any, Contender] | None:
        """Return the contender for this key, with its waiter."""
        return next((item for item in self.contenders.items() if item[1].spec.key == key), None)

    def set_outcome(self, waiter: Any, outcome: Outcome) -> Contender | None:
        """Record an outcome. Return its contender if the others will have none, because they do not enter."""
        if waiter not in self.contenders:
            return None
        self._set_free(waiter, isinstance(outcome, Grant))
        return None if self._waits or self._has_entered else self.contenders[waiter]

    def _set_free(self, waiter: Any, is_free: bool) -> None:
        self._free[waiter] = is_free
        if self._has_entered or self.contenders.keys() - self._free.keys():
            return
        busy = next((waiter for waiter in self.contenders if not self._free[waiter]), None)
        if busy is not None and not self._waits:
            return
        self._has_entered = True
        if busy is not None:
            self._abandon_behind(busy)
        for waiter, contender in self.contenders.items():
            if waiter in self.contenders and contender.gate is not None:  # else one ahead has to wait here
                contender.enter()

    def _on_queued(self, waiter: Any, report: Callable[[], object] | None) -> None:
        self._abandon_behind(waiter)
        if report is not None:
            report()

    def _abandon_behind(self, waiter: Any) -> None:
        waiters = list(self.contenders)
        behind = waiters[waiters.index(waiter) + 1 :] if waiter in self.contenders else []
        contenders = self.contenders
        self.contenders = {waiter: contenders[waiter] for waiter in waiters if waiter not in behind}
        for waiter in behind:
            contenders[waiter].abandon()
