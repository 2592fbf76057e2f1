"""
The servers of the ensemble: which are up, which one leads, how fast they are, and what is wrong.

Each server is asked over a connection of its own, by the command `srvr`, which ZooKeeper allows by default.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from django_zklock import clock
from django_zklock.execution.shared import Shared
from django_zklock.queue.escaping import printable
from django_zklock.zk import process
from django_zklock.zk.options import SessionOptions
from django_zklock.zk.outage import address

MAX_REPLY: Final = 64 * 1024  # bytes
SLOW_SHARE: Final = 0.05  # of the session timeout; slower replies may let leases end
OLDEST: Final = (3, 6)
MAX_TEXT: Final = 40  # characters of a role or version

_CLOSED: Final = "may not be asked: add srvr to 4lw.commands.whitelist in its configuration"
_NO_QUORUM: Final = "runs, and is in no quorum"
_SILENT: Final = "does not answer the command srvr"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReport:
    """One server."""

    address: str
    role: str = ""
    """ "leader", "follower", "observer", "standalone" or "read-only"; empty if it does not serve."""
    version: str = ""
    latency: float | None = None
    """Seconds from a request to its reply, on average since the server began to count; None if it is not known."""
    problem: str = ""
    """Why it does not serve, or why it cannot be asked."""

    @property
    def milliseconds(self) -> str:
        """The latency as text; empty if it is not known."""
        return "" if self.latency is None else f"{self.latency * 1000:.1f}"

    @property
    def runs(self) -> bool:
        """Whether it answers, perhaps without a quorum."""
        return self.serves or self.problem == _NO_QUORUM

    @property
    def serves(self) -> bool:
        """Whether it belongs to a quorum, and answers clients."""
        return self.role in {"leader", "follower", "observer", "standalone"}


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """A problem that an operator should know."""

    result: str
    """ "warning" or "error"."""
    text: str
    """The problem, and its cure."""


@dataclass(frozen=True, slots=True)
class EnsembleReport:
    """All servers in the order of the settings, and what is wrong with them."""

    servers: tuple[ServerReport, ...]
    findings: tuple[HealthFinding, ...]


def ensemble(*, reply_timeout: float = 1.0, max_age: float = 5.0) -> EnsembleReport:
    """
    Ask all servers at the same time; wait for each at most `reply_timeout` seconds.

    A report of this process that is at most `max_age` seconds old is returned again, and callers at the same time
    share one. Never raises because a server does not answer: the report says so.
    """
    return _reports.get((process.current().options, reply_timeout), reply_timeout, max_age)


def _ask_all(key: tuple[SessionOptions, float], timeout: float) -> EnsembleReport:
    options, _ = key
    with ThreadPoolExecutor(min(len(options.hosts), 16)) as pool:
        reports = tuple(pool.map(lambda host: _ask(host, options, timeout), options.hosts))
    session = process.peek()
    answered = session is not None and session.connected and not session.suspect
    return EnsembleReport(reports, tuple(_findings(reports, options.session_timeout, answered=answered)))


_reports: Final = Shared(_ask_all)


# --- one server -------------------------------------------------------------------------------------------------------


def _ask(host: tuple[str, int], options: SessionOptions, timeout: float) -> ServerReport:
    try:
        text = _srvr(host, options, clock.now() + timeout)
    except OSError as error:
        return ServerReport(address=address(host), problem=f"does not answer: {error.strerror or error}")
    except UnicodeError:
        return ServerReport(address=address(host), problem="is not the name of a host: correct it in the settings")
    return _report(address(host), text)


def _srvr(host: tuple[str, int], options: SessionOptions, deadline: float) -> str:
    """Return the reply to the command `srvr`."""

    def remaining() -> float:
        seconds = deadline - clock.now()
        if seconds <= 0:
            raise TimeoutError("timed out")
        return seconds

    with socket.create_connection(host, remaining()) as sock:
        sock.settimeout(remaining())
        with (
            sock if options.tls is None else options.tls.context().wrap_socket(sock, server_hostname=host[0]) as stream
        ):
            stream.sendall(b"srvr")
            text = b""
            while len(text) < MAX_REPLY:
                stream.settimeout(remaining())  # each time, as a server may send a byte now and then for ever
                received = stream.recv(4096)
                if not received:
                    break
                text += received
    return text.decode(errors="replace")


def _report(server: str, text: str) -> ServerReport:
    """Read a reply to `srvr`. Anything may listen at the port, so no part of it is trusted."""
    fields = dict(re.findall(r"^([\w /]+): (.*)$", text, re.MULTILINE))
    if "Mode" not in fields:
        if "not currently serving" in text:
            return ServerReport(address=server, problem=_NO_QUORUM)
        return ServerReport(address=server, problem=_CLOSED if "whitelist" in text else _SILENT)
    version = fields.get("Zookeeper version", "").partition("-")[0].partition(",")[0].strip()
    latency = re.fullmatch(r"\d+/(\d{1,9}(?:\.\d{1,9})?)/\d+", fields.get("Latency min/avg/max", ""))
    return ServerReport(
        address=server,
        role=printable(fields["Mode"], MAX_TEXT),
        version=printable(version, MAX_TEXT),
        latency=float(latency[1]) / 1000 if latency else None,
    )


# --- all servers ------------------------------------------------------------------------------------------------------


def _findings(
    servers: Sequence[ServerReport], session_timeout: float, *, answered: bool = False
) -> Iterator[HealthFinding]:
    """Yield what is wrong. A quorum that has `answered` this process exists, whatever the servers say."""
    alone = [server.address for server in servers if server.role == "standalone"]
    known = not any(server.problem in {_CLOSED, _SILENT} for server in servers)
    voters = [server for server in servers if server.role != "observer"]  # one that is down may be an observer
    serving, majority = sum(server.serves for server in voters), len(voters) // 2 + 1
    if alone and len(servers) > 1:
        text = "Two of them would give the same lock to two holders. Name all servers in the configuration of each."
        yield HealthFinding("error", f"{', '.join(alone)} serves without the other servers. {text}")
    elif known and not answered and not any(server.serves for server in servers):
        running = sum(server.runs for server in voters)
        runs, are = "runs" if running == 1 else "run", "is" if majority == 1 else "are"
        text = f"{running} of {len(voters)} servers {runs}, {majority} {are} needed."
        text = f"No majority: {text} No lock can be granted. Start those that are down, or repair the network."
        yield HealthFinding("error", text)
    for server in servers:
        if server.problem:
            spare = serving - majority
            more = "one more server fails" if spare == 0 else f"{spare + 1} more servers fail"
            meaning = f" Locks go on. They stop if {more}." if spare >= 0 else ""
            yield HealthFinding("warning", f"{server.address} {server.problem}.{meaning}")
        if server.version and tuple(map(int, re.findall(r"\d+", server.version)[:2])) < OLDEST:
            yield HealthFinding("error", f"{server.address} has ZooKeeper {server.version}; 3.6 or newer is required.")
        if server.latency is not None and server.latency > session_timeout * SLOW_SHARE:
            text = "With replies this slow, leases may end. Look at its disk and its garbage collection."
            yield HealthFinding("warning", f"{server.address} takes {server.milliseconds} ms on average. {text}")
    versions = sorted({server.version for server in servers if server.version})
    if len(versions) > 1:
        text = "Finish the upgrade: servers should differ only while it lasts."
        yield HealthFinding("warning", f"The servers have different versions: {', '.join(versions)}. {text}")
