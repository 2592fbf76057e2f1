"""
Knows how a kazoo client is built: hosts, handler, back-off, TLS, credentials. Knows nothing of locks.

The private names of kazoo that this package leans on are all used in this module and in `gateway`:
`KazooClient._call`, `_queue`, `_pending`, `_state`, `_connection`, `_session_id`, `_stopped`, `_data_watchers`;
`ConnectionHandler._connection_routine`, `_expand_client_hosts`, `_connect_loop`, `_connect`, `_invoke`,
`_send_request`, `_send_ping`, `_read_header`, `_read_socket`, `_read_response`, `_read`, `_write`, `_xid`, `_socket`,
`_read_sock`, `_write_sock`; and it overrides `ConnectionHandler.zk_loop`, whose `connection_stopped` it reads.
`tests/contract/zk/test_kazoo_surface.py` fails when a release of kazoo changes one of them.
"""

from __future__ import annotations

import codecs
import functools
import logging
import math
import select
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kazoo.client import KazooClient
from kazoo.exceptions import (
    EXCEPTIONS,
    ConnectionClosedError,
    ConnectionDropped,
    ConnectionLoss,
    SessionExpiredError,
    SystemZookeeperError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import PING_XID, ConnectionHandler
from kazoo.protocol.serialization import Auth, Close, CloseInstance, Connect, int_struct
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, Id, Permissions

from django_zklock.execution.owner import gevent_patched
from django_zklock.zk import clock
from django_zklock.zk.outage import NO_HOST, SILENT, NotZooKeeper, Outage, cause_of
from django_zklock.zk.threads import protocol_thread

# Looking up a host imports this codec when it is first used, on kazoo's thread. A child that is forked at that moment
# would find it half imported, and never look up a host.
codecs.lookup("idna")

FIRST_RETRY = 0.05  # seconds between two rounds through the hosts, at first
RETRY_SHARE = 0.25  # of the session timeout: the longest such pause; kazoo's own cap is an hour
HURRIED_RETRY_SHARE = 0.025  # of it: the same while a lease holds, which a longer one could sleep through
ROUND_SHARE = 0.5  # of it: the longest round through the hosts, so that each has its turn before the session is over
HURRIED_ROUND_SHARE = 0.2  # the same before the lease is over, which is then at least 0.23 of it away
HURRIED_ROUNDS = 2  # so many such rounds after a break; a server that is merely slow gets its time after that

LONGEST_FRAME = 2**28  # bytes; text that is read as the length of an answer is longer

_LAST_XID = 2**31 - 1
_ALONE = (None, Auth.type, Close.type)  # requests that kazoo sends in a way of their own, and its test doubles

_PERMISSIONS = {
    "r": Permissions.READ,
    "w": Permissions.WRITE,
    "c": Permissions.CREATE,
    "d": Permissions.DELETE,
    "a": Permissions.ADMIN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """How to speak TLS; only the given authority is trusted, and the host name is checked unless told otherwise."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """Return a fresh context, so that renewed certificates are read at the next connect."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.check_hostname
        if self.ca:
            # kazoo's own context trusts every public authority beside the given one.
            context.load_verify_locations(self.ca)
        else:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        if self.cert:
            context.load_cert_chain(self.cert, self.key, self.key_password)
        return context


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a session needs to know; times in seconds."""

    hosts: tuple[tuple[str, int], ...]
    base: str = "/zklock"
    session_timeout: float = 20.0
    connect_timeout: float = 5.0
    auth: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    acl: Literal["open", "creator"] | tuple[tuple[str, str, str], ...] = "open"
    tls: TlsOptions | None = None

    def host_timeout(self, round_time: float) -> float:
        """Return the seconds that one host has to answer, so that a round through all takes `round_time` at most."""
        return min(self.connect_timeout, round_time / len(self.hosts))

    def acls(self) -> list[ACL]:
        """Return the access list that every node is created with; never left to kazoo's open default."""
        if isinstance(self.acl, str):
            return list(CREATOR_ALL_ACL if self.acl == "creator" else OPEN_ACL_UNSAFE)
        return [ACL(_permissions(perms), Id(scheme, ident)) for scheme, ident, perms in self.acl]


def _permissions(letters: str) -> int:
    mask = 0
    for letter in letters:
        mask |= _PERMISSIONS[letter]
    return mask


class _Handler:
    """
    What our two handlers share: callbacks run at once on the connection's own thread.

    kazoo's handlers hand callbacks to two more threads. Ours only hand an event to the loop (`loop.Loop.deliver`) and
    never wait, so they may run where the reply is read: there is one thread less to cross, and every reply, watch event
    and change of state keeps the order in which the server sent it.
    """

    options: Options
    hostname = ""  # of the host that is being connected to, for its certificate; kazoo before 2.11 does not pass it on
    host_timeout: float  # seconds for one host to answer; set by the connection before each try
    in_handshake = False  # TLS is being set up; read by the connection when that failed
    _running: bool

    @property
    def running(self) -> bool:
        return False  # makes kazoo's results call back at once, too

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

    def create_connection(self, address: tuple[str, int], timeout: float | None = None, **_: object) -> socket.socket:
        """
        Connect to one host within its share of the session timeout.

        kazoo would give the first host all of it, so one dead host could cost the session.
        """
        sock = socket.create_connection(
            address, self.host_timeout if timeout is None else min(timeout, self.host_timeout)
        )
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.options.tls is not None:
                context = self.options.tls.context()
                self.in_handshake = True
                sock = context.wrap_socket(sock, server_hostname=self.hostname)
                self.in_handshake = False
        except BaseException:
            sock.close()
            raise
        return sock


class _ThreadingHandler(_Handler, SequentialThreadingHandler):
    def __init__(self, options: Options) -> None:
        super().__init__()
        self.options = options
        self.host_timeout = options.connect_timeout

    def select(self, readers: Sequence[Any], writers: Sequence[Any], _: object, timeout: float | None = None) -> Any:
        """Wait as `select.select` does, without its limit of 1024 descriptors; kazoo makes a selector each time."""
        if not hasattr(select, "poll"):
            return super().select(readers, writers, _, timeout)
        poller = select.poll()
        for reader in readers:
            poller.register(reader, select.POLLIN)
        for writer in writers:
            poller.register(writer, select.POLLOUT)
        ready = dict(poller.poll(None if timeout is None else math.ceil(timeout * 1000)))
        if not ready:
            return [], [], []
        return (
            [each for each in readers if each.fileno() in ready],
            [each for each in writers if each.fileno() in ready],
            [],
        )

    def spawn(self, func: Callable[..., object], *args: Any, **kwargs: Any) -> threading.Thread:
        thread = protocol_thread("zklock-connection", functools.partial(func, *args, **kwargs))
        thread.start()
        return thread


def _handler(options: Options) -> Any:
    if not gevent_patched():
        return _ThreadingHandler(options)
    from kazoo.handlers.gevent import SequentialGeventHandler  # noqa: PLC0415 - gevent is optional

    class GeventHandler(_Handler, SequentialGeventHandler):
        def __init__(self) -> None:
            super().__init__()
            self.options = options
            self.host_timeout = options.connect_timeout

    return GeventHandler()


class _Connection(ConnectionHandler):
    """
    kazoo's connection, which also remembers what the server granted.

    All that has to happen before the session is over is measured by that: with 60 seconds asked for and 10 granted, a
    pause of a quarter of the former would outlast the session.
    """

    negotiated_timeout = 0.0  # seconds, from the connect reply; kazoo itself keeps the requested value only
    connect_sent_at = float("-inf")  # on clock.now(), of the last connect that was answered

    _last_xid = 0  # the id of the last request, over all connections
    _tries = 0  # to connect, since there was a connection
    _last_host: tuple[str, int] | None = None  # that there was a connection to
    _host: tuple[str, int]  # that is being connected to
    _woken = False  # a byte that wakes this connection's thread is under way; see `wake`

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._pings: deque[float] = deque()  # when those were sent that have no answer yet, on clock.now()

    @property
    def _xid(self) -> int:
        """
        The id of the last request. It goes on from one connection to the next; kazoo's starts anew with each.

        A server that the session has moved to tells by the id alone whether a write that has just been committed is the
        request that it has yet to answer, or one that the session had sent to the server before (ZOOKEEPER-2684). If
        ids came twice, an old write would answer a new request: a lease would be extended by what was sent before the
        break, and a node be taken for one's own that another create made. The answer that is then one too many would
        end kazoo's thread.
        """
        return self._last_xid

    @_xid.setter
    def _xid(self, value: int | None) -> None:
        if value:
            self._last_xid = value

    def zk_loop(self) -> None:
        """Run the connection until its client is stopped; on a thread of kazoo's."""
        try:
            super().zk_loop()
        finally:
            if self.client._stopped.is_set():
                self.close()  # its pair of sockets
            self.client.on_ended()

    def _read_socket(self, read_timeout: float) -> Any:
        """
        Read one frame; leave the connection if the frame cannot be read, or is not the reply that is due.

        kazoo would end its thread. A server that finds a session moved leaves its write unanswered, and may answer the
        read behind it before it closes the connection (ZOOKEEPER-710).
        """
        try:
            return super()._read_socket(read_timeout)
        except (RuntimeError, IndexError, ValueError, struct.error) as error:  # IndexError: no reply is due
            raise ConnectionDropped(f"unreadable reply: {error}") from error

    def _read_response(self, header: Any, buffer: bytes, offset: int) -> Any:
        """
        Take a reply, and a code that kazoo does not know for a server error.

        kazoo would not pass it on: the request would stay unanswered for as long as the session lives. The same goes
        for the code that kazoo itself uses where a connection broke, as this one did not.
        """
        if header.err == ConnectionLoss.code or (header.err and header.err not in EXCEPTIONS):
            self.logger.warning("ZooKeeper replied with the error code %s", header.err)
            header = header._replace(err=SystemZookeeperError.code)
        return super()._read_response(header, buffer, offset)

    def wake(self) -> None:
        """
        Have this connection's thread look at the queue; after something was put there.

        One byte for all that comes before it looks. The pair of sockets takes less than 300 unread ones on Linux, and
        then makes the sender wait: the protocol of hundreds of contenders, which may run on the very thread that
        was to read them, or while that thread is busy connecting anew.
        """
        if not self._woken:
            self._woken = True
            self._write_sock.send(b"\0")

    def _expand_client_hosts(self) -> list[tuple[str, str, int]]:
        # One that has just gone silent would take its time to be found silent again.
        hosts: list[tuple[str, str, int]] = super()._expand_client_hosts()
        found = {(host, port) for host, _, port in hosts}
        for host in self.client.options.hosts:
            if host not in found:
                self.client.outage.failed(host, NO_HOST)
        return sorted(hosts, key=lambda host: host[1:] == self._last_host)

    def _connect_loop(self, retry: KazooRetry) -> Any:
        share = HURRIED_RETRY_SHARE if self.client.in_a_hurry() else RETRY_SHARE
        retry.max_delay = self._timeout * share / (1 + retry.max_jitter)
        try:
            return super()._connect_loop(retry)
        finally:
            self.client.outage.log()

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        self._pings.clear()
        hurried = self.negotiated_timeout and self._tries < HURRIED_ROUNDS * len(self.client.options.hosts)
        share = HURRIED_ROUND_SHARE if hurried else ROUND_SHARE
        self.handler.host_timeout = self.client.options.host_timeout(self._timeout * share)
        self.handler.hostname = host
        self.handler.in_handshake = False
        self._tries += 1
        self._host = (host, port)
        self.client.outage.trying(self._host)
        try:
            timeouts = super()._connect(host, hostip, port)
        except SessionExpiredError:
            raise  # which a server has said
        except Exception as error:
            cause = cause_of(error, in_handshake=self.handler.in_handshake, connected=self._socket is not None)
            self.client.outage.failed(self._host, cause)
            raise
        self.client.outage.over()
        self._tries = 0
        self._last_host = (hostip, port)
        return timeouts

    @property
    def _timeout(self) -> float:
        return self.negotiated_timeout or float(self.client.options.session_timeout)

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        if not isinstance(request, Connect):
            return super()._invoke(timeout, request, xid)
        self.client.outage.trying(self._host, SILENT)
        sent_at = clock.now()
        reply = super()._invoke(min(timeout, self.handler.host_timeout), request, xid)
        self.connect_sent_at = sent_at
        self.negotiated_timeout = reply[0].time_out / 1000.0
        return reply

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        """
        Send all that is queued in one write.

        kazoo sends one request, then may read a reply before the next. What was asked for together leaves together, or
        a lock would take three round trips when this thread happens to be slow.
        """
        self._woken = False  # before looking: what is put there from now on sends another byte
        queued = self.client._queue.copy()
        if len(queued) < 2 or any(getattr(request, "type", None) in _ALONE for request, _ in queued):
            if len(queued) > 1:
                self.wake()  # for the rest
            super()._send_request(read_timeout, connect_timeout)
            return
        frames = bytearray()
        sent = []
        for request, result in queued:
            self._xid = self._xid % _LAST_XID + 1
            self.logger.debug("Sending request(xid=%s): %s", self._xid, request)
            body = int_struct.pack(self._xid) + int_struct.pack(request.type) + bytes(request.serialize())
            frames += int_struct.pack(len(body)) + body
            sent.append((request, result, self._xid))
        self._write(bytes(frames), connect_timeout)
        for entry in sent:
            self.client._queue.popleft()
            self.client._pending.append(entry)
        self._read_sock.recv(1)  # that woke us; one that came since stays, or its request would wait for another

    def _send_ping(self, connect_timeout: float) -> None:
        self._pings.append(clock.now())
        super()._send_ping(connect_timeout)

    def _read_header(self, timeout: float) -> Any:
        """
        Read the beginning of an answer, and tell of a ping's.

        Answers to pings come in their order, but name none: kazoo may send the next one while one has no answer yet.
        """
        read = super()._read_header(timeout)
        if read[0].xid == PING_XID and self._pings:
            self.client.on_pinged(self._pings.popleft())
        return read

    # kazoo asks the kernel whether it may before each read and each write. It may, nearly always.

    def _read(self, length: int, timeout: float) -> bytes:
        if not 0 <= length <= LONGEST_FRAME:
            raise ConnectionDropped("not an answer of ZooKeeper's") from NotZooKeeper(int_struct.pack(length))
        chunk = self._at_once(self._socket.recv, length)
        if chunk is None:
            return bytes(super()._read(length, timeout))
        if not chunk:
            raise ConnectionDropped("socket connection broken")
        rest = length - len(chunk)
        return bytes(chunk + super()._read(rest, timeout) if rest else chunk)

    def _write(self, message: bytes, timeout: float) -> None:
        sent = self._at_once(self._socket.send, message) or 0
        if sent < len(message):
            super()._write(message[sent:], timeout)

    def _at_once(self, call: Callable[[Any], Any], argument: Any) -> Any:
        """Return what a call on the socket returns, or None if it would have to wait."""
        try:
            return call(argument)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except OSError as error:
            raise ConnectionDropped(f"socket connection error: {error.strerror or error}") from error


class Client(KazooClient):
    """A kazoo client with our handler, bounded back-off and the negotiated timeout."""

    def __init__(self, options: Options) -> None:
        self.options = options
        handler = _handler(options)
        super().__init__(
            hosts=",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in options.hosts),
            timeout=options.session_timeout,
            handler=handler,
            default_acl=options.acls(),
            auth_data=list(options.auth),
            use_ssl=options.tls is not None,
            connection_retry=KazooRetry(
                max_tries=-1,
                delay=FIRST_RETRY,
                sleep_func=handler.sleep_func,
            ),
            logger=_logger(),
        )
        self._connection = _Connection(self, self._conn_retry.copy(), logger=self.logger)
        self.outage = Outage(options.hosts)
        self.on_pinged: Callable[[float], object] = lambda sent_at: None  # a ping, sent at that time, was answered
        self.on_ended: Callable[[], object] = lambda: None  # kazoo's thread is at its end, for whatever reason
        self.in_a_hurry: Callable[[], bool] = lambda: False  # a lease holds: asked before each pause in connecting

    def end(self) -> None:
        """
        End the session where there is a connection, or stop connecting; return at once.

        `on_ended` is called when kazoo's thread is at its end. kazoo's own `stop` waits for that, in a thread that may
        not be there at the exit of the process.
        """
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._queue.append((CloseInstance, None))
        if self._connection.connection_stopped.is_set():  # its thread has died, or is yet to begin
            self._connection.close()
            self.on_ended()
        else:
            self._connection.wake()

    def join(self) -> None:
        """Wait for the end of kazoo's thread, which is only moments away once it has ended the session."""
        thread = self._connection._connection_routine
        if thread is not None:
            thread.join(1.0)

    def call_together(self, requests: Sequence[tuple[Any, Any]]) -> None:
        """Send requests in one go, each with what takes its answer; on a client that has a connection."""
        if self._connection._write_sock is None or self._state not in (KeeperState.CONNECTED, KeeperState.CONNECTING):
            for request, result in requests:
                self._call(request, result)  # which says what is wrong
            return
        self._queue.extend(requests)
        try:
            self._connection.wake()
        except OSError:
            for _, result in requests:
                result.set_exception(ConnectionClosedError("Connection has been closed"))

    @property
    def negotiated_timeout(self) -> float:
        """The session timeout that the server granted, in seconds."""
        return float(self._connection.negotiated_timeout)

    @property
    def connect_sent_at(self) -> float:
        """When the connect that made the present connection was sent, on `clock.now()`."""
        return float(self._connection.connect_sent_at)

    @property
    def session_id(self) -> int | None:
        """The id of the present session, the `ephemeralOwner` of its nodes."""
        session_id = self._session_id
        return int(session_id) if session_id else None

    @property
    def server(self) -> str:
        """Whom the present connection, or the last one, was made to, as "address:port"."""
        address = self._connection._last_host
        if address is None:
            return ""
        return "[{}]:{}".format(*address) if ":" in address[0] else "{}:{}".format(*address)

    @property
    def host(self) -> tuple[str, int]:
        """The server that was last tried, as it stands in the settings."""
        host: tuple[str, int] = self._connection._host
        return host

    def drop_connection(self) -> None:
        """Cut the connection (not the session), so that kazoo connects anew, to another server if there is one."""
        sock = self._connection._socket
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # closed already

    def forget_sockets(self) -> None:
        """Close this process's copies of the descriptors, in a forked child: nothing is sent, the parent goes on."""
        for sock in (self._connection._socket, self._connection._read_sock, self._connection._write_sock):
            if sock is not None:
                try:
                    sock.close()
                except OSError:
                    pass


class _Redact(logging.Filter):
    """Keep credentials and session passwords out of kazoo's log lines, whatever the level."""

    def filter(self, record: logging.LogRecord) -> bool:
        if "session_passwd" in str(record.msg):
            return False
        if isinstance(record.args, tuple):
            record.args = tuple(_redacted(arg) for arg in record.args)
        return True


def _redacted(arg: object) -> object:
    if isinstance(arg, Auth):
        return arg._replace(auth="...")
    if isinstance(arg, Connect):
        return arg._replace(passwd=b"...")  # with it and the session's id anybody could take the session over
    return arg


class _Quiet(logging.Filter):
    """
    Log at DEBUG what kazoo logs of each try to connect.

    `Outage.log` says once for all tries why there is no connection, and the session logs each change of its state.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if logging.DEBUG < record.levelno < logging.ERROR:
            record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
        return record.levelno != logging.DEBUG or logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


def _logger() -> logging.Logger:
    logger = logging.getLogger("django_zklock.zk.kazoo")
    for kind in (_Redact, _Quiet):
        if not any(isinstance(each, kind) for each in logger.filters):
            logger.addFilter(kind())
    return logger
