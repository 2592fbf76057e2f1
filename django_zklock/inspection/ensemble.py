"""
The servers of the ensemble: which are up, which one leads, how fast they are, and what is wrong.

Each server is asked over a connection of its own, by the command `srvr`, which ZooKeeper allows by default.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from django.utils.functional import lazy
from django.utils.translation import gettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from django_zklock import clock
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.execution.shared import Shared
from django_zklock.inspection.queries import check_quorum
from django_zklock.queue.escaping import printable
from django_zklock.zk import process
from django_zklock.zk.options import SessionOptions, TlsProblem
from django_zklock.zk.outage import address
from django_zklock.zk.outside import context, resolve
from django_zklock.zk.troubles import gettext_noop

MAX_REPLY: Final = 64 * 1024  # bytes
SLOW_SHARE: Final = 0.05  # of the session timeout; slower replies may let leases end
OLDEST: Final = (3, 6)
MAX_TEXT: Final = 40  # characters of a role or version

_AWAY: Final = gettext_noop("does not answer")  # followed by a colon and the words of the system
_TIMED_OUT: Final = f"{_AWAY}: timed out"
_CLOSED: Final = gettext_noop("may not be asked until srvr is in 4lw.commands.whitelist of its configuration")
_NO_QUORUM: Final = gettext_noop("runs, and is in no quorum")
_SILENT: Final = gettext_noop(
    "does not answer the command srvr; perhaps it has as many connections as maxClientCnxns or maxCnxns allows"
)
_TLS_FAILED: Final = gettext_noop("cannot be asked with the TLS settings of this process")  # the reason follows


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
    """Why it does not serve, or why it cannot be asked; in English."""

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
    messages: Sequence[Any]
    """Sentences for the translation, with the names of the values."""
    values: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def text(self) -> str:
        """The problem, and its cure, in the present language: threads with different ones share a report."""
        return " ".join(map(str, self.messages)) % self.values


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
    options, reply_timeout = key
    with ThreadPoolExecutor(1 + min(len(options.hosts), 16)) as pool:
        answer = pool.submit(_is_answered, timeout)
        reports = tuple(pool.map(lambda host: _ask(host, options, timeout), options.hosts))
    findings = _findings(reports, options.session_timeout, reply_timeout, answered=answer.result())
    return EnsembleReport(reports, tuple(findings))


def _is_answered(timeout: float) -> bool:
    """Return True if this process is connected, and a quorum answers it."""
    session = process.peek()
    if session is None or not session.connected:
        return False
    try:
        check_quorum(reply_timeout=timeout)
    except ZooKeeperUnavailable:
        return False
    return True


_reports: Final = Shared(_ask_all)


def _ask(host: tuple[str, int], options: SessionOptions, timeout: float) -> ServerReport:
    try:
        text = _srvr(host, options, clock.now() + timeout)
    except TimeoutError:
        return ServerReport(address=address(host), problem=_TIMED_OUT)
    except (TlsProblem, ssl.SSLError) as error:
        reason = getattr(error, "verify_message", "") or getattr(error, "reason", "") or error
        return ServerReport(address=address(host), problem=f"{_TLS_FAILED}: {reason}")
    except OSError as error:
        return ServerReport(address=address(host), problem=f"{_AWAY}: {error.strerror or error}")
    return _report(address(host), text)


def _srvr(host: tuple[str, int], options: SessionOptions, deadline: float) -> str:
    """Return the reply to the command `srvr`."""

    def remaining() -> float:
        seconds = deadline - clock.now()
        if seconds <= 0:
            raise TimeoutError("timed out")
        return seconds

    tls = None if options.tls is None else context(options.tls, remaining())
    with _connect(host, remaining) as sock:
        sock.settimeout(remaining())
        with sock if tls is None else tls.wrap_socket(sock, server_hostname=host[0]) as stream:
            stream.sendall(b"srvr")
            text = b""
            while len(text) < MAX_REPLY:
                stream.settimeout(remaining())  # each time, as a server may send a byte now and then for ever
                received = stream.recv(4096)
                if not received:
                    break
                text += received
    return text.decode(errors="replace")


def _connect(host: tuple[str, int], remaining: Callable[[], float]) -> socket.socket:
    """Connect to the first address that answers; each has its share of the time."""
    addresses = resolve([host], remaining())[host]
    if isinstance(addresses, OSError):
        raise OSError(str(addresses))  # no TimeoutError: it says more than that
    for left, peer in zip(range(len(addresses), 0, -1), addresses, strict=True):
        try:
            return socket.create_connection(peer, remaining() / left)
        except OSError:
            if left == 1:
                raise
    raise AssertionError("a name has at least one address")


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


def _findings(
    servers: Sequence[ServerReport], session_timeout: float, reply_timeout: float = 1.0, *, answered: bool = False
) -> Iterator[HealthFinding]:
    """Yield what is wrong. A quorum that has `answered` this process exists, whatever the servers say."""
    alone = [server.address for server in servers if server.role == "standalone"]
    known = not any(server.problem.startswith((_CLOSED, _SILENT, _TLS_FAILED)) for server in servers)
    voters = [server for server in servers if server.role != "observer"]  # one that is down may be an observer
    serving, majority = sum(server.serves for server in voters), len(voters) // 2 + 1
    if alone and len(servers) > 1:
        texts = [
            _("%(servers)s serves without the other servers."),
            _("Two of them would give the same lock to two holders."),
            _("Name all servers in the configuration of each."),
        ]
        yield HealthFinding("error", texts, {"servers": ", ".join(alone)})
    elif known and not answered and not any(server.serves for server in servers):
        yield _no_majority(voters, majority, reply_timeout)
    for server in servers:
        if server.problem:
            more = serving - majority + 1
            goes_on = ngettext_lazy(
                "Locks go on. They stop if one more server fails.",
                "Locks go on. They stop if %(more)d more servers fail.",
                more,
            )
            values = {"server": server.address, "problem": lazy(_translated, str)(server.problem), "more": more}
            yield HealthFinding("warning", ("%(server)s %(problem)s.", *([goes_on] if more > 0 else [])), values)
        if server.version and tuple(map(int, re.findall(r"\d+", server.version)[:2])) < OLDEST:
            texts = [_("%(server)s has ZooKeeper %(version)s; 3.6 or newer is required.")]
            yield HealthFinding("error", texts, {"server": server.address, "version": server.version})
        if server.latency is not None and server.latency > session_timeout * SLOW_SHARE:
            texts = [
                _("%(server)s takes %(latency)s ms on average."),
                _("With replies this slow, leases may end. Look at its disk and its garbage collection."),
            ]
            yield HealthFinding("warning", texts, {"server": server.address, "latency": server.milliseconds})
    versions = sorted({server.version for server in servers if server.version})
    if len(versions) > 1:
        texts = [
            _("The servers have different versions: %(versions)s."),
            _("Finish the upgrade: servers should differ only while it lasts."),
        ]
        yield HealthFinding("warning", texts, {"versions": ", ".join(versions)})


def _no_majority(voters: Sequence[ServerReport], majority: int, reply_timeout: float) -> HealthFinding:
    """Return that too few servers run, or that too few had the time to answer."""
    running = sum(server.runs for server in voters)
    values = {"running": running, "count": len(voters), "majority": majority, "seconds": f"{reply_timeout:g}"}
    if running + sum(server.problem == _TIMED_OUT for server in voters) >= majority > running:
        texts = [
            _("It is unknown whether there is a majority:"),
            _("%(running)d of %(count)d servers answered within %(seconds)s s."),
            _("The others are down, cut off or slow, or the time was too short."),
        ]
        return HealthFinding("error", texts, values)
    texts = [
        _("No majority:"),
        ngettext_lazy("%(running)d of %(count)d servers runs,", "%(running)d of %(count)d servers run,", running),
        ngettext_lazy("%(majority)d is needed.", "%(majority)d are needed.", majority),
        _("No lock can be granted. Start those that are down, or repair the network."),
    ]
    return HealthFinding("error", texts, values)


def _translated(problem: str) -> str:
    """Return a problem of a server in the present language. The system's words after a colon stay as they are."""
    words, colon, reason = problem.partition(": ")
    return gettext(words) + colon + reason
