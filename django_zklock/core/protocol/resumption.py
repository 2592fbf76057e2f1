"""
Go on with the session of an earlier process, and with the locks that it held.

Each process that may have a successor puts a marker with a name of its own into its session, its fence. A successor
writes its name there. So a process that is still alive sees at its next connection that it has been replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from django_zklock.core import clock
from django_zklock.core.errors import ZkLockError
from django_zklock.core.log import Logger
from django_zklock.core.protocol.contender import Contender, Outcome, OwnNode
from django_zklock.core.protocol.grant import Grant
from django_zklock.core.protocol.story import Story, StoryRun
from django_zklock.core.queue.escaping import session_hex
from django_zklock.core.queue.nodes import Payload, parse
from django_zklock.core.zk import troubles
from django_zklock.core.zk.errors import NodeMissing
from django_zklock.core.zk.gateway import Node
from django_zklock.core.zk.multi import Create
from django_zklock.core.zk.options import FormerSession
from django_zklock.core.zk.session import Fence, Session

logger = Logger("django_zklock.locks")

Nodes = Mapping[str, Node]
"""The znodes of a session, by path."""


class Claim(StoryRun):
    """
    Claims each session of this process by its fence.

    `on_connected_to` is called at each connection, on the protocol's thread: with the session, and if it was claimed
    just now, with its znodes. `on_replaced` is called when another process has claimed the session.
    """

    def __init__(
        self,
        session: Session,
        name: bytes,
        on_connected_to: Callable[[FormerSession, Nodes], object],
        on_replaced: Callable[[], object],
    ) -> None:
        super().__init__(session, self._claim)
        self._name = name
        self._on_connected_to = on_connected_to
        self._on_replaced = on_replaced

    def on_connected(self, *, resumed: bool) -> None:
        if self.session.fence is None:
            self.restart()
        else:
            self._on_connected_to(self.session.described(), {})

    def _claim(self) -> Story[Nodes]:
        session, gateway, base = self.session, self.session.gateway, self.session.options.base
        path = f"{base}/!session:{session_hex(session.session_id)}"
        try:
            yield partial(gateway.write, path, self._name, -1)
        except NodeMissing:
            yield partial(gateway.ensure_path, base)
            yield partial(gateway.commit, (Create(path=path, data=self._name, ephemeral=True),))
        session.fence = Fence(path, self._name, self._on_replaced)
        paths = yield partial(gateway.own_ephemerals, base)  # after the write, this server knows all earlier ones
        nodes: Nodes = yield partial(gateway.read_all, [other for other in paths if other != path])
        return nodes

    def conclude(self, outcome: Nodes | ZkLockError) -> None:
        """Report the outcome, and go on for the next session."""
        if isinstance(outcome, ZkLockError):
            logger.error("no other process can go on with the session of this one: %s", outcome)
        else:
            self._on_connected_to(self.session.described(), outcome)


class Resumed(Contender):
    """A contender that already holds the lock: by a znode that an earlier process has created in this session."""

    __slots__ = ()

    def _await_session(self) -> None:
        self.has_position = True  # it waits for the next connection as long as its caller does
        super()._await_session()

    def _join_queue(self) -> None:
        node = self.spec.resumes
        child = None if node is None else parse(node.name)
        if node is None or child is None or node.owner != self.session.session_id:
            self._create()
            return
        created = clock.now() - max(0.0, (self.session.gateway.clock.now() or node.ctime) - node.ctime)
        self._own = OwnNode(child.guid, created, node=node)
        self._registry.add(child.guid, node.path)
        self._grant_if_proven()

    def _create(self) -> None:
        """Give up: the znode is gone, and a new one would be another place in the queue."""
        self.on_refused(ZkLockError(f"The lock {self.spec.key!r} was lost: {troubles.SESSION_OVER}."))

    def _conclude(self, outcome: Outcome) -> None:
        if isinstance(outcome, Grant) and self._own.node is not None:
            payload = Payload.decode(self._own.node.data)
            if payload is not None and payload.waited:
                outcome.since = min(outcome.since, self._own.sent_at + payload.waited / 1000)
                outcome.described = True
        super()._conclude(outcome)
