"""One server of the ensemble: connections, the order of requests, reads and watches."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any

from kazoo.protocol.serialization import GetChildren, GetData, Ping, Sync

from model.choices import APPLY, FORWARD, REPLY
from model.tree import Tree
from model.world import Pipe

DELETED, CHANGED, CHILD = "DELETED", "CHANGED", "CHILD"
CONNECT = object()


@dataclass(slots=True, eq=False)
class Item:
    connection: Connection
    session: int
    request: Any
    write: bool = False
    answered: bool = False
    result: Any = None
    zxid: int = 0


class Connection:
    def __init__(self, client, server):
        world = server.world
        self.client = client
        self.server = server
        self.session = 0
        self.timeout = 0.0  # seconds, that the server has granted
        self.there = Pipe(world)
        self.back = Pipe(world)
        self.open = True  # at the server's end
        self.reached = True  # the server's host has answered, so that there is a connection at all
        self.lossy = False  # something was lost, so nothing that comes after it arrives
        self.items = deque()

    def hold(self):
        self.there.hold()
        self.back.hold()

    def release(self):
        self.there.release()
        self.back.release()


class Server:
    def __init__(self, ensemble, index):
        self.ensemble = ensemble
        self.world = ensemble.world
        self.index = index
        self.name = f"server {index}"
        self.longest = ensemble.timeout  # seconds, that it grants to a session
        self.up = False
        self.cut = False  # off from the leader
        self.tree = Tree()
        self.applied = 0
        self.from_leader = Pipe(self.world)
        self.to_leader = Pipe(self.world)
        self._apply = Pipe(self.world)
        self._connections = {}  # by session
        self._opening = {}
        self._watches = {}
        self._child_watches = {}
        self._touched = {}  # the timeouts of the sessions that it has heard of
        self._heard = 0.0  # of the leader

    def join(self):
        self.tree = self.ensemble.truth.copy()
        self.applied = self.ensemble.committed
        self.from_leader, self.to_leader, self._apply = Pipe(self.world), Pipe(self.world), Pipe(self.world)
        self.cut = False
        self.up = True
        self._touched = {}
        self._heard = self.world.now

    def stop(self):
        self.up = False
        for pipe in (self.from_leader, self.to_leader, self._apply):
            pipe.close()
        for connection in [*self._connections.values(), *self._opening]:
            self._close(connection)

    def cut_off(self):
        if self.up and not self.cut and self is not self.ensemble.leader:
            self.cut = True
            self.from_leader.hold()
            self.to_leader.hold()
            self.world.at(self._heard + self.ensemble.sync_limit, self._miss_leader, self.from_leader)

    def _miss_leader(self, pipe):
        if self.cut and self.up and pipe is self.from_leader:
            self.world.note(f"{self.name} has lost the leader")
            self.stop()

    def heal(self):
        if self.cut:
            self.cut = False
            if self.up:
                self.from_leader.release()
                self.to_leader.release()
            else:
                self.world.after(0.1, self._rejoin)

    def _rejoin(self):
        if not self.up and not self.cut and self.ensemble.leader.up:
            self.join()

    def pinged(self):
        self._heard = self.world.now
        touched, self._touched = self._touched, {}
        self.to_leader.send(0.0005, self._relay, touched)

    def _relay(self, touched):
        for session, timeout in touched.items():
            self.ensemble.touch(session, timeout)

    def hand_over(self, call, *args):
        """Have the leader's word done here, in its order."""
        if self is self.ensemble.leader:
            call(*args)
        elif self.up:
            self.from_leader.send(0.0005, self._receive, call, args)

    def _receive(self, call, args):
        delay = self.world.delay(APPLY, self.name) if call == self.apply else 0.0
        self._apply.send(delay, call, *args)

    def apply(self, proposal):
        change = proposal.change
        self.ensemble._alter(self.tree, change)
        self.applied = proposal.zxid
        for path, _ in change.created:
            self._tell(path.rpartition("/")[0], CHILD)
        for path, _ in change.written:
            if path in change.deleted:  # after the write
                self._tell(path, CHANGED)
        for path in change.deleted:
            self._tell(path, DELETED)
            self._tell(path.rpartition("/")[0], CHILD)
        for path, _ in change.written:
            self._tell(path, CHANGED)
        if proposal.server is self and proposal.item is not None:
            proposal.item.result = proposal.result
            self.done(proposal.item, proposal.zxid)
        if change.closed:
            self.drop(change.closed)

    def _tell(self, path, kind):
        watching = {} if kind == CHILD else self._watches.pop(path, {})
        if kind != CHANGED:
            watching = watching | self._child_watches.pop(path, {})
        for connection in watching:
            self._back(connection, connection.client.on_event, kind, path)

    def connect(self, connection, session, asked, seen):
        if not self.up or seen > self.applied:
            self._close(connection)
            return
        self._opening[connection] = None
        connection.timeout = min(asked, self.longest)
        item = Item(connection, session, CONNECT)
        if not session:
            self._forward(self.ensemble.open, self, item)
        else:
            self.drop(session)
            self._forward(self._validate, item)

    def _validate(self, item):
        timeout = item.connection.timeout
        valid = self.ensemble.validate(self, item.session, timeout)
        item.result = (item.session, timeout) if valid else (0, 0.0)
        if self is self.ensemble.leader:
            self._welcome(item)
        else:
            self.from_leader.send(0.0005, self._welcome, item)

    def _welcome(self, item):
        connection = item.connection
        self._opening.pop(connection, None)
        if not connection.open:
            return
        session, timeout = item.result
        if session:
            self.drop(session)
            connection.session = session
            self._connections[session] = connection
        self._back(connection, connection.client.on_welcome, session, timeout)
        if not session:
            self._close(connection)

    def receive(self, connection, request):
        from model.ensemble import WRITES

        if not connection.open or not self.up:
            return
        session = connection.session
        self._hear_of(session, connection.timeout)
        write = request.type in WRITES or request.type == Sync.type
        item = Item(connection, session, request, write)
        connection.items.append(item)
        if request.type == Sync.type:
            self._forward(self.ensemble.sync, self, item)
        elif write:
            self._forward(self.ensemble.submit, self, item)
        else:
            self._answer(connection)

    def _hear_of(self, session, timeout):
        if self is self.ensemble.leader:
            self.ensemble.touch(session, timeout)
        else:
            self._touched[session] = timeout

    def _forward(self, call, *args):
        if self is self.ensemble.leader:
            call(*args)
        else:
            self.to_leader.send(self.world.delay(FORWARD, self.name), call, *args)

    def done(self, item, zxid):
        if item.request is CONNECT:
            self._welcome(item)
            return
        item.answered = True
        item.zxid = zxid
        self._answer(item.connection)

    def _answer(self, connection):
        items = connection.items
        while items and connection.open and (items[0].answered or not items[0].write):
            item = items.popleft()
            if not item.write:
                item.result = self._read(item)
                item.zxid = self.applied
            self._back(connection, connection.client.on_reply, item.request, item.result, item.zxid)

    def _read(self, item):
        from model.ensemble import NO_NODE, Refused

        request = item.request
        if request.type == Ping.type:
            return None
        if request.type not in (GetChildren.type, GetData.type):
            return [path for path in self.tree.owned(item.session) if path.startswith(request.prefix)]
        node = self.tree.nodes.get(request.path)
        if node is None:
            return Refused(NO_NODE)
        listed = request.type == GetChildren.type
        if request.watcher is not None:
            watches = self._child_watches if listed else self._watches
            watches.setdefault(request.path, {})[item.connection] = None
        if listed:
            return sorted(node.children)
        return replace(node)  # as it is now, whenever the answer arrives

    def _back(self, connection, call, *args):
        client = connection.client
        option = self.world.choose(REPLY, client.process.name)
        delay = REPLY.delays[option]
        if option == len(REPLY.delays) - 1:
            connection.back.send(delay, client.run, client.on_end, connection)
            self._close(connection)
        else:
            connection.back.send(delay, client.run, call, connection, *args)

    def drop(self, session):
        connection = self._connections.get(session)
        if connection is not None:
            self._close(connection)

    def hung_up(self, connection):
        self._close(connection, tell=False)

    def _close(self, connection, *, tell=True):
        if not connection.open:
            return
        connection.open = False
        if self._connections.get(connection.session) is connection:
            del self._connections[connection.session]
        self._opening.pop(connection, None)
        for watching in (*self._watches.values(), *self._child_watches.values()):
            watching.pop(connection, None)
        if tell:
            connection.back.send(0.001, connection.client.run, connection.client.on_end, connection)
