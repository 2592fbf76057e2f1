"""Knows how to read all queues in a few round trips; knows nothing of what is done with them."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from django_zklock.exceptions import UnreadableQueue
from django_zklock.inspection.found import Found, holds_over
from django_zklock.inspection.servertime import ServerTime
from django_zklock.locks.protocol.registry import Registry
from django_zklock.queue import order, signs, standing
from django_zklock.queue.names import MAX_KEY
from django_zklock.queue.nodes import Kind, own_limit
from django_zklock.queue.order import Queue
from django_zklock.queue.segments import SEQUENCE_TAIL, shown
from django_zklock.zk import clock
from django_zklock.zk.errors import NodeMissing, OutcomeUnknown, SessionGone
from django_zklock.zk.gateway import Gateway, NamesReply, Node, NodeReply
from django_zklock.zk.loop import Timer
from django_zklock.zk.requests import OnConnected
from django_zklock.zk.session import Session

FIRST: Final = 32  # requests under way at first
AT_ONCE: Final = 128  # the same once the answers have turned out to come fast
LEAST: Final = 8  # the same while they come slowly, as each may bring a megabyte
SLOW_SHARE: Final = 1 / 80  # of the session timeout: an answer that takes longer is slow; at 1/6 the session gives up
BIG: Final = 64 * 1024  # bytes in a node that no contender needs
KEPT: Final = 256  # bytes kept of such a one
LISTING_SHARE: Final = 2 / 3  # of the time; the rest is for reading who is in the queues
MAX_NOTES: Final = 10
MOST_READ: Final = 5000  # nodes that are read, unless those of holders and first waiters are more, or all are wanted

NO_TIME: Final = "There was no time for the rest."


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is read."""

    max_locks: int | None  # of those with the most waiters; None: all
    max_waiters: int | None  # of each lock, and at least the first, for its age; None: all
    key: str = ""  # the one lock that is looked at; empty: all of them


class Walk:
    """
    One walk through the tree, level by level; it runs on the protocol's thread, and ends in time.

    First all directories are listed, then the nodes of those contenders that matter are read, the first of each queue
    first. Requests are sent many at a time, so a level of the tree costs few round trips. There are never so many under
    way that the request of a lock, or a heartbeat, would have to wait behind them for long.
    """

    def __init__(self, session: Session, extent: Extent, patience: float, done: Callable[[Found], object]) -> None:
        self._session = session
        self._extent = extent
        self._patience = patience
        self._done: Callable[[Found], object] | None = done
        self._gateway: Gateway
        self._timers: list[Timer] = []
        self._turn = 0  # answers from before the connection broke are nobody's
        self.began = clock.now()
        self._reset()

    def _reset(self) -> None:
        self._to_ask: deque[Callable[[], object]] = deque()
        self._under_way = 0
        self._at_once = FIRST
        self._sent_at = 0.0  # when the last of them were, on clock.now()
        self._queues: dict[str, Queue] = {}
        self._unreadable: dict[str, tuple[int, str]] = {}
        self._chosen: dict[str, Queue] = {}
        self._nodes: dict[tuple[str, str], Node | None] = {}
        self._to_read: set[tuple[str, str]] = set()  # those that are read in any case, by key and name
        self._notes: list[str] = []
        self._total = 0
        self._reading = False
        self._listed = False
        self._problem = ""

    # --- life ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin as soon as there is a connection."""
        self._timers = [
            self._session.loop.call_later(self._patience * LISTING_SHARE, self._end_listing),
            self._session.loop.call_later(self._patience, self._stop),
        ]
        self._session.attached(OnConnected).call(self._on_connected)

    def _on_connected(self) -> None:
        self._turn += 1
        self._reset()
        self._gateway = self._session.attached(Registry).gateway
        self._session.attached(ServerTime).refresh(self._gateway)
        self._to_ask.append(functools.partial(self._list, self._extent.key))
        self._proceed()

    def _end_listing(self) -> None:
        if self._done is not None and not self._reading and self._queues:
            self._problem = NO_TIME
            self._turn += 1
            self._under_way = 0
            self._read_chosen()
            self._proceed()

    def _stop(self) -> None:
        if self._done is None:
            return
        if not self._session.connected:
            self._problem = self._session.explain()
        else:
            self._problem = self._problem or NO_TIME
        self._conclude()

    # --- asking -------------------------------------------------------------------------------------------------

    def _proceed(self) -> None:
        if self._done is None:
            return
        if not self._to_ask and not self._under_way:
            if self._reading:
                self._conclude()
                return
            self._listed = True
            self._read_chosen()
            if not self._to_ask:
                self._conclude()
                return
        if self._to_ask and self._under_way <= self._at_once // 2:
            # More are sent once half of them are answered, together; so the line is never idle.
            self._at_once = min(2 * self._at_once, AT_ONCE)
            self._sent_at = clock.now()
            turn = self._turn
            while self._to_ask and self._under_way < self._at_once and turn == self._turn:
                self._under_way += 1
                self._to_ask.popleft()()

    def _taking(self, call: Callable[[str, Any], None], subject: str) -> Callable[[Any], None]:
        turn = self._turn
        sent_at = self._sent_at

        def take(answer: Any) -> None:
            if turn != self._turn or self._done is None:
                return
            self._under_way -= 1
            if clock.now() - sent_at > self._session.timeout * SLOW_SHARE:
                self._at_once = LEAST
            if isinstance(answer, (OutcomeUnknown, SessionGone)):
                self._turn += 1
                self._session.attached(OnConnected).call(self._on_connected)
                return
            call(subject, answer)
            self._proceed()

        return take

    def _list(self, key: str) -> None:
        self._gateway.children(self._path(key), self._taking(self._on_listed, key))

    def _on_listed(self, key: str, answer: NamesReply) -> None:
        if isinstance(answer, list):
            self._sort(key, answer)
        elif isinstance(answer, NodeMissing):
            pass  # nobody is in that queue any more
        elif key == self._extent.key:
            self._problem = str(answer)
        else:
            self._note(f"{key} can't be looked at: {answer}")

    def _sort(self, key: str, names: list[str]) -> None:
        contending = [name for name in names if SEQUENCE_TAIL.search(name)]
        found = set(contending)
        if contending and key:
            try:
                self._queues[key] = order.ordered(
                    name for name in names if name in found or name.startswith(signs.START)
                )
            except UnreadableQueue as error:
                self._unreadable[key] = len(contending), str(error)
        if len(contending) < len(names) and not self._extent.key:
            self._descend(key, [name for name in names if name not in found])

    def _descend(self, key: str, names: list[str]) -> None:
        for name in names:
            # What begins with "!" is no part of a key.
            if name.startswith("!"):
                continue
            below = f"{key}/{name}" if key else name
            if below.isprintable() and len(below) <= MAX_KEY:
                self._to_ask.append(functools.partial(self._list, below))
            else:
                self._note(f"{shown(below)} can be no lock's name, and was passed over.")

    def _read_chosen(self) -> None:
        self._reading = True
        self._at_once = min(self._at_once, FIRST)  # how much each answer brings is not known yet
        self._to_ask.clear()
        extent = self._extent
        keys = sorted(self._queues)
        self._total = len(keys) + len(self._unreadable)
        if extent.max_locks is not None and self._total > extent.max_locks:
            self._unreadable = dict(sorted(self._unreadable.items())[: extent.max_locks])
            room = extent.max_locks - len(self._unreadable)
            keys = sorted(sorted(keys, key=lambda key: -len(self._queues[key]))[:room])
        self._chosen = {key: self._queues[key] for key in keys}
        to_read: list[tuple[int, str, str]] = []
        for key, queue in self._chosen.items():
            holders = standing.holders(queue)
            end = len(queue) if extent.max_waiters is None else holders + max(1, extent.max_waiters)
            to_read += [(max(0, place - holders + 1), key, child.name) for place, child in enumerate(queue[:end])]
        to_read.sort()
        if extent.max_waiters is not None:
            del to_read[max(MOST_READ, sum(each[0] < 2 for each in to_read)) :]
        self._to_ask.extend(functools.partial(self._read, key, name) for _, key, name in to_read)
        self._to_read = {(key, name) for _, key, name in to_read}
        set_ = ((key, queue.sign.name) for key, queue in self._chosen.items() if queue.sign is not None)
        self._to_ask.extend(functools.partial(self._read, key, name) for key, name in set_)

    def _read(self, key: str, name: str) -> None:
        def read(path: str, answer: NodeReply) -> None:
            if isinstance(answer, Node) and len(answer.data) > BIG:
                answer = replace(answer, data=answer.data[:KEPT])
            if isinstance(answer, Node):
                self._nodes[key, name] = answer
                self._read_holders(key, answer)
            elif isinstance(answer, NodeMissing):
                self._nodes[key, name] = None
            else:
                self._note(f"{path} can't be read: {answer}")

        path = f"{self._path(key)}/{name}"
        self._gateway.read(path, self._taking(read, path))

    def _read_holders(self, key: str, told: Node) -> None:
        """
        Have more of a semaphore read, once one has told how many permits there are, if nobody else does.

        Who knows of more permits than all those who were read is not found, if it stands behind as many.
        """
        queue = self._chosen[key]
        if queue.limit is not None or queue[0].kind is not Kind.LEASE:
            return
        end = own_limit(told.data) + max(1, self._extent.max_waiters or 0)
        for child in queue[:end]:
            if (key, child.name) not in self._to_read:
                self._to_read.add((key, child.name))
                self._to_ask.append(functools.partial(self._read, key, child.name))

    def _path(self, key: str) -> str:
        base = self._session.options.base
        return f"{base}/{key}" if key else base

    def _note(self, text: str) -> None:
        if len(self._notes) < MAX_NOTES:
            self._notes.append(text)

    # --- the end ------------------------------------------------------------------------------------------------

    def _conclude(self) -> None:
        done, self._done = self._done, None
        self._session.attached(OnConnected).cancel(self._on_connected)
        for timer in self._timers:
            timer.cancel()
        if done is None:
            return
        ended = clock.now()
        time = self._session.attached(ServerTime)
        youngest = max((node.ctime for node in self._nodes.values() if node is not None), default=0.0)
        done(
            Found(
                base=self._session.options.base,
                queues=self._chosen,
                nodes=self._nodes,
                unreadable=self._unreadable,
                max_waiters=self._extent.max_waiters,
                total=self._total,
                notes=tuple(self._notes),
                ended=ended,
                began_at=time.at(self.began),
                taken_at=time.at(ended, youngest),
                listed=self._listed,
                problem=self._problem,
                over=holds_over(self._nodes, time.passed()),
            )
        )
