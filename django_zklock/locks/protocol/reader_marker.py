"""The marker of a writer that became a reader. The name of its znode cannot change, and still says "write"."""

from __future__ import annotations

from django_zklock.exceptions import TooManyLocks, ZkLockError
from django_zklock.locks.protocol.registry import OwnNode, Registry
from django_zklock.locks.protocol.replies import ReplyGuard
from django_zklock.log import Logger
from django_zklock.queue import markers
from django_zklock.zk.errors import NodeExists, OutcomeUnknown, Outdated, SessionGone
from django_zklock.zk.gateway import Node, NodeReply
from django_zklock.zk.multi import Create, SetData

logger = Logger("django_zklock.locks")


class ReaderMarker(OwnNode):
    """The reader marker of one znode."""

    def __init__(self, registry: Registry, parent: str, owner_guid: str, key: str, replies: ReplyGuard) -> None:
        name = markers.reader_marker(owner_guid)
        super().__init__(registry, parent, name, f"{parent}/{name}")
        self._key = key
        self._replies = replies
        self._exists = False

    def put(self, znode: Node) -> None:
        """Create the marker, and write the `znode` of the writer, so that its watchers list the queue again."""
        if self._exists or self.path is None:
            return
        try:
            self._registry.add(self.guid, self.path)
        except TooManyLocks as error:
            self._on_put(znode.path, error)
            return
        marker = Create(path=self.path, ephemeral=True)
        touch = SetData(path=znode.path, data=znode.data, version=znode.version)
        self._registry.gateway.commit(
            (marker, touch), self._replies.wrap(lambda reply: self._on_put(znode.path, reply))
        )

    def _on_put(self, znode: str, reply: ZkLockError | None) -> None:
        self._exists = reply is None or isinstance(reply, NodeExists)
        if isinstance(reply, Outdated):  # written by a release request
            self._registry.gateway.read(znode, self._replies.wrap(self._on_reread))
        elif isinstance(reply, ZkLockError) and not isinstance(reply, (NodeExists, OutcomeUnknown, SessionGone)):
            logger.warning("no other readers can share lock %r with its holder: %s", self._key, reply)

    def _on_reread(self, reply: NodeReply) -> None:
        if isinstance(reply, Node):
            self.put(reply)
