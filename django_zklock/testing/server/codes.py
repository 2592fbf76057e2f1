"""The numbers of ZooKeeper's protocol: operations, errors, kinds of nodes, events."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

#: `jute.maxbuffer`: no frame, string or buffer may be longer (bytes).
MAX_FRAME: Final = 0xFFFFF

#: The xid of every reply to a ping, whatever the xid of the request was.
XID_PING: Final = -2


class Op(IntEnum):
    """The operations. CONNECT is never sent: it represents the handshake."""

    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    SET_ACL = 7
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    CREATE_CONTAINER = 19
    MULTI_READ = 22
    AUTH = 100
    GET_EPHEMERALS = 103
    CONNECT = -10
    CLOSE = -11


class Error(IntEnum):
    """The error codes of replies."""

    RUNTIME_INCONSISTENCY = -2
    MARSHALLING = -5
    UNIMPLEMENTED = -6
    BAD_ARGUMENTS = -8
    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    AUTH_FAILED = -115


class Refused(Exception):
    """A request failed with an error code of the protocol, and changed nothing."""

    def __init__(self, code: Error) -> None:
        super().__init__(code.name)
        self.code = code


class Mode(IntEnum):
    """The kinds of nodes, numbered like the flags of create."""

    PERSISTENT = 0
    EPHEMERAL = 1
    PERSISTENT_SEQUENTIAL = 2
    EPHEMERAL_SEQUENTIAL = 3
    CONTAINER = 4

    @property
    def sequential(self) -> bool:
        """True if the server appends a number to the name."""
        return self in (Mode.PERSISTENT_SEQUENTIAL, Mode.EPHEMERAL_SEQUENTIAL)

    @property
    def ephemeral(self) -> bool:
        """True if the node is deleted with its session."""
        return self in (Mode.EPHEMERAL, Mode.EPHEMERAL_SEQUENTIAL)


class Event(IntEnum):
    """The kind of change of a watch event."""

    CREATED = 1
    DELETED = 2
    CHANGED = 3
    CHILD = 4
