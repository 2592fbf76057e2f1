"""
Go on with the session of an earlier process, and with the locks that it held.

Each process that may have a successor puts a marker with a name of its own into its session, its fence. A successor
writes its name there. So a process that is still alive sees at its next connection that it has been replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from django_zklock.core import clock
from django_zklock.core.errors import ZkLockError
from django_zklock.core.log import Logger
from django_zklock.core.protocol.contender import Busy, Contender, Outcome
from django_zklock.core.protocol.grant import Grant
from django_zklock.core.protocol.registry import ListedNames, Registry
from django_zklock.core.protocol.story import Story, StoryRun
from django_zklock.core.queue import order
from django_zklock.core.queue.escaping import session_hex
from django_zklock.core.queue.nodes import Payload, own_limit, parse
from django_zklock.core.zk import troubles
from django_zklock.core.zk.errors import ZkError
from django_zklock.core.zk.gateway import Callback, DirectoryState, Gateway, Node
from django_zklock.core.zk.multi import Create
from django_zklock.core.zk.options import FormerSession
from django_zklock.core.zk.session import Session

logger = Logger("django_zklock.leases")


class Claimed(NamedTuple):
    """A session that this process has claimed."""

    session: FormerSession
    nodes: Mapping[str, Node] = {}
    """The znodes by which the process before held locks or waited for them, by guid. They are registered here now."""


class Claim(StoryRun):
    """
    Claims each session of this process by its fence.

    `on_claimed` is called at each connection, on the protocol's thread; with znodes if the session was claimed just
    now. `on_replaced` is called when another process has claimed the session.
    """

    def __init__(
        self,
        session: Session,
        name: bytes,
        on_claimed: Callable[[Claimed], object],
        on_replaced: Callable[[], object],
    ) -> None:
        super().__init__(session, self._claim)
        self._name = name
        self._fence = ""  # the path of that of the present session, once it has the name
        self._is_claimed = False
        self._on_claimed = on_claimed
        self._on_replaced = on_replaced

    def begin(self) -> None:
        self.session.gate = self._check
        super().begin()

    def _check(self, gateway: Gateway, done: Callback[ZkLockError | None]) -> None:
        """Give up the session if another process has claimed it."""

        def on_read(present: DirectoryState | ZkError | None) -> None:
            if isinstance(present, ZkError):
                done(present)
                return
            if present is None or present.data != self._name:
                logger.error("another process has taken over the ZooKeeper session of this one, and all its locks")
                self.session.give_up()
                self._on_replaced()
            done(None)

        if self._fence:
            gateway.read_directory(self._fence, on_read)
        else:
            done(None)

    def on_session_lost(self) -> None:
        self._fence, self._is_claimed = "", False

    def on_connected(self, *, resumed: bool) -> None:
        if self._is_claimed:
            self._on_claimed(Claimed(self.session.described()))
        else:
            self.restart()

    def on_closed(self) -> None:
        self.end()

    def _claim(self) -> Story[Claimed]:
        session, gateway, base = self.session, self.session.gateway, self.session.options.base
        path = f"{base}/!session:{session_hex(session.session_id)}"
        before: DirectoryState | None = yield partial(gateway.read_directory, path)
        if before is None:
            yield partial(gateway.ensure_path, base)
            yield partial(gateway.commit, (Create(path=path, data=self._name, ephemeral=True),))
        else:
            yield partial(gateway.write, path, self._name, -1)
        self._fence = path
        yield partial(gateway.quorum_check, [path])  # it confirms the session for all locks
        registry = session.attached(Registry)
        paths = registry.unknown((yield partial(gateway.own_ephemerals, base)))
        read: Mapping[str, Node] = yield partial(gateway.read_all, list(paths.values()))
        nodes = {guid: read[path] for guid, path in paths.items() if path in read}
        for guid, node in nodes.items():
            registry.add(guid, node.path)  # else the audit would delete it
        return Claimed(session.described(), nodes)

    def conclude(self, outcome: Claimed | ZkLockError) -> None:
        """Report the outcome, and go on for the next session."""
        if isinstance(outcome, ZkLockError):
            logger.error("no other process can go on with the session of this one: %s", outcome)
        else:
            self._is_claimed = True
            self._on_claimed(outcome)


class Resumed(Contender):
    """A contender that already holds the lock: by a znode that an earlier process has created in this session."""

    __slots__ = ("_former",)

    def __init__(self, former: Node, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._former = former
        self.has_position = True  # it waits for the next connection as long as its caller does

    def _is_admitted(self) -> bool:
        return True

    def _peek(self) -> Story[None]:
        yield from ()

    def _queue_up(self) -> Story[tuple[Node, ListedNames]]:
        """Return its znode. Give up if that is gone: a new one would be another place in the queue."""
        node, child = self._former, parse(self._former.name)
        if child is not None and node.owner == self.session.session_id:
            if not self.guid:
                self.guid, self._node = child.guid, node
                self._sent_at = clock.now() - max(0.0, (self.session.gateway.clock.now() or node.ctime) - node.ctime)
                self._registry.add(child.guid, node.path)
            listed: ListedNames = yield partial(self._registry.list_names, self.spec.parent, after_sync=True)
            if self._node is not None and node.name in listed:
                return node, listed
        raise ZkLockError(f"The lock {self.spec.key!r} was lost: {troubles.SESSION_OVER}.")

    def _wait_for_turn(self, node: Node, listed: ListedNames) -> Story[bool]:
        """Leave the queue: the earlier process waited there, and nobody waits here. A lower limit ends no permit."""
        queue = listed.queue
        verdict = order.verdict(queue, node.name, self.spec.kind, self.spec.limit or 1)
        if not isinstance(verdict, order.WaitFor):
            return (yield from super()._wait_for_turn(node, listed))
        if verdict.depends_on_limit and (queue.index_of(node.name) or 0) < own_limit(node.data):
            return True
        self._give_up(queue, Busy())
        return False

    def _conclude(self, outcome: Outcome) -> None:
        if isinstance(outcome, Grant) and self._node is not None:
            payload = Payload.decode(self._node.data)
            if payload is not None and payload.waited:
                outcome.since = min(outcome.since, self._sent_at + payload.waited / 1000)
                outcome.described = True
        super()._conclude(outcome)
