"""Read the queues of all locks, or of one, in a few round trips."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeAlias

from django_zklock.core import clock
from django_zklock.core.protocol.operator_holds import HoldIndex, read_hold
from django_zklock.core.protocol.story import Request, Story, StoryRun
from django_zklock.core.queue import markers, order
from django_zklock.core.queue.escaping import SEQUENCE_DIGITS, SEQUENCE_TAIL, quoted, show_tails, shown_key
from django_zklock.core.queue.nodes import Kind
from django_zklock.core.queue.operator_hold import RESERVATIONS
from django_zklock.core.queue.order import Queue
from django_zklock.core.zk.errors import INTERRUPTED, NodeMissing, OutcomeUnknown, SessionGone, ZkError
from django_zklock.core.zk.gateway import CLOCK_NODE, Callback, Gateway, Node
from django_zklock.core.zk.session import Session
from django_zklock.exceptions import UnreadableQueue, ZkLockError
from django_zklock.inspection.info import NO_KEY, UNLISTED
from django_zklock.locks.holders import end_of_holders, holder_indexes, permit_limit, permits_at_front
from django_zklock.names.template import MAX_KEY, path

LIST_WINDOW: Final = 128  # lists of directories that are under way at a time
READ_WINDOW: Final = 32  # the same of reads; fewer, as each reply may have a megabyte
MAX_DATA: Final = 64 * 1024  # bytes in a znode; no contender needs more
MAX_HELD: Final = 16 * 1024 * 1024  # bytes of all znodes that a scan keeps; no ordinary scan needs a tenth of it
KEPT_DATA: Final = 256  # bytes that are kept of a znode that exceeds one of these limits
LISTING_SHARE: Final = 2 / 3  # of the time; the rest is for reading the contenders
MAX_SKIPPED: Final = 10
MAX_READS: Final = 5000  # znodes that are read, unless holders and first waiters are more, or all are requested

MARGIN: Final = 1.0  # seconds by which the monotonic clock may run ahead between two requests
REFRESH_INTERVAL: Final = 300.0  # seconds; the server's clock may be set, or another server may become the leader

TOO_SHORT: Final = (
    "The time was too short to read all locks. Raise `reply_timeout` of the admin class, or `--reply-timeout`."
)
TOO_MUCH: Final = f"The contenders have more than {MAX_HELD >> 20} MB of data in all, so not all of it was read."
SILENCE: Final = 0.9  # seconds without a reply after which a server is silent, and the time not just too short


_Requests: TypeAlias = "deque[tuple[Request, Callback[Any]]]"


@dataclass(frozen=True, slots=True)
class ScanLimits:
    """How much a scan reads."""

    max_locks: int | None
    """The locks with the most waiters are read, and reservations last; None: all."""
    max_waiters: int | None
    """The waiters of each lock that are read. The first one is always read, for its age. None: all."""
    key: str = ""
    """The one lock to read; empty: all locks."""
    words: tuple[str, ...] = ()
    """Locks whose keys contain all of these words are read first, whatever their waiters."""

    def is_first(self, key: str) -> bool:
        """Return True if a lock is read before those with more waiters."""
        return bool(self.words) and all(word in f"{key} {shown_key(key)}".casefold() for word in self.words)

    def rank(self, key: str, queue: Queue, *, wears: bool) -> tuple[bool, bool, bool, int]:
        """Return a value to sort by: the locks to read come first. There may be a reservation for each queued task."""
        return not self.is_first(key), not wears, key.startswith(f"{RESERVATIONS}/"), -len(queue)


@dataclass(slots=True, kw_only=True)
class ScanResult:
    """The result of a scan. The scan writes it on the protocol's thread, and then passes it on."""

    base: str
    max_waiters: int | None
    """How many waiters of each lock were requested; None: all."""
    queues: dict[str, Queue] = field(default_factory=dict)
    """The queues of which the contenders are read, sorted by key."""
    nodes: dict[tuple[str, str], Node | None] = field(default_factory=dict)
    """The znodes that were read, by key and name; None if the znode was gone."""
    unreadable: dict[str, tuple[int, str]] = field(default_factory=dict)
    """The number of contenders, and why their order is unknown, by key."""
    numbers_left: dict[str, int] = field(default_factory=dict)
    """By key, the sequence numbers that are left in directories that are worn out, or nearly so."""
    total: int = 0
    """The number of all queues."""
    skipped: tuple[str, ...] = ()
    ended: float = 0.0
    """On `clock.now()`."""
    ended_at: float = 0.0
    """In seconds since 1970 by ZooKeeper's clock."""
    listed: bool = False
    """Whether all directories were listed."""
    problem: str = ""
    """Why the result is incomplete; empty if it is complete."""
    silent: bool = False
    """Whether the time was over because replies had stopped, or because there was no connection."""
    expired_holds: frozenset[tuple[str, str]] = frozenset()
    """Operator holds whose time is over, by key and name. The scan has some of them deleted."""

    def holders(self, key: str) -> tuple[int, ...]:
        """Return the indexes of the holders in a queue."""
        queue = self.queues[key]
        limits: dict[str, int] = {}
        for name in permits_at_front(queue):
            node = self.nodes.get((key, name))
            if node is not None:
                limits[name] = self.permit_limit(key, node)
        indexes = holder_indexes(queue, limits)
        return tuple([index for index in indexes if (key, queue[index].name) not in self.expired_holds])

    def permit_limit(self, key: str, node: Node) -> int:
        """Return the limit by which the contender with this znode holds a permit, if it wants one."""
        queue = self.queues[key]
        marker = self.nodes.get((key, queue.limit_marker))
        return permit_limit(queue, node.data, None if marker is None or node.czxid > marker.czxid else marker.data)


@dataclass(eq=False)
class Scan:
    """
    One scan. It runs on the protocol's thread, and ends when its time is over.

    First all directories are listed, level by level. Then the znodes of the contenders are read, the first contender
    of each queue first. Many requests are sent at a time, so that a level costs few round trips. Their number is
    fixed, so that no lock or heartbeat of this process waits behind them for long.
    """

    _session: Session
    _limits: ScanLimits
    _reply_timeout: float
    _done: Callable[[ScanResult], object]

    def __post_init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._result = ScanResult(base=self._session.options.base, max_waiters=self._limits.max_waiters)
        self._requests: _Requests = deque()  # those of the present step that are not sent yet
        self._replied = clock.now()
        self._listed_queues: dict[str, Queue] = {}
        self._held = 0  # bytes of data in the znodes of the result
        self._reads: set[tuple[str, str]] = set()  # by key and name
        self._reading = False

    def begin(self) -> None:
        """Begin as soon as there is a connection, and again after each loss of it."""
        self._timers = [
            self._session.loop.call_later(self._reply_timeout * LISTING_SHARE, self._on_listing_timeout),
            self._session.loop.call_later(self._reply_timeout, self._on_timeout),
        ]
        self._run = StoryRun(self._session, self._scan, self._on_end)
        self._run.begin()

    def _scan(self) -> Story[None]:
        self._reset()
        self._session.attached(ServerTime).refresh(self._session.gateway)
        self._list(self._limits.key)
        yield partial(self._send, LIST_WINDOW)
        self._result.listed = True
        yield from self._read_contenders()

    def _on_listing_timeout(self) -> None:
        if not self._reading and self._listed_queues:
            self._result.problem = TOO_SHORT
            self._run.run(self._read_contenders())

    def _on_timeout(self) -> None:
        silence, connected = clock.now() - self._replied, self._session.connected
        self._result.silent = silence > SILENCE or not connected
        problem = self._session.explain(silence if connected else None) if self._result.silent else ""
        self._result.problem = problem or self._result.problem or TOO_SHORT
        self._run.conclude(None)

    def _on_end(self, error: ZkLockError | None) -> None:
        if error is not None:
            self._result.problem = str(error)
        self._finish()

    # --- Requests -----------------------------------------------------------------------------------------------

    def _send(self, window: int, done: Callback[Any]) -> None:
        """Send the requests of this step, and those that their replies add, so many at a time."""
        requests, pending = self._requests, 0

        def proceed() -> None:
            nonlocal pending
            if not requests and not pending:
                done(None)
            elif pending <= window // 2:
                # The next ones are sent together once half of them are answered, so some are always on the way.
                while requests and pending < window:
                    pending += 1
                    request, callback = requests.popleft()
                    request(partial(on_reply, callback))

        def on_reply(callback: Callback[Any], reply: object) -> None:
            nonlocal pending
            if requests is not self._requests:
                return  # that step is over
            pending -= 1
            self._replied = clock.now()
            if isinstance(reply, INTERRUPTED):
                requests.clear()
                done(reply)
            else:
                callback(reply)
                proceed()

        proceed()

    def _path(self, key: str) -> str:
        base = self._session.options.base
        return path(base, key) if key else base

    def _skip(self, text: str) -> None:
        if len(self._result.skipped) < MAX_SKIPPED and text not in self._result.skipped:
            self._result.skipped += (text,)

    # --- First step: list the directories -----------------------------------------------------------------------

    def _list(self, key: str) -> None:
        request = partial(self._session.gateway.children_and_count, self._path(key))
        self._requests.append((request, partial(self._on_listed, key)))

    def _on_listed(self, key: str, reply: tuple[list[str], int] | ZkError) -> None:
        if isinstance(reply, NodeMissing):
            return  # the queue has become empty
        if isinstance(reply, ZkError):
            if key:
                self._result.unreadable[key] = 0, f"{UNLISTED} {reply}"
            else:
                self._result.problem = str(reply)
            return
        # Only the ends are searched: the names are long, and there are many.
        names, created = reply
        others = [name for name in names if not SEQUENCE_TAIL.match(name[-SEQUENCE_DIGITS:])]
        contenders = len(names) - len(others)
        # Above other keys, an empty directory may be no lock at all. Then its counter does not matter.
        is_wearing = order.numbers_left(created) <= order.WEARING_FROM and (contenders or not others)
        if key and is_wearing:
            self._result.numbers_left[key] = order.numbers_left(created)
        if key and (contenders or is_wearing):
            try:
                self._listed_queues[key] = order.ordered(sorted(names))  # each process names the same znode
            except UnreadableQueue as error:
                self._result.unreadable[key] = contenders, str(error)
        self._delete_marker(key, () if contenders else others)
        for name in others:
            if self._limits.key or markers.is_marker(name):
                continue
            below = show_tails(f"{key}/{name}" if key else name)
            if below.isprintable() and len(below) <= MAX_KEY:
                self._list(below)
            else:
                self._skip(f"{quoted(below)} {NO_KEY}")

    def _delete_marker(self, key: str, names: Collection[str]) -> None:
        """Delete the marker of a limit that was cleared: the last contender has left it."""
        if (name := markers.limit_marker(0)) in names:
            self._session.gateway.delete(f"{self._path(key)}/{name}")

    # --- Second step: read the contenders -----------------------------------------------------------------------

    def _read_contenders(self) -> Story[None]:
        self._reading = True
        self._requests = deque()
        limits, result = self._limits, self._result
        keys = sorted(self._listed_queues)
        result.total = len(keys) + len(result.unreadable)
        if limits.max_locks is not None and result.total > limits.max_locks:
            wanted = sorted(result.unreadable, key=lambda key: (not limits.is_first(key), key))[: limits.max_locks]
            result.unreadable = {key: result.unreadable[key] for key in wanted}
            room = limits.max_locks - len(wanted)
            queues, wearing = self._listed_queues, result.numbers_left
            keys.sort(key=lambda key: limits.rank(key, queues[key], wears=key in wearing))
            keys = sorted(keys[:room])
        result.queues = {key: self._listed_queues[key] for key in keys}
        reads: list[tuple[int, str, str]] = []  # with the rank among the waiters; 0 for holders
        for key, queue in result.queues.items():
            first_waiter = end_of_holders(queue)
            end = len(queue) if limits.max_waiters is None else first_waiter + max(1, limits.max_waiters)
            reads += [
                (max(0, index - first_waiter + 1), key, child.name) for index, child in enumerate(queue.children[:end])
            ]
        reads.sort()
        if limits.max_waiters is not None and len(reads) > MAX_READS:
            del reads[max(MAX_READS, sum(rank < 2 for rank, _, _ in reads)) :]
        marked = [(0, key, queue.limit_marker) for key, queue in result.queues.items() if queue.limit_marker]
        for _, key, name in marked + reads:  # the markers first: they decide which contenders `_read_permits` reads
            self._read(key, name)
        yield partial(self._send, READ_WINDOW)

    def _read(self, key: str, name: str) -> None:
        """Read a child of a directory, unless it is read already."""
        if (key, name) not in self._reads:
            self._reads.add((key, name))
            request = partial(self._session.gateway.read, f"{self._path(key)}/{name}")
            self._requests.append((request, partial(self._on_read, key, name)))

    def _on_read(self, key: str, name: str, reply: Node | ZkError) -> None:
        if isinstance(reply, NodeMissing):
            self._result.nodes[key, name] = None
        elif isinstance(reply, ZkError):
            self._skip(f"{self._path(key)}/{name} cannot be read: {reply}")
        else:
            node, size = reply, len(reply.data)
            if size > MAX_DATA or self._held + size > MAX_HELD:
                node = replace(reply, data=reply.data[:KEPT_DATA])
                if size <= MAX_DATA:  # else no contender of ours has written it
                    self._skip(TOO_MUCH)
            self._held += len(node.data)
            self._result.nodes[key, name] = node
            self._read_permits(key, node)

    def _read_permits(self, key: str, node: Node) -> None:
        """
        Read more contenders of a semaphore when the limit of one is known.

        The limits of contenders further back are not read.
        """
        queue = self._result.queues[key]
        if queue[0].kind is Kind.PERMIT:
            limit = self._result.permit_limit(key, node)
            for child in queue.children[: limit + max(1, self._limits.max_waiters or 0)]:
                self._read(key, child.name)

    # --- The end ------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        self._requests = deque()
        for timer in self._timers:
            timer.cancel()
        result, server_time = self._result, self._session.gateway.clock.now()
        passed = 0.0 if server_time is None else server_time - MARGIN
        result.ended = clock.now()
        result.ended_at = time.time() if server_time is None else server_time
        for (key, name), node in result.nodes.items():
            if node is None:
                continue
            result.ended_at = max(result.ended_at, node.ctime)  # it existed by then, whatever the clocks say
            if not node.owner:  # nearly all znodes have an owner, so that is checked first
                hold = read_hold(key, node)
                if hold is not None and hold.is_over(passed):
                    result.expired_holds |= {(key, name)}
        paths = {f"{self._path(key)}/{name}"[len(result.base) + 1 :] for key, name in result.expired_holds}
        if paths or not self._limits.key:
            self._session.attached(HoldIndex).sweep(paths)
        self._done(result)


class ServerTime:
    """
    Asks for the time by ZooKeeper's clock, which dates all znodes; used on the protocol's thread.

    The clock of this machine may differ by minutes, and may be set at any moment. So an age is the difference of two
    times of ZooKeeper's clock: the last one that ZooKeeper has sent, plus the time since then by a monotonic clock.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._asked_at: float | None = None

    def refresh(self, gateway: Gateway) -> None:
        """
        Ask ZooKeeper for the time, if the last request is too old. That costs one write.

        If this account may only read, ZooKeeper refuses. Then the clock of this machine counts.
        """
        now = clock.now()
        if self._asked_at is not None and now - self._asked_at < REFRESH_INTERVAL:
            return
        self._asked_at = now

        def on_reply(reply: object) -> None:
            if isinstance(reply, (OutcomeUnknown, SessionGone, NodeMissing)):
                self._asked_at = None  # ZooKeeper did not refuse, so ask again

        gateway.sync_clock(f"{self._session.options.base}/{CLOCK_NODE}", on_reply)
