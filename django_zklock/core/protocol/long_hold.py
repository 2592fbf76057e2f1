"""Warn of a lock that is held for so long that others give up waiting for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from django_zklock.core import clock
from django_zklock.core.errors import UnreadableQueue
from django_zklock.core.log import Logger
from django_zklock.core.protocol.grant import Grant
from django_zklock.core.queue.nodes import Kind, parse
from django_zklock.core.queue.operator_hold import is_operator
from django_zklock.core.zk.errors import ZkError

if TYPE_CHECKING:
    from django_zklock.core.protocol.registry import ListingReply, Registry

logger = Logger("django_zklock.locks")

LOOKS: Final = (5.0, 10.0, 20.0, 40.0)  # seconds after the grant, at which the holder looks who waits
MOST_NAMED: Final = 1000  # locks; then all are forgotten, and may be named again


class LongHold:
    """
    Looks at the queue of a lock that is held for seconds; on the protocol's thread.

    A patient waiter, such as a task in line or the standby of a service, stays in the queue as long as the lock is
    held. A waiter that has gone meanwhile has given up. That is told once for each template and process.
    """

    def __init__(self, registry: Registry, grant: Grant) -> None:
        self._registry = registry
        self._grant = grant
        self._name = grant.template or grant.key
        self._looks = iter(LOOKS)
        self._waiters: frozenset[str] = frozenset()  # at the last look

    @staticmethod
    def matters(grant: Grant, lasts: str) -> bool:
        """Return whether others should not wait long for such a hold: no task, no leader, and none that is shared."""
        return not lasts and "task" not in grant.about and grant.kind in (Kind.LOCK, Kind.WRITE)

    def look_later(self) -> None:
        """Look at the next of these times, if there is one."""
        due = next(self._looks, None)
        if due is not None:
            self._registry.session.loop.call_later(max(0.0, self._grant.since + due - clock.now()), self._look)

    @property
    def _is_over(self) -> bool:
        return self._grant.released or self._grant.lost_reason is not None or self._name in self._registry.held_long

    def _look(self) -> None:
        if not self._is_over:
            self._registry.list_names(self._grant.path.rpartition("/")[0], self._on_listed)

    def _on_listed(self, reply: ListingReply) -> None:
        if self._is_over or isinstance(reply, ZkError):
            return
        try:
            waiters = frozenset(name for name in reply if parse(name) is not None and not is_operator(name))
        except UnreadableQueue:
            return  # its waiters are told
        gone, self._waiters = self._waiters - waiters, waiters
        if gone:
            self._warn(len(gone))
        else:
            self.look_later()

    def _warn(self, gone: int) -> None:
        grant = self._grant
        if len(self._registry.held_long) >= MOST_NAMED:  # a formatted name is no template: there may be millions
            self._registry.held_long.clear()
        self._registry.held_long.add(self._name)
        logger.warning(
            "lock %r has been held for %.0f s, and others (%d) have given up waiting for it. Make slow calls before or "
            "after the block, or bound it by max_hold",
            grant.key,
            clock.now() - grant.since,
            gone,
            about=grant.about,
            extra=grant.log_fields(),
        )
