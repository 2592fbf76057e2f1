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
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from kazoo.protocol.serialization import Connect, Ping, int_struct
from kazoo.retry import ForceRetryError, KazooRetry

from django_zklock.core import clock, fork
from django_zklock.core.zk.codes import CREDENTIALS
from django_zklock.core.zk.loop import protocol_thread
from django_zklock.core.zk.outage import (
    CLOSED,
    LONGEST_PAUSE,
    PAUSE_SHARE,
    REFUSALS,
    REFUSED,
    SOON,
    Address,
    Host,
    NotZooKeeper,
    cause_of,
    text_of,
)
from django_zklock.core.zk.outside import context, resolve

if TYPE_CHECKING:
    from django_zklock.core.zk.options import SessionOptions

# kazoo's thread imports this codec when it looks up the first host. A child that is forked at that moment would inherit
# a half-imported module and could never look up a host.
codecs.lookup("idna")

FIRST_RETRY = 0.05  # seconds: the first pause between two rounds through the hosts, and while no host may be tried
RETRY_SHARE = 0.25  # of the session timeout: the longest such pause; kazoo's own limit is an hour
HURRIED_RETRY_SHARE = 0.025  # of it: the longest pause while a lease lasts; a longer one could outlast the lease
ROUND_SHARE = 0.5  # of it: the longest round, so that each host is tried before the session is over
HURRIED_ROUND_SHARE = 0.2  # of it: the longest round while a lease lasts; 0.23 or more remain when a connection breaks
QUICK_TRY = 0.2  # seconds for one address in the first two rounds while a lease lasts
LOOKUP = 0.05  # seconds in which a round waits for the resolver, and for TLS files; then it uses the last answers
LOOKUP_FIRST = 1.0  # seconds instead, as long as no address is known, or no file has been read
FIRST_ROUND = 0.8  # of the connect timeout: the longest round before the first connection
HURRIED_ROUNDS = 2  # rounds of these kinds; later rounds give a slow server more time
ASK_ANEW_AFTER = 3.0  # session timeouts without a connection, after which a server may have lost data

LONGEST_FRAME = 2**28  # bytes; the first bytes of a text, read as a length, give a larger number
READ_AHEAD = 4096  # bytes; after so many, requests are sent before more replies are handled

_LAST_XID = 2**31 - 1
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


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


class Forked(BaseException):
    """The connection belongs to the parent of this process."""


class Handler(SequentialThreadingHandler):
    """
    kazoo's handler, with one thread instead of three; a greenlet where gevent has patched threads.

    kazoo's handler passes callbacks to two more threads. Our callbacks only deliver an event to the loop and never
    wait, so they can run where the reply is read. That saves a switch of threads, and replies, watch events and changes
    of state keep the order in which the server sent them.
    """

    thread: threading.Thread | None = None  # of the connection

    @property
    def running(self) -> bool:
        return False  # makes kazoo's results call back at once, too

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

    def sleep_func(self, seconds: float) -> None:
        time.sleep(seconds)  # the one of this moment: gevent may have patched it after kazoo's import

    def select(self, *streams: Any) -> Any:
        ready = wait_ready(*streams)  # kazoo's own creates a selector each time
        self.raise_in_child()
        return ready

    def spawn(self, func: Callable[..., object], *args: Any, **kwargs: Any) -> threading.Thread:
        self.thread = protocol_thread("zklock-connection", functools.partial(func, *args, **kwargs))
        self.thread.start()
        return self.thread

    def raise_in_child(self) -> None:
        """Raise `Forked` in a forked child. This is a greenlet then, which has outlived the fork."""
        fork.notice()
        if not self._running:
            raise Forked


@dataclass(slots=True, eq=False)
class Attempt:
    """One try to connect to a server, and the connection that it makes."""

    host: Host  # as spelled in the settings
    address: Address
    seconds: float = 0.0  # in which the server must answer
    in_handshake: bool = False  # TLS is being set up
    connected_at: float = math.inf  # on clock.now()
    dropped: bool = False  # this process has ended the connection; set by any thread
    answered: bool = False  # a request was carried out
    refusal: str = ""  # why the server refuses the session, by its own code
    unanswered: frozenset[type] = frozenset()  # kinds of the requests without a reply, when the connection was closed

    @property
    def has_ended_early(self) -> bool:
        """Whether the connection was closed at one of its first requests."""
        lasted = clock.now() - self.connected_at
        if self.answered:
            return bool(self.unanswered) and lasted < SOON
        return 0 <= lasted < LONGEST_PAUSE


class Connection(ConnectionHandler):
    """
    kazoo's connection, with the smallest timeout that the servers have granted to the session.

    Each reconnect asks for that timeout, and all pauses are shares of it. If 60 seconds were requested and 10 granted,
    a pause of a quarter of the requested timeout would outlast the session.
    """

    negotiated_timeout = 0.0  # seconds, the smallest of the session; kazoo itself keeps only the requested value
    last_address: Address | None = None  # of the present connection, or of the last one
    attempt = Attempt(("", 0), ("", 0))  # the present one, or the last one

    _known: Sequence[tuple[str, str, int]] = ()  # the names and addresses of the present round
    _tls: ssl.SSLContext | None = None  # of the present round
    _connect_sent_at = -math.inf  # on clock.now(), the last one
    _contact_at = -math.inf  # when the last connect or ping with a reply was sent; the server has heard of us since
    _last_xid = 0  # the id of the last request, over all connections
    _tries = 0  # to connect, since the last connection
    _woken = False  # a byte that wakes this connection's thread is under way; see `wake`

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.handler.create_connection = self._open
        self._pings: deque[float] = deque()  # when the pings without a reply were sent, on clock.now()
        self._received = bytearray()  # read from the socket, but not handled yet
        self._in_use = threading.Lock()  # held while the socket is read or written: OpenSSL allows one thread at a time
        self._unwritten = bytearray()  # what the socket had no room for; guarded by _in_use
        self._is_open = False  # the session may send requests; guarded by _in_use

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
        except Forked:
            threading.Event().wait()  # for ever: `threading` does not know this greenlet here, and would print its end
        finally:
            if self.client._stopped.is_set():
                self.close()  # the pair of sockets that wakes the thread
            self.client.on_ended()

    # --- rounds through the hosts -------------------------------------------------------------------------------

    def _connect_loop(self, retry: KazooRetry) -> Any:
        share = HURRIED_RETRY_SHARE if self.client.lease_lasts() else RETRY_SHARE
        longest = min(self._timeout * share, PAUSE_SHARE * self.client.options.connect_timeout)
        retry.max_delay = longest / (1 + retry.max_jitter)
        if self._known and not self.client._stopped.is_set() and not any(map(self._may_try, self._known)):
            retry.reset()  # the servers have a pause already
            raise ForceRetryError
        status = None
        try:
            status = super()._connect_loop(retry)
        except ForceRetryError:  # the end of a round
            pass
        except Exception as error:  # noqa: BLE001 - such as a `MemoryError`; kazoo would end its thread
            self.stop_sending()  # the next attempt fails the requests without a reply
            self.client.outage.cannot_try(error)
        self.client.outage.log()
        if status is None:
            raise ForceRetryError
        return status

    def _expand_client_hosts(self) -> list[tuple[str, str, int]]:
        """Return the addresses for a round: those that are known."""
        options, outage = self.client.options, self.client.outage
        answers = resolve(options.hosts, LOOKUP)
        if all(isinstance(answer, OSError) for answer in answers.values()):
            answers = resolve(options.hosts, LOOKUP_FIRST)
        resolved: list[tuple[str, str, int]] = []
        for host, answer in answers.items():
            if isinstance(answer, OSError):
                outage.failed(host, text_of(answer))
            else:
                resolved += ((host[0], *address) for address in answer)
        if options.tls is not None:
            try:
                self._tls = context(options.tls, LOOKUP if self._tls else LOOKUP_FIRST)
            except OSError as error:
                outage.cannot_try(error)
                return []
        self._known = resolved
        random.shuffle(resolved)
        # The last host comes last: if it has just stopped answering, trying it again would only cost time.
        return sorted(resolved, key=lambda host: host[1:] == self.last_address)

    def _may_try(self, host: tuple[str, str, int]) -> bool:
        return bool(self.client.outage.may_try(host[1:], self.client.is_wanted))

    # --- one connection -----------------------------------------------------------------------------------------

    def _connect_attempt(self, host: str, hostip: str, port: int, retry: KazooRetry) -> Any:
        if not self._may_try((host, hostip, port)):
            return None  # here and not for the whole round, as two names may have the same address
        self.attempt = Attempt((host, port), (hostip, port), self._seconds_for_try())
        try:
            return super()._connect_attempt(host, hostip, port, retry)
        finally:
            if not self.attempt.dropped and not self.client._stopped.is_set():
                self._blame(self.attempt)

    def _blame(self, attempt: Attempt) -> None:
        """Report that the server has closed a connection, unless it has just ended the session."""
        if attempt.refusal:
            self.client.outage.closed(attempt.host, attempt.address, attempt.refusal)
        elif attempt.has_ended_early and not self._session_is_over:
            self.client.outage.closed(attempt.host, attempt.address, kinds=attempt.unanswered)

    @property
    def _session_is_over(self) -> bool:
        """Whether the server may have ended the session, as this process was paused or cut off for too long."""
        return clock.now() > self._contact_at + self._timeout

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        attempt, outage = self.attempt, self.client.outage
        for unfinished in (self._pings, self._received, self._unwritten):
            unfinished.clear()
        self._tries += 1
        if clock.now() > self._contact_at + ASK_ANEW_AFTER * self._timeout:
            # Servers that have lost data refuse a client that has seen more than they. Let them take the session, or
            # end it. It is not given up here: a new leader gives it a whole timeout again, however long the outage was,
            # and until then its znodes would block the next session of this process, too.
            self.client.last_zxid = 0
        try:
            _, connect_timeout = super()._connect(host, hostip, port)
        except SessionExpiredError:
            outage.answered(attempt.host, attempt.address, expired=True)
            raise
        except Exception as error:
            cause = cause_of(error, in_handshake=attempt.in_handshake, connected=self._socket is not None)
            outage.failed(attempt.host, cause)
            if cause == REFUSED:
                outage.restarts(attempt.address)
            if cause in {CLOSED, CREDENTIALS} and self._session_is_over:
                outage.closed(attempt.host, attempt.address, cause)  # no session can be saved by a quick try
            raise
        outage.answered(attempt.host, attempt.address)
        attempt.connected_at, self._contact_at = clock.now(), self._connect_sent_at
        self._tries = 0
        self.last_address = attempt.address
        self._is_open = True
        self.client.on_connected(self.client.session_id, self.negotiated_timeout, self._connect_sent_at)
        return self.negotiated_timeout * 1000 * 2 / 3, connect_timeout  # kazoo's share, of the smallest timeout

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        if not isinstance(request, Connect):
            return super()._invoke(timeout, request, xid)
        if request.session_id:
            request = request._replace(time_out=round(self.negotiated_timeout * 1000))
        self._connect_sent_at = clock.now()
        reply = super()._invoke(timeout, request, xid)
        granted = reply[0].time_out / 1000
        self.negotiated_timeout = min(granted, self.negotiated_timeout) if request.session_id else granted
        return reply

    def _open(self, address: Address, hostname: str = "", **_: object) -> Any:
        """
        Connect to one host within its share of the session timeout. Its certificate must have the `hostname`.

        kazoo would give the first host the whole timeout, so one dead host could cost the session.
        """
        self.handler.raise_in_child()
        sock = socket.create_connection(address, self.attempt.seconds)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                self.attempt.in_handshake = True
                sock = self._tls.wrap_socket(sock, server_hostname=hostname)
                self.attempt.in_handshake = False
            self.handler.raise_in_child()
        except BaseException:
            sock.close()
            raise
        return sock

    def _seconds_for_try(self) -> float:
        count = len(self._known)
        rounds = self._tries // count
        if self.client.lease_lasts():
            return hurried_timeout(self._timeout, rounds, count)
        return host_timeout(self.client.options, self.negotiated_timeout, rounds, count)

    @property
    def _timeout(self) -> float:
        return self.negotiated_timeout or float(self.client.options.session_timeout)

    def cut(self) -> None:
        """Cut the connection; from any thread. kazoo's thread still reads what has arrived."""
        sock = self._socket
        if sock is not None:
            with contextlib.suppress(OSError):  # it is closed already
                socket.socket.shutdown(sock, socket.SHUT_RDWR)  # the method for TLS would go on without TLS

    # --- requests -----------------------------------------------------------------------------------------------

    def send(self, requests: Sequence[tuple[Any, Any]]) -> bool:
        """
        Write requests, each with the object that takes its reply. Return False if the connection is over.

        It writes on the calling thread, which is the protocol's. What is in the socket arrives, even if this process is
        killed in the next moment. If the socket is full, kazoo's thread writes the rest.
        """
        with self._in_use:
            if not self._is_open:
                return False
            frames = bytearray()
            entries = []
            xid = self._last_xid
            for request, result in requests:
                xid = xid % _LAST_XID + 1
                self.logger.debug("Sending request(xid=%s): %s", xid, request)
                body = int_struct.pack(xid) + int_struct.pack(request.type) + bytes(request.serialize())
                frames += int_struct.pack(len(body)) + body
                entries.append((request, result, xid))
            self._last_xid = xid
            self.client._pending.extend(entries)
            self._unwritten += frames
            self._flush()
        if self._unwritten:
            self.wake()
        return True

    def stop_sending(self) -> None:
        """Let nothing more be sent, because the connection is over; on kazoo's thread."""
        with self._in_use:
            self._is_open = False
        self.attempt.unanswered = frozenset(type(request) for request, *_ in self.client._pending)

    def _flush(self) -> None:
        """Write what the socket takes, while `_in_use` is held. A broken connection is found by the next read."""
        try:
            sent = self._socket.send(self._unwritten)
        except _WOULD_BLOCK:
            return
        except OSError:
            self.cut()
            sent = len(self._unwritten)
        del self._unwritten[:sent]

    def _write(self, msg: bytes, timeout: float) -> None:
        """Write a request of kazoo's own, after all that is unwritten."""
        with self._in_use:
            self._unwritten += msg
            self._flush()
        while self._unwritten:
            if not self.handler.select([], [self._socket], [], timeout)[1]:
                raise self.handler.timeout_exception("socket time-out during write")
            with self._in_use:
                self._flush()

    def wake(self) -> None:
        """
        Wake this connection's thread, so that it looks what is to be written.

        It sends one byte, and no more until the thread has looked. The pair of sockets takes less than 300 unread bytes
        on Linux; then the sender blocks. The sender may be the protocol of hundreds of contenders, on the very thread
        that would read the bytes, or while that thread is busy reconnecting.
        """
        if not self._woken:
            self._woken = True
            try:
                self._write_sock.send(b"\0")
            except (OSError, AttributeError):  # the thread ends, and has closed the pair
                self._woken = False
                self.cut()

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        self._woken = False  # reset before looking: what is to be written from now on sends another byte
        self._write(b"", connect_timeout)
        super()._send_request(read_timeout, connect_timeout)  # the end of the session; kazoo sends no other request

    def _send_ping(self, connect_timeout: float) -> None:
        self._pings.append(clock.now())
        super()._send_ping(connect_timeout)

    # --- replies ------------------------------------------------------------------------------------------------

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
        except (RuntimeError, IndexError, ValueError, struct.error) as error:  # IndexError: no reply is due
            raise ConnectionDropped(f"unreadable reply: {error}") from error

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
        pending = self.client._pending
        if header.err in REFUSALS:
            self.attempt.refusal = REFUSALS[header.err]
            raise ConnectionDropped(self.attempt.refusal)  # the server closes it now
        if header.xid == PING_XID and self._pings:
            self._contact_at = self._pings.popleft()
            self.client.on_pinged(self._contact_at)
            self._on_carried_out(Ping)
        elif header.xid > 0 and pending:
            self._on_carried_out(type(pending[0][0]))
        if header.err and (header.err == ConnectionLoss.code or header.err not in EXCEPTIONS):
            header = self._with_known_error(header)
        return header, buffer, offset

    def _on_carried_out(self, kind: type) -> None:
        self.attempt.answered = True
        self.client.outage.carried_out(self.attempt.address, kind, self.attempt.connected_at)

    def _with_known_error(self, header: Any) -> Any:
        """Return the header with a server error, and keep its own code for the request that it answers."""
        self.logger.warning("ZooKeeper replied with the error code %s", header.err)
        with contextlib.suppress(IndexError, AttributeError):  # a request of kazoo's own
            self.client._pending[0][1].code = header.err
        return header._replace(err=SystemZookeeperError.code)

    def _read(self, length: int, timeout: float) -> bytes:
        """Return so many bytes. kazoo reads the length of each reply and then the rest; this reads ahead instead."""
        if not 0 <= length <= LONGEST_FRAME:
            raise ConnectionDropped("not a reply of ZooKeeper") from NotZooKeeper(int_struct.pack(length))
        if not self._is_open:
            timeout = min(timeout, self.attempt.seconds)
        while len(self._received) < length:
            chunk = self._receive(length - len(self._received))
            if chunk is None and not self.handler.select([self._socket], [], [], timeout)[0]:
                raise self.handler.timeout_exception("socket time-out during read")
            self._received += chunk or b""
        data = bytes(self._received[:length])
        del self._received[:length]
        return data

    def _receive(self, missing: int) -> bytes | None:
        """Return what has arrived, with all that OpenSSL has read, as no event of the socket would follow; or None."""
        try:
            with self._in_use:
                chunk: bytes = self._socket.recv(max(missing, READ_AHEAD))
                if self._tls is not None and self._socket.pending():
                    chunk += self._socket.recv(self._socket.pending())
        except _WOULD_BLOCK:
            return None
        except OSError as error:
            raise ConnectionDropped(f"socket connection error: {error.strerror or error}") from error
        if not chunk:
            raise ConnectionDropped("socket connection broken")
        return chunk


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
