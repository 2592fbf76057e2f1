"""The public description of one contender, from its znode. Any client may have written it, so it is not trusted."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django_zklock.core.queue import release_request
from django_zklock.core.queue.deadlock import WaitsFor
from django_zklock.core.queue.escaping import printable
from django_zklock.core.queue.nodes import Child, Payload
from django_zklock.core.queue.operator_hold import OperatorHold, operator_hold
from django_zklock.core.queue.release_request import ReleaseRequest
from django_zklock.core.zk.gateway import Node, to_datetime

if TYPE_CHECKING:
    from typing import Self

_SHORT: Final = 120  # the most characters of what another client has written
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
    """The fencing token of a holder: the czxid of its znode."""
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
    """Its kind: "lock", "read", "write", or "semaphore" for a permit."""
    release_request: ReleaseRequest | None = None
    """The last release request to it, or None."""
    limit: int | None = None
    """The limit in its code, if it wants a permit; None if it is unknown."""
    owner: int = 0
    """The number of its thread, greenlet or asyncio task, unique in its session; 0 if it is unknown."""
    max_hold: float = 0.0
    """Seconds from the grant, after which it loses the lock; 0 if it has no maximum hold, or if that is unknown."""
    warn_after: float = 0.0
    """Seconds from the grant, after which its hold is long; 0 if it has no `warn_after`, or if that is unknown."""
    session_timeout: float = 0.0
    """Seconds after which ZooKeeper ends its session if its process is silent; 0 if that is unknown."""
    idle_since: datetime | None = None
    """Since when nobody uses the lock (`linger`), within a second. None if it is in use."""
    granted: datetime | None = None
    """When it got the lock, by ZooKeeper's clock. A holder writes it after a second. None before, and for waiters."""

    lasts: str = ""
    """ "leader", "run" (a command) or "lease" if its hold is meant to last; empty for other work, and if unknown."""
    wait: WaitsFor | None = None
    """The wait of its owner for another lock, as its znode says. It may be out of date."""
    renewal_due: datetime | None = None
    """When its work should have written its znode again; None if it does not write, or if an operator wrote since."""

    @property
    def waits_as(self) -> str:
        """The guid of the contender by which its owner waits for another lock; empty if its znode names none."""
        return "" if self.wait is None else self.wait.guid

    @property
    def since(self) -> datetime:
        """When it got the lock; when it came, if it waits or if that is not known."""
        return self.granted or self.came

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
            token=node.czxid,
            session_id=node.owner,
            came=to_datetime(node.ctime),
            client=client,
            host=payload.host,
            pid=payload.pid,
            thread=payload.thread,
            what=payload.what,
            about=payload.about,
            template=payload.template,
            operator=operator,
            kind=child.kind.word,
            release_request=release_request.requested(node.data),
            limit=payload.limit or None,
            owner=payload.owner,
            max_hold=payload.max_hold / 1000,
            warn_after=payload.warn_after / 1000,
            session_timeout=payload.session_timeout / 1000,
            idle_since=to_datetime(node.mtime) if payload.idle else None,
            lasts=payload.lasts if payload.lasts in LASTING else "",
            wait=WaitsFor.of(payload),
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
    if payload is not None and payload.guid == child.guid:
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
    return Payload(host=host, what=what)


def _granted(payload: Payload, node: Node) -> datetime | None:
    """Return when it got the lock, by ZooKeeper's clock: the time of its create plus the time that it has waited."""
    return to_datetime(min(node.ctime + payload.waited / 1000, node.mtime)) if payload.waited else None


def _renewal_due(payload: Payload, node: Node) -> datetime | None:
    """A release request stops the renewals, as they would overwrite it."""
    if not payload.renewed_within or payload.release_request:
        return None
    return to_datetime(node.mtime + payload.renewed_within / 1000)
