"""The znode of one contender: what this process knows of it, and what happens to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from django_zklock.core import clock
from django_zklock.core.queue.nodes import Payload
from django_zklock.core.zk.errors import INTERRUPTED, NodeMissing, ZkError
from django_zklock.core.zk.gateway import Node, NodeReply

if TYPE_CHECKING:
    from django_zklock.core.protocol.registry import Registry
    from django_zklock.core.zk.client import Watch

SEVERAL: Final = "several, one after another"
"""The work that a znode shows while no user lasts and their work differs."""
PUBLISH_AFTER: Final = 0.9  # seconds for which a znode may show another user than the present one


class NodeUser(Protocol):
    """The contender whose znode it is; or its local queue, while the lock is idle."""

    def on_node_read(self, node: Node) -> None:
        """The znode was read."""

    def on_node_missing(self) -> None:
        """Another session has deleted the znode."""

    def on_node_refused(self, error: ZkError) -> None:
        """ZooKeeper has refused to read the znode."""

    def attempt(self, call: Callable[..., object], *args: Any) -> None:
        """Make a call, and give up if it fails."""


class Description(NamedTuple):
    """The fields of a payload that change with the user of the znode."""

    pid: int
    what: str
    thread: str = ""
    about: Mapping[str, str] = MappingProxyType({})
    owner: int = 0
    idle: str = ""


@dataclass(slots=True, eq=False)
class OwnNode:
    """The znode of one create. With `linger`, several contenders of this process use it, one after another."""

    registry: Registry
    user: NodeUser
    guid: str
    sent_at: float  # when its create was sent, on clock.now()
    shown: Description  # of its user, in its payload
    node: Node | None = None  # as last read or written, once it is known to exist
    granted_at: float = 0.0  # by ZooKeeper, on clock.now(); 0: not yet
    watch: Watch | None = None
    _stale_since: float | None = field(default=None)  # when its users were seen to be others than it shows

    @property
    def is_watched(self) -> bool:
        """Whether it was there when its watch was set, and the watch has told nothing since."""
        return self.watch is not None and self.watch.is_set

    def look(self) -> None:
        """Read and watch it: another session may write a release request to it, or delete it."""
        self.unwatch()
        if self.node is not None:
            read = self.registry.session.gateway.read
            self.watch = read(self.node.path, partial(self._tell, self._on_read), partial(self._tell, self._on_event))

    def _tell(self, call: Callable[..., object], *args: Any) -> None:
        self.user.attempt(call, *args)

    def _on_read(self, reply: NodeReply) -> None:
        before = self.node
        if before is None or isinstance(reply, INTERRUPTED):
            return
        if isinstance(reply, NodeMissing):
            self.on_missing()
        elif isinstance(reply, ZkError):
            self.user.on_node_refused(reply)
        else:
            if self.watch is not None:
                self.watch.is_set = True
            if reply.version > before.version and Payload.decode(reply.data) is not None:
                self.node = reply  # else Curator has written over it
            self.user.on_node_read(reply)

    def _on_event(self, deleted: bool) -> None:
        if deleted:
            self.on_missing()
        else:
            self.look()

    def unwatch(self) -> None:
        """Cancel the watch, if there is one."""
        watch, self.watch = self.watch, None
        if watch is not None:
            watch.cancel()

    def on_missing(self) -> None:
        """Another session has deleted it."""
        if self.node is not None:
            self.forget()
            self._tell(self.user.on_node_missing)

    def forget(self) -> None:
        """Forget it: it was deleted, or its session is over, or it was not created."""
        self.end_checks()
        self.node = None
        self.registry.discard(self.guid)

    def end_checks(self) -> None:
        """Watch it no longer, nor let the heartbeat check it."""
        self.unwatch()
        if self.node is not None:
            self.registry.heartbeat.remove(self.node.path)

    def pass_to(self, user: NodeUser, shown: Description) -> None:
        """Let the next user have it. If they are many and short, it shows that instead of each one."""
        self.user = user
        now = clock.now()
        if self.shown == shown:
            self._stale_since = None
        elif self._stale_since is None:
            self._stale_since = now
        elif now - self._stale_since >= PUBLISH_AFTER and self.shown.what != SEVERAL:
            self.show(Description(shown.pid, SEVERAL))

    def show(self, shown: Description, waited: int = 0, done: Callable[[], object] = bool) -> None:
        """Write who uses it, for the others in the queue."""
        if self.write({**shown._asdict(), "waited": waited}, done):
            self.shown, self._stale_since = shown, None

    def write(self, fields: Mapping[str, Any], done: Callable[[], object] = bool) -> bool:
        """
        Write these fields of the payload, unless it has a release request. Return whether that was sent.

        `done` is called when they are written. A write that fails is not repeated.
        """
        node = self.node
        payload = None if node is None else Payload.decode(node.data)
        if node is None or payload is None or payload.release_request:
            return False

        def on_written(reply: NodeReply) -> None:
            if isinstance(reply, Node) and self.node is not None:
                self.node = reply
                done()

        data = replace(payload, **fields).encode()
        self.registry.session.gateway.write(node.path, data, node.version, partial(self._tell, on_written))
        return True
