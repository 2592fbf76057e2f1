"""A proxy that knows the first bytes of ZooKeeper's frames: delays them, loses them, cuts between two, counts them."""

from __future__ import annotations

import asyncio
import contextlib
import select
import selectors
import socket
import struct
import sys
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass

from kazoo.protocol import serialization as wire

from django_zklock.inspection.reads import read_names
from support.ensemble import free_ports

# ZooDefs.OpCode. CONNECT is createSession's: the first frame of a connection carries no opcode of its own.
CONNECT, CLOSE = -10, -11
CREATE, DELETE, EXISTS, GET_DATA, SET_DATA, GET_CHILDREN, SYNC, PING, GET_CHILDREN2 = 1, 2, 3, 4, 5, 8, 9, 11, 12
CHECK, MULTI, CREATE2, CREATE_CONTAINER, MULTI_READ, AUTH, SET_WATCHES, SASL = 13, 14, 15, 19, 22, 100, 101, 102

#: What a client sends to keep or set up its connection, not on anybody's behalf.
UPKEEP = frozenset({CONNECT, PING, AUTH, SET_WATCHES, SASL})

# Transaction ids that say what a frame is, instead of numbering it.
XID_WATCH_EVENT, XID_PING = -1, -2

NO_NODE, NO_AUTH, CONNECTION_LOSS = -101, -102, -4  # error codes
HEADER = 16  # bytes of a reply: the id of the request, the zxid, and the error code

TIMEOUT_AT = 16  # bytes: the place of the session timeout, in milliseconds, in the frame of a connect
LARGEST_FRAME = 64 * 1024 * 1024
HARMLESS = struct.pack(">ii1s?", EXISTS, 1, b"/", False)  # the body of a request that changes nothing
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER on, for 0 seconds: close() then sends RST


@dataclass(frozen=True)
class Frame:
    """One frame as the client's end saw it: a request as it came in, or a reply as it was passed on."""

    connection: int
    request: bool
    xid: int
    opcode: int | None  # the request's, for its reply too; None for a watch event
    time: float  # of time.monotonic()
    parts: int = 1  # reads in a request that has many


class Proxy:
    """
    A TCP proxy in front of one ZooKeeper server, for the length of a with block.

    Plain attributes, to be set at any time: `upstream` (the server of the *next* connections), `delay` (seconds that
    each frame is held back, each way; frames keep their order and do not wait for one another), `drop_requests` and
    `drop_replies` (that direction is read and thrown away: a half-open connection), and `bounds` (the least and the
    most seconds of the session timeouts that a server with other settings would grant).

    One thread runs one event loop for all connections. A fault is in place when the call that asked for it returns.
    """

    def __init__(self, upstream, *, delay=0.0):
        self.upstream = upstream
        self.port = free_ports(1)[0]
        self.delay = delay
        self.drop_requests = False
        self.drop_replies = False
        self.bounds = (0.0, 3600.0)
        self._changed = threading.Condition()  # notified on every frame, connection and end of a connection
        self._frames = []  # guarded by _changed
        self._links = []  # guarded by _changed
        self._connected = 0  # guarded by _changed
        self._hang = False  # this and the rest: written on the loop's thread only
        self._listener = None
        self._accepting = set()
        self._faults = []
        self._op_delays = {}
        self._loop = asyncio.SelectorEventLoop(_selector())
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy-{self.port}", daemon=True)

    def __repr__(self):
        return f"<Proxy {self.address} -> {self.upstream}>"

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def start(self):
        self._thread.start()
        self.refuse = False

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *error):
        """Reset all connections, and stop listening for good."""
        self.refuse = True
        asyncio.run_coroutine_threadsafe(self._drain(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # Faults

    @property
    def refuse(self):
        """True: nobody listens, new connections are refused. Open ones stay."""
        return self._listener is None

    @refuse.setter
    def refuse(self, value):
        if value:
            self._run(self._stop_listening)
        else:
            asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()

    @property
    def hang(self):
        """True: connections are accepted, and nothing is passed on. All of it is, in order, once this is False."""
        return self._hang

    @hang.setter
    def hang(self, value):
        self._run(lambda: self._set_hang(value))

    def cut_all(self):
        """Reset all connections (RST, both ends), and return how many there were."""
        return self._run(lambda: sum([link.reset() for link in self._links.copy()]))

    def kill_before_op(self, opcode):
        """Reset the connection in place of passing on the next `opcode`, once; earlier requests do reach the server."""
        return self._add_fault(_Kill(opcode, after=False, fired=threading.Event()))

    def kill_after_op(self, opcode):
        """Reset the connection in place of the reply to the next `opcode`, once: a lost ACK of what was carried out."""
        return self._add_fault(_Kill(opcode, after=True, fired=threading.Event()))

    def alter_reply(self, opcode, change, *, carried_out=True):
        """Change the next reply to `opcode`; if it is not to be `carried_out`, the server gets a harmless request."""
        return self._add_fault(_Alteration(opcode, fired=threading.Event(), change=change, carried_out=carried_out))

    def delay_op(self, opcode, seconds):
        """Hold back requests of this kind for so much longer, and what follows them too; 0 ends it for all so far."""
        self._run(lambda: self._op_delays.update({opcode: seconds}))
        if not seconds:
            self._run(self._hurry)

    def go_away(self):
        """Be no server any more: connections end, and nobody listens."""
        self.refuse = True
        self.cut_all()

    def heal(self):
        self.delay = 0.0
        self.drop_requests = self.drop_replies = False
        self._run(self._faults.clear)
        self._run(self._op_delays.clear)
        self._run(self._hurry)
        self.hang = False
        self.refuse = False

    # What was seen

    @property
    def frames(self):
        with self._changed:
            return self._frames.copy()

    @property
    def counts(self):
        """How many requests of each opcode clients sent, those that never reached the server too."""
        return Counter(frame.opcode for frame in self.frames if frame.request and frame.opcode is not None)

    @property
    def reads(self):
        """How many znodes were listed or read by requests with many reads."""
        return sum(frame.parts for frame in self.frames if frame.request and frame.opcode == MULTI_READ)

    @property
    def requests(self):
        return sum(frame.request and frame.opcode not in UPKEEP for frame in self.frames)

    @property
    def watch_events(self):
        return sum(frame.xid == XID_WATCH_EVENT for frame in self.frames)

    @property
    def connections(self):
        with self._changed:
            return sum(link.client is not None for link in self._links)

    @property
    def connected(self):
        """How many client connections there ever were."""
        with self._changed:
            return self._connected

    def round_trips(self):
        """
        Count the batches of requests: a new one begins with a request that was sent after a reply to one of the last.

        That is how often somebody waited for the network, if that is slower than those who send: set `delay` where a
        batch has many requests.
        """
        trips = 0
        batches = {}  # by connection: the transaction ids of the batch, until one is answered
        for frame in self.frames:
            if frame.xid == XID_WATCH_EVENT or frame.opcode in UPKEEP:
                continue
            if frame.request:
                batch = batches.setdefault(frame.connection, set())
                trips += not batch
                batch.add(frame.xid)
            elif frame.xid in batches.get(frame.connection, ()):
                batches[frame.connection] = set()
        return trips

    def reset(self):
        with self._changed:
            self._frames.clear()

    def wait_for(self, condition, timeout=10.0):
        """Return the first true value of `condition()`, which is asked after each frame, and sets no fault."""
        with self._changed:
            value = self._changed.wait_for(condition, timeout)
            if not value:
                saw = f"{dict(self.counts)}, {self.connections} of {self.connected} connections open"
                raise TimeoutError(f"{self}: not in {timeout:g} s; saw {saw}")
            return value

    # On the loop's thread

    def _run(self, work):
        async def call():
            return work()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    async def _listen(self):
        # Not `create_server`: a connection that it has accepted just before `close` gets a transport that stays open.
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port), backlog=100)
            self._listener.setblocking(False)
            self._loop.add_reader(self._listener, self._on_connection, self._listener)

    def _on_connection(self, listener):
        with contextlib.suppress(OSError):  # the client has gone
            client = listener.accept()[0]
            client.setblocking(False)
            # asyncio does it only for a socket that was made with the number of its protocol. Without it, the second of
            # two replies may wait 40 ms for the acknowledgement of the first.
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepting = self._loop.create_task(self._loop.connect_accepted_socket(self._accept, client))
            self._accepting.add(accepting)
            accepting.add_done_callback(self._accepting.discard)

    def _stop_listening(self):
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    async def _drain(self):
        """Reset all connections, those too that are just being accepted or made."""
        under_way = asyncio.all_tasks() - {asyncio.current_task()}
        for link in self._links.copy():
            link.reset()
        await asyncio.gather(*under_way, return_exceptions=True)
        for link in self._links.copy():
            link.reset()
        for _ in range(3):  # a transport closes its socket one turn of the loop after it was told to
            await asyncio.sleep(0)

    def _accept(self):
        with self._changed:
            self._connected += 1
            link = _Link(self, self._connected)
            self._links.append(link)
            self._changed.notify_all()
        return _End(link.client_made, link.on_request, link.client_lost)

    def _forget(self, link):
        with self._changed:
            if link in self._links:
                self._links.remove(link)
            self._changed.notify_all()

    def _set_hang(self, value):
        self._hang = value
        for link in self._links.copy():
            link.requests.pump()
            link.replies.pump()

    def _hurry(self):
        for link in self._links:
            link.requests.hurry()
            link.replies.hurry()

    def _add_fault(self, fault):
        self._run(lambda: self._faults.append(fault))
        return fault.fired

    def _pop_fault(self, opcode):
        for fault in self._faults:
            if fault.opcode == opcode:
                self._faults.remove(fault)
                return fault
        return None

    def _record(self, frame):
        with self._changed:
            self._frames.append(frame)
            self._changed.notify_all()


@dataclass(frozen=True)
class _Fault:
    opcode: int
    fired: threading.Event


@dataclass(frozen=True)
class _Kill(_Fault):
    after: bool


@dataclass(frozen=True)
class _Alteration(_Fault):
    change: object
    carried_out: bool


class _Link:
    def __init__(self, proxy, number):
        self.number = number
        self.client = None
        self.server = None
        self.requests = _Pipe(proxy)
        self.replies = _Pipe(proxy)
        self._proxy = proxy
        self._dialling = None
        self._cut = False
        self._greeted = False  # the client sent its first frame
        self._welcomed = False  # the server answered it
        self._opcodes = {}  # of requests without a reply, by xid
        self._doomed = {}  # requests whose reply is to be swallowed or altered, by xid

    def client_made(self, transport):
        self.client = self.replies.transport = transport
        if self._proxy.refuse or self._cut:  # accepted just before the listener went, or all were cut
            self.reset()
            return
        self._dialling = asyncio.get_running_loop().create_task(self._dial())

    async def _dial(self):
        host, _, port = self._proxy.upstream.rpartition(":")
        end = _End(self._server_made, self._on_reply, self._server_lost)
        try:
            await asyncio.get_running_loop().create_connection(lambda: end, host, int(port))
        except OSError:
            self.reset()

    def _server_made(self, transport):
        self.server = self.requests.transport = transport
        self.requests.pump()

    def on_request(self, data):
        if not self._greeted:
            self._greeted = True
            xid, opcode = 0, CONNECT
            data = _within(self._proxy.bounds, data)
        else:
            xid, opcode = struct.unpack_from(">ii", data, 4)
            self._opcodes[xid] = opcode
        parts = _parts(data) if opcode == MULTI_READ else 1
        self._proxy._record(Frame(self.number, True, xid, opcode, time.monotonic(), parts))
        fault = self._proxy._pop_fault(opcode)
        if isinstance(fault, _Kill) and not fault.after:
            self._reset_client(fault.fired)
            return
        if fault is not None:
            self._doomed[xid] = fault
        if isinstance(fault, _Alteration) and not fault.carried_out:
            data = _framed(data[4:8] + HARMLESS)
        if not self._proxy.drop_requests:
            self.requests.put(lambda server: server.write(data), self._proxy._op_delays.get(opcode, 0.0))

    def _on_reply(self, data):
        xid = 0
        opcode = CONNECT
        if self._welcomed:
            (xid,) = struct.unpack_from(">i", data, 4)
            opcode = PING if xid == XID_PING else self._opcodes.pop(xid, None)
        self._welcomed = True
        fault = self._doomed.pop(xid, None)
        if isinstance(fault, _Alteration):
            altered = _framed(fault.change(data[4:]))
            self.replies.put(lambda client: self._pass_on(client, altered, xid, opcode, fault.fired))
        elif fault is not None:
            fired = fault.fired
            self.replies.put(lambda _: self._reset_client(fired))  # in its turn: earlier replies do arrive
        elif not self._proxy.drop_replies:
            self.replies.put(lambda client: self._pass_on(client, data, xid, opcode))

    def _pass_on(self, client, data, xid, opcode, fired=None):
        self._proxy._record(Frame(self.number, False, xid, opcode, time.monotonic()))
        if fired is not None:
            fired.set()  # first: the one that gets the reply may look at once
        client.write(data)

    def client_lost(self):
        self.client = self.replies.transport = None
        self.replies.clear()
        if self.server is None and self._dialling is not None:
            self._dialling.cancel()
            self._proxy._forget(self)
        else:
            self.requests.put(lambda server: server.close())  # what is under way still reaches the server

    def _server_lost(self):
        self.server = self.requests.transport = None
        self.requests.clear()
        if self.client is None:
            self._proxy._forget(self)
        else:
            self.replies.put(lambda client: client.close())

    def _reset_client(self, fired):
        fired.set()
        _abort(self.client)

    def reset(self):
        self._cut = True
        had_client = self.client is not None
        if self._dialling is not None:
            self._dialling.cancel()
        for transport in (self.client, self.server):
            _abort(transport)
        self.client = self.server = self.requests.transport = self.replies.transport = None
        self.requests.clear()
        self.replies.clear()
        self._proxy._forget(self)
        return had_client


class _Pipe:
    """One direction of a connection: what is to be done there, in order, each at its time."""

    def __init__(self, proxy):
        self.transport = None  # None while not connected
        self._proxy = proxy
        self._queue = deque()
        self._timer = None

    def put(self, action, extra=0.0):
        due = self._proxy._loop.time() + self._proxy.delay + extra
        if self._queue:
            due = max(due, self._queue[-1][0])
        self._queue.append((due, action))
        self.pump()

    def pump(self):
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._queue and self.transport is not None and not self._proxy.hang:
            due, action = self._queue[0]
            if due > self._proxy._loop.time():
                self._timer = self._proxy._loop.call_at(due, self.pump)
                return
            self._queue.popleft()
            action(self.transport)

    def hurry(self):
        self._queue = deque((0.0, action) for _, action in self._queue)
        self.pump()

    def clear(self):
        self._queue.clear()
        self.pump()


class _End(asyncio.Protocol):
    """One socket, as frames: a four-byte length and so many bytes."""

    def __init__(self, made, frame, lost):
        self._made, self._frame, self._lost = made, frame, lost
        self._buffer = bytearray()
        self._transport = None

    def connection_made(self, transport):
        self._transport = transport
        self._made(self._transport)

    def data_received(self, data):
        self._buffer += data
        while len(self._buffer) >= 4:
            (length,) = struct.unpack_from(">i", self._buffer)
            if not 0 <= length <= LARGEST_FRAME:
                _abort(self._transport)  # not ZooKeeper's protocol: a four-letter command, perhaps
                return
            if len(self._buffer) < 4 + length:
                return
            frame = bytes(self._buffer[: 4 + length])
            del self._buffer[: 4 + length]
            self._frame(frame)

    def connection_lost(self, error):
        self._lost()


def with_error(code, *of_parts):
    """Return a change of a reply to one with this error code; or to a transaction, with 0 and those of its parts."""
    parts = b"".join(struct.pack(">i?ii", -1, False, part, part) for part in of_parts)
    end = struct.pack(">i?i", -1, True, -1) if of_parts else b""
    return lambda reply: reply[: HEADER - 4] + struct.pack(">i", code) + parts + end


def with_failed_reads(opcode, code):
    """Return a change of the reply to a request of many reads: those of this kind have failed with this error code."""

    def change(reply):
        failed = wire.MultiHeader(-1, False, code).serialize() + wire.int_struct.pack(code)
        parts, start = [reply[:HEADER]], HEADER
        header, offset = wire.MultiHeader.deserialize(reply, start)
        while not header.done:
            if header.type == GET_DATA:
                offset = wire.read_buffer(reply, offset)[1] + wire.stat_struct.size
            elif header.type == GET_CHILDREN:
                offset = read_names(reply, offset)[1]
            else:
                offset += wire.int_struct.size
            parts.append(failed if header.type == opcode else reply[start:offset])
            start = offset
            header, offset = wire.MultiHeader.deserialize(reply, start)
        return b"".join([*parts, reply[start:]])

    return change


def _within(bounds, connect):
    """Return a connect that asks for a session timeout within these bounds."""
    (asked,) = struct.unpack_from(">i", connect, TIMEOUT_AT)
    least, most = (round(bound * 1000) for bound in bounds)
    changed = bytearray(connect)
    struct.pack_into(">i", changed, TIMEOUT_AT, min(max(asked, least), most))
    return bytes(changed)


def _parts(data):
    """Count the reads in a request: each has a header with "done", a path, and whether to watch."""
    parts, offset = 0, 12
    while not data[offset + 4]:
        (length,) = struct.unpack_from(">i", data, offset + 9)
        offset += 9 + 4 + length + 1
        parts += 1
    return parts


def _framed(body):
    return struct.pack(">i", len(body)) + body


def _abort(transport):
    if transport is not None:  # perhaps it is closing, and has bytes that its peer does not read
        with contextlib.suppress(OSError):
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        transport.abort()


def _selector():
    """Return a selector that keeps to a timeout by some 0.1 ms. Epoll alone rounds it up to the next millisecond."""
    if sys.platform != "linux":
        return selectors.DefaultSelector()

    class PreciseSelector(selectors.EpollSelector):
        def select(self, timeout=None):
            if timeout is not None and timeout > 0 and self.fileno() < 1024:
                select.select([self.fileno()], [], [], timeout)
                timeout = 0
            return super().select(timeout)

    return PreciseSelector()
