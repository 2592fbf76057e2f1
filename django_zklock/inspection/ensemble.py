"""
The servers in `URL`: which answer, and which one leads. The report judges them.

Each server is asked over a connection of its own, by the command `srvr`, which ZooKeeper allows by default. A
transaction of this process proves that there is a quorum.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from django_zklock.core import clock
from django_zklock.core.queue.escaping import gettext_noop, printable
from django_zklock.core.zk import process
from django_zklock.core.zk.errors import RequestRefused, ZkError
from django_zklock.core.zk.gateway import Callback, Gateway
from django_zklock.core.zk.multi import Check, Create
from django_zklock.core.zk.options import SessionOptions, TlsProblem
from django_zklock.core.zk.outage import Host, address, cause_of
from django_zklock.core.zk.outside import context, resolve
from django_zklock.core.zk.session import ConnectionState
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.locks.arguments import check_no_running_loop
from django_zklock.locks.requests import call
from django_zklock.shared import Shared

MAX_REPLY: Final = 64 * 1024  # bytes
MAX_TEXT: Final = 40  # characters of a role or version
CERTAIN: Final = 3.0  # seconds that servers must disagree for; a leader that was replaced notices it earlier
PAUSE: Final = 0.1  # seconds between two looks at servers that seem to disagree
SLOW: Final = 0.5  # seconds of a write; a healthy ensemble needs some milliseconds
WRITES: Final = 2  # the most of one look
ROLES: Final = frozenset({"leader", "follower", "observer", "standalone"})

State: TypeAlias = Literal["serves", "runs", "unknown", "down"]
"""It belongs to a quorum; it does not; it may, but cannot be asked; it gives no answer."""

_AWAY: Final = gettext_noop("does not answer")  # followed by a colon and the words of the system
_CLOSED: Final = gettext_noop("may not be asked until srvr is in 4lw.commands.whitelist of its configuration")
_NO_QUORUM: Final = gettext_noop("runs, and is in no quorum")
_SILENT: Final = gettext_noop(
    "does not answer the command srvr; it hangs, or has as many connections as maxClientCnxns or maxCnxns allows"
)
_TLS_FAILED: Final = gettext_noop("cannot be asked with the TLS settings of this process")  # the reason follows


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReport:
    """One server."""

    address: str
    state: State
    problem: str = ""
    """Why it does not serve, or why it cannot be asked; in English."""
    role: str = ""
    """ "leader", "follower", "observer", "standalone" or "read-only"; empty if it has not said it."""
    version: str = ""
    zxid: int = -1
    """Its last transaction: the epoch in the upper 32 bits, then the number in it. -1 if it is not known."""
    peer: object = field(default=None, compare=False, repr=False)
    """The address of its socket, or its name if that has none. Two names with the same peer are one server."""

    @property
    def serves(self) -> bool:
        """Whether it belongs to a quorum, and answers clients."""
        return self.state == "serves"

    @property
    def runs(self) -> bool:
        """Whether it answers, perhaps without a quorum."""
        return self.state in {"serves", "runs"}

    @property
    def is_unknown(self) -> bool:
        """Whether it may serve: only the command is refused to this process."""
        return self.state == "unknown"

    @property
    def is_down(self) -> bool:
        """Whether it does not run, as far as is known."""
        return self.state == "down"

    @property
    def leads(self) -> bool:
        """Whether it leads. An ensemble has one leader, except for a moment, while one is elected."""
        return self.role in {"leader", "standalone"}


@dataclass(frozen=True, slots=True)
class EnsembleReport:
    """The servers in the order of the settings, each once, and what a write of this process has met."""

    servers: tuple[ServerReport, ...]
    has_quorum: bool = False
    """Whether a quorum has answered a write of this process."""
    write_seconds: float = 0.0
    """The time of that write, or for how long its answer was waited for in vain."""
    refused: str = ""
    """Why ZooKeeper refuses to create a znode for this process; empty if it does not."""

    @property
    def voters(self) -> list[ServerReport]:
        """Return the servers that count for the majority."""
        return [server for server in self.servers if server.role != "observer"]

    @property
    def spare(self) -> int | None:
        """Return how many more servers may fail. It is negative without a majority, and None if it is not known."""
        voters = self.voters
        if any(server.is_unknown for server in voters):
            return None
        return sum(server.serves for server in voters) - len(voters) // 2 - 1

    @property
    def goes_on(self) -> bool:
        """Whether there is a quorum. A write that was answered counts more than what the servers say of themselves."""
        return self.has_quorum or any(server.serves for server in self.servers)

    @property
    def is_lost(self) -> bool:
        """Whether there is no quorum, as far as is known."""
        return not self.goes_on and not any(server.is_unknown for server in self.servers)

    @property
    def is_split(self) -> bool:
        """Whether the servers are not one ensemble."""
        is_alone = any(server.role == "standalone" for server in self.servers) and len(self.servers) > 1
        return is_alone or sum(server.leads for server in self.servers) > 1

    @property
    def is_slow(self) -> bool:
        """Whether the write took too long, though a server leads."""
        is_led = self.has_quorum or any(server.leads for server in self.servers)
        return self.write_seconds >= SLOW and is_led

    @property
    def answers(self) -> bool:
        """Whether any server has said something."""
        return any(not server.is_down for server in self.servers)


def ensemble(*, reply_timeout: float = 1.0, max_age: float = 5.0) -> EnsembleReport:
    """
    Ask all servers at the same time; wait for each at most `reply_timeout` seconds.

    Servers that disagree are asked again for three seconds, because they also do while a leader is elected.

    A write of this process proves the quorum, and takes as long as one of a lock. A report of this process that is at
    most `max_age` seconds old is returned again, and callers at the same time share one. Never raises because a server
    does not answer: the report says so.
    """
    check_no_running_loop("ensemble", "await sync_to_async(ensemble)(...)")
    return _reports.get((process.current().options, reply_timeout), reply_timeout, max_age)


def check_quorum(*, reply_timeout: float = 1.0, max_age: float = 1.0) -> None:
    """
    Let a quorum carry out a write that changes nothing. If it does, locks can be granted.

    A check that began at most `max_age` seconds ago counts. Raises `ZooKeeperUnavailable` if ZooKeeper refuses the
    write, or does not answer within `reply_timeout` seconds.
    """
    check_no_running_loop("check_quorum", "await sync_to_async(check_quorum)(...)")
    session = process.current()
    answered, _seconds, refused = _writes.get((session.options, reply_timeout), reply_timeout, max_age)
    if refused or not answered:
        raise ZooKeeperUnavailable(refused or session.explain())


@Shared
def _reports(key: tuple[SessionOptions, float], timeout: float) -> EnsembleReport:
    options, _reply_timeout = key
    ask, ends = partial(_ask, options=options, timeout=timeout), clock.now() + CERTAIN
    with ThreadPoolExecutor(1 + min(len(options.hosts), 16)) as pool:
        is_away = process.current().state in {ConnectionState.SUSPENDED, ConnectionState.LOST}
        write = pool.submit(_writes.get, key, 0.0 if is_away else timeout, 0.0)
        servers = _distinct(pool.map(ask, options.hosts))
        while sum(server.leads for server in servers) > 1 and clock.now() < ends:
            time.sleep(PAUSE)
            servers = _distinct(pool.map(ask, options.hosts))
    has_quorum, seconds, refused = write.result()
    return EnsembleReport(_with_leader(servers) if has_quorum else servers, has_quorum, seconds, refused)


def _distinct(servers: Iterable[ServerReport]) -> tuple[ServerReport, ...]:
    """Return each server once: `URL` may have two names of one."""
    distinct: dict[object, ServerReport] = {}
    for server in servers:
        distinct.setdefault(server.peer, server)
    return tuple(distinct.values())


def _with_leader(servers: tuple[ServerReport, ...]) -> tuple[ServerReport, ...]:
    """Return the servers of a quorum. A leader with `leaderServes=no` serves no client, and does not tell its role."""
    silent = [server for server in servers if server.state == "runs" and not server.role]
    if len(silent) != 1 or any(server.leads or server.is_unknown for server in servers):
        return servers
    leader = replace(silent[0], state="serves", problem="", role="leader")
    return tuple(leader if server is silent[0] else server for server in servers)


@Shared
def _writes(key: tuple[SessionOptions, float], timeout: float) -> tuple[bool, float, str]:
    """
    Return whether a quorum has answered a write, after how many seconds, and why it was refused.

    A slow write is tried again, and the faster one counts: the first may have waited for an election.
    """
    session, deadline = process.current(), clock.now() + timeout
    times: list[float] = []
    reply: ZkError | None = None
    with suppress(ZooKeeperUnavailable):
        call(session, _begin, deadline)  # waits for the connection
        for _try in range(WRITES):
            sent_at = clock.now()
            reply = call(session, _write, deadline)
            times.append(clock.now() - sent_at)
            if times[-1] < SLOW:
                break
    return bool(times), min(times, default=timeout), str(reply) if isinstance(reply, RequestRefused) else ""


def _begin(gateway: Gateway, done: Callback[None]) -> None:
    done(None)


def _write(gateway: Gateway, done: Callback[ZkError | None]) -> None:
    """Create a znode in a transaction whose check fails: a quorum orders it, and a refused create is its error."""
    path = f"{process.current().options.base}/!create"
    gateway.commit((Create(path=path), Check(path=path, version=1)), done)


def _ask(host: Host, options: SessionOptions, timeout: float) -> ServerReport:
    """Ask one server. It is down only if no connection to it is made: `srvr` may be all that it refuses."""
    deadline = clock.now() + timeout
    try:
        tls = None if options.tls is None else context(options.tls, timeout)
    except TlsProblem as error:
        return ServerReport(address=address(host), state="unknown", problem=f"{_TLS_FAILED}: {error}", peer=host)
    addresses = resolve([host], timeout)[host]
    if isinstance(addresses, OSError):
        return ServerReport(address=address(host), state="down", problem=f"{_AWAY}: {addresses}", peer=host)
    problem = ""
    peer = host
    for left, peer in zip(range(len(addresses), 0, -1), addresses, strict=True):
        try:
            sock = socket.create_connection(peer, _remaining(deadline) / left)
        except ConnectionResetError:
            return ServerReport(address=address(host), state="unknown", problem=_SILENT, peer=peer)
        except OSError as error:
            problem = error.strerror or str(error)
        else:
            return ServerReport(address=address(host), peer=peer, **_answer(sock, host, tls, deadline))
    return ServerReport(address=address(host), state="down", problem=f"{_AWAY}: {problem}", peer=peer)


def _answer(sock: socket.socket, host: Host, tls: ssl.SSLContext | None, deadline: float) -> dict[str, Any]:
    """Return the fields that a server tells of itself over a connection."""
    try:
        return _read(_reply(sock, host, tls, deadline))
    except ssl.SSLError as error:
        reason = cause_of(error, in_handshake=True, connected=True)
        return {"state": "unknown", "problem": f"{_TLS_FAILED}: {reason}"}
    except OSError:
        return {"state": "unknown", "problem": _SILENT}


def _remaining(deadline: float) -> float:
    seconds = deadline - clock.now()
    if seconds <= 0:
        raise TimeoutError("timed out")
    return seconds


def _reply(sock: socket.socket, host: Host, tls: ssl.SSLContext | None, deadline: float) -> str:
    """Return what a server sends after `srvr`, until it closes the connection."""
    with sock:
        sock.settimeout(_remaining(deadline))
        with sock if tls is None else tls.wrap_socket(sock, server_hostname=host[0]) as stream:
            stream.sendall(b"srvr")
            reply = b""
            while len(reply) < MAX_REPLY:
                stream.settimeout(_remaining(deadline))  # each time: a server may send a byte now and then for ever
                received = stream.recv(4096)
                if not received:
                    break
                reply += received
    return reply.decode(errors="replace")


def _read(text: str) -> dict[str, Any]:
    """Return the fields of a reply to `srvr`. Anything may listen at the port, so no part of it is trusted."""
    fields = dict(re.findall(r"^([\w /]+): (.*)$", text, re.MULTILINE))
    if "Mode" not in fields:
        if "not currently serving" in text:
            return {"state": "runs", "problem": _NO_QUORUM}
        return {"state": "unknown", "problem": _CLOSED if "whitelist" in text else _SILENT}
    role = printable(fields["Mode"], MAX_TEXT)
    zxid = re.fullmatch("0x([0-7]?[0-9a-f]{1,15})", fields.get("Zxid", ""))
    return {
        "state": "serves" if role in ROLES else "runs",
        "problem": "" if role in ROLES else _NO_QUORUM,
        "role": role,
        "version": printable(re.split("[-,]", fields.get("Zookeeper version", ""))[0], MAX_TEXT),
        "zxid": int(zxid[1], 16) if zxid else -1,
    }
