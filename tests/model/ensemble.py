"""
The leader of the simulated ensemble: the log of transactions, the sessions and their timeouts, and permissions.

A request that changes something is prepared against the state that all transactions before it will have left, becomes
a proposal, waits for its commit behind those before it, and is then applied by each server in its own time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from kazoo.protocol.serialization import Close, Create, Create2, Delete, SetData, Transaction

from model.choices import CLOSE, COMMIT, KEPT
from model.server import Item, Server
from model.tree import Tree, Znode

CONTAINER = 19
NO_NODE, BAD_VERSION, NODE_EXISTS, NOT_EMPTY = -101, -103, -110, -111
EXPIRED, MOVED, ROLLED_BACK, INCONSISTENT = -112, -118, 0, -2

WRITES = frozenset({Create.type, Create2.type, CONTAINER, Delete.type, SetData.type, Transaction.type, Close.type})


class Refused(Exception):
    def __init__(self, code):
        super().__init__(code)
        self.code = code


@dataclass(slots=True)
class Tracked:
    session: int
    timeout: float  # seconds, that it was created with
    smallest: float  # seconds, of all timeouts that servers have set for it
    server: Server | None  # that its requests may come by
    expires: float = 0.0
    looks_at: float = math.inf  # when the leader looks whether it has expired
    closing: bool = False


@dataclass(slots=True)
class Change:
    created: tuple[tuple[str, Znode], ...] = ()
    deleted: tuple[str, ...] = ()
    written: tuple[tuple[str, bytes], ...] = ()
    opened: int = 0
    closed: int = 0
    why: str = "asked"


@dataclass(slots=True)
class Proposal:
    zxid: int
    change: Change
    server: Server | None = None  # whose client waits for it
    item: Item | None = None
    result: Any = None
    syncs: list[tuple[Server, Item]] = field(default_factory=list)


class Ensemble:
    def __init__(self, world, *, timeout, tick, phase, sync_limit):
        self.world = world
        self.timeout = timeout
        self.tick = tick
        self.sync_limit = sync_limit  # seconds
        self.truth = Tree()  # all that is committed
        self.history = {}  # every node that ever was
        self.before_change = lambda change: None  # when something is about to be committed
        self.on_change = lambda change: None  # when something is committed
        self.on_expiry = lambda session: None  # when a session's time is over
        self.sessions = {}
        self.untold = set()  # sessions that do not know of a shorter timeout: the reply is late or lost
        self.strays = set()  # guids of nodes that nobody has asked for
        self._phase = phase
        self._epoch = 1
        self._zxid = 1 << 32
        self._ids = 0
        self._prepared = Tree()
        self._pending = []
        self._last_commit = 0.0
        self.servers = [Server(self, index) for index in range(3)]
        self.leader = self.servers[0]
        for server in self.servers:
            server.join()
        world.after(tick / 2, self._relay)

    # --- sessions -----------------------------------------------------------------------------------------------

    def open(self, server, item):
        self._ids += 1
        timeout = item.connection.timeout
        self._track(self._ids, timeout, timeout, server)
        self._propose(Change(opened=self._ids), server, item, (self._ids, timeout))

    def _track(self, session, timeout, smallest, server):
        self.sessions[session] = Tracked(session, timeout, smallest, server)
        self.touch(session, timeout)

    def touch(self, session, timeout):
        """
        Restart a session's timer, which is kept in steps of a tick; return whether it still runs.

        It ends earlier than before if the server has granted a shorter timeout than the one before.
        """
        tracked = self.sessions.get(session)
        if tracked is None or tracked.closing:
            return False
        steps = math.floor((self.world.now + timeout - self._phase) / self.tick) + 1
        tracked.expires = steps * self.tick + self._phase
        if tracked.expires < tracked.looks_at:
            self._look_later(tracked)
        return True

    def validate(self, server, session, timeout):
        if not self.touch(session, timeout):
            return False
        tracked = self.sessions[session]
        tracked.server = server
        if timeout < tracked.smallest:
            tracked.smallest = timeout
            self.untold.add(session)
        return True

    def welcomed(self, session, timeout):
        """Take note that a client has got the reply to its connect."""
        tracked = self.sessions.get(session)
        if tracked is None or timeout <= tracked.smallest:
            self.untold.discard(session)

    def _look_later(self, tracked):
        tracked.looks_at = tracked.expires
        self.world.at(tracked.expires, self._look_at, tracked, tracked.expires)

    def _look_at(self, tracked, planned):
        is_known = self.sessions.get(tracked.session) is tracked and planned == tracked.looks_at
        if not is_known or tracked.closing:
            return
        if tracked.expires > self.world.now + 1e-9:
            self._look_later(tracked)
        elif not self.leader.up:
            self.world.after(0.1, self._look_at, tracked, planned)
        else:
            self.world.note(f"leader: session {tracked.session} expires")
            self.on_expiry(tracked.session)
            self._begin_to_close(tracked)

    def _begin_to_close(self, tracked):
        tracked.closing = True
        delay = self.world.delay(CLOSE, f"s{tracked.session}")
        self.world.after(delay, self._close, tracked.session, self._epoch, "expired")

    def _close(self, session, epoch, why):
        if epoch != self._epoch:
            return
        self._propose(Change(closed=session, deleted=tuple(self._prepared.owned(session)), why=why))

    def kill(self, session):
        tracked = self.sessions.get(session)
        if tracked is None or tracked.closing or not self.leader.up:
            return
        self.leader.drop(session)
        tracked.server = None
        self.world.after(0.03, self._kill, tracked, self._epoch)

    def _kill(self, tracked, epoch):
        if epoch == self._epoch and not tracked.closing:
            tracked.closing = True
            self._close(tracked.session, epoch, "killed")

    def _relay(self):
        """Have each follower tell whom it has heard of; every half tick."""
        for server in self.servers:
            if server is not self.leader and self.leader.up:
                server.from_leader.send(0.0005, server.pinged)
        self.world.after(self.tick / 2, self._relay)

    # --- requests -----------------------------------------------------------------------------------------------

    def submit(self, server, item):
        try:
            change, result = self._prepare(server, item)
        except Refused as refused:
            change, result = Change(), refused
        self._propose(change, server, item, result)

    def sync(self, server, item):
        try:
            self._check(server, item.session)
        except Refused as refused:
            item.result = refused
        if self._pending:
            self._pending[-1].syncs.append((server, item))
        else:
            server.hand_over(server.done, item, 0)

    def _check(self, server, session):
        tracked = self.sessions.get(session)
        if tracked is None or tracked.closing:
            raise Refused(EXPIRED)
        if tracked.server is not server:
            raise Refused(MOVED)

    def _prepare(self, server, item):
        request, session = item.request, item.session
        self._check(server, session)
        if request.type == Close.type:
            self.sessions[session].closing = True
            return Change(closed=session, deleted=tuple(self._prepared.owned(session)), why="asked"), None
        if request.type == Delete.type:
            node = self._prepared.nodes.get(request.path)
            if node is None:
                raise Refused(NO_NODE)
            if node.children:
                raise Refused(NOT_EMPTY)
            return Change(deleted=(request.path,)), True
        if request.type == Transaction.type:
            return self._prepare_together(request, session)
        if request.type == SetData.type:
            problem = self._problem(request, {})
            if problem:
                raise Refused(problem)
            node = self._prepared.nodes[request.path]
            written = replace(node, data=request.data, version=node.version + 1)
            return Change(written=((request.path, request.data),)), written
        return self._prepare_create(request, session)

    def _prepare_create(self, request, session):
        above = self._prepared.nodes.get(request.path.rpartition("/")[0])
        path = request.path
        if request.type == Create2.type and above is not None:
            path = f"{path}{above.made:010d}"
        if path in self._prepared.nodes:
            raise Refused(NODE_EXISTS)
        if above is None:
            raise Refused(NO_NODE)
        owner = session if request.type == Create2.type else 0
        node = Znode(self._zxid + 1, owner, request.data, request.type == CONTAINER, born=self.world.now)
        return Change(created=((path, node),)), (path, node)

    def _prepare_together(self, request, session):
        """Prepare a transaction; a later part of it sees what an earlier one does."""
        versions = {}  # of the nodes that it has touched; None: it has deleted the node
        created = []
        deleted = []
        written = []
        for index, operation in enumerate(request.operations):
            problem = self._problem(operation, versions)
            if problem:
                rest = len(request.operations) - index - 1
                return Change(), [ROLLED_BACK] * index + [problem] + [INCONSISTENT] * rest
            if operation.type == Create.type:
                owner = session if operation.flags & 1 else 0
                created.append((operation.path, Znode(self._zxid + 1, owner, operation.data, born=self.world.now)))
                versions[operation.path] = 0
            elif operation.type == Delete.type:
                deleted.append(operation.path)
                versions[operation.path] = None
            elif operation.type == SetData.type:
                written.append((operation.path, operation.data))
                versions[operation.path] = (self._version(operation.path, versions) or 0) + 1
        results = [SimpleNamespace(mtime=self.world.now * 1000)] * len(request.operations)
        return Change(tuple(created), tuple(deleted), tuple(written)), results

    def _version(self, path, versions):
        node = self._prepared.nodes.get(path)
        return versions.get(path, None if node is None else node.version)

    def _problem(self, operation, versions):
        version = self._version(operation.path, versions)
        if operation.type == Create.type:
            above = operation.path.rpartition("/")[0]
            if version is not None:
                return NODE_EXISTS
            return 0 if above in self._prepared.nodes else NO_NODE
        if version is None:
            return NO_NODE
        return BAD_VERSION if operation.version not in (-1, version) else 0

    # --- what is done from outside the locks ----------------------------------------------------------------------

    def delete(self, path):
        if path in self._prepared.nodes and self.leader.up:
            self._propose(Change(deleted=(path,), why="by an operator"))

    def stray(self, like, guid):
        """Make a node of the same session that nobody has asked for, as a client does whose request comes twice."""
        parent = like.rpartition("/")[0]
        node, above = self._prepared.nodes.get(like), self._prepared.nodes.get(parent)
        if node is None or above is None or not self.leader.up or self.sessions[node.owner].closing:
            return
        self.strays.add(guid)
        name = like.rpartition("/")[2]
        path = f"{parent}/{name[:3]}{guid}{name[39:-10]}{above.made:010d}"
        self._propose(Change(created=((path, Znode(self._zxid + 1, node.owner)),)))

    def set_limit(self, parent, before, marker):
        node = self._prepared.nodes.get(parent)
        if node is None or not self.leader.up or before == marker:
            return False
        if [name for name in node.children if name.startswith("!limit")] != ([before] if before else []):
            return False
        self._propose(
            Change(
                created=((f"{parent}/{marker}", Znode(self._zxid + 1)),),
                deleted=(f"{parent}/{before}",) if before else (),
                written=((parent, marker.encode()),),
                why="by an operator",
            )
        )
        return True

    def reap(self):
        for path in sorted(self._prepared.nodes, key=len, reverse=True):
            node = self._prepared.nodes[path]
            if node.container and node.made and not node.children and self.leader.up:
                self._propose(Change(deleted=(path,), why="reaped"))

    # --- the log ------------------------------------------------------------------------------------------------

    def _propose(self, change, server=None, item=None, result=None):
        self._zxid += 1
        self._alter(self._prepared, change)
        self._pending.append(Proposal(self._zxid, change, server, item, result))
        self._last_commit = max(self._last_commit, self.world.now + self.world.delay(COMMIT, "log"))
        self.world.at(self._last_commit, self._commit_until, self._zxid)

    def _commit_until(self, zxid):
        while self._pending and self._pending[0].zxid <= zxid and self.leader.up:
            self._commit(self._pending.pop(0))

    def _commit(self, proposal):
        change = proposal.change
        self.before_change(change)
        self._alter(self.truth, change)
        self.history.update(change.created)
        if change.closed:
            self.sessions.pop(change.closed, None)
        self.on_change(change)
        for server in self.servers:
            server.hand_over(server.apply, proposal)
        for server, item in proposal.syncs:
            server.hand_over(server.done, item, 0)

    @staticmethod
    def _alter(tree, change):
        for path, node in change.created:
            tree.create(path, Znode(node.czxid, node.owner, node.data, node.container, born=node.born))
        for path in change.deleted:
            tree.delete(path)
        for path, data in change.written:
            tree.write(path, data)

    @property
    def committed(self):
        return (self._pending[0].zxid if self._pending else self._zxid + 1) - 1

    def elect(self):
        """Have another server lead; what was proposed and not committed may be lost."""
        if not self.leader.up:
            return
        kept = (len(self._pending), 0, len(self._pending) // 2)[self.world.choose(KEPT, "log")]
        lost = self._pending[kept:]
        self._pending = self._pending[:kept]
        for proposal in lost:
            self.sessions.pop(proposal.change.opened, None)
        self._commit_until(self._zxid)
        self._epoch += 1
        self._zxid = self._epoch << 32
        self._prepared = self.truth.copy()
        for server in self.servers:
            server.stop()
        self.leader = self.servers[(self.leader.index + 1) % len(self.servers)]
        self.world.note(f"leader: {self.leader.name} from now on, {len(lost)} proposals are lost")
        self.world.after(0.4, self._after_election)

    def _after_election(self):
        for tracked in list(self.sessions.values()):
            self.sessions.pop(tracked.session)
            # With all its time, whatever the old leader was about to do.
            self._track(tracked.session, tracked.timeout, tracked.smallest, None)
        for server in self.servers:
            server.join()
