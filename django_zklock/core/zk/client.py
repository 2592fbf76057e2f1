"""
The kazoo client of a session, and the requests that are sent with it.

`Client` has the hosts, the credentials, TLS, and the timeout of the session. `Requests` has the requests of a
session that have no reply yet, and those that wait until fewer are in flight; it uses one client after another. A
`PendingRequest` receives a reply, a `Watch` an event. At the end are two requests that kazoo does not have.

These private names of kazoo are used here and in `connection` and `session`:
`KazooClient._notify_pending`, `_queue`, `_pending`, `_connection`, `_session_id`, `_session_passwd`, `_stopped`,
`_data_watchers`, `_child_watchers`; `ConnectionHandler._expand_client_hosts`, `_connect_loop`, `_connect_attempt`,
`_connect`, `_invoke`, `_send_request`, `_send_ping`, `_read_header`, `_read_socket`, `_read`, `_write`, `_xid`,
`_socket`, `_read_sock`, `_write_sock`. `connection` overrides `ConnectionHandler.zk_loop` and reads its
`connection_stopped`.
They were looked up in kazoo 2.11.0. `tests/contract/zk/test_kazoo_surface.py` fails when a release changes one of them.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from kazoo.client import KazooClient
from kazoo.protocol import serialization as wire
from kazoo.protocol.serialization import Auth, CloseInstance, Connect
from kazoo.protocol.states import EventType, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, Id

from django_zklock.core import clock
from django_zklock.core.log import Logger
from django_zklock.core.queue.escaping import SEQUENCE
from django_zklock.core.zk.connection import FIRST_RETRY, Connection, Handler
from django_zklock.core.zk.errors import OutcomeUnknown, ZkError, failure, translate
from django_zklock.core.zk.lease import LastContact
from django_zklock.core.zk.loop import NEVER, Loop
from django_zklock.core.zk.options import FormerSession, Secret, SessionOptions
from django_zklock.core.zk.outage import Host, Outage, address

if TYPE_CHECKING:
    from kazoo.protocol.states import WatchedEvent

logger = Logger("django_zklock.zk")

# Part of the session timeout. After so long without a reply, the connection counts as dead. The lease still lasts then.
STALL_SHARE = 1 / 6
MAX_IN_FLIGHT = 200  # requests without a reply; others wait here, so a heartbeat never queues behind many

PERMISSIONS = "rwcda"
"""Letters for the permissions to read, write, create, delete and administer, in the order of their bits."""


def acls(options: SessionOptions) -> list[ACL]:
    """Return the access list of new znodes."""
    if isinstance(options.acl, str):
        return list(CREATOR_ALL_ACL if options.acl == "creator" else OPEN_ACL_UNSAFE)
    return [
        ACL(sum(1 << PERMISSIONS.index(letter) for letter in set(letters)), Id(scheme, ident))
        for scheme, ident, letters in options.acl
    ]


class Client(KazooClient):
    """
    A kazoo client with our handler and connection, bounded pauses, and the negotiated timeout.

    Its session sets the calls below before it starts the client. They run on kazoo's thread, and must not wait.
    """

    outage: Outage
    on_connected: Callable[[int, float, float], object]  # gets the session's id and timeout, and when it was asked for
    on_broken: Callable[[bool], object]  # gets whether the session is over; called before the pending requests fail
    on_pinged: Callable[[float], object]  # gets the time of a ping that was answered
    on_ended: Callable[[], object]  # called when kazoo's thread ends, for whatever reason
    lease_lasts: Callable[[], bool]  # asked before each pause; without locks there is no hurry
    is_wanted: Callable[[], bool]  # asked before a server that refuses is tried again

    def __init__(self, options: SessionOptions, former: FormerSession | None = None) -> None:
        self.options = options
        handler = Handler()
        retry = KazooRetry(max_tries=-1, delay=FIRST_RETRY, sleep_func=handler.sleep_func)
        super().__init__(
            hosts=",".join(map(address, options.hosts)),
            timeout=options.session_timeout,
            client_id=None if former is None else (former.id, bytes.fromhex(former.password)),
            handler=handler,
            auth_data=list(options.auth),
            use_ssl=options.tls is not None,
            connection_retry=retry,
            logger=KazooLogger("django_zklock.zk.kazoo"),
        )
        self._connection = Connection(self, retry.copy(), logger=self.logger)
        if former is not None:
            self._connection.negotiated_timeout = former.timeout

    def _notify_pending(self, state: Any) -> None:
        self._connection.stop_sending()  # first, as kazoo fails the requests without a reply only once
        self.on_broken(state != KeeperState.CONNECTING)
        super()._notify_pending(state)

    def end(self) -> None:
        """
        End the session if there is a connection, or stop connecting; return at once.

        `on_ended` is called when kazoo's thread has ended. kazoo's own `stop` waits for that in a thread that may not
        run any more at the exit of the process.
        """
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._queue.append((CloseInstance, None))
        if self._connection.connection_stopped.is_set():  # its thread has died, or has not begun yet
            self._connection.close()
            self.on_ended()
        else:
            self._connection.wake()

    def disconnect(self) -> None:
        """End the connection, not the session, and connect no longer."""
        self._stopped.set()
        self.drop_connection()

    def join(self) -> None:
        """Wait until kazoo's thread has ended. That takes only moments after the end of the session."""
        if self.handler.thread is not None:
            self.handler.thread.join(1.0)

    def send(self, requests: Sequence[tuple[Any, Any]]) -> bool:
        """Send requests together, each with the object that takes its reply. Return False if there is no connection."""
        return self._connection.send(requests)

    @property
    def session_id(self) -> int | None:
        """The id of the present session, and `ephemeralOwner` of its znodes."""
        session_id = self._session_id
        return int(session_id) if session_id else None

    @property
    def session_password(self) -> Secret:
        """The password by which another process can go on with the session, in hexadecimal digits."""
        return Secret(self._session_passwd.hex())

    @property
    def server(self) -> str:
        """The server of the present connection, or of the last one, as "address:port"; "" if there was none."""
        last = self._connection.last_address
        return "" if last is None else address(last)

    @property
    def host(self) -> Host:
        """The server that was tried last, as spelled in the settings."""
        return self._connection.attempt.host

    def drop_connection(self) -> None:
        """Cut the connection, not the session. kazoo then connects again, to another server if there is one."""
        self._connection.attempt.dropped = True
        self._connection.cut()

    def unwatch(self, path: str, watcher: Callable[[Any], object]) -> None:
        """Forget a watcher. kazoo would keep it until something happens to the znode."""
        for watched in (self._data_watchers, self._child_watchers):
            watched.get(path, set()).discard(watcher)

    def forget_sockets(self) -> None:
        """Close a forked child's copies of the sockets. Nothing is sent, so the parent's connection stays open."""
        self.handler.stop()
        for sock in (self._connection._socket, self._connection._read_sock, self._connection._write_sock):
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.close()


class KazooLogger(Logger):
    """
    Logs kazoo's lines, those about each try at DEBUG, and none with a credential or the password of a session.

    `Outage.log` logs once for all tries why there is no connection, and the session logs each change of its state.
    """

    def log(self, level: int, msg: object, *args: Any, **options: Any) -> None:
        shown = logging.DEBUG if logging.DEBUG < level < logging.ERROR else level
        if not self.is_on(shown) or "session_passwd" in str(msg):
            return
        if not any(isinstance(arg, (Auth, Connect)) for arg in args):
            super().log(shown, msg, *args, **options)


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request that waits for its reply. kazoo sets the reply on its own thread, and the loop's thread gets it."""

    _loop: Loop
    _request: Any
    callback: Callable[[Any], object]
    _on_reply: Callable[[PendingRequest, object], object]
    code: int = 0  # of its reply, if kazoo does not know it; set by the connection

    def set(self, value: Any = None) -> None:
        """Take the reply. The results of a transaction, or the path of a new znode, may show that it is unclear."""
        reply, request = value, self._request
        if isinstance(request, wire.Transaction):
            failed = failure(value)
            if failed is not None and isinstance(error := translate(failed, request), OutcomeUnknown):
                reply = error
        elif isinstance(request, wire.Create2):
            path: str = value[0]
            if not path.startswith(request.path) or not SEQUENCE.fullmatch(path, len(request.path)):  # a flipped bit
                reply = OutcomeUnknown(f"a create of {request.path} made {path}")
        self._loop.deliver(self._on_reply, self, reply)

    def set_exception(self, error: BaseException) -> None:
        """Take the error."""
        reply = translate(error, self._request, self.code)
        self._loop.deliver(self._on_reply, self, reply)


@dataclass(slots=True, eq=False)
class Watch:
    """A watch on one znode or its children. It calls back once, at the first event, unless it was cancelled before."""

    _loop: Loop
    _path: str
    _callback: Callable[[bool], object] | None
    _unwatch: Callable[[str, Watch], object]  # called when it was cancelled
    is_set: bool = False  # the server has it; its user sets this

    def __bool__(self) -> bool:
        """
        Return False once it was cancelled.

        kazoo asks when it sends the request, and again when the reply arrives. It would keep a cancelled watch until
        something happens to the znode.
        """
        return self._callback is not None

    def __call__(self, event: WatchedEvent) -> None:
        """Take kazoo's event, on kazoo's thread."""
        if event.type != EventType.NONE:  # NONE: the connection broke; the session tells its observers
            self._loop.deliver(self._fire, event.type == EventType.DELETED)

    def _fire(self, deleted: bool) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback(deleted)

    def cancel(self) -> None:
        """Do not call back."""
        self._callback = None
        self._unwatch(self._path, self)


Request: TypeAlias = tuple[Any, Callable[[Any], object]]
"""A request of kazoo's, and the callback that gets its reply."""


class Requests:
    """
    The requests of one session; on the loop's thread.

    The session calls `open` for each connection, and `close` when that connection ends. `on_stall` is called when there
    was no reply for too long, `on_unknown` when a reply was lost or is unclear.
    """

    def __init__(
        self,
        loop: Loop,
        contact: LastContact,
        on_stall: Callable[[float], object],
        on_unknown: Callable[[OutcomeUnknown], object],
    ) -> None:
        self._loop = loop
        self._contact = contact
        self._on_stall = on_stall  # gets the seconds without a reply
        self._on_unknown = on_unknown
        self._client: Client | None = None  # while there is a connection
        self._session_id: int | None = None
        self._timeout = 0.0  # of the session
        self._sent: dict[PendingRequest, float] = {}  # requests without a reply, oldest first, and when they were sent
        self._unsent: deque[Sequence[Request]] = deque()  # requests that wait until fewer are in flight
        self._replied_at = float("-inf")  # when the last reply arrived, on clock.now()
        self._stall_timer = NEVER

    def open(self, client: Client, session_id: int, timeout: float) -> None:
        """Send requests on this connection from now on."""
        self._client, self._session_id, self._timeout = client, session_id, timeout
        self._stall_timer.cancel()  # it may be that of a longer session timeout

    def close(self) -> None:
        """Send nothing more: the connection broke. The requests that wait fail."""
        self._client = None
        self._fail_unsent(OutcomeUnknown)

    def fail_all(self, error: type[ZkError]) -> None:
        """Fail all requests, because the session is over."""
        self._client = None
        unanswered, self._sent = self._sent, {}
        _fail([(pending, pending.callback) for pending in unanswered], error)
        self._fail_unsent(error)

    @property
    def usable(self) -> bool:
        """
        True if a request that is sent now belongs to this session.

        kazoo's client may have a new session before the loop gets that event.
        """
        return self._client is not None and self._client.session_id == self._session_id

    @property
    def unanswered(self) -> int:
        """The number of requests in flight."""
        return len(self._sent)

    def send(self, *requests: Request, urgent: bool = False) -> None:
        """
        Send requests of kazoo's together. Each callback gets its reply or a `ZkError`, on the loop's thread, in order.

        While `MAX_IN_FLIGHT` requests have no reply, others wait, unless they are `urgent`.

        A user's thread must not call this. A signal handler may raise there while kazoo passes the request to its own
        thread. kazoo would swallow that exception and lose the request.
        """
        client = self._client
        if client is None or not self.usable:
            _fail(requests, OutcomeUnknown)
            return
        if not urgent and (len(self._sent) >= MAX_IN_FLIGHT or self._unsent):
            self._unsent.append(requests)
            return
        now = clock.now()
        calls = []
        for request, callback in requests:
            calls.append((request, PendingRequest(self._loop, request, callback, self._on_reply)))
        if not client.send(calls):  # raises if a request cannot be written; no reply is handled before this returns
            _fail(requests, OutcomeUnknown)
            return
        for _, pending in calls:
            self._sent[pending] = now
        if not self._stall_timer.pending:
            self._stall_timer = self._loop.call_later(self._timeout * STALL_SHARE, self._on_stall_timer)

    def watch(self, path: str, on_event: Callable[[bool], object] | None) -> Watch | None:
        """Return a watch to send with a request; None without `on_event`."""
        return None if on_event is None else Watch(self._loop, path, on_event, self._unwatch)

    def _unwatch(self, path: str, watch: Watch) -> None:
        """Forget a watch. On the server, it ends with the next event of that znode."""
        if self._client is not None:  # else it has ended with the connection
            self._client.unwatch(path, watch)

    def _on_reply(self, pending: PendingRequest, reply: object) -> None:
        """Handle the reply to a request, or its error; once per request."""
        sent_at = self._sent.pop(pending, None)
        if sent_at is None:
            return
        if isinstance(reply, OutcomeUnknown):
            self._on_unknown(reply)
        else:
            self._replied_at = clock.now()
            self._contact.record(sent_at, self._replied_at, self._timeout)
        try:
            pending.callback(reply)
        finally:
            while self._unsent and len(self._sent) < MAX_IN_FLIGHT and self.usable:
                self.send(*self._unsent.popleft(), urgent=True)

    def _on_stall_timer(self) -> None:
        if not self._sent:
            return
        # Replies arrive in the order of the requests. While replies arrive, the oldest request only queues.
        since = max(next(iter(self._sent.values())), self._replied_at)
        longest = self._timeout * STALL_SHARE
        remaining = since + longest - clock.now()
        if remaining <= 0:
            self._on_stall(longest - remaining)
            remaining = longest
        self._stall_timer = self._loop.call_later(remaining, self._on_stall_timer)

    def _fail_unsent(self, error: type[ZkError]) -> None:
        unsent, self._unsent = self._unsent, deque()
        for requests in unsent:
            _fail(requests, error)


def _fail(requests: Sequence[Request], error: type[ZkError]) -> None:
    for _, callback in requests:
        try:
            callback(error())
        except Exception:
            # The other callbacks must be called all the same.
            logger.exception("%r failed on a request without a reply", callback)


class CreateContainer(wire.Create):
    """A create with the operation code for containers (ZooKeeper 3.5.3), which kazoo does not have."""

    type = 19

    @classmethod
    def deserialize(cls, buffer: bytes, offset: int) -> object:
        return wire.Create2.deserialize(buffer, offset)


@dataclass(frozen=True, slots=True)
class GetEphemerals:
    """List the ephemeral znodes of this session below a path (ZooKeeper 3.6), which kazoo cannot do."""

    prefix: str
    type: ClassVar[int] = 103

    def serialize(self) -> bytes:
        return bytes(wire.write_string(self.prefix))

    @classmethod
    def deserialize(cls, buffer: bytes, offset: int) -> list[str]:
        return list(wire.GetChildren.deserialize(buffer, offset))  # the reply has the same format
