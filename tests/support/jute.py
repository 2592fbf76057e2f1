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
    "getACL": 6,
    "setACL": 7,
    "getChildren": 8,
    "sync": 9,
    "ping": 11,
    "getChildren2": 12,
    "check": 13,
    "multi": 14,
    "create2": 15,
    "createContainer": 19,
    "multiRead": 22,
    "auth": 100,
    "setWatches": 101,
    "getEphemerals": 103,
    "createSession": -10,
    "closeSession": -11,
}
NAMES = {code: name for name, code in OPS.items()}
XID_EVENT, XID_PING, XID_AUTH, XID_SET_WATCHES = -1, -2, -4, -8

# CreateMode's flags
PERSISTENT, EPHEMERAL, SEQUENTIAL, EPHEMERAL_SEQUENTIAL, CONTAINER = range(5)

JANITOR = "janitor:secret"  # may do anything to what a script protects, or it stays for ever
JANITOR_ACL = (31, "digest", "janitor:PVirkz9oZ11HdNi7M4VeDYjA5N4=")

ALL = 31
READ, WRITE, CREATE, DELETE, ADMIN = 1, 2, 4, 8, 16
Acl = tuple[int, str, str]
OPEN = ((ALL, "world", "anyone"),)
CREATOR = ((ALL, "auth", ""),)


def integer(value):
    return struct.pack(">i", value)


def long(value):
    return struct.pack(">q", value)


def boolean(value):
    return struct.pack(">?", value)


def buffer(value):
    if value is None:
        return integer(-1)
    value = value.encode() if isinstance(value, str) else value
    return integer(len(value)) + value


def vector(values):
    if values is None:
        return integer(-1)
    values = list(values)
    return integer(len(values)) + b"".join(values)


def acl(entries):
    if entries is None:
        return integer(-1)
    return vector(integer(perms) + buffer(scheme) + buffer(who) for perms, scheme, who in entries)


Request = tuple[str, bytes]


def create(
    path,
    data=b"",
    mode=PERSISTENT,
    *,
    entries=OPEN,
    op="create",
):
    return op, buffer(path) + buffer(data) + acl(entries) + integer(mode)


def create2(path, data=b"", mode=PERSISTENT):
    return create(path, data, mode, op="create2")


def container(path, data=b"", mode=CONTAINER):
    return create(path, data, mode, op="createContainer")


def delete(path, version=-1, *, op="delete"):
    return op, buffer(path) + integer(version)


check = functools.partial(delete, op="check")


def exists(path, watch=False, *, op="exists"):
    return op, buffer(path) + boolean(watch)


get = functools.partial(exists, op="getData")
children = functools.partial(exists, op="getChildren")
children2 = functools.partial(exists, op="getChildren2")


def put(path, data, version=-1):
    return "setData", buffer(path) + buffer(data) + integer(version)


def set_acl(path, entries, version=-1):
    return "setACL", buffer(path) + acl(entries) + integer(version)


def about(op, path):
    return op, buffer(path)


get_acl = functools.partial(about, "getACL")
sync = functools.partial(about, "sync")
ephemerals = functools.partial(about, "getEphemerals")


def multi(*parts, op="multi"):
    return op, b"".join(part(OPS[name]) + body for name, body in parts) + part(-1, done=True)


def part(code, *, done=False):
    return integer(code) + boolean(done) + integer(-1)


def set_watches(zxid, *kinds):
    """`kinds`: the paths of data, exist and child watches."""
    return "setWatches", long(zxid) + b"".join(vector(buffer(path) for path in paths) for paths in kinds)


def auth(credentials, scheme="digest"):
    return "auth", integer(0) + buffer(scheme) + buffer(credentials)


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

    def flag(self):
        return self.read(1) != b"\0"

    def buffer(self):
        length = self.int32()
        return None if length == -1 else self.read(length)

    def text(self):
        value = self.buffer()
        return None if value is None else value.decode(errors="backslashreplace")

    def vector(self, item):
        count = self.int32()
        return None if count == -1 else [item() for _ in range(count)]

    def texts(self):
        """A vector of strings, sorted: ZooKeeper promises no order."""
        return sorted(self.vector(self.text) or [])


#: The fields of successful replies, in their order.
BODIES = {
    "create": ("path",),
    "create2": ("path", "stat"),
    "createContainer": ("path", "stat"),
    "exists": ("stat",),
    "getData": ("data", "stat"),
    "setData": ("stat",),
    "getACL": ("acl", "stat"),
    "setACL": ("stat",),
    "getChildren": ("children",),
    "getChildren2": ("children", "stat"),
    "sync": ("path",),
    "check": ("stat",),
    "multi": ("results",),
    "multiRead": ("results",),
    "getEphemerals": ("children",),
}
