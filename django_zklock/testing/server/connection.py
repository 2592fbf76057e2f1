"""
One client's connection: split the input into frames, and send frames in order.

The service decides what frames mean. The loop decides when to read.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from django_zklock.testing.server.codes import MAX_FRAME
from django_zklock.testing.server.database import Session

AGAIN: Final = 0.002
"""Seconds until the next try to send to a client that does not read."""
_LENGTH: Final = struct.Struct("!i")
_CHUNK: Final = 256 * 1024


class BrokenFrame(ValueError):
    """The length of a frame is impossible. The connection must end, because the next frame cannot be found."""


class Connection:
    """A connection from its accept to its close. Only the server's thread uses it."""

    def __init__(
        self, sock: socket.socket, address: str, port: int, dirty: set[Connection], on_close: Callable[[], object]
    ) -> None:
        sock.setblocking(False)
        with suppress(OSError):  # the client may be gone already
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.address = address
        self.port = port
        self.session: Session | None = None
        self.handshaken = False  # the handshake was read: four-letter commands are no longer accepted
        self.closing = False  # it is closed, or will be when all is sent; what arrives is discarded
        self.discarded = False  # a request was discarded, so later replies would not match
        self._dirty = dirty  # connections with data to send register here
        self._on_close = on_close
        self._inbox = bytearray()
        self._frames: deque[tuple[float, bytes]] = deque()  # to be sent, each not before a time

    @property
    def session_id(self) -> int:
        """The id of its session; 0 before there is one."""
        return self.session.id if self.session else 0

    @property
    def client(self) -> str:
        """The client's address, for the log."""
        return f"/{self.address}:{self.port}"

    def send(self, data: bytes, *, not_before: float = 0.0) -> None:
        """Send a frame after all that was sent before, and not before a time of the monotonic clock."""
        if not self.closing:
            self._frames.append((not_before, data))
            self._dirty.add(self)

    def close_when_sent(self) -> None:
        """Close when everything is sent."""
        self.closing = True
        self._dirty.add(self)

    def receive(self) -> bool:
        """Read the available data. Return False if the client is gone."""
        try:
            data = self.sock.recv(_CHUNK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._inbox += data
        return bool(data)

    def first_word(self) -> bytes | None:
        """Return the first four bytes, once they have arrived."""
        return bytes(self._inbox[:4]) if len(self._inbox) >= 4 else None

    def next_frame(self) -> bytes | None:
        """Return the next frame if it is complete. Raises BrokenFrame."""
        inbox = self._inbox
        if len(inbox) < 4:
            return None
        length: int = _LENGTH.unpack_from(inbox)[0]
        if not 0 <= length <= MAX_FRAME:
            raise BrokenFrame(f"a frame of {length} bytes")
        end = 4 + length
        if len(inbox) < end:
            return None
        frame = bytes(inbox[4:end])
        del inbox[:end]
        return frame

    def discard_input(self) -> None:
        """Discard what was read."""
        if self._inbox:
            self._inbox.clear()
            self.discarded = True

    @property
    def due(self) -> float | None:
        """When the next frame may be sent; None if there is none."""
        return self._frames[0][0] if self._frames else None

    def flush(self, now: float) -> bool:
        """Send what is due, in one write. Return False if the connection is finished, or failed."""
        frames = []
        while self._frames and self._frames[0][0] <= now:
            frames.append(self._frames.popleft()[1])
        data, count = b"".join(frames), 0
        try:
            if data:
                count = self.sock.send(data)
        except BlockingIOError:
            pass
        except OSError:
            return False
        if count < len(data):
            self._frames.appendleft((now + AGAIN, data[count:]))
        return bool(self._frames) or not self.closing

    def close(self) -> None:
        """Close at once. The client sees the end of the stream even if a forked child still has the socket."""
        self.closing = True
        self._on_close()
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()
