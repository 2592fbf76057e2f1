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


def check_up(session: Session, rounds: int, reply_timeout: float) -> CheckupResult:
    """Run the checks, for at most `reply_timeout` seconds. Measure the times of `rounds` reads and as many writes."""
    result, base, began_at = CheckupResult(), session.options.base, clock.now()

    def ask(request: Request) -> Any:
        return call(session, request, began_at + reply_timeout)

    def seconds(request: Request) -> float:
        sent_at = clock.now()
        reply = ask(request)
        if isinstance(reply, ZkError) and not isinstance(reply, NodeMissing):
            raise reply
        return clock.now() - sent_at

    try:
        ask(lambda gateway, done: session.attached(OnConnected).call(partial(done, None)))
        result.connected, result.connect_time = True, clock.now() - began_at
        result.session_id, result.server, result.timeout = session.session_id or 0, session.server, session.timeout
        for _ in range(rounds):
            result.reads += (seconds(lambda gateway, done: gateway.read(base, done)),)
        for _ in range(rounds):
            result.writes += (seconds(lambda gateway, done: gateway.last_zxid(done)),)
        _try_rights(result, base, ask)
        acl = ask(lambda gateway, done: gateway.acl(base, done))  # the node exists now, also on new servers
        if isinstance(acl, list):
            result.base_acl = tuple(acl)
        elif not isinstance(acl, NodeMissing):
            result.refused = result.refused or "read the access list of the node above all locks"
    except ZkError as error:
        result.problem = f"ZooKeeper did not answer: {error}"
    except ZooKeeperUnavailable as error:
        result.problem = TOO_SHORT if session.connected else str(error)
    return result


def _try_rights(result: CheckupResult, base: str, ask: Callable[[Request], Any]) -> None:
    """Do what locks do, until a request is refused."""
    folder = f"{base}/{FOLDER}"
    node = f"{folder}/{uuid.uuid4()}"
    create = Create(path=node, ephemeral=True)
    requests: tuple[tuple[str, Request], ...] = (
        ("create", lambda gateway, done: gateway.ensure_path(folder, done)),
        ("create", lambda gateway, done: gateway.commit((create,), done)),
        ("read", lambda gateway, done: gateway.read(node, done)),
        ("list", lambda gateway, done: gateway.children(folder, done)),
        ("delete", lambda gateway, done: gateway.delete(node, done)),
    )
    sent_at = replied_at = time.time()
    for right, request in requests:
        before = time.time()
        reply = ask(request)
        if isinstance(reply, ZkError) and not isinstance(reply, NodeExists):
            result.refused = f"{right} nodes below {base} ({reply})"
            return
        if right == "create":
            sent_at, replied_at = before, time.time()
        elif right == "read":
            # The server stamps the node when the create reaches the leader, somewhere between the two times.
            result.clock_ahead = reply.ctime - (sent_at + replied_at) / 2
            result.clock_error = (replied_at - sent_at) / 2 + 0.001
    ask(lambda gateway, done: gateway.delete(folder, done))
