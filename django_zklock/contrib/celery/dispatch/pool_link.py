"""
A worker's main process and its pool share a page of memory with the lease, and a connection for each process.

The connections carry JSON messages, one a line. A thread or greenlet of the main process uses the pool's end, too.

| To the main process | |
|---|---|
| `ready` | The pid of this process, which is ready for tasks; 0: it is not any more. |
| `begin`, `pid` | The numbers of grants: this process is about to work under them. |
| `grant`, `ended` | The work under this grant is done. |
| `grant`, `reads` | The writer goes on as a reader; whether its work has asked for that. |
| `grant`, `stack` | The stack of the work. |

| To the pool | |
|---|---|
| `grant`, `begun` | Whether the work may begin: the answer to `begin`, with its first number. |
| `grant`, `suspect` | Whether no quorum confirms the session at the moment. |
| `grant`, `lost` | Why the lock is lost. |
| `grant`, `request` | Others request the release of the lock. |
| `grant`, `stack` | Others request the stack of the work. |
| `grant`, `released` | The main process has released the lock, and ZooKeeper has confirmed that. |
"""

from __future__ import annotations

import contextlib
import itertools
import json
import mmap
import os
import socket
import threading
import uuid
from collections.abc import Mapping
from typing import Any, Final, TypedDict
from weakref import WeakSet

from django_zklock.core import fork

PAYLOAD: Final = "zklock_wait"
"""Key of a request: the `WaitPayload` from the main process to the process that runs the task."""
LEASES: Final = 256  # sessions of a worker until a place in the page is used again
MOST_UNSENT: Final = 1 << 18  # bytes for a process that does not read them


class GrantPayload(TypedDict):
    """One grant, as the main process lends it."""

    number: int
    key: str
    path: str
    token: int
    kind: str
    since: float  # on clock.now(), which all processes of a machine share
    session: int | None
    lease: int  # of that session: its number in the page; 0 if the session is over
    template: str
    waited: float  # seconds
    ahead: dict[str, str]  # `about` of the contender that was just ahead, for a trace; empty if it is not wanted


class WaitPayload(TypedDict, total=False):
    """The end of the wait for one task: its grants, or an error."""

    link: str  # the name of the `PoolLink`
    grants: list[GrantPayload]
    resend: dict[str, Any]  # the task is to be sent again, with these options of `messages.send_again`
    error: str  # the name of its class, in `django_zklock.exceptions`; with its text and its lock
    text: str
    lock: str | None
    own: list[str]  # the guids of the task's own znodes, which may not be gone yet


links: Final[dict[str, PoolLink]] = {}
"""The links of the workers in this process that have not ended, by name; a forked pool process inherits them."""


class LeasePage:
    """
    The leases of the worker's sessions: until when each lasts, and why ZooKeeper has refused its last heartbeat.

    The main process writes. Each session has numbers of its own, so those of one that is over never rise again. A
    number is eight bytes at a multiple of eight, which all processors read and write in one step.
    """

    def __init__(self) -> None:
        page = memoryview(mmap.mmap(-1, LEASES * 16))
        self._until = page[: LEASES * 8].cast("d")
        self._refused = page[LEASES * 8 :].cast("q")
        self._numbers = itertools.count(1)

    def add(self) -> int:
        """Return the number of the lease of a new session, which is over so far."""
        number = next(self._numbers)
        self.write(number, float("-inf"), 0)
        return number

    def write(self, number: int, until: float, refused: int) -> None:
        """Write when this lease ends, on `clock.now()`, and `GrantSession.refused`."""
        self._refused[number % LEASES] = refused
        self._until[number % LEASES] = until

    def until(self, number: int) -> float:
        """Return when this lease ends, on `clock.now()`."""
        return self._until[number % LEASES]

    def refused(self, number: int) -> int:
        """Return the error code with which ZooKeeper has refused the last heartbeat, or 0."""
        return self._refused[number % LEASES]


class PoolLink:
    """The link of one worker; made before its pool processes are forked."""

    def __init__(self, app: Any = None) -> None:
        self.name = uuid.uuid4().hex
        self.app = app  # of the worker
        self.leases = LeasePage()
        self.proxy: Any = None  # a `SessionProxy`, of the process that uses it
        self.descriptors, self._to_main = socket.socketpair()
        """Gets the main process' end of a connection for each process of the pool."""
        self._ends: dict[int, socket.socket] = {}  # of the connections, by the pid of a process of the pool
        links[self.name] = self

    # --- in the main process --------------------------------------------------------------------------------------

    def accept(self) -> Connection | None:
        """Return the connection to a process that has come; None if this was only woken."""
        _, descriptors, _, _ = socket.recv_fds(self.descriptors, 1, 1)
        return Connection(socket.socket(fileno=descriptors[0])) if descriptors else None

    def wake(self) -> None:
        """Wake the thread that accepts connections."""
        self._to_main.send(b"!")

    def close(self) -> None:
        """Forget the link when its worker has ended and no grant is left."""
        links.pop(self.name, None)
        self.descriptors.close()
        self._to_main.close()
        if self.proxy is not None:
            self.proxy.stop()

    # --- in a process of the pool ---------------------------------------------------------------------------------

    def connect(self) -> socket.socket:
        """Return the connection of this process to the main process."""
        pid = os.getpid()
        if pid not in self._ends:
            self._ends[pid], other = socket.socketpair()
            _sockets.add(self._ends[pid])
            with other:
                socket.send_fds(self._to_main, [b"!"], [other.fileno()])
        return self._ends[pid]

    def send(self, **message: Any) -> None:
        """Send a message to the main process, which gets it even if this process is killed in the next moment."""
        with contextlib.suppress(OSError):  # the main process has ended
            self.connect().sendall(encode(message))


class Connection:
    """The main process' end of a connection to a process of the pool. It never blocks."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        end.set_inheritable(False)
        _sockets.add(end)
        self.close = end.close
        self.fileno = end.fileno
        self._socket = end
        self._received = b""
        self._unsent = b""
        self._sending = threading.Lock()  # while `_unsent` is used; not the main thread's

    def read(self) -> list[dict[str, Any]] | None:
        """Return the messages that have come; None if the process has ended."""
        try:
            received = self._socket.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            received = b""
        if not received:
            return None
        *lines, self._received = (self._received + received).split(b"\n")
        return [json.loads(line) for line in lines]

    def send(self, **message: Any) -> None:
        """Send a message; from any thread. A process that does not read may miss some."""
        with self._sending:
            if len(self._unsent) < MOST_UNSENT or "lost" in message:
                self._unsent += encode(message)
        self.flush()

    def flush(self) -> None:
        """Send as much as the process has room for."""
        with self._sending, contextlib.suppress(OSError):  # there is no room, or the process has ended
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]


def encode(message: Mapping[str, Any]) -> bytes:
    """Return a message as it is sent."""
    return json.dumps(message).encode() + b"\n"


def _close_in_child() -> None:
    """Close what a forked child has inherited: nobody would notice the end of its parent."""
    for end in list(_sockets):
        end.close()
    _sockets.clear()


_sockets: WeakSet[socket.socket] = WeakSet()
fork.in_child(_close_in_child)
