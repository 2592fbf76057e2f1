"""
One client's connection: its frames in, its frames out, in order.

It knows a socket and jute's framing; it does not know what frames mean, nor when to read and to write.
"""

from __future__ import annotations

import socket
import struct
import time
from collections import deque
from contextlib import suppress
from typing import Final

from django_zklock.testing.server.acl import Credential
from django_zklock.testing.server.codes import MAX_FRAME
from django_zklock.testing.server.sessions import Session

_LENGTH: Final = struct.Struct("!i")
_CHUNK: Final = 256 * 1024


class BrokenFrame(ValueError):
    """The length of a frame cannot be. What follows it cannot be told apart, so the connection has to end."""


class Connection:
    """A connection from its accept to its close. Guarded by being the server thread's alone."""

    def __init__(self, sock: socket.socket, address: str, port: int, dirty: set[Connection]) -> None:
        sock.setblocking(False)
        with suppress(OSError):  # not for a client that is gone already
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.address = address
        self.port = port
        self.session: Session | None = None
        self.credentials = [Credential("ip", address)]
        self.since = time.monotonic()
        self.since_wall = time.time()
        self.last = ""  # the last operation, for `cons`
        self.last_xid = 0
        self.received = self.sent = 0  # frames
        self.greeted = False  # the handshake was read: no four-letter words from here on
        self.closing = False  # as soon as all is sent; nothing more is read
        self.closed = False
        self.swallowed = False  # something was read and dropped, so that replies would not fit any more
        self.partial = False  # the socket takes no more for now
        self._dirty = dirty  # where those register that have something to send
        self._inbox = bytearray()
        self._outbox: list[bytes] = []
        self._held: deque[tuple[float, bytes]] = deque()  # what has to wait, and all behind it

    @property
    def client(self) -> str:
        """Who is at the other end, as four-letter words show it."""
        return f"/{self.address}:{self.port}"

    def send(self, data: bytes, *, not_before: float = 0.0) -> None:
        """Send a frame after all that was sent before, and not before a time of the monotonic clock."""
        if self.closed or self.closing:
            return
        self.sent += 1
        if not_before or self._held:
            self._held.append((not_before, data))
        else:
            self._outbox.append(data)
        self._dirty.add(self)

    def close_when_sent(self) -> None:
        """Close as soon as the other end has all it was sent; read nothing more."""
        self.closing = True
        self._dirty.add(self)

    def receive(self) -> bool:
        """Read what there is. False if the other end is gone."""
        try:
            data = self.sock.recv(_CHUNK)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        self._inbox += data
        return bool(data)

    def first_word(self) -> bytes | None:
        """Return the first four bytes of a connection that has not greeted, once they are there."""
        return bytes(self._inbox[:4]) if not self.greeted and len(self._inbox) >= 4 else None

    def next_frame(self) -> bytes | None:
        """Return the next frame if all of it is there. Raises BrokenFrame."""
        inbox = self._inbox
        if len(inbox) < 4:
            return None
        length: int = _LENGTH.unpack_from(inbox)[0]
        if not 0 <= length <= MAX_FRAME:
            raise BrokenFrame(f"a frame of {length} bytes")
        end = 4 + length
        if len(inbox) < end:
            return None
        found = bytes(inbox[4:end])
        del inbox[:end]
        self.received += 1
        return found

    def swallow(self) -> None:
        """Drop what was read."""
        if self._inbox:
            self._inbox.clear()
            self.swallowed = True

    def due(self) -> float | None:
        """Return when something that is held may be sent."""
        return self._held[0][0] if self._held else None

    def flush(self, now: float) -> bool:
        """Send what may be sent, in one write; False if the connection is over, by an error or as it was asked to."""
        while self._held and self._held[0][0] <= now:
            self._outbox.append(self._held.popleft()[1])
        if self._outbox:
            data = b"".join(self._outbox) if len(self._outbox) > 1 else self._outbox[0]
            self._outbox.clear()
            try:
                count = self.sock.send(data)
            except (BlockingIOError, InterruptedError):
                count = 0
            except OSError:
                return False
            if count < len(data):
                self._outbox.append(data[count:])
        self.partial = bool(self._outbox)
        return not (self.closing and not self._outbox and not self._held)

    def close(self) -> None:
        """Close at once. The other end sees an end of file, in forked children, too, that still have the socket."""
        self.closed = True
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()
