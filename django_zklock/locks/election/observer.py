"""
Knows who leads: the first in a lock's queue, as others see it; and how to tell of each change, without polling.

Whoever is first has been granted the lead by ZooKeeper. Whether word of that has reached it yet, and whether it trusts
its lease still, only it can tell.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TypeAlias, TypeGuard, TypeVar

from django_zklock.exceptions import UnreadableQueue, ZkLockError, ZooKeeperUnavailable
from django_zklock.locks.looking import aseen, seen
from django_zklock.locks.protocol.operator_holds import read_hold
from django_zklock.locks.protocol.registry import Registry
from django_zklock.locks.protocol.replies import Turns
from django_zklock.queue import clients, order
from django_zklock.queue.nodes import Child, Payload
from django_zklock.queue.printable import printable
from django_zklock.zk import process
from django_zklock.zk.errors import NodeMissing, OutcomeUnknown, SessionGone, ZkError
from django_zklock.zk.gateway import Gateway, NamesReply, Node, NodeReply, Watch, WriteReply
from django_zklock.zk.loop import Timer
from django_zklock.zk.session import SessionObserver

_Value = TypeVar("_Value")

LOOK_AGAIN = 5.0
"""Seconds until an observer looks again that may not make the directory it would watch; the one case of polling."""
_SHORT = 120  # characters of a host
_LATEST = 253402300799.0  # seconds since 1970: the end of the year 9999


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Who leads, or stands by to do so. What a node cannot tell is empty or 0: another client's says little."""

    client: str
    """Which client it is of: "zklock", "Curator", "kazoo", or "unknown" if its node is not what its name promises."""
    what: str
    """The work it is for; of another client what that wrote, as the id of a `LeaderSelector` or of an `Election`."""
    host: str
    pid: int
    token: int
    """Of its own node: its fencing token when it leads. No two candidates have had the same."""
    since: datetime
    """When it came into the queue, by ZooKeeper's clock."""
    operator: str
    """Who keeps the lead from all processes until when and why, if it is a person's hold; else empty."""
    path: str
    """Of its node."""

    def __str__(self) -> str:
        """Return who it is, in a line."""
        if self.operator:
            return self.operator
        if self.client == clients.OURS:
            return f"{self.what!r} on {self.host}, process {self.pid}"
        name = f"{self.what!r}, " if self.what else ""
        kind = "an unknown kind" if self.client == clients.UNKNOWN else self.client
        host = f" on {self.host}" if self.host else ""
        return f"{name}a client of {kind}{host}, {self.path.rpartition('/')[2]}"


def _candidate(key: str, child: Child, node: Node) -> Candidate:
    payload = Payload.decode(node.data)
    said = clients.said(node.data) if payload is None else clients.Said(payload.host, payload.what)
    return Candidate(
        client=clients.client_of(child, payload),
        what=printable(said.what),
        host=printable(said.host, _SHORT),
        pid=0 if payload is None else payload.pid,
        token=node.czxid,
        since=datetime.fromtimestamp(min(max(node.ctime, 0.0), _LATEST), timezone.utc),
        operator=str(read_hold(key, node) or ""),
        path=node.path,
    )


# --- looking ----------------------------------------------------------------------------------------------------------


def who(key: str, parent: str) -> Candidate | None:
    """Return who is first in the queue now, or None if nobody is there. Raises `ZooKeeperUnavailable`."""
    while True:
        queue = seen(process.current(), key, parent, most=1)
        if not queue:
            return None
        child, node = queue[0]
        if node is not None:  # else it has left since, and somebody else is first
            return _candidate(key, child, node)


async def awho(key: str, parent: str) -> Candidate | None:
    """Do the same as `who`."""
    while True:
        queue = await aseen(process.current(), key, parent, most=1)
        if not queue:
            return None
        child, node = queue[0]
        if node is not None:
            return _candidate(key, child, node)


def candidates(key: str, parent: str, *, patience: float | None = None) -> tuple[Candidate, ...]:
    """Return who leads and who stands by, in order; the first fifty. Raises `ZooKeeperUnavailable`."""
    queue = seen(process.current(), key, parent, patience=patience)
    return tuple(_candidate(key, child, node) for child, node in queue if node is not None)


async def acandidates(key: str, parent: str) -> tuple[Candidate, ...]:
    """Do the same as `candidates`."""
    queue = await aseen(process.current(), key, parent)
    return tuple(_candidate(key, child, node) for child, node in queue if node is not None)


# --- watching ---------------------------------------------------------------------------------------------------------


class _Over:
    """Says that there is nothing more to be told."""


_News: TypeAlias = "Candidate | ZkLockError | _Over | None"


class Observation(SessionObserver):
    """
    Tells one observer who leads, and of each change; it lives on the protocol's thread.

    While somebody leads there is a watch on that one's node; while nobody is in the queue, one on the children of its
    directory. A missing directory has no children to watch, and an "exists" of it would leave a watch behind for ever
    (ZOOKEEPER-442). So the directory is made, and taken away at the end if nobody has come.
    """

    def __init__(self, key: str, parent: str) -> None:
        self._session = process.current()
        self._key = key
        self._parent = parent
        self._turns = Turns(key, self._on_failure)
        self._tell: Callable[[_News], object] | None = None
        self._ended = False
        self._told: list[int | None] = []  # the token that was told last, None for nobody; empty at first
        self._watch: Watch | None = None
        self._timer: Timer | None = None
        self._made = False  # the directory, with nobody in it since

    # --- from any thread ----------------------------------------------------------------------------------------

    def follow(self, timeout: float | None) -> Iterator[Candidate | None]:
        """Yield who leads, then each change, for at most `timeout` seconds (None: until it is stopped)."""
        news: queue.SimpleQueue[_News] = queue.SimpleQueue()
        deadline = None if timeout is None else time.monotonic() + timeout
        self._session.post(self._begin, news.put)
        try:
            while True:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                try:
                    found = news.get(timeout=left)
                except queue.Empty:
                    return
                if isinstance(found, _Over):
                    return
                if isinstance(found, ZkLockError):
                    raise found
                yield found
        finally:
            self.stop()

    async def afollow(self, timeout: float | None) -> AsyncIterator[Candidate | None]:
        """Do the same as `follow`; waiting costs no thread."""
        loop = asyncio.get_running_loop()
        news: asyncio.Queue[_News] = asyncio.Queue()
        deadline = None if timeout is None else time.monotonic() + timeout

        def tell(found: _News) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(news.put_nowait, found)

        self._session.post(self._begin, tell)
        try:
            while True:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                try:
                    found = await asyncio.wait_for(news.get(), left)
                except asyncio.TimeoutError:
                    return
                if isinstance(found, _Over):
                    return
                if isinstance(found, ZkLockError):
                    raise found
                yield found
        finally:
            self.stop()

    def stop(self) -> None:
        """End, and leave no watch behind; who iterates comes to the end."""
        self._session.post(self._end, _Over())

    # --- life ---------------------------------------------------------------------------------------------------

    def _begin(self, tell: Callable[[_News], object]) -> None:
        if self._ended:
            tell(_Over())  # stopped before it began
            return
        self._tell = tell
        if self._session.closing:
            self.on_closed()
            return
        self._session.observers[self] = None
        if self._session.connected:
            self._look()

    def _end(self, last: _News) -> None:
        self._ended = True
        tell, self._tell = self._tell, None
        if tell is None:
            return
        self._turns.next()
        self._rest()
        self._session.observers.pop(self, None)
        if self._made:
            # Which also ends the watch on it. Somebody's who came just now it is not: it would not be empty.
            self._gateway.delete(self._parent, lambda answer: None)
        tell(last)

    def _rest(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    @property
    def _gateway(self) -> Gateway:
        return self._session.attached(Registry).gateway

    def _on_failure(self, error: Exception) -> None:
        self._end(ZkLockError(f"Observing the lock failed: {error!r}.", lock=self._key))

    # --- who leads ----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        if self._tell is None:
            return
        self._turns.next()
        self._rest()
        self._gateway.children(self._parent, self._turns.pass_on(self._on_listed))

    def _on_listed(self, answer: NamesReply) -> None:
        if isinstance(answer, NodeMissing):
            self._say(None)
            self._gateway.ensure_path(self._parent, self._turns.pass_on(self._on_made))
        elif self._is_clear(answer):
            self._judge(answer, otherwise=self._await_somebody)

    def _on_made(self, answer: WriteReply) -> None:
        if isinstance(answer, (OutcomeUnknown, SessionGone)):
            return  # to be looked at again when connected
        if isinstance(answer, ZkError):
            self._timer = self._session.loop.call_later(LOOK_AGAIN, self._look)  # this account may only read
            return
        self._made = True
        self._await_somebody()

    def _await_somebody(self) -> None:
        """Nobody is in the queue: watch it, and look whether somebody has come meanwhile."""
        self._say(None)
        self._watch = self._gateway.children(
            self._parent, self._turns.pass_on(self._on_listed_again), self._turns.pass_on(lambda deleted: self._look())
        )

    def _on_listed_again(self, answer: NamesReply) -> None:
        if isinstance(answer, NodeMissing):
            self._look()
        elif self._is_clear(answer):
            self._judge(answer, otherwise=lambda: None)

    def _judge(self, names: list[str], *, otherwise: Callable[[], None]) -> None:
        try:
            queue = order.ordered(names)
        except UnreadableQueue as error:
            error.lock = self._key
            self._end(error)
            return
        if queue:
            self._made = False
            self._follow(queue[0])
        else:
            otherwise()

    def _follow(self, child: Child) -> None:
        """Read the node of who leads, and watch it."""
        self._rest()
        path = f"{self._parent}/{child.name}"

        def on_read(answer: NodeReply) -> None:
            if isinstance(answer, NodeMissing):
                self._look()
            elif self._is_clear(answer):
                self._say(_candidate(self._key, child, answer))

        def on_event(deleted: bool) -> None:
            if deleted:
                self._look()
            else:
                self._follow(child)  # only its data changed

        self._watch = self._gateway.read(path, self._turns.pass_on(on_read), self._turns.pass_on(on_event))

    def _is_clear(self, answer: _Value | ZkError) -> TypeGuard[_Value]:
        """Tell whether this is an answer; one that never came is asked for again when connected, a refusal ends it."""
        if isinstance(answer, ZkError) and not isinstance(answer, (OutcomeUnknown, SessionGone)):
            answer.lock = answer.lock or self._key
            self._end(answer)
        return not isinstance(answer, ZkError)

    def _say(self, found: Candidate | None) -> None:
        token = None if found is None else found.token
        if self._tell is not None and self._told != [token]:
            self._told = [token]
            self._tell(found)

    # --- the session's news -------------------------------------------------------------------------------------

    def on_connected(self, *, resumed: bool) -> None:
        """Look again: the watch has ended with the connection, and much may have happened."""
        self._look()

    def on_session_lost(self) -> None:
        """Wait for the next one."""
        self._turns.next()
        self._rest()

    def on_closed(self) -> None:
        """Who waits would wait in vain."""
        self._end(ZooKeeperUnavailable("The ZooKeeper session of this process was closed.", lock=self._key))
