"""A simulation of kazoo's client, in place of `core.zk.client.Client`; its thread waits while the process is paused."""

from collections import defaultdict, deque

from kazoo.exceptions import EXCEPTIONS, ConnectionLoss, SessionExpiredError
from kazoo.protocol.serialization import Close, Create2, GetChildren, GetData, Ping, SetData, Sync, Transaction
from kazoo.protocol.states import EventType, KeeperState, WatchedEvent, ZnodeStat

from django_zklock.core.zk.client import Client
from django_zklock.core.zk.connection import ASK_ANEW_AFTER, FIRST_RETRY, RETRY_SHARE, host_timeout
from model.choices import HOST, RECONNECT, REQUEST
from model.ensemble import CONTAINER, Refused
from model.server import CHANGED, CHILD, DELETED, Connection

_CLOSED = (KeeperState.EXPIRED_SESSION, KeeperState.CLOSED)
_PING = Ping()
_LOST = REQUEST.options.index("lost, a break")
_EVENTS = {DELETED: EventType.DELETED, CHANGED: EventType.CHANGED, CHILD: EventType.CHILD}


class SimulatedClient:
    def __init__(self, options, process):
        self.options = options
        self.process = process
        self.world = process.world
        self.client_state = KeeperState.CLOSED
        self.session_id = None
        self.host = ("model", 2181)
        self.server = "model:2181"
        self.negotiated_timeout = 0.0
        self._connect_sent_at = self._contact_at = 0.0
        self._ping_sent_at = 0.0
        self._child_watchers = defaultdict(set)
        self._data_watchers = defaultdict(set)
        self._queue = deque()
        self._pending = deque()
        self._seen = 0  # the last transaction that a server has told of
        self._connection = None
        self._hosts = []  # left of the present round
        self._pause = FIRST_RETRY
        self._tries = 0
        self._last_host = None
        self._stopped = False
        self._flushing = False
        self._last_send = 0.0
        self._ping_outstanding = False

    def run(self, call, *args):
        """Do something on the client's thread."""
        self.process.on_connection_thread(call, *args)

    # --- what a session calls -------------------------------------------------------------------------------------

    def start_async(self):
        self.world.after(0.0001, self.run, self._connect_anew)

    def send(self, requests):
        if self.client_state != KeeperState.CONNECTED:
            return False
        self._queue.extend(requests)
        self._wake()
        return True

    unwatch = Client.unwatch

    def drop_connection(self):
        if self._connection is not None:
            self._connection.back.close()
            self.world.after(0.0001, self.run, self.on_end, self._connection)

    @property
    def last_zxid(self):
        return self._seen

    @property
    def connected(self):
        return bool(self.client_state == KeeperState.CONNECTED)

    def end(self):
        if not self._stopped:
            self._stopped = True
            self._queue.append((Close(), None))
            self._wake()

    # --- the connection -------------------------------------------------------------------------------------------

    def _connect_anew(self):
        if self._stopped:
            return
        if not self._hosts:
            self._hosts = list(self.process.ensemble.servers)
            shift = self.world.choose(HOST, self.process.name)
            start = (self._last_host.index + 1 if self._last_host is not None else self.process.number) + shift
            self._hosts.sort(key=lambda server: (server is self._last_host, (server.index - start) % 3))
        if self.client_state != KeeperState.CONNECTING:
            self._change(KeeperState.CONNECTING)
        server = self._hosts.pop(0)
        connection = Connection(self, server)
        self._connection = connection
        self.process.connections[connection] = None
        if self.process.isolated:
            connection.reached = False
            connection.hold()
        self._connect_sent_at = self.world.now
        asked = self.negotiated_timeout if self.session_id else self.options.session_timeout
        if self.world.now > self._contact_at + ASK_ANEW_AFTER * asked:
            self._seen = 0
        connection.there.send(0.001, server.connect, connection, self.session_id or 0, asked, self._seen)
        count = len(self.options.hosts)
        timeout = host_timeout(self.options, self.negotiated_timeout, self._tries // count, count)
        self._tries += 1
        self.world.after(timeout, self.run, self._on_no_welcome, connection)

    def _on_no_welcome(self, connection):
        if connection is self._connection and self.client_state != KeeperState.CONNECTED:
            self._hang_up()
            self._try_next()

    def _try_next(self):
        if self._hosts:
            self.world.after(0.0005, self.run, self._connect_anew)
        else:
            timeout = self.negotiated_timeout or self.options.session_timeout
            self._pause = min(2 * self._pause, timeout * RETRY_SHARE)
            self.world.after(self._pause, self.run, self._connect_anew)

    def on_welcome(self, connection, session, timeout):
        if connection is not self._connection:
            return
        self._pause = FIRST_RETRY
        if not session:
            self._hang_up()
            self._change(KeeperState.EXPIRED_SESSION)
            self._try_next()
            return
        self.negotiated_timeout = self._smallest(session, timeout)
        self.session_id = session
        self.process.ensemble.welcomed(session, timeout)
        self._contact_at = self._connect_sent_at
        self._tries = 0
        self._hosts = []
        self._last_host = connection.server
        self._ping_outstanding = False
        self._last_send = self.world.now
        self._change(KeeperState.CONNECTED)
        self.world.after(self.negotiated_timeout / 3, self.run, self._on_ping_timer, connection)
        self._wake()

    def _smallest(self, session, timeout):
        return min(timeout, self.negotiated_timeout) if session == self.session_id else timeout

    def on_end(self, connection):
        if connection is not self._connection:
            return
        self._hang_up()
        if self._stopped:
            self._change(KeeperState.CLOSED)
            return
        if self.client_state == KeeperState.CONNECTED:
            self._change(KeeperState.CONNECTING)
            self.world.after(self.world.delay(RECONNECT, self.process.name), self.run, self._connect_anew)
        else:
            self._try_next()

    def _hang_up(self):
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.back.close()
            connection.there.send(0.001, connection.server.hung_up, connection)
            self.process.connections.pop(connection, None)
            if not connection.reached:  # nothing was ever sent on it
                connection.there.close()
            elif connection.there.held:  # what the network holds up may arrive when it is whole again
                self.process.remains.append(connection.there)

    def _change(self, state):
        closed_before = self.client_state in _CLOSED
        self.client_state = state
        if closed_before and state == KeeperState.CONNECTING:
            return
        if state == KeeperState.CONNECTED:
            self.on_connected(self.session_id, self.negotiated_timeout, self._connect_sent_at)
            return
        self.on_broken(state in _CLOSED)
        self._fail_all(SessionExpiredError if state == KeeperState.EXPIRED_SESSION else ConnectionLoss)
        self._reset_watchers()
        if state in _CLOSED:
            self.session_id = None
            self._seen = 0

    def _fail_all(self, error):
        for entries in (self._pending, self._queue):
            while entries:
                result = entries.popleft()[1]
                if result is not None:
                    result.set_exception(error())

    def _reset_watchers(self):
        tables = (self._data_watchers, self._child_watchers)
        watchers = [watcher for table in tables for watchers_of_path in table.values() for watcher in watchers_of_path]
        self._data_watchers, self._child_watchers = defaultdict(set), defaultdict(set)
        for watcher in watchers:
            watcher(WatchedEvent(EventType.NONE, self.client_state, None))

    # --- requests -------------------------------------------------------------------------------------------------

    def _wake(self):
        if not self._flushing:
            self._flushing = True
            self.world.after(0.00005, self.run, self._flush)

    def _flush(self):
        self._flushing = False
        while self._queue and self._connection is not None and self.client_state == KeeperState.CONNECTED:
            request, result = self._queue.popleft()
            self._pending.append((request, result))
            self._send(self._connection, request)

    def _send(self, connection, request):
        self._last_send = self.world.now
        option = self.world.choose(REQUEST, self.process.name)
        connection.lossy |= option == _LOST
        if not connection.lossy:
            connection.there.send(REQUEST.delays[option], connection.server.receive, connection, request)
        if option >= _LOST:
            self.world.after(0.0005, self.run, self.on_end, connection)

    def _on_ping_timer(self, connection):
        if connection is not self._connection:
            return
        due = self._last_send + self.negotiated_timeout / 3 - 0.01
        if self.world.now < due:
            self.world.at(due, self.run, self._on_ping_timer, connection)
            return
        if self._ping_outstanding:
            self.on_end(connection)
            return
        self._ping_outstanding = True
        self._ping_sent_at = self.world.now
        self._send(connection, _PING)
        self.world.after(self.negotiated_timeout / 3, self.run, self._on_ping_timer, connection)

    def on_reply(self, connection, request, result, zxid):
        if connection is not self._connection:
            return
        self._seen = max(self._seen, zxid)
        if request is _PING:
            self._ping_outstanding = False
            self._contact_at = self._ping_sent_at
            self.on_pinged(self._contact_at)
            return
        asked, reply = self._pending.popleft()
        assert asked is request, f"answers out of order: {asked} and {request}"
        if request.type == Close.type:
            self._hang_up()
            self._change(KeeperState.CLOSED)
            return
        if isinstance(result, Refused):
            reply.set_exception(EXCEPTIONS[result.code]())
            return
        watcher = getattr(request, "watcher", None)
        if watcher and not self._stopped:
            watchers = self._child_watchers if request.type == GetChildren.type else self._data_watchers
            watchers[request.path].add(watcher)
        reply.set(_answer(request, result))

    def on_event(self, connection, kind, path):
        if connection is self._connection and not self._stopped:
            watchers = [] if kind == CHILD else [*self._data_watchers.pop(path, ())]
            if kind != CHANGED:
                watchers += self._child_watchers.pop(path, ())
            for watcher in watchers:
                watcher(WatchedEvent(_EVENTS[kind], self.client_state, path))


def _stat(node):
    children = len(node.children)
    born = round(node.born * 1000)
    return ZnodeStat(
        node.czxid, node.czxid, born, born, node.version, node.made, 0, node.owner, len(node.data), children, node.czxid
    )


def _answer(request, result):
    if request.type in (Create2.type, CONTAINER):
        path, node = result
        return path, _stat(node)
    if request.type == GetData.type:
        return result.data, _stat(result)
    if request.type == SetData.type:
        return _stat(result)
    if request.type == Transaction.type:
        return [EXCEPTIONS[reply]() if isinstance(reply, int) else reply for reply in result]
    if request.type in (GetChildren.type, Sync.type):
        return request.path if request.type == Sync.type else list(result)
    return result
