"""The checks of the ensemble for `zklock doctor`: its replies, their times, and the rights of this client."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from django_zklock import clock
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.zk.errors import NodeExists, NodeMissing, ZkError
from django_zklock.zk.gateway import Callback, Gateway
from django_zklock.zk.multi import Create
from django_zklock.zk.requests import OnConnected, call
from django_zklock.zk.session import Session

FOLDER: Final = "!doctor"
"""The directory of the checks, below the base and deleted at the end. No key of a lock contains this character."""
TOO_SHORT: Final = "The time was too short for all checks."

Request: TypeAlias = Callable[[Gateway, Callback[Any]], object]


@dataclass(slots=True, kw_only=True)
class CheckupResult:
    """The results of the checks; times in seconds. A result is None or empty if the check was not made."""

    connected: bool = False
    connect_time: float = 0.0
    server: str = ""
    """The connected server, as "address:port"."""
    session_id: int = 0
    timeout: float = 0.0
    """The session timeout, as negotiated."""
    problem: str = ""
    """Why the rest is missing."""
    reads: tuple[float, ...] = ()
    writes: tuple[float, ...] = ()
    """Each write is a transaction that a quorum carried out and that changed nothing."""
    base_acl: tuple[tuple[str, str, str], ...] | None = None
    """The access list of the root of all locks, as (scheme, id, permissions). None if that znode does not exist yet."""
    refused: str = ""
    """The right that locks need and this client does not have."""
    clock_ahead: float | None = None
    """Seconds by which the server's clock is ahead of this process's."""
    clock_error: float = 0.0
    """Seconds by which `clock_ahead` may be wrong: half of the round trip."""


class _Stopped(Exception):
    """A check failed, so the rest would fail, too."""


def check_up(session: Session, rounds: int, reply_timeout: float) -> CheckupResult:
    """Run the checks, for at most `reply_timeout` seconds. Measure the times of `rounds` reads and as many writes."""
    checkup = _Checkup(session, clock.now() + reply_timeout)
    try:
        checkup.connect()
        checkup.time_requests(rounds)
        try:
            checkup.try_rights()
        finally:
            checkup.read_acl()  # the node above all locks is there now, also on new servers
    except ZooKeeperUnavailable as error:
        checkup.result.problem = TOO_SHORT if session.connected else str(error)
    except _Stopped:
        pass
    return checkup.result


class _Checkup:
    def __init__(self, session: Session, deadline: float) -> None:
        self.result = CheckupResult()
        self._session = session
        self._base = session.options.base
        self._deadline = deadline

    def connect(self) -> None:
        began_at = clock.now()
        self._call(lambda gateway, done: self._session.attached(OnConnected).call(partial(done, None)))
        self.result.connected = True
        self.result.connect_time = clock.now() - began_at
        self.result.session_id = self._session.session_id or 0
        self.result.server = self._session.server
        self.result.timeout = self._session.timeout

    def time_requests(self, rounds: int) -> None:
        for _ in range(rounds):
            self.result.reads += (self._time(lambda gateway, done: gateway.read(self._base, done)),)
        for _ in range(rounds):
            self.result.writes += (self._time(lambda gateway, done: gateway.last_zxid(done)),)

    def read_acl(self) -> None:
        reply = self._call(lambda gateway, done: gateway.acl(self._base, done))
        if isinstance(reply, list):
            self.result.base_acl = tuple(reply)
        elif not isinstance(reply, NodeMissing):
            self.result.refused = self.result.refused or "read the access list of the node above all locks"

    def try_rights(self) -> None:
        folder = f"{self._base}/{FOLDER}"
        node = f"{folder}/{uuid.uuid4()}"
        self._must("create nodes below", lambda gateway, done: gateway.ensure_path(folder, done))
        sent_at = time.time()
        create = Create(path=node, ephemeral=True)
        self._must("create nodes below", lambda gateway, done: gateway.commit((create,), done), NodeExists)
        replied_at = time.time()
        created = self._must("read nodes below", lambda gateway, done: gateway.read(node, done))
        # The server stamps the node when the create reaches the leader, somewhere between the two times.
        self.result.clock_ahead = created.ctime - (sent_at + replied_at) / 2
        self.result.clock_error = (replied_at - sent_at) / 2 + 0.001
        self._must("list nodes below", lambda gateway, done: gateway.children(folder, done))
        self._must("delete nodes below", lambda gateway, done: gateway.delete(node, done))
        self._call(lambda gateway, done: gateway.delete(folder, done))

    def _call(self, request: Request) -> Any:
        return call(self._session, request, self._deadline)

    def _time(self, request: Request) -> float:
        """Return the seconds from a request to its reply, measured on the loop's thread."""
        seconds = 0.0

        def timed(gateway: Gateway, done: Callback[Any]) -> None:
            sent_at = clock.now()

            def on_reply(reply: object) -> None:
                nonlocal seconds
                seconds = clock.now() - sent_at
                done(reply)

            request(gateway, on_reply)

        reply = self._call(timed)
        if isinstance(reply, ZkError) and not isinstance(reply, NodeMissing):
            self.result.problem = f"ZooKeeper did not answer: {reply}"
            raise _Stopped
        return seconds

    def _must(self, what: str, request: Request, fine: type[ZkError] | tuple[()] = ()) -> Any:
        reply = self._call(request)
        if isinstance(reply, ZkError) and not isinstance(reply, fine):
            self.result.refused = f"{what} {self._base} ({reply})"
            raise _Stopped
        return reply
