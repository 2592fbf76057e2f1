"""
The servers of the ensemble: which are up, which one leads, how fast they are, and what is wrong.

Each server is asked over a connection of its own, by the commands `mntr` and `srvr`. ZooKeeper allows `srvr` by
default. `mntr` tells more, and needs `4lw.commands.whitelist` in the configuration of the server.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from django_zklock import clock
from django_zklock.conf.url import host_port
from django_zklock.inspection.shared import Shared
from django_zklock.queue.escaping import printable
from django_zklock.zk.options import SessionOptions

MAX_REPLY: Final = 64 * 1024  # bytes
MAX_OUTSTANDING: Final = 10  # requests; an ensemble that keeps up has 0 to 2
SLOW_SHARE: Final = 0.05  # of the session timeout; slower replies may let leases end
OLDEST: Final = (3, 6)
MAX_TEXT: Final = 40  # characters of a role or version

_CLOSED: Final = "may not be asked: add srvr and mntr to 4lw.commands.whitelist in its configuration"
_SILENT: Final = "does not answer the command srvr"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReport:
    """One server. A figure is None if the server does not tell it. Times in seconds."""

    address: str
    role: str = ""
    """ "leader", "follower", "observer", "standalone" or "read-only"; empty if it does not serve."""
    version: str = ""
    latency: float | None = None
    """From a request to its reply, on average since the server began to count."""
    worst_latency: float | None = None
    outstanding: int | None = None
    """Requests that are not answered yet."""
    connections: int | None = None
    sessions: int | None = None
    """Of the whole ensemble."""
    watches: int | None = None
    znodes: int | None = None
    synced_followers: int | None = None
    """Of a leader: followers that have all its transactions."""
    problem: str = ""
    """Why it does not serve, or why it cannot be asked."""

    @property
    def milliseconds(self) -> str:
        """The average and the worst time to reply, as text."""
        if self.latency is None or self.worst_latency is None:
            return ""
        return f"{self.latency * 1000:.1f} / {self.worst_latency * 1000:.0f}"

    @property
    def serves(self) -> bool:
        """Whether it belongs to a quorum, and answers clients."""
        return self.role in {"leader", "follower", "observer", "standalone"}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that an operator should know."""

    result: str
    """ "warning" or "error"."""
    text: str
    """What is wrong, and what to do."""


@dataclass(frozen=True, slots=True)
class EnsembleReport:
    """All servers in the order of the settings, and what is wrong with them."""

    servers: tuple[ServerReport, ...]
    findings: tuple[Finding, ...]


def ensemble(*, reply_timeout: float = 1.0, max_age: float = 5.0) -> EnsembleReport:
    """
    Ask all servers at the same time; wait for each at most `reply_timeout` seconds.

    A report of this process that is at most `max_age` seconds old is returned again, and callers at the same time
    share one. Never raises because a server does not answer: the report says so.
    """
    return _reports.get(reply_timeout, max_age)


def _ask_all(options: SessionOptions, timeout: float) -> EnsembleReport:
    with ThreadPoolExecutor(min(len(options.hosts), 16)) as pool:
        reports = tuple(pool.map(lambda host: _ask(host, options, timeout), options.hosts))
    return EnsembleReport(reports, tuple(_findings(reports, options.session_timeout)))


_reports: Final = Shared(_ask_all)


# --- one server -------------------------------------------------------------------------------------------------------


def _ask(host: tuple[str, int], options: SessionOptions, timeout: float) -> ServerReport:
    address = host_port(*host)
    deadline = clock.now() + timeout
    try:
        figures = _figures(_command("mntr", host, options, deadline))
        if "zk_server_state" in figures:
            return _of_mntr(address, figures)
        text = _command("srvr", host, options, deadline)
    except OSError as error:
        return ServerReport(address=address, problem=f"does not answer: {error.strerror or error}")
    except UnicodeError:
        return ServerReport(address=address, problem="is no name of a host: correct it in the settings")
    return _of_srvr(address, text)


def _command(name: str, host: tuple[str, int], options: SessionOptions, deadline: float) -> str:
    with socket.create_connection(host, _until(deadline)) as sock:
        sock.settimeout(_until(deadline))
        with (
            sock if options.tls is None else options.tls.context().wrap_socket(sock, server_hostname=host[0]) as stream
        ):
            stream.sendall(name.encode())
            text = b""
            while len(text) < MAX_REPLY:
                stream.settimeout(_until(deadline))  # each time, as a server may send a byte now and then for ever
                more = stream.recv(4096)
                if not more:
                    break
                text += more
    return text.decode(errors="replace")


def _until(deadline: float) -> float:
    seconds = deadline - clock.now()
    if seconds <= 0:
        raise TimeoutError("timed out")
    return seconds


def _figures(text: str) -> dict[str, str]:
    pairs = (line.partition("\t") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _number(text: str) -> float | None:
    """Return a figure; None if it is none, as anything may listen at the port."""
    try:
        found = float(text)
    except ValueError:
        return None
    return found if 0 <= found < 2**63 else None  # None for NaN, too


def _count(text: str) -> int | None:
    found = _number(text)
    return None if found is None else int(found)


def _seconds(milliseconds: str) -> float | None:
    found = _number(milliseconds)
    return None if found is None else found / 1000


def _of_mntr(address: str, figures: Mapping[str, str]) -> ServerReport:
    def count(name: str) -> int | None:
        return _count(figures.get(f"zk_{name}", ""))

    return ServerReport(
        address=address,
        role=printable(figures["zk_server_state"], MAX_TEXT),
        version=_version(figures.get("zk_version", "")),
        latency=_seconds(figures.get("zk_avg_latency", "")),
        worst_latency=_seconds(figures.get("zk_max_latency", "")),
        outstanding=count("outstanding_requests"),
        connections=count("num_alive_connections"),
        sessions=count("global_sessions"),
        watches=count("watch_count"),
        znodes=count("znode_count"),
        synced_followers=count("synced_followers"),
    )


def _of_srvr(address: str, text: str) -> ServerReport:
    fields = dict(re.findall(r"^([\w /]+): (.*)$", text, re.MULTILINE))
    if "Mode" not in fields:
        if "not currently serving" in text:
            problem = "runs, and is in no quorum"
        elif "whitelist" in text:
            problem = _CLOSED
        else:
            problem = _SILENT
        return ServerReport(address=address, problem=problem)
    latencies = [_seconds(each) for each in fields.get("Latency min/avg/max", "").split("/")]
    _, average, worst = latencies if len(latencies) == 3 else (None, None, None)
    return ServerReport(
        address=address,
        role=printable(fields["Mode"], MAX_TEXT),
        version=_version(fields.get("Zookeeper version", "")),
        latency=average,
        worst_latency=worst,
        outstanding=_count(fields.get("Outstanding", "")),
        connections=_count(fields.get("Connections", "")),
        znodes=_count(fields.get("Node count", "")),
    )


def _version(text: str) -> str:
    return printable(text.partition("-")[0].partition(",")[0].strip(), MAX_TEXT)


# --- all servers ------------------------------------------------------------------------------------------------------


def _findings(servers: Sequence[ServerReport], session_timeout: float) -> Iterator[Finding]:
    yield from _of_quorum(servers)
    for server in servers:
        if server.problem:
            yield Finding("warning", f"{server.address} {server.problem}. {_tolerated(servers)}".rstrip())
        if server.version and tuple(map(int, re.findall(r"\d+", server.version)[:2])) < OLDEST:
            yield Finding("error", f"{server.address} has ZooKeeper {server.version}; 3.6 or newer is required.")
        if server.outstanding is not None and server.outstanding > MAX_OUTSTANDING:
            text = "It is overloaded, or its disk is slow: look at its load, and at the time of its fsync."
            yield Finding("warning", f"{server.address} has {server.outstanding} requests to answer. {text}")
        if server.latency is not None and server.latency > session_timeout * SLOW_SHARE:
            text = "With replies this slow, leases may end. Look at its disk and its garbage collection."
            yield Finding("warning", f"{server.address} takes {server.latency * 1000:.0f} ms on average. {text}")
    versions = sorted({server.version for server in servers if server.version})
    if len(versions) > 1:
        text = "Finish the upgrade: servers should differ only while it lasts."
        yield Finding("warning", f"The servers have different versions: {', '.join(versions)}. {text}")


def _of_quorum(servers: Sequence[ServerReport]) -> Iterator[Finding]:
    alone = [server.address for server in servers if server.role == "standalone"]
    known = not any(server.problem in {_CLOSED, _SILENT} for server in servers)
    if alone and len(servers) > 1:
        text = "Two of them would give the same lock to two holders. Name all servers in the configuration of each."
        yield Finding("error", f"{', '.join(alone)} serves without the other servers. {text}")
    elif known and not any(server.serves for server in servers):
        up, voters = _voters(servers)
        need = f"Locks need {voters // 2 + 1} of {voters} servers; {up} serve."
        text = f"{need} Start those that are down, or repair the network."
        yield Finding("error", f"No server leads, so no lock can be granted. {text}")
    for leader in (server for server in servers if server.role == "leader"):
        followers = sum(server.role == "follower" for server in servers)
        if leader.synced_followers is not None and leader.synced_followers < followers:
            text = "The others catch up. If that lasts, look at their disks and at the network."
            yield Finding(
                "warning", f"{leader.synced_followers} of {followers} followers have all transactions. {text}"
            )


def _voters(servers: Sequence[ServerReport]) -> tuple[int, int]:
    """Return how many servers that vote do serve, and how many there are. One that is down may be an observer."""
    voters = [server for server in servers if server.role != "observer"]
    return sum(server.serves for server in voters), len(voters)


def _tolerated(servers: Sequence[ServerReport]) -> str:
    """Return what the loss of a server means for the locks; nothing if no majority serves."""
    up, voters = _voters(servers)
    spare = up - (voters // 2 + 1)
    if spare < 0:
        return ""
    if not spare:
        return "Locks go on. They stop if one more server fails."
    return f"Locks go on. They stop if {spare + 1} more servers fail."
