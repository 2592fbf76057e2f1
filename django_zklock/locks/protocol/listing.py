"""
List the directory of one key once for all contenders of this process that ask at the same time.

With n contenders in one directory, n listings of n names would keep the server and this process busy with little else.
So at most one listing is under way. The next one serves all requests that are made meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TypeAlias

from django_zklock.log import Logger
from django_zklock.queue.order import Queue, ordered
from django_zklock.zk.errors import ZkError
from django_zklock.zk.gateway import Callback, Gateway, NamesReply, NodeReply

logger = Logger("django_zklock.locks")


class ListedNames:
    """The names in a directory. The queue is computed once, for all contenders that get this listing."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    @cached_property
    def queue(self) -> Queue:
        """The contenders in their order. Raises `UnreadableQueue`."""
        return ordered(self.names)


ListingReply: TypeAlias = ListedNames | ZkError


class SharedListing:
    """The listings of one directory: one under way, and the next one if it is wanted. Without any, it is dropped."""

    __slots__ = ("_callbacks", "_drop", "_gateway", "_next", "_next_synced", "_parent", "_synced")

    def __init__(self, gateway: Gateway, parent: str, drop: Callable[[str], object]) -> None:
        self._parent = parent
        self._gateway = gateway
        self._drop = drop  # called with the parent when nothing is under way any more
        self._callbacks: list[Callback[ListingReply]] | None = None  # of the listing under way, if there is one
        self._synced = False  # whether that listing comes after a sync, and no create was sent since
        self._next: list[Callback[ListingReply]] = []  # for the next listing
        self._next_synced = False

    @property
    def waiting(self) -> int:
        """How many callbacks wait for a listing."""
        return len(self._callbacks or ()) + len(self._next)

    def create_and_list(
        self, prefix: str, data: bytes, on_created: Callback[NodeReply], on_listed: Callback[ListingReply]
    ) -> None:
        """Create a znode and list the directory, together if no listing is under way."""
        if self._callbacks is not None:
            self._gateway.create_and_list(self._parent, prefix, data, on_created, None)
            self._next.append(on_listed)  # the one under way was sent before the create
            self._synced = False  # so it does not show the outcome of this create either
            return
        self._callbacks, self._synced = [on_listed], False
        self._gateway.create_and_list(self._parent, prefix, data, on_created, self._on_listed)

    def names(self, callback: Callback[ListingReply], *, after_sync: bool = False) -> None:
        """
        List the directory as it is after this call.

        With `after_sync`, the server syncs with the leader of the ensemble first. Then the listing shows the outcome of
        requests whose replies were lost with an earlier connection. One such listing serves all contenders that need
        it.
        """
        if self._callbacks is None:
            self._send([callback], synced=after_sync)
        elif after_sync and self._synced:
            self._callbacks.append(callback)
        else:
            self._next.append(callback)
            self._next_synced = self._next_synced or after_sync

    def _send(self, callbacks: list[Callback[ListingReply]], *, synced: bool) -> None:
        self._callbacks, self._synced = callbacks, synced
        if synced:
            self._gateway.children_after_sync(self._parent, self._on_listed)
        else:
            self._gateway.children(self._parent, self._on_listed)

    def _on_listed(self, reply: NamesReply) -> None:
        callbacks, self._callbacks = self._callbacks or [], None
        if self._next:
            waiting, self._next = self._next, []
            synced, self._next_synced = self._next_synced, False
            self._send(waiting, synced=synced)
        else:
            self._drop(self._parent)
        listed = reply if isinstance(reply, ZkError) else ListedNames(reply)
        for callback in callbacks:
            try:
                callback(listed)
            except Exception:
                # The failure of one contender must not keep the reply from the others.
                logger.exception("%r failed on a listing", callback)
