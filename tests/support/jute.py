"""ZooKeeper's encoding, written a second time: it shares nothing with kazoo or the dev server, nor their mistakes."""

import functools
import struct

# ZooDefs.OpCode
OPS = {
    "create": 1,
    "delete": 2,
    "exists": 3,
    "getData": 4,
    "setData": 5,
    "getChildren": 8,
    "sync": 9,
    "ping": 11,
    "check": 13,
    "multi": 14,
    "createContainer": 19,
    "closeSession": -11,
}
XID_EVENT, XID_PING = -1, -2

# CreateMode's flags
PERSISTENT, EPHEMERAL, SEQUENTIAL, EPHEMERAL_SEQUENTIAL, CONTAINER = range(5)

Request = tuple[str, bytes]


def integer(value):
    return struct.pack(">i", value)


def long(value):
    return struct.pack(">q", value)


def boolean(value):
    return struct.pack(">?", value)


def buffer(value):
    value = value.encode() if isinstance(value, str) else value
    return integer(len(value)) + value


OPEN_ACL = integer(1) + integer(31) + buffer("world") + buffer("anyone")


def create(path, data=b"", mode=PERSISTENT, *, op="create"):
    return op, buffer(path) + buffer(data) + OPEN_ACL + integer(mode)


def container(path):
    return create(path, mode=CONTAINER, op="createContainer")


def delete(path, version=-1, *, op="delete"):
    return op, buffer(path) + integer(version)


check = functools.partial(delete, op="check")


def exists(path, watch=False, *, op="exists"):
    return op, buffer(path) + boolean(watch)


get = functools.partial(exists, op="getData")
children = functools.partial(exists, op="getChildren")


def put(path, data, version=-1):
    return "setData", buffer(path) + buffer(data) + integer(version)


def sync(path):
    return "sync", buffer(path)


def multi(*parts):
    return "multi", b"".join(part(OPS[name]) + body for name, body in parts) + part(-1, done=True)


def part(code, *, done=False):
    return integer(code) + boolean(done) + integer(-1)


class Jute:
    def __init__(self, data):
        self.rest = data

    def read(self, count):
        assert 0 <= count <= len(self.rest), f"{count} bytes wanted, {self.rest!r} is all there is"
        data, self.rest = self.rest[:count], self.rest[count:]
        return data

    def int32(self):
        return int.from_bytes(self.read(4), "big", signed=True)

    def int64(self):
        return int.from_bytes(self.read(8), "big", signed=True)

    def buffer(self):
        length = self.int32()
        return None if length == -1 else self.read(length)
