"""A client of ZooKeeper's wire protocol that hides nothing, for what kazoo does not send."""

import contextlib
import socket
import struct

from support import jute
from support.jute import Jute, boolean, buffer, integer, long


class Wire:
    """One connection."""

    def __init__(self, port):
        self.session = 0
        self.password = b"\0" * 16
        self._xid = 0
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connect(self, timeout=10_000, session=0, password=b"\0" * 16):
        """Send the first frame, and take its answer; False if there was none, or a session of 0."""
        self.write(integer(0) + long(0) + integer(timeout) + long(session) + buffer(password) + boolean(False))
        frame = self.read()
        if frame is None:
            return False
        reply = Jute(frame)
        reply.int32(), reply.int32()  # the version and the timeout
        self.session, self.password = reply.int64(), reply.buffer()
        return self.session != 0

    def write(self, frame):
        self.write_raw(integer(len(frame)) + frame)

    def write_raw(self, data):
        with contextlib.suppress(OSError):  # the server may have closed it; reading tells
            self._socket.sendall(data)

    def read(self):
        try:
            length = self._read(4)
            return None if length is None else self._read(*struct.unpack(">i", length))
        except ConnectionError:
            return None

    def _read(self, count):
        data = b""
        while len(data) < count:
            chunk = self._socket.recv(count - len(data))
            if not chunk:
                return None
            data += chunk
        return data

    def send(self, op, body=b""):
        """Send a request without waiting for its reply; return its xid."""
        self._xid += 1
        self.write(integer(self._xid) + integer(jute.OPS[op]) + body)
        return self._xid

    def ask(self, request):
        return self.until(self.send(*request))

    def until(self, xid):
        """Read up to the reply to a request; return its error code, or -1 if the connection ends before."""
        while (frame := self.read()) is not None:
            reply = Jute(frame)
            got, _zxid, error = reply.int32(), reply.int64(), reply.int32()
            if got == xid:
                return error
        return -1

    def drop(self):
        self._socket.close()

    def end(self):
        self.ask(("closeSession", b""))
        self.drop()
