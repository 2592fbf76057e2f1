"""
kazoo's connection handler, adapted: faster reconnects, one write for requests that belong together, strict replies.

`client` lists kazoo's private names that this module uses.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import math
import random
import select
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import (
    EXCEPTIONS,
    ConnectionDropped,
    ConnectionLoss,
    SessionExpiredError,
    SystemZookeeperError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import PING_XID, ConnectionHandler
from kazoo.protocol.serialization import Auth, Close, Connect, int_struct
from kazoo.protocol.states import KeeperState
from kazoo.retry import ForceRetryError, KazooRetry

from django_zklock.core import clock, fork
from django_zklock.core.execution.owner import gevent_patched
from django_zklock.core.zk.codes import CREDENTIALS
from django_zklock.core.zk.loop import protocol_thread
from django_zklock.core.zk.outage import (
    CLOSED,
    LONGEST_PAUSE,
    PAUSE_SHARE,
    REFUSALS,
    REFUSED,
    Address,
    NotZooKeeper,
    Outage,
    cause_of,
)
from django_zklock.core.zk.outside import context, resolve

if TYPE_CHECKING:
    from django_zklock.core.zk.options import SessionOptions

# kazoo's thread imports this codec when it looks up the first host. A child that is forked at that moment would inherit
# a half-imported module and could never look up a host.
codecs.lookup("idna")

FIRST_RETRY = 0.05  # seconds: the first pause between two rounds through the hosts
RETRY_SHARE = 0.25  # of the session timeout: the longest such pause; kazoo's own limit is an hour
HURRIED_RETRY_SHARE = 0.025  # of it: the longest pause while a lease lasts; a longer one could outlast the lease
LOOK_AGAIN = 0.1  # seconds between two looks whether it is time for a server that refuses, or somebody waits now
ROUND_SHARE = 0.5  # of it: the longest round, so that each host is tried before the session is over
HURRIED_ROUND_SHARE = 0.2  # of it: the longest round while a lease lasts; 0.23 or more remain when a connection breaks
QUICK_TRY = 0.2  # seconds for one address in the first two rounds while a lease lasts
LOOKUP_SHARE = 0.025  # of it: how long a round waits for the resolver and for TLS files; but see the next two lines
LOOKUP_LEAST, LOOKUP_MOST = 0.05, 0.25  # seconds
LOOKUP_STEP = 0.02  # seconds between two looks while no address is known
FILES_FIRST = 0.5  # seconds for the first TLS files, without which there is nothing to try
FIRST_ROUND = 0.8  # of the connect timeout: the longest round before the first connection
HURRIED_ROUNDS = 2  # rounds of these kinds; later rounds give a slow server more time

SOON = 1.0  # seconds after which a connection that breaks is not blamed on its server, if that has answered a request
WRITE_WAIT = 0.02  # seconds that requests wait while another thread writes, such as a ping; more if the socket is full
LONGEST_FRAME = 2**28  # bytes; the first bytes of a text, read as a length, give a larger number
READ_AHEAD = 4096  # bytes; after so many, requests are sent before more replies are handled

_LAST_XID = 2**31 - 1
_ALONE = (None, Auth.type, Close.type)  # kazoo sends these by itself; None: the requests in kazoo's own tests
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class _TlsSocket(ssl.SSLSocket):
    """A socket that one thread may read while another one writes. OpenSSL does not allow that by itself."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        sock = super().__new__(cls)  # for `__init__` are the arguments; gevent's class takes none here
        sock.in_use = threading.Lock()
        return sock

    in_use: threading.Lock

    def recv(self, *args: Any) -> bytes:
        """Return what has arrived, with all that OpenSSL has read of it, as no event of the socket would follow."""
        with self.in_use:
            data = super().recv(*args)
            return data + super().recv(more) if (more := super().pending()) else data

    def send(self, *args: Any) -> int:
        with self.in_use:
            return super().send(*args)

    def pending(self) -> int:
        return 0  # see `recv`

    def shutdown(self, how: int) -> None:
        socket.socket.shutdown(self, how)  # Python's would go on without TLS


def wait_ready(readers: Sequence[Any], writers: Sequence[Any], _: object, timeout: float | None = None) -> Any:
    """Wait like `select.select`, without its limit of 1024 descriptors."""
    poller = select.poll()
    for reader in readers:
        poller.register(reader, select.POLLIN)
    for writer in writers:
        poller.register(writer, select.POLLOUT)
    ready = dict(poller.poll(None if timeout is None else math.ceil(timeout * 1000)))
    readable = [stream for stream in readers if stream.fileno() in ready]
    return readable, [stream for stream in writers if stream.fileno() in ready], []


class _Handler:
    """
    Base of the two handlers: callbacks run at once, on the connection's thread.

    kazoo's handlers pass callbacks to two more threads. Our callbacks only deliver an event to the loop and never wait,
    so they can run where the reply is read. That saves a switch of threads, and replies, watch events and changes of
    state keep the order in which the server sent them.
    """

    options: SessionOptions
    tls: ssl.SSLContext | None = None  # set by the connection before each round
    host_timeout: float  # seconds in which one host must answer; set by the connection before each try
    in_handshake = False  # TLS is being set up; read by the connection after a failure
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

    def create_connection(self, address: Any, timeout: float | None = None, hostname: str = "", **_: object) -> Any:
        """
        Connect to one host within its share of the session timeout. Its certificate must have the `hostname`.

        kazoo would give the first host the whole timeout, so one dead host could cost the session.
        """
        sock = socket.create_connection(
            address, self.host_timeout if timeout is None else min(timeout, self.host_timeout)
        )
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.tls is not None:
                self.in_handshake = True
                self.tls.sslsocket_class = _TlsSocket
                sock = self.tls.wrap_socket(sock, server_hostname=hostname)
                self.in_handshake = False
        except BaseException:
            sock.close()
            raise
        fork.notice()
        if not self._running:  # the process was forked in the meantime, and this is a greenlet in the child
            sock.close()
            raise ConnectionAbortedError("the connection is the parent's")
        return sock


class _ThreadingHandler(_Handler, SequentialThreadingHandler):
    def __init__(self, options: SessionOptions) -> None:
        super().__init__()
        self.options = options
        self.host_timeout = options.connect_timeout

    select = staticmethod(wait_ready)  # kazoo's own creates a selector each time

    def spawn(self, func: Callable[..., object], *args: Any, **kwargs: Any) -> threading.Thread:
        thread = protocol_thread("zklock-connection", functools.partial(func, *args, **kwargs))
        thread.start()
        return thread


def new_handler(options: SessionOptions) -> Any:
    """Return kazoo's handler for this process: with threads, or with greenlets where gevent has patched threads."""
    if not gevent_patched():
        return _ThreadingHandler(options)
    from kazoo.handlers.gevent import SequentialGeventHandler  # noqa: PLC0415 - gevent is optional

    class GeventHandler(_Handler, SequentialGeventHandler):
        def __init__(self) -> None:
            super().__init__()
            self.options = options
            self.host_timeout = options.connect_timeout

        def select(self, *arguments: Any, **options: Any) -> Any:
            ready = super().select(*arguments, **options)
            fork.notice()  # before this greenlet would read in a child what is for the parent
            return ready

    return GeventHandler()


class Connection(ConnectionHandler):
    """
    kazoo's connection, with the smallest timeout that the servers have granted to the session.

    Each reconnect asks for that timeout, and all pauses are shares of it. If 60 seconds were requested and 10 granted,
    a pause of a quarter of the requested timeout would outlast the session.
    """

    negotiated_timeout = 0.0  # seconds, the smallest of the session; kazoo itself keeps only the requested value
    asked_timeout = 0.0  # seconds, by the last connect
    connect_sent_at = float("-inf")  # on clock.now(), of the last connect that got a reply
    last_host: tuple[str, int] | None = None  # of the present connection, or of the last one; with the IP address
    host: tuple[str, int]  # that was tried last, as spelled in the settings
    dropped = False  # this process has ended the present connection; set by the client
    _answered = False  # a request on the present connection was carried out

    _address: Address = ("", 0)  # of `host`
    _known: Sequence[tuple[str, str, int]] = ()  # the names and addresses of the present round
    _connected_at = math.inf  # on clock.now(), of the present try
    _contact_at = -math.inf  # when the last connect or ping with a reply was sent; the server has heard of us since
    _refusal = ""  # why the server refuses the session, by its own code
    _last_xid = 0  # the id of the last request, over all connections
    _tries = 0  # to connect, since the last connection
    _unanswered: frozenset[type] = frozenset()  # kinds of requests without a reply, when it was closed
    _suspects: frozenset[type] = frozenset()  # kinds at which connections were closed, one after another
    is_over = False  # it has ended, and there is no new one yet
    _woken = False  # a byte that wakes this connection's thread is under way; see `wake`

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._pings: deque[float] = deque()  # when the pings without a reply were sent, on clock.now()
        self._received = bytearray()  # read from the socket, but not handled yet
        self._writing = threading.Lock()  # held while requests are written and added to those without a reply
        self._is_open = False  # any request may be written; guarded by _writing
        self._unwritten = b""  # the end of requests for which the socket had no room; guarded by _writing

    @property
    def _xid(self) -> int:
        """
        The id of the last request. It continues from one connection to the next; kazoo's own restarts with each.

        When a session moves to another server, that server sees its committed writes. Only the id tells it whether such
        a write is the request that waits for a reply, or one that was sent to the old server (ZOOKEEPER-2684). With
        repeated ids, an old write would answer a new request. Then a write from before the break would extend the
        lease, and a contender would take the znode of another create for its own. The surplus reply would end kazoo's
        thread.
        """
        return self._last_xid

    @_xid.setter
    def _xid(self, value: int | None) -> None:
        if value:
            self._last_xid = value

    def zk_loop(self) -> None:
        """Run the connection until its client is stopped; on kazoo's thread."""
        try:
            super().zk_loop()
        finally:
            if self.client._stopped.is_set():
                self.close()  # the pair of sockets that wakes the thread
            self.client.on_ended()

    def _read_socket(self, read_timeout: float) -> Any:
        """
        Handle the replies that have arrived. Drop the connection if one is unreadable, or is not the one that is due.

        kazoo would end its thread. A server that notices that a session has moved does not answer its write, and may
        answer the next read before it closes the connection (ZOOKEEPER-710).
        """
        try:
            closed, ahead = super()._read_socket(read_timeout), self._received
            while not closed and len(ahead) >= 4 and len(ahead) - 4 >= int_struct.unpack_from(ahead)[0]:
                closed = super()._read_socket(read_timeout)  # the whole reply is here
            return closed
        except ConnectionDropped:  # kazoo forgets the requests without a reply
            self._unanswered = frozenset(type(request) for request, *_ in self.client._pending.copy())
            raise
        except (RuntimeError, IndexError, ValueError, struct.error) as error:  # IndexError: no reply is due
            raise ConnectionDropped(f"unreadable reply: {error}") from error

    def wake(self) -> None:
        """
        Wake this connection's thread, so that it looks at the queue.

        It sends one byte, and no more until the thread has looked. The pair of sockets takes less than 300 unread bytes
        on Linux; then the sender blocks. The sender may be the protocol of hundreds of contenders, on the very thread
        that would read the bytes, or while that thread is busy reconnecting.
        """
        if not self._woken:
            self._woken = True
            try:
                self._write_sock.send(b"\0")
            except OSError:
                self._woken = False
                self.cut()  # that wakes it, too

    def _expand_client_hosts(self) -> list[tuple[str, str, int]]:
        """Return the addresses for a round: those that are known."""
        options, outage = self.client.options, self.client.outage
        within = min(max(LOOKUP_LEAST, self._timeout * LOOKUP_SHARE), LOOKUP_MOST)
        resolved: list[tuple[str, str, int]] = []
        answers = resolve(options.hosts, within)
        while TimeoutError in (kinds := set(map(type, answers.values()))) and tuple not in kinds:  # nothing to try yet
            if self.client._stopped.is_set():
                return []
            self.handler.sleep_func(LOOKUP_STEP)
            answers = resolve(options.hosts, within)
        for host, addresses in answers.items():
            if not isinstance(addresses, OSError):
                resolved += ((host[0], *address) for address in addresses)
            elif not isinstance(addresses, TimeoutError):
                outage.failed(host, str(addresses))
        if options.tls is not None:
            try:
                self.handler.tls = context(options.tls, within if self.handler.tls else FILES_FIRST)
            except OSError as error:
                outage.cannot_try(error)
                return []
        self._known = resolved
        random.shuffle(resolved)
        # The last host comes last: if it has just stopped answering, trying it again would only cost time.
        return sorted(resolved, key=lambda host: host[1:] == self.last_host)

    def _connect_loop(self, retry: KazooRetry) -> Any:
        share = HURRIED_RETRY_SHARE if self.client.lease_lasts() else RETRY_SHARE
        longest = min(self._timeout * share, PAUSE_SHARE * self.client.options.connect_timeout)
        retry.max_delay = longest / (1 + retry.max_jitter)
        while self._known and not self.client._stopped.is_set() and not any(map(self._may_try, self._known)):
            self.handler.sleep_func(LOOK_AGAIN)
            retry.reset()  # the server had a pause already
        try:
            return super()._connect_loop(retry)
        except ForceRetryError:
            raise
        except Exception as error:  # such as a `MemoryError`: kazoo would end its thread, though the session is alive
            self.client.outage.cannot_try(error)
            self.client._session_callback(KeeperState.CONNECTING)
            raise ForceRetryError from error
        finally:
            if self.handler._running:  # else the client is that of the parent of this forked child
                self.client.outage.log()

    def _may_try(self, host: tuple[str, str, int]) -> bool:
        outage: Outage = self.client.outage
        return outage.may_try(host[1:], self.client.is_wanted)

    def _connect_attempt(self, host: str, hostip: str, port: int, retry: KazooRetry) -> Any:
        if not self._may_try((host, hostip, port)):
            return None  # here and not for the whole round, as two names may have the same address
        self.dropped, self._answered, self._connected_at, self._refusal = False, False, float("inf"), ""
        try:
            return super()._connect_attempt(host, hostip, port, retry)
        finally:
            if self.dropped or self.client._stopped.is_set():
                pass  # this process has ended it
            elif self._refusal:
                self.client.outage.closed(self.host, self._address, self._refusal)
            elif clock.now() > self._contact_at + self._timeout:
                pass  # the process was paused, or cut off, and the server has ended the session: no request is to blame
            elif self._has_ended_early:
                self._suspect()
                self.client.outage.closed(self.host, self._address)

    @property
    def _has_ended_early(self) -> bool:
        """Whether the connection was closed at one of its first requests."""
        if self._answered:
            return bool(self._unanswered) and self._lasted < SOON
        return self._lasted < LONGEST_PAUSE

    def _suspect(self) -> None:
        """Blame the requests of this connection that had no reply in the last one, too; else count from one again."""
        again = self._suspects & self._unanswered
        if self._unanswered and not again:
            self.client.outage.restarts(self._address)
        self._suspects = again or self._unanswered

    def _acquit(self, kind: type) -> None:
        """Blame no request that a server carries out now, and no server that carries out all that were blamed."""
        if kind in self._suspects:
            self._suspects -= {kind}
            if not self._suspects:
                self.client.outage.works(self._address)

    @property
    def _lasted(self) -> float:
        """How long there is a connection, or was one, in seconds; infinite if there was none."""
        return abs(clock.now() - self._connected_at)

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        self._pings.clear()
        self._received.clear()
        self._unanswered = frozenset()
        self.is_over = False
        self.handler.host_timeout = self._seconds_for_try()
        self.handler.in_handshake = False
        self._tries += 1
        self.host = (host, port)
        self._address = (hostip, port)
        try:
            _, connect_timeout = super()._connect(host, hostip, port)
        except SessionExpiredError:
            self.client.outage.answered(self.host, self._address, expired=True)
            raise
        except Exception as error:
            cause = cause_of(error, in_handshake=self.handler.in_handshake, connected=self._socket is not None)
            self.client.outage.failed(self.host, cause)
            if cause == REFUSED:
                self.client.outage.restarts(self._address)
            if cause in {CLOSED, CREDENTIALS} and clock.now() > self._contact_at + self._timeout:
                self.client.outage.closed(self.host, self._address, cause)  # no session can be saved by a quick try
            raise
        self.client.outage.answered(self.host, self._address)
        self._connected_at, self._contact_at = clock.now(), self.connect_sent_at
        self._tries = 0
        self._is_open = True
        return self.negotiated_timeout * 1000 * 2 / 3, connect_timeout  # kazoo's share, of the smallest timeout

    def _seconds_for_try(self) -> float:
        count = len(self._known)
        rounds = self._tries // count
        if self.client.lease_lasts():
            return hurried_timeout(self._timeout, rounds, count)
        return host_timeout(self.client.options, self.negotiated_timeout, rounds, count)

    @property
    def _timeout(self) -> float:
        return self.negotiated_timeout or float(self.client.options.session_timeout)

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        if not isinstance(request, Connect):
            return super()._invoke(timeout, request, xid)
        if request.session_id:
            request = request._replace(time_out=round(self.negotiated_timeout * 1000))
        self.asked_timeout = request.time_out / 1000
        sent_at = clock.now()
        reply = super()._invoke(min(timeout, self.handler.host_timeout), request, xid)
        self.connect_sent_at = sent_at
        self.last_host = self._address  # before kazoo tells the session that it is connected
        granted = reply[0].time_out / 1000.0
        self.negotiated_timeout = min(granted, self.negotiated_timeout) if request.session_id else granted
        return reply

    def send_now(self, requests: Sequence[tuple[Any, Any]]) -> bool:
        """
        Write requests on the calling thread, which is the protocol's. Return False if kazoo's thread has to do it.

        What is in the socket arrives, even if this process is killed in the next moment. It also saves the time until
        kazoo's thread wakes up.
        """
        if self.client._queue or not self._writing.acquire(timeout=WRITE_WAIT):
            return False
        try:
            if not self._is_open or self._unwritten or self.client._queue:
                return False  # they would overtake others
            frames, entries = self._encode(requests)
            self.client._pending.extend(entries)
            try:
                sent = self._socket.send(frames)
            except _WOULD_BLOCK:
                sent = 0
            except OSError:
                self._is_open = False
                self.cut()  # kazoo's thread sees that, and fails all requests without a reply
                return True
            if sent < len(frames):
                self._unwritten = frames[sent:]
                self.wake()
            return True
        finally:
            self._writing.release()

    def cut(self) -> None:
        """Cut the connection; from any thread. kazoo's thread still reads what has arrived."""
        sock = self._socket
        if sock is not None:
            with contextlib.suppress(OSError):  # it is closed already
                sock.shutdown(socket.SHUT_RDWR)

    def stop_sending(self) -> None:
        """Let nothing more be written, because the connection is over; from any thread."""
        self.is_over = True
        with self._writing:
            self._is_open = False
            self._unwritten = b""

    def _encode(self, requests: Iterable[tuple[Any, Any]]) -> tuple[bytes, list[tuple[Any, Any, int]]]:
        """Return the bytes of these requests, and their entries for kazoo's list of those without a reply."""
        frames = bytearray()
        entries = []
        for request, result in requests:
            self._last_xid = xid = self._last_xid % _LAST_XID + 1
            self.logger.debug("Sending request(xid=%s): %s", xid, request)
            body = int_struct.pack(xid) + int_struct.pack(request.type) + bytes(request.serialize())
            frames += int_struct.pack(len(body)) + body
            entries.append((request, result, xid))
        return bytes(frames), entries

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        """
        Send the queued requests in one write, up to the first that is sent alone.

        kazoo sends one request, and may read a reply before it sends the next. Requests that belong together must leave
        together, or acquiring a lock would take three round trips whenever this thread is slow.
        """
        self._woken = False  # reset before looking: a request that is queued from now on sends another byte
        try:
            with self._writing:
                self._send_queued(read_timeout, connect_timeout)
        except ConnectionDropped:
            with contextlib.suppress(Exception):
                while not self._read_socket(0):  # replies that came before the end, with the reason for it perhaps
                    pass
            raise

    def _send_queued(self, read_timeout: float, connect_timeout: float) -> None:
        queue, together, is_alone = self.client._queue, [], False
        with contextlib.suppress(IndexError):  # the queue is empty; `call_together` may take its requests out again
            while getattr((entry := queue.popleft())[0], "type", None) not in _ALONE:
                together.append(entry)
            queue.appendleft(entry)
            is_alone = not together
            if len(queue) > is_alone:
                self.wake()  # for the rest
        if together or self._unwritten:
            frames, entries = self._encode(together)
            self.client._pending.extend(entries)  # first: if this fails, kazoo fails them
            self._write(frames, connect_timeout)
        if is_alone:
            super()._send_request(read_timeout, connect_timeout)
        else:
            self._read_sock.recv(1)  # the byte that woke us; a later byte stays, because it belongs to a later request

    def _send_ping(self, connect_timeout: float) -> None:
        self._pings.append(clock.now())
        with self._writing:
            super()._send_ping(connect_timeout)

    def _read_header(self, timeout: float) -> Any:
        """
        Read the header of a reply. Report the reply to a ping. An unknown error code becomes a server error.

        Replies to pings arrive in the order of the pings, but do not name them. kazoo may send the next ping before the
        reply to the last one.

        kazoo would not pass on an error code that it does not know, and the request would have no reply for as long as
        the session lives. The same holds for the code that kazoo uses for a broken connection, as this connection is
        not broken.
        """
        header, buffer, offset = super()._read_header(timeout)
        if header.err in REFUSALS:
            self._refusal = REFUSALS[header.err]
            raise ConnectionDropped(self._refusal)  # the server closes it now
        if header.xid == PING_XID and self._pings:
            self._contact_at = self._pings.popleft()
            self.client.on_pinged(self._contact_at)
        if header.xid > 0 or header.xid == PING_XID:  # not the reply to `Auth`
            self._answered = True
            if self.client.outage.closings and self._lasted >= SOON:
                self.client.outage.works(self._address)
            elif self._suspects and header.xid > 0 and self.client._pending:
                self._acquit(type(self.client._pending[0][0]))
        if header.err and (header.err == ConnectionLoss.code or header.err not in EXCEPTIONS):
            header = self._with_known_error(header)
        return header, buffer, offset

    def _with_known_error(self, header: Any) -> Any:
        """Return the header with a server error, and keep its own code for the request that it answers."""
        self.logger.warning("ZooKeeper replied with the error code %s", header.err)
        with contextlib.suppress(IndexError, AttributeError):  # a request of kazoo's own
            self.client._pending[0][1].code = header.err
        return header._replace(err=SystemZookeeperError.code)

    # kazoo calls select before each read and each write. The next two methods first try without it, as that nearly
    # always works. kazoo reads the length of each reply and then the rest; the first method reads ahead instead.

    def _read(self, length: int, timeout: float) -> bytes:
        if not 0 <= length <= LONGEST_FRAME:
            raise ConnectionDropped("not a reply of ZooKeeper") from NotZooKeeper(int_struct.pack(length))
        missing = length - len(self._received)
        if missing > 0:
            try:
                chunk = self._socket.recv(max(missing, READ_AHEAD))
            except _WOULD_BLOCK:
                chunk = None
            except OSError as error:
                raise _dropped(error) from error
            if chunk is None:  # outside the `except`: its error would count as the cause of a timeout
                chunk = super()._read(missing, timeout)
            if not chunk:
                raise ConnectionDropped("socket connection broken")
            self._received += chunk
            if len(chunk) < missing:
                self._received += super()._read(missing - len(chunk), timeout)
        data = bytes(self._received[:length])
        del self._received[:length]
        return data

    def _write(self, msg: bytes, timeout: float) -> None:
        message, self._unwritten = self._unwritten + msg, b""
        is_open, self._is_open = self._is_open, False  # if this fails, nothing may follow a part of a request
        try:
            sent = self._socket.send(message)
        except _WOULD_BLOCK:
            sent = 0
        except OSError as error:
            raise _dropped(error) from error
        if sent < len(message):
            super()._write(message[sent:], timeout)
        self._is_open = is_open


def hurried_timeout(timeout: float, rounds: int, addresses: int) -> float:
    """
    Return the seconds for one of so many addresses while a lease lasts, for a session with this timeout.

    Linux repeats a packet of a new connection that was lost after a second; a new try sends another one at once. Later
    rounds give a slow server more time.
    """
    return min(QUICK_TRY * 2.0 ** max(0, rounds - 1), timeout * HURRIED_ROUND_SHARE / addresses)


def host_timeout(options: SessionOptions, negotiated_timeout: float, rounds: int, addresses: int) -> float:
    """Return the seconds for one of so many addresses after so many rounds without a connection."""
    timeout = negotiated_timeout or options.session_timeout
    longest = timeout * ROUND_SHARE
    if rounds < HURRIED_ROUNDS:
        hurried = timeout * HURRIED_ROUND_SHARE if negotiated_timeout else options.connect_timeout * FIRST_ROUND
        longest = min(longest, hurried)
    return min(options.connect_timeout, longest / addresses)


def _dropped(error: OSError) -> ConnectionDropped:
    return ConnectionDropped(f"socket connection error: {error.strerror or error}")
