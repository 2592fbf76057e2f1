"""Read the queue of a lock from outside. Any client may have written the znodes, so their data are not trusted."""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from django_zklock.core.execution.waiters import Routine, TaskWaiter, ThreadWaiter, run
from django_zklock.core.protocol.reply_guard import ReplyGuard
from django_zklock.core.queue import order, release_request
from django_zklock.core.queue.escaping import printable
from django_zklock.core.queue.nodes import Child, Payload, token_of
from django_zklock.core.queue.operator_hold import OperatorHold, operator_hold
from django_zklock.core.queue.release_request import ReleaseRequest
from django_zklock.core.zk import process
from django_zklock.core.zk.errors import INTERRUPTED, NodeMissing, ZkError
from django_zklock.core.zk.gateway import NamesReply, Node, NodeReply, to_datetime
from django_zklock.core.zk.session import Session
from django_zklock.exceptions import UnreadableQueue, ZkLockError, ZooKeeperUnavailable

if TYPE_CHECKING:
    from typing_extensions import Self

MOST_READ = 50  # contenders; no caller needs those behind them
_SHORT: Final = 120  # the most characters of a host or thread
_ITEM: Final = 64  # the most characters of the name of an item
OURS: Final = "zklock"
CURATOR: Final = "Curator"
KAZOO: Final = "kazoo"
UNKNOWN: Final = "unknown"
LASTING: Final = ("leader", "run", "lease")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContenderInfo:
    """
    A holder or waiter of a lock, or a candidate. Its texts have a maximum length, and printable characters only.

    Only clients of django-zklock describe their work. What is unknown about other clients is empty or 0.
    """

    name: str
    """The name of its znode. It is unique."""
    path: str
    guid: str
    token: int
    """The fencing token of a holder: the czxid of its znode, unless the lock was handed over to it."""
    session_id: int
    """The session whose end deletes the znode; 0 if the znode is not ephemeral."""
    came: datetime
    """When its znode was created, by ZooKeeper's clock."""
    client: str
    """ "zklock", "kazoo", "Curator", or "unknown" if the data of its znode do not fit its name."""
    host: str
    pid: int
    thread: str
    what: str
    """The work; for another client, the text that it wrote, such as the id of a `LeaderSelector` or an `Election`."""
    about: Mapping[str, str] = field(hash=False)
    """The items of the work: "task", "id", "queue" and "retries" of a task; "request" of a view."""
    template: str
    """The name of the lock before its fields were filled in."""
    operator: OperatorHold | None
    """The operator hold, if it is one."""
    kind: str = "lock"
    """Its kind: "lock", "read", "write", or "semaphore" for a permit. A writer that was downgraded has "read"."""
    release_request: ReleaseRequest | None = None
    """The last release request to it, or None."""
    limit: int | None = None
    """The limit in its code, if it wants a permit; None if it is unknown."""
    owner: int = 0
    """The number of its thread, greenlet or asyncio task, unique in its session; 0 if it is unknown."""
    max_hold: float = 0.0
    """Seconds from the grant, after which it loses the lock; 0 if it has no maximum hold, or if that is unknown."""
    session_timeout: float = 0.0
    """Seconds after which ZooKeeper ends its session if its process is silent; 0 if that is unknown."""
    idle_since: datetime | None = None
    """Since when nobody uses the lock, and its process keeps it for its next user (`linger`). None if it is in use."""
    granted: datetime | None = None
    """When it got the lock, by ZooKeeper's clock. A holder writes it after a second. None before, and for waiters."""

    lasts: str = ""
    """ "leader", "run" (a command) or "lease" if its hold is meant to last; empty for other work, and if unknown."""
    renewal_due: datetime | None = None
    """When its work should have written its znode again; None if it does not write, or if an operator wrote since."""

    @property
    def is_orphan(self) -> bool:
        """Whether no session and no end of time deletes its znode: it was restored from a backup, or copied."""
        return not self.session_id and self.operator is None

    @classmethod
    def from_node(cls, key: str, child: Child, node: Node, **more: Any) -> Self:
        """Return the info of a znode in the queue of `key`. `more` are the fields of a subclass."""
        payload = Payload.decode(node.data)
        client = client_of(child, payload)
        operator = operator_hold(payload, key=key, path=node.path, token=node.czxid, owner=node.owner, ctime=node.ctime)
        payload = payload or foreign_payload(node.data)
        return cls(
            name=child.name,
            path=node.path,
            guid=child.guid,
            token=token_of(payload, node.czxid) if operator is None else node.czxid,
            session_id=node.owner,
            came=to_datetime(node.ctime),
            client=client,
            host=printable(payload.host, _SHORT),
            pid=payload.pid,
            thread=printable(payload.thread, _SHORT),
            what=printable(payload.what),
            about={printable(name, _ITEM): printable(item) for name, item in payload.about.items()},
            template=printable(payload.template),
            operator=operator,
            kind=child.kind.word,
            release_request=release_request.requested(node.data),
            limit=payload.limit or None,
            owner=payload.owner,
            max_hold=payload.max_hold / 1000,
            session_timeout=payload.session_timeout / 1000,
            idle_since=_idle_since(payload, node) if payload.idle else None,
            lasts=payload.lasts if payload.lasts in LASTING else "",
            renewal_due=_renewal_due(payload, node),
            granted=_granted(payload, node) if operator is None else operator.since,
            **more,
        )

    def __str__(self) -> str:
        """Describe it in one line."""
        if self.operator is not None:
            return str(self.operator)
        if self.client == OURS:
            return f"{self.what!r} on {self.host}, process {self.pid}"
        name = f"{self.what!r}, " if self.what else ""
        kind = "an unknown kind" if self.client == UNKNOWN else self.client
        host = f" on {self.host}" if self.host else ""
        return f"{name}a client of {kind}{host}, {self.name}"


def client_of(child: Child, payload: Payload | None) -> str:
    """
    Return the client of a contender: "zklock", "kazoo", "Curator" or "unknown".

    `payload` is the payload in its znode, if that is one of ours. If only the name or only the payload is ours, the
    client is unknown.
    """
    if payload is not None and payload.is_of(child):
        return OURS
    if not child.in_grammar_of_curator:
        return KAZOO
    return CURATOR if payload is None and child.by_curator else UNKNOWN


def foreign_payload(data: bytes) -> Payload:
    """
    Return what another client than ours wrote into its znode.

    Curator writes its address by default: the host. Any other text is what it runs, such as kazoo's identifier or the
    id of a Curator `LeaderSelector`.
    """
    host = what = ""
    if data != release_request.CURATOR:  # else Curator's release request has replaced the text
        text = data[: 4 * (_SHORT + 1)].decode(errors="replace")
        try:
            host = printable(str(ipaddress.ip_address(text)), _SHORT)
        except ValueError:
            what = printable(text, _SHORT)
    return Payload(version=0, guid="", host=host, pid=0, thread="", what=what, since="", template="")


def _idle_since(payload: Payload, node: Node) -> datetime | None:
    """Return since when the lock is idle, by ZooKeeper's clock. The host's clock only adds the time from the create."""
    try:
        came, idle = datetime.fromisoformat(payload.since), datetime.fromisoformat(payload.idle)
        return to_datetime(max(node.ctime, min(node.ctime + (idle - came).total_seconds(), node.mtime)))
    except (TypeError, ValueError):
        return None


def _granted(payload: Payload, node: Node) -> datetime | None:
    """Return when it got the lock, by ZooKeeper's clock: the time of its create plus the time that it has waited."""
    return to_datetime(min(node.ctime + payload.waited / 1000, node.mtime)) if payload.waited else None


def _renewal_due(payload: Payload, node: Node) -> datetime | None:
    """A release request stops the renewals, as they would overwrite it."""
    if not payload.renewed_within or payload.release_request:
        return None
    return to_datetime(node.mtime + payload.renewed_within / 1000)


_Outcome: TypeAlias = tuple[ContenderInfo, ...] | ZkLockError
QueueWaiter: TypeAlias = ThreadWaiter[_Outcome] | TaskWaiter[_Outcome]


def is_queued(key: str, parent: str, waiter: QueueWaiter) -> Routine[bool]:
    """Return whether the queue of `key` has any contender. Raises `ZooKeeperUnavailable`."""
    return bool((yield from read_queue(process.current(), key, parent, waiter, most=1)))


def contenders(key: str, parent: str, *, reply_timeout: float | None = None) -> tuple[ContenderInfo, ...]:
    """
    Return the first fifty holders and waiters of `key`, in the order of the queue. `parent` is the directory.

    It costs one listing, then one read for each of them, all sent at once. Raises `ZooKeeperUnavailable` if that takes
    more than `reply_timeout` seconds (None: the connect timeout).
    """
    return run(read_queue(process.current(), key, parent, ThreadWaiter(), reply_timeout=reply_timeout))


def read_queue(
    session: Session,
    key: str,
    parent: str,
    waiter: QueueWaiter,
    *,
    most: int = MOST_READ,
    reply_timeout: float | None = None,
) -> Routine[tuple[ContenderInfo, ...]]:
    """
    Return the first `most` contenders of a queue. It is empty only if the queue is; some may leave during the read.

    Raises `ZooKeeperUnavailable` if that takes more than `reply_timeout` seconds (None: the connect timeout).
    """
    reply_timeout = session.options.connect_timeout if reply_timeout is None else reply_timeout
    read = _QueueRead(session, key, parent, most, waiter.set)
    session.post(read.begin)
    try:
        outcome = yield from waiter.outcome(reply_timeout)
    finally:
        read.give_up()
    if outcome is None:
        raise ZooKeeperUnavailable(session.explain(reply_timeout), lock=key)
    if isinstance(outcome, ZkLockError):
        outcome.lock = outcome.lock or key
        raise outcome
    return outcome


class _QueueRead:
    """One read of a queue; it runs on the protocol's thread."""

    def __init__(self, session: Session, key: str, parent: str, most: int, done: Callable[[_Outcome], object]) -> None:
        self._session = session
        self._key = key
        self._parent = parent
        self._most = most
        self._done: Callable[[_Outcome], object] | None = done
        self._replies = ReplyGuard(key, self._on_failure)
        self._infos: dict[str, ContenderInfo | None] = {}  # by name, in the order of the queue
        self._unanswered = 0
        self._has_gap = False  # a reply was lost

    def begin(self) -> None:
        """Send the requests as soon as there is a connection."""
        self._session.call_when_connected(self._list)

    def give_up(self) -> None:
        """Send no more requests; from any thread."""
        self._done = None
        self._session.post(self._session.cancel_call, self._list)

    def _list(self) -> None:
        if self._done is not None:
            gateway = self._session.gateway
            gateway.children(self._parent, self._replies.wrap(self._on_listed))

    def _on_listed(self, reply: NamesReply) -> None:
        if isinstance(reply, INTERRUPTED):
            self.begin()
            return
        if isinstance(reply, ZkError):
            self._conclude(() if isinstance(reply, NodeMissing) else reply)
            return
        try:
            queue = order.ordered(reply)[: self._most]
        except UnreadableQueue as error:
            self._conclude(error)
            return
        if not queue:
            self._conclude(())
        self._infos = dict.fromkeys(child.name for child in queue)
        self._unanswered = len(queue)
        self._has_gap = False
        gateway = self._session.gateway
        for child in queue:
            on_read = self._replies.wrap(functools.partial(self._on_read, child))
            gateway.read(f"{self._parent}/{child.name}", on_read)

    def _on_read(self, child: Child, reply: NodeReply) -> None:
        if isinstance(reply, Node):
            self._infos[child.name] = ContenderInfo.from_node(self._key, child, reply)
        elif isinstance(reply, INTERRUPTED):
            self._has_gap = True
        elif not isinstance(reply, NodeMissing):
            self._conclude(reply)
        self._unanswered -= 1
        if self._unanswered:
            return
        infos = tuple(info for info in self._infos.values() if info is not None)
        if self._has_gap:
            self.begin()
        elif infos:
            self._conclude(infos)
        else:
            self._list()  # all of them have left meanwhile

    def _on_failure(self, error: Exception) -> None:
        self._conclude(ZkLockError(f"Reading the queue failed: {error!r}."))

    def _conclude(self, outcome: _Outcome) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(outcome)
