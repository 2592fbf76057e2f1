"""ZooKeeper sessions on bare sockets. They pipeline requests, so that the servers are the limit and not the client."""

from __future__ import annotations

import asyncio
import struct
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.jute import EPHEMERAL, OPS, XID_EVENT, XID_PING, Request, boolean, buffer, create, integer, long

#: Errors of replies; 0 is success.
NO_NODE = -101
CONNECTION_LOST = -4  # of the requests without a reply when the connection breaks

_HEADER = struct.Struct(">iqi")  # xid, zxid and error of a reply
_PING = struct.pack(">iii", 8, XID_PING, OPS["ping"])

OnReply = Callable[[int, bytes], object]  # gets the error and the body


class RawSession(asyncio.Protocol):
    """One session. It pings only if it is told to."""

    def __init__(self) -> None:
        self.session_id = 0
        self.holds = ""  # path of a znode of this session, which its heartbeats check
        self._buffer = bytearray()
        self._waiting: deque[OnReply] = deque()  # replies come in the order of the requests
        self._xid = 0
        self._opened: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport

    @classmethod
    async def open(cls, port: int, timeout: float) -> RawSession:
        """Connect to a server, and open a session with this timeout in seconds."""
        _, session = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        greeting = integer(0) + long(0) + integer(round(timeout * 1000)) + long(0) + buffer(bytes(16)) + boolean(False)
        session._transport.write(buffer(greeting))
        session.session_id = await session._opened
        return session

    # --- requests -----------------------------------------------------------------------------------------------

    def send(self, request: Request, on_reply: OnReply) -> None:
        """Send a request; `on_reply` is called with the error (0: none) and the body of the reply."""
        self._write(self._frame(request, on_reply))

    def _frame(self, request: Request, on_reply: OnReply) -> bytes:
        op, body = request
        self._xid += 1
        self._waiting.append(on_reply)
        frame: bytes = struct.pack(">iii", 8 + len(body), self._xid, OPS[op]) + body
        return frame

    def ask(self, request: Request) -> asyncio.Future[tuple[int, bytes]]:
        """Send a request now; the result is the error and the body of the reply."""
        reply: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self.send(request, lambda error, body: reply.set_result((error, body)))
        return reply

    async def pipeline(self, requests: Iterable[Request], window: int = 100) -> Counter[int]:
        """Send requests, as many at a time as `window` says, and return how many replies had which error."""
        errors: Counter[int] = Counter()
        left = iter(requests)
        while chunk := list(islice(left, window)):
            done = asyncio.get_running_loop().create_future()

            def on_reply(error: int, body: bytes) -> None:
                errors[error] += 1

            def on_last(error: int, body: bytes, done: asyncio.Future[None] = done) -> None:
                errors[error] += 1
                if not done.done():  # it may be cancelled
                    done.set_result(None)

            frames = [self._frame(request, on_reply) for request in chunk[:-1]]
            self._write(b"".join([*frames, self._frame(chunk[-1], on_last)]))
            await done
            self._check()
        return errors

    async def hold(self, path: str) -> None:
        """Create an ephemeral znode in an existing directory, for the heartbeats to check."""
        error, _ = await self.ask(create(path, b"", EPHEMERAL))
        if error:
            raise RuntimeError(f"{path} cannot be created: error {error}")
        self.holds = path

    def ping(self) -> None:
        """Send a ping. Nobody is told of the reply."""
        self._write(_PING)

    async def close(self) -> None:
        """End the session, so that its znodes are deleted."""
        self.send(("closeSession", b""), lambda error, body: None)
        await self._closed

    def _write(self, data: bytes) -> None:
        self._check()
        self._transport.write(data)

    def _check(self) -> None:
        if self._closed.done():
            raise ConnectionError(
                f"the connection of session {self.session_id:#x} is gone: this machine or its disk is too slow for the "
                f"measurement, or other programs use it"
            )

    # --- called by asyncio --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._closed.set_result(None)
        if not self._opened.done():
            self._opened.set_exception(ConnectionError("the server refused the session"))
        while self._waiting:
            self._waiting.popleft()(CONNECTION_LOST, b"")

    def data_received(self, data: bytes) -> None:
        received = self._buffer
        received += data
        at = 0
        while len(received) >= at + 4:
            end = at + 4 + int.from_bytes(received[at : at + 4], "big")
            if len(received) < end:
                break
            self._on_frame(received, at + 4, end)
            at = end
        del received[:at]

    def _on_frame(self, received: bytearray, at: int, end: int) -> None:
        if not self._opened.done():
            _, _, session_id = struct.unpack_from(">iiq", received, at)
            self._opened.set_result(session_id)
            return
        xid, _, error = _HEADER.unpack_from(received, at)
        if xid not in (XID_PING, XID_EVENT):
            self._waiting.popleft()(error, bytes(received[at + _HEADER.size : end]))


async def open_sessions(ports: Sequence[int], count: int, timeout: float) -> list[RawSession]:
    """Open sessions, in turn with these servers."""
    sessions: list[RawSession] = []
    while len(sessions) < count:
        numbers = range(len(sessions), min(count, len(sessions) + 100))
        sessions += await asyncio.gather(*(RawSession.open(ports[number % len(ports)], timeout) for number in numbers))
    return sessions


async def in_turn(sessions: Sequence[RawSession], interval: float, act: Callable[[RawSession], object]) -> None:
    """Call `act` for each session once in `interval` seconds, evenly spread, until this task is cancelled."""
    began, done = time.monotonic(), 0
    while sessions:
        due = int((time.monotonic() - began) / interval * len(sessions))
        for number in range(done, due):
            act(sessions[number % len(sessions)])
        done = due
        await asyncio.sleep(max(0.001, min(0.05, interval / len(sessions))))
    await asyncio.Event().wait()
