"""
The dev server: a ZooKeeper server of one node in memory, with faults to inject.

It imports nothing of locks, Django or kazoo.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Set
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from django_zklock.core import clock
from django_zklock.testing.server.codes import Mode
from django_zklock.testing.server.database import Database, Sessions, now
from django_zklock.testing.server.faults import FaultControls, Faults, on_thread
from django_zklock.testing.server.loop import Loop
from django_zklock.testing.server.service import Service
from django_zklock.testing.server.tree import CONTAINER, Origin

if TYPE_CHECKING:
    from typing import Self


FOR_EVER: Final = 1e9
"""Seconds."""


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session at one moment."""

    id: int
    timeout: float  # seconds
    connected: bool
    ephemerals: tuple[str, ...]
    client: str  # host:port of its connection; empty if it has none


class DevServer(FaultControls):
    """
    A ZooKeeper server of one node in memory, in a thread of this process, for the length of a with block.

        with DevServer() as server:
            client = KazooClient(server.hosts)
            server.expire(client.client_id[0])

    With `port` 0 the system chooses a free port, and the server keeps it over restarts. `tick` is ZooKeeper's tickTime
    in seconds. Session timeouts are between 2 and 20 ticks unless `min_session_timeout` and `max_session_timeout`
    (seconds) are given. `container_check` is how often, in seconds, empty containers are deleted.

    Transaction ids begin at the time of the start, in units of about a microsecond. So fencing tokens rise over
    restarts.

    All methods are thread-safe: the server's own thread carries them out. Faults that are set while the server is
    stopped apply from its start. In a forked child the server is stopped.
    """

    def __init__(
        self,
        port: int = 0,
        *,
        host: str = "127.0.0.1",
        tick: float = 0.5,
        min_session_timeout: float | None = None,
        max_session_timeout: float | None = None,
        container_check: float = 1.0,
    ) -> None:
        self.host = host
        self.port = port
        self._tick = tick
        self._shortest = 2 * tick if min_session_timeout is None else min_session_timeout
        self._longest = 20 * tick if max_session_timeout is None else max_session_timeout
        self._container_check = container_check
        self._loop: Loop | None = None  # guarded by _lock; None while stopped
        self._service = self._new_service(Faults())
        self._lock = threading.RLock()  # for start and stop, and for calls while the server is stopped
        _servers.add(self)

    def __repr__(self) -> str:
        return f"<DevServer {self.address}{'' if self._loop else ' stopped'}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """Host and port, as a connection string."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def hosts(self) -> str:
        """The connection string for clients: the address of this one server."""
        return self.address

    def url(self, chroot: str = "") -> str:
        """Return the server as a `zk://` URL, the form of `settings.ZKLOCK["URL"]`."""
        return f"zk://{self.hosts}{'/' + chroot.strip('/') if chroot else ''}"

    def start(self) -> None:
        """Start the server. Do nothing if it runs already. Raises OSError if the port is taken."""
        with self._lock:
            if self._loop is not None:
                return
            loop, before = Loop(self.host, self.port), self._service
            self.port = loop.port
            self._service = loop.service = self._new_service(before.faults)
            self._service.db.zxid = max(before.db.zxid, _zxid_of_now())
            loop.start()
            try:
                if not before.faults.refuse:
                    loop.call(loop.listen)
            except OSError:
                loop.stop()
                raise
            self._loop = loop

    def stop(self) -> None:
        """Stop the server. Clients see closed connections; no thread, socket or temporary file remains."""
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is None:
                return
            loop.stop()
            self._service.faults.stall = False

    # inspection

    @on_thread
    def sessions(self) -> list[SessionInfo]:
        """Return the sessions that have not ended, with and without a connection, sorted by id."""
        service = self._service
        infos = []
        for session in service.db.sessions.values():
            connection = service.by_session.get(session.id)
            own = tuple(service.db.tree.ephemerals.get(session.id, ()))
            client = f"{connection.address}:{connection.port}" if connection else ""
            infos.append(SessionInfo(session.id, session.timeout, connection is not None, own, client))
        return sorted(infos, key=lambda info: info.id)

    @on_thread
    def paths(self, below: str = "/") -> list[str]:
        """Return the sorted paths of `below` and all nodes under it."""
        prefix = "/" if below == "/" else below.rstrip("/") + "/"
        return [path for path in self._service.db.tree.paths() if f"{path}/".startswith(prefix)]

    @on_thread
    def content(self, path: str) -> bytes | None:
        """Return the data of a node; None if it does not exist."""
        node = self._service.db.tree.nodes.get(path)
        return None if node is None else node.data or b""

    @on_thread
    def join(self, prefix: str, data: bytes) -> tuple[int, str]:
        """
        Create an ephemeral sequential node, and what is missing above it. Return its session and its path.

        The session has no connection, so no fault reaches it. It lasts until `expire`.
        """
        db = self._service.db
        session = db.open_session()
        session.timeout = FOR_EVER
        db.sessions.touch(session, clock.now())
        origin = Origin(session.id, db.zxid, now())
        for above in reversed(PurePosixPath(prefix).parents):
            if str(above) not in db.tree.nodes:
                db.tree.create(str(above), b"", None, Mode.PERSISTENT, origin, sequential=False)
        path = db.tree.create(prefix, data, None, Mode.EPHEMERAL_SEQUENTIAL, origin, sequential=True)
        db.fire()
        return session.id, path

    @on_thread
    def delete(self, paths: Set[str]) -> None:
        """Delete the nodes of these paths, also ephemerals. Containers stay until the server finds them empty."""
        db = self._service.db
        for path in sorted(db.tree.nodes.keys() & paths, reverse=True):  # children first
            if db.tree.nodes[path].owner != CONTAINER and not db.tree.nodes[path].children:
                db.zxid += 1
                db.tree.remove(path, zxid=db.zxid)
        db.fire()

    # the thread

    def _new_service(self, faults: Faults) -> Service:
        first = (1 << 56) | (now() << 16 & (1 << 56) - 1)
        sessions = Sessions(tick=self._tick, shortest=self._shortest, longest=self._longest, first_id=first)
        return Service(Database(sessions, faults), container_check=self._container_check)

    def _abandon(self) -> None:
        self._lock = threading.RLock()  # a thread of the parent may hold the old lock
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.abandon()


def _zxid_of_now() -> int:
    """
    Return the first transaction id. It is higher than any of an earlier run: no server carries out 2**20 a second.

    It stays below 2**53 until the year 2242, so programs that store tokens as floating point numbers lose no digits.
    """
    return now() * (1 << 20) // 1000


#: The servers of this process, for the handler after a fork. Guarded by the GIL.
_servers: weakref.WeakSet[DevServer] = weakref.WeakSet()


def _after_fork() -> None:
    """Close the child's copies of the sockets. They would keep the port and the connections open after a stop."""
    for server in list(_servers):
        server._abandon()


os.register_at_fork(after_in_child=_after_fork)
