"""Read the queues of all locks, or of some, with few requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from django_zklock.core import clock
from django_zklock.core.protocol.operator_holds import delete_ended, read_hold
from django_zklock.core.protocol.story import Story, StoryRun
from django_zklock.core.queue import markers, order
from django_zklock.core.queue.escaping import SEQUENCE_DIGITS, SEQUENCE_TAIL, quoted, show_tails
from django_zklock.core.queue.nodes import Kind
from django_zklock.core.queue.operator_hold import RESERVATIONS
from django_zklock.core.queue.order import Queue
from django_zklock.core.zk.errors import NodeMissing, OutcomeUnknown, SessionGone, ZkError
from django_zklock.core.zk.gateway import CLOCK_NODE, Gateway, Node
from django_zklock.core.zk.session import Session
from django_zklock.exceptions import UnreadableQueue, ZkLockError
from django_zklock.inspection.info import NO_KEY, UNLISTED
from django_zklock.inspection.reads import Read, read_many
from django_zklock.locks.holders import end_of_holders, holder_indexes, permit_limit, permits_at_front
from django_zklock.names.template import MAX_KEY, path

TOGETHER: Final = 100  # reads in one request: the server builds the reply in its memory, and heartbeats wait behind it
MAX_DATA: Final = 64 * 1024  # bytes in a znode; no contender needs more
MAX_HELD: Final = 32 * 1024 * 1024  # bytes of all znodes that a scan keeps; no ordinary scan needs a third of it
KEPT_DATA: Final = 256  # bytes that are kept of a znode that exceeds one of these limits
MAX_SKIPPED: Final = 10
MAX_READS: Final = 60_000  # contenders that are read, unless all are requested

MARGIN: Final = 1.0  # seconds by which the monotonic clock may run ahead between two requests
REFRESH_INTERVAL: Final = 300.0  # seconds; the server's clock may be set, or another server may become the leader

TOO_SHORT: Final = (
    "The time was too short to read all locks. Raise `reply_timeout` of the admin class, or `--reply-timeout`."
)
TOO_MUCH: Final = f"The contenders have more than {MAX_HELD >> 20} MB of data in all, so not all of it was read."
SILENCE: Final = 0.9  # seconds without a reply after which a server is silent, and the time not just too short


@dataclass(frozen=True, slots=True)
class ScanLimits:
    """How much a scan reads."""

    max_locks: int | None
    """The locks with the most waiters are read, and reservations last; None: all."""
    max_waiters: int | None
    """The waiters of each lock that are read, one at least, for its age; None: all."""
    keys: tuple[str, ...] = ()
    """The only locks to read; empty: all locks."""


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

    def unread(self, key: str) -> frozenset[int]:
        """Return the indexes of the contenders in a queue that were not read. Those that were gone are none of them."""
        children = self.queues[key].children
        return frozenset([index for index, child in enumerate(children) if (key, child.name) not in self.nodes])

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
    of each queue first. One request has many reads, and only one is under way at a time. So no lock or heartbeat of
    this process waits behind a scan for long. It needs no watch: a look at ten thousand locks is about 30 requests.
    """

    _session: Session
    _limits: ScanLimits
    _reply_timeout: float
    _done: Callable[[ScanResult], object]

    def __post_init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._result = ScanResult(base=self._session.options.base, max_waiters=self._limits.max_waiters)
        self._replied = clock.now()
        self._listed_queues: dict[str, Queue] = {}
        self._below: list[str] = []  # keys whose directories are not listed yet
        self._unread: list[tuple[str, str]] = []  # by key and name
        self._reads: set[tuple[str, str]] = set()  # these, and those that were read
        self._held = 0  # bytes of data in the znodes of the result

    def begin(self) -> None:
        """Begin as soon as there is a connection, and again after each loss of it."""
        self._timer = self._session.loop.call_later(self._reply_timeout, self._on_timeout)
        self._run = StoryRun(self._session, self._scan, self._on_end)
        self._run.begin()

    def _scan(self) -> Story[None]:
        self._reset()
        self._session.attached(ServerTime).refresh(self._session.gateway)
        yield from self._list_all()
        self._choose_queues()
        self._choose_contenders()
        yield from self._read_contenders()

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

    def _each(self, asked: Mapping[Read, Any], on_reply: Callable[[Any, Any], object]) -> Story[None]:
        """Carry out reads. `on_reply` gets what belongs to each in `asked`, and its reply."""
        reads = list(asked)
        for packet in (reads[first : first + TOGETHER] for first in range(0, len(reads), TOGETHER)):
            replies: list[Any] = yield partial(read_many, self._session.gateway, packet)
            self._replied = clock.now()
            for read, reply in zip(packet, replies, strict=True):
                on_reply(asked[read], reply)

    def _path(self, key: str) -> str:
        base = self._session.options.base
        return path(base, key) if key else base

    def _skip(self, text: str) -> None:
        if len(self._result.skipped) < MAX_SKIPPED and text not in self._result.skipped:
            self._result.skipped += (text,)

    # --- First step: list the directories -----------------------------------------------------------------------

    def _list_all(self) -> Story[None]:
        """List the directories, level by level."""
        self._below = [*self._limits.keys] or [""]
        while self._below:
            directories = {Read(self._path(key), lists=True): key for key in self._below}
            self._below = []
            yield from self._each(directories, self._on_listed)
        self._result.listed = True

    def _on_listed(self, key: str, names: list[str] | ZkError) -> None:
        if isinstance(names, ZkError):
            self._on_unlisted(key, names)
            return
        # Only the ends are searched: the names are long, and there are many.
        others = [name for name in names if not SEQUENCE_TAIL.match(name[-SEQUENCE_DIGITS:])]
        if key and len(others) < len(names):
            self._add_queue(key, names, len(names) - len(others))
        if len(others) == len(names):
            self._delete_marker(key, others)
        for name in others if not self._limits.keys else ():
            self._add_directory(key, name)

    def _on_unlisted(self, key: str, error: ZkError) -> None:
        if isinstance(error, NodeMissing):
            return  # the queue has become empty
        if key:
            self._result.unreadable[key] = 0, f"{UNLISTED} {error}"
        else:
            self._result.problem = str(error)

    def _add_queue(self, key: str, names: Iterable[str], contenders: int) -> None:
        try:
            self._listed_queues[key] = order.ordered(sorted(names))  # each process names the same znode
        except UnreadableQueue as error:
            self._result.unreadable[key] = contenders, str(error)

    def _add_directory(self, key: str, name: str) -> None:
        if markers.is_marker(name):
            return
        below = show_tails(f"{key}/{name}" if key else name)
        if below.isprintable() and len(below) <= MAX_KEY:
            self._below.append(below)
        else:
            self._skip(f"{quoted(below)} {NO_KEY}")

    def _delete_marker(self, key: str, names: Collection[str]) -> None:
        """Delete the marker of a limit that was cleared: the last contender has left it."""
        if (name := markers.limit_marker(0)) in names:
            self._session.gateway.delete(f"{self._path(key)}/{name}")

    # --- Second step: read the contenders -----------------------------------------------------------------------

    def _choose_queues(self) -> None:
        """Choose the locks to read, if there are too many. There may be a reservation for each queued task."""
        queues = self._listed_queues
        self._result.total = len(queues) + len(self._result.unreadable)
        ranked = sorted(queues, key=lambda key: (key.startswith(f"{RESERVATIONS}/"), -len(queues[key])))
        self._result.queues = {key: queues[key] for key in sorted(ranked[: self._limits.max_locks])}

    def _choose_contenders(self) -> None:
        """Choose the znodes to read: markers and holders first, then the first waiter of each queue, and so on."""
        most = self._limits.max_waiters
        reads: list[tuple[int, str, str]] = []  # with the rank among the waiters; 0 for holders
        for key, queue in self._result.queues.items():
            if queue.limit_marker:  # it decides which contenders `_read_permits` reads
                reads.append((-1, key, queue.limit_marker))
            first_waiter = end_of_holders(queue)
            end = len(queue) if most is None else first_waiter + max(1, most)
            for index, child in enumerate(queue[:end]):
                reads.append((max(0, index - first_waiter + 1), key, child.name))
        reads.sort()
        for _, key, name in reads if most is None else reads[:MAX_READS]:
            self._read(key, name)

    def _read(self, key: str, name: str) -> None:
        """Read a child of a directory, unless it is read already."""
        if (key, name) not in self._reads:
            self._reads.add((key, name))
            self._unread.append((key, name))

    def _read_contenders(self) -> Story[None]:
        while self._unread:
            nodes = {Read(f"{self._path(key)}/{name}"): (key, name) for key, name in self._unread}
            self._unread = []
            yield from self._each(nodes, self._on_read)

    def _on_read(self, identity: tuple[str, str], reply: Node | ZkError) -> None:
        key, name = identity
        if isinstance(reply, NodeMissing):
            self._result.nodes[identity] = None
        elif isinstance(reply, ZkError):
            self._skip(f"{self._path(key)}/{name} cannot be read: {reply}")
        else:
            node, size = reply, len(reply.data)
            if size > MAX_DATA or self._held + size > MAX_HELD:
                node = replace(reply, data=reply.data[:KEPT_DATA])
                if size <= MAX_DATA:  # else no contender of ours has written it
                    self._skip(TOO_MUCH)
            self._held += len(node.data)
            self._result.nodes[identity] = node
            self._read_permits(key, node)

    def _read_permits(self, key: str, node: Node) -> None:
        """
        Read more contenders of a semaphore when the limit of one is known.

        The limits of contenders further back are not read.
        """
        queue = self._result.queues[key]
        if queue[0].kind is Kind.PERMIT:
            limit = self._result.permit_limit(key, node)
            for child in queue.children[: limit + (self._limits.max_waiters or 1)]:
                self._read(key, child.name)

    # --- The end ------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        self._timer.cancel()
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
        delete_ended(self._session, result.expired_holds)
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
