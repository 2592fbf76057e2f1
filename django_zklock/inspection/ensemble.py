"""
The servers of the ensemble: which are up, which one leads, how fast they are, and what is wrong.

Each server is asked over a connection of its own, by the command `srvr`, which ZooKeeper allows by default.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from django.utils.functional import lazy
from django.utils.translation import gettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from django_zklock.core import clock
from django_zklock.core.queue.escaping import gettext_noop, printable
from django_zklock.core.zk import process
from django_zklock.core.zk.certificates import Validity, validity
from django_zklock.core.zk.errors import NodeMissing, ZkError
from django_zklock.core.zk.gateway import Callback, Gateway, Node, NodeReply
from django_zklock.core.zk.options import SessionOptions, TlsOptions, TlsProblem
from django_zklock.core.zk.outage import Host, address, cause_of, is_loopback
from django_zklock.core.zk.outside import context, resolve
from django_zklock.core.zk.session import ConnectionState
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.inspection import configuration
from django_zklock.inspection.configuration import Addresses, ConfiguredServer
from django_zklock.locks.arguments import check_no_running_loop
from django_zklock.locks.requests import call
from django_zklock.shared import Shared

MAX_REPLY: Final = 64 * 1024  # bytes
SLOW_SHARE: Final = 0.05  # of the session timeout; slower replies may let leases end
OLDEST: Final = (3, 6)
MAX_TEXT: Final = 40  # characters of a role or version
CERTAIN: Final = 3.0  # seconds that servers must disagree for; a leader that was replaced notices it earlier
RESOLVE: Final = 0.5  # seconds that the resolver gets
PAUSE: Final = 0.1  # seconds between two looks at servers that seem to disagree
FIRST: Final = 0.25  # seconds that a write of this process gets before the first look, which may show it then
MAX_EPOCHS: Final = 20  # leaders that are remembered
LONGEST_TIMEOUT: Final = 2**31 - 1  # milliseconds, for the server to shorten
CLOSE: Final = -11  # the code of the request that ends a session
_CONFIG: Final = "/zookeeper/config"  # the servers of the ensemble, as the connected server knows them
_LEADS: Final = frozenset({"leader", "standalone"})

_AWAY: Final = gettext_noop("does not answer")  # followed by a colon and the words of the system
_TIMED_OUT: Final = f"{_AWAY}: timed out"
_CLOSED: Final = gettext_noop("may not be asked until srvr is in 4lw.commands.whitelist of its configuration")
_NO_QUORUM: Final = gettext_noop("runs, and is in no quorum")
_READ_ONLY: Final = gettext_noop("runs read-only, as it is in no quorum, and grants no lock")
_SILENT: Final = gettext_noop(
    "does not answer the command srvr; perhaps it has as many connections as maxClientCnxns or maxCnxns allows"
)
_TLS_FAILED: Final = gettext_noop("cannot be asked with the TLS settings of this process")  # the reason follows
_NOT_VALID: Final = re.compile("certificate (has expired|is not yet valid)")  # the words of OpenSSL
_NOT_LOOKED_AT: Final = gettext_noop("is a member of the ensemble, and was not looked at; name it in URL")
_DOWN: Final = f"{_AWAY}: {os.strerror(errno.ECONNREFUSED)}"  # the machine has answered that nothing listens there


Standing: TypeAlias = Literal["voter", "observer", "stranger", "alias"]


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
    zxid: int = -1
    """Its last transaction: the epoch in the upper 32 bits, then the number in it. -1 if it is not known."""
    certificate: Validity | None = None
    """When its certificate is valid; None without TLS, or if that is not known."""
    standing: Standing = "voter"
    """Its standing in the ensemble. A stranger is no member. An alias is another address of a server that is above."""

    @property
    def milliseconds(self) -> str:
        """The latency as text; empty if it is not known."""
        return "" if self.latency is None else f"{self.latency * 1000:.1f}"

    @property
    def runs(self) -> bool:
        """Whether it answers, perhaps without a quorum."""
        return self.serves or self.problem in {_NO_QUORUM, _READ_ONLY}

    @property
    def is_unknown(self) -> bool:
        """Whether it may serve: it was not looked at, or only the command is refused to this process."""
        return self.problem.startswith((_CLOSED, _SILENT, _TLS_FAILED, _NOT_LOOKED_AT))

    @property
    def is_down(self) -> bool:
        """Whether it does not run, as far as is known."""
        return not (self.runs or self.is_unknown)

    @property
    def serves(self) -> bool:
        """Whether it belongs to a quorum, and answers clients."""
        return self.role in {"leader", "follower", "observer", "standalone"}

    @property
    def votes(self) -> bool:
        """Whether it counts for the majority."""
        return self.standing == "voter" and self.role != "observer"


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """A problem that an operator should know. The report of all incidents has its remedy."""

    result: str
    """ "warning" or "error"."""
    messages: Sequence[Any]
    """Sentences for the translation, with the names of the values."""
    values: Mapping[str, Any] = field(default_factory=dict, hash=False)
    cause: str = ""
    """The cause in the report of all incidents; empty for a server that only cannot be asked."""
    about: tuple[str, ...] = ()
    """The servers, or their versions."""

    @property
    def splits(self) -> bool:
        """Whether the servers may be several ensembles, so that two processes may hold one lock."""
        return self.cause == "split"

    @property
    def text(self) -> str:
        """The problem, in the present language: threads with different ones share a report."""
        return " ".join(map(str, self.messages)) % self.values


@dataclass(frozen=True, slots=True)
class EnsembleReport:
    """All servers in the order of the settings, then the other members, and what is wrong with them."""

    servers: tuple[ServerReport, ...]
    findings: tuple[HealthFinding, ...]
    epochs: tuple[tuple[float, int], ...] = ()
    """Of the leaders that this process has seen lately: the last time on `clock.now()`, and the epoch."""
    is_complete: bool = True
    """Whether the members of the ensemble are known, if this process is connected."""
    is_weighted: bool = False
    """Whether groups or weights decide about a quorum. How many servers may fail is not known then."""

    @property
    def voters(self) -> list[ServerReport]:
        """Return the servers that count for the majority."""
        return [server for server in self.servers if server.votes]

    @property
    def spare(self) -> int | None:
        """Return how many more servers may fail. It is negative without a majority, and None if it is not known."""
        voters = self.voters
        if self.is_weighted or not self.is_complete or any(server.is_unknown for server in voters):
            return None
        return sum(server.serves for server in voters) - len(voters) // 2 - 1

    @property
    def answers(self) -> bool:
        """Whether any server has said something."""
        return any(not server.problem.startswith(_AWAY) for server in self.servers)


def ensemble(*, reply_timeout: float = 1.0, max_age: float = 5.0) -> EnsembleReport:
    """
    Ask all servers at the same time; wait for each at most `reply_timeout` seconds.

    Servers that disagree are asked again for three seconds, because they also do while a leader is elected.

    A report of this process that is at most `max_age` seconds old is returned again, and callers at the same time
    share one. Never raises because a server does not answer: the report says so.
    """
    check_no_running_loop("ensemble", "await sync_to_async(ensemble)(...)")
    return _reports.get((process.current().options, reply_timeout), reply_timeout, max_age)


@Shared
def _reports(key: tuple[SessionOptions, float], timeout: float) -> EnsembleReport:
    options, reply_timeout = key
    ask = partial(_ask, options=options, timeout=timeout)
    ask_others = partial(_ask, options=options, timeout=timeout / 2)
    with ThreadPoolExecutor(1 + min(len(options.hosts), 16)) as pool:
        answer = pool.submit(_own_answer, timeout)
        wait([answer], FIRST)
        asked = dict(zip(options.hosts, pool.map(ask, options.hosts), strict=True))
        own = answer.result()
        servers, ends = _placed(asked, own, pool, ask_others), clock.now() + CERTAIN
        while len(_leaders(servers)) > 1 and clock.now() < ends:
            time.sleep(PAUSE)
            asked = dict(zip(options.hosts, pool.map(ask, options.hosts), strict=True))
            servers = _placed(asked, own, pool, ask_others)
    report = EnsembleReport(servers, (), is_complete=not own.problem, is_weighted=configuration.is_weighted(own.config))
    findings = [*_findings(report, options.session_timeout, reply_timeout, own), *_certificates(servers, options.tls)]
    epochs = _epochs.setdefault(options.hosts, deque(maxlen=MAX_EPOCHS))
    epoch = max((server.zxid >> 32 for server in servers if server.serves), default=-1)
    if epochs and epochs[-1][1] == epoch:
        epochs.pop()
    epochs.extend([(clock.now(), epoch)] if epoch > 0 else [])
    return replace(report, findings=tuple(findings), epochs=tuple(epochs))


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnAnswer:
    """The answers of a quorum and of the connected server to this process."""

    server: str = ""
    """The connected server; empty if there is no answer."""
    config: bytes = b""
    """The configuration of the ensemble, as that server knows it."""
    problem: str = ""
    """Why the configuration is not known, though a quorum answers."""


def _own_answer(timeout: float) -> OwnAnswer:
    """Let a quorum carry out a transaction, which each server of the ensemble has then. Read the configuration."""

    def read(gateway: Gateway, done: Callback[NodeReply]) -> None:
        gateway.read(_CONFIG, done)

    session, deadline = process.peek(), clock.now() + timeout
    if session is None or not (session.connected or session.state is ConnectionState.CONNECTING):
        return OwnAnswer()

    try:
        zxid, config = call(session, Gateway.last_zxid, deadline), call(session, read, deadline)
    except ZooKeeperUnavailable:
        return OwnAnswer()
    if isinstance(zxid, ZkError):
        return OwnAnswer()
    if isinstance(config, Node):
        # The configuration names the ports without TLS only.
        known = re.sub(rb"(?m);.*$", b"", config.data) if session.options.tls else config.data
        return OwnAnswer(server=session.server, config=known)
    return OwnAnswer(server=session.server, problem="" if isinstance(config, NodeMissing) else str(config))


def _placed(
    asked: Mapping[Host, ServerReport],
    own: OwnAnswer,
    pool: ThreadPoolExecutor,
    ask: Callable[[Host], ServerReport],
) -> tuple[ServerReport, ...]:
    """Return these reports with the standing of their servers, and the reports of the other members of the ensemble."""
    configured = configuration.parse(own.config)
    hosts = {host for server in configured for host in server.hosts}
    addresses = _addresses_of({*asked, *hosts}, own.server)
    aliases = _aliases(asked, addresses)
    roles = {host: report.role for host, report in asked.items() if host not in aliases}
    known = configuration.matches(roles, configured, addresses)
    left = [server for server in configured if server not in known.values()]
    others = dict(zip(left, pool.map(lambda server: _ask_configured(server, addresses, ask), left), strict=True))
    for host, server in _hidden(roles, known, others):
        known[host] = server
        del others[server]
    standings: dict[Host, Standing] = dict.fromkeys(asked, "stranger" if configured else "voter")
    standings |= {host: _vote(server) for host, server in known.items()}
    standings |= dict.fromkeys(aliases, "alias")
    reports = [replace(report, standing=standings[host]) for host, report in asked.items()]
    return (*reports, *(replace(report, standing=_vote(server)) for server, report in others.items()))


def _hidden(
    roles: Mapping[Host, str], known: Container[Host], others: Mapping[ConfiguredServer, ServerReport]
) -> list[tuple[Host, ConfiguredServer]]:
    """Return the servers whose addresses in the configuration only other machines know, and which they may be."""
    left = [server for server, report in others.items() if report.problem.startswith(_NOT_LOOKED_AT)]
    pairs = []
    for host in [host for host in roles if host not in known]:
        server = next((server for server in left if server.may_be(roles[host])), None)
        if server is not None:
            left.remove(server)
            pairs.append((host, server))
    return pairs


def _vote(server: ConfiguredServer) -> Standing:
    return "voter" if server.votes else "observer"


def _addresses_of(hosts: Set[Host], connected: str) -> dict[Host, Set[Host]]:
    """Return the IP addresses of these hosts. The loopback of a server that is not on this machine is another one."""
    answers = resolve(hosts, RESOLVE)
    is_here = not connected or is_loopback(connected.rpartition(":")[0])
    known: dict[Host, Set[Host]] = {}
    for host, answer in answers.items():
        resolved = set() if isinstance(answer, OSError) else set(answer)
        known[host] = resolved if is_here else {address for address in resolved if not is_loopback(address[0])}
    return known


def _aliases(hosts: Iterable[Host], addresses: Addresses) -> set[Host]:
    """Return the hosts that are the same server as one before."""
    seen: set[Host] = set()
    aliases = set()
    for host in hosts:
        if addresses[host] & seen:
            aliases.add(host)
        seen |= addresses[host]
    return aliases


def _ask_configured(
    server: ConfiguredServer, addresses: Addresses, ask: Callable[[Host], ServerReport]
) -> ServerReport:
    """Ask a member that is not in `URL`. Only its machine can say that it is down: its address may be unreachable."""
    host = server.host
    if host is None or not addresses[host]:
        return ServerReport(address=str(server), problem=_NOT_LOOKED_AT)
    report = ask(host)
    if report.problem.startswith(_AWAY) and report.problem != _DOWN:
        return ServerReport(address=str(server), problem=f"{_NOT_LOOKED_AT}{report.problem.removeprefix(_AWAY)}")
    return report


def _leaders(servers: Sequence[ServerReport]) -> list[ServerReport]:
    """Return the servers that lead. An ensemble has one, except for a moment, while a leader is elected."""
    return [server for server in servers if server.role in _LEADS and server.standing != "alias"]


_epochs: Final[dict[object, deque[tuple[float, int]]]] = {}  # by servers; each epoch when this process last saw it
_peers: Final[dict[tuple[str, int], tuple[str, int]]] = {}  # the address that answered last, by host; it is tried first


def _ask(host: Host, options: SessionOptions, timeout: float) -> ServerReport:
    try:
        reply, certificate = _exchange(host, options, clock.now() + timeout, b"srvr")
    except OSError as error:
        return ServerReport(address=address(host), problem=_problem(error))
    return replace(_report(address(host), reply.decode(errors="replace")), certificate=certificate)


def _problem(error: OSError) -> str:
    """Return why a server gives no reply."""
    if isinstance(error, TimeoutError):
        return _TIMED_OUT
    if isinstance(error, (ConnectionResetError, BrokenPipeError)):
        return _SILENT
    if isinstance(error, ssl.SSLError):
        return f"{_TLS_FAILED}: {cause_of(error, in_handshake=True, connected=True)}"
    return f"{_TLS_FAILED if isinstance(error, TlsProblem) else _AWAY}: {error.strerror or error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionBounds:
    """The shortest and the longest session timeout that a server grants, in seconds."""

    shortest: float
    longest: float
    tick: float | None
    """Its tickTime; None if it does not tell it: `conf` is not in its 4lw.commands.whitelist."""

    def __str__(self) -> str:
        tick = "" if self.tick is None else f" with ticks of {self.tick:g} s"
        return f"{self.shortest:g} to {self.longest:g} s{tick}"


def session_bounds(report: EnsembleReport, *, reply_timeout: float) -> dict[str, SessionBounds | str]:
    """
    Return what each server grants, or why it was not asked, by address.

    A server tells it to each client that connects, so two sessions are begun and ended at each server.
    """
    options = process.current().options

    def ask(server: ServerReport) -> SessionBounds | str:
        if not (server.serves or server.problem.startswith(_CLOSED)):
            return server.problem
        *name, port = server.address.rsplit(":", 1)
        exchange = partial(_exchange, (name[0].strip("[]"), int(port)), options, clock.now() + reply_timeout)
        try:
            shortest, longest = (_granted(exchange(_connect_and_close(asked))[0]) for asked in (1, LONGEST_TIMEOUT))
            ticks = re.search(rb"^tickTime=([0-9]{1,9})$", exchange(b"conf")[0], re.MULTILINE)
        except OSError as error:
            return _problem(error)
        return SessionBounds(shortest=shortest, longest=longest, tick=int(ticks[1]) / 1000 if ticks else None)

    servers = [server for server in report.servers if server.standing in {"voter", "observer"}]
    with ThreadPoolExecutor(min(len(servers), 16) or 1) as pool:
        return dict(zip((server.address for server in servers), pool.map(ask, servers), strict=True))


def _connect_and_close(milliseconds: int) -> bytes:
    """Return the requests that begin a session with this timeout, and end it."""
    connect = struct.pack(">iqiqi16s?", 0, 0, milliseconds, 0, 16, b"", False)
    return struct.pack(">i", len(connect)) + connect + struct.pack(">iii", 8, 1, CLOSE)


def _granted(reply: bytes) -> float:
    """Return the timeout in the reply to a connect, in seconds."""
    if len(reply) < 12:
        raise ConnectionResetError("no session was begun")
    milliseconds: int = struct.unpack_from(">i", reply, 8)[0]
    return milliseconds / 1000


def _exchange(host: Host, options: SessionOptions, deadline: float, message: bytes) -> tuple[bytes, Validity | None]:
    """Return what a server sends after this message, until it closes the connection, and its certificate's dates."""

    def remaining() -> float:
        seconds = deadline - clock.now()
        if seconds <= 0:
            raise TimeoutError("timed out")
        return seconds

    tls = None if options.tls is None else context(options.tls, remaining())
    with _connect(host, remaining) as sock:
        sock.settimeout(remaining())
        with sock if tls is None else tls.wrap_socket(sock, server_hostname=host[0]) as stream:
            certificate = _validity(stream)
            stream.sendall(message)
            reply = b""
            while len(reply) < MAX_REPLY:
                stream.settimeout(remaining())  # each time, as a server may send a byte now and then for ever
                received = stream.recv(4096)
                if not received:
                    break
                reply += received
    return reply, certificate


def _validity(stream: socket.socket) -> Validity | None:
    """Return when the certificate of the other side is valid; None without one, or if its dates cannot be read."""
    certificate = stream.getpeercert(binary_form=True) if isinstance(stream, ssl.SSLSocket) else None
    return validity(certificate) if certificate else None


def _connect(host: tuple[str, int], remaining: Callable[[], float]) -> socket.socket:
    """Connect to the first address that answers; each has its share of the time."""
    addresses = resolve([host], remaining())[host]
    if isinstance(addresses, OSError):
        raise OSError(str(addresses))  # no TimeoutError: it says more than that
    peers = sorted(addresses, key=lambda peer: peer != _peers.get(host))
    for left, peer in zip(range(len(peers), 0, -1), peers, strict=True):
        try:
            sock = socket.create_connection(peer, remaining() / left)
        except OSError:
            if left == 1:
                raise
        else:
            _peers[host] = peer
            return sock
    raise AssertionError("a name has at least one address")


def _report(server: str, text: str) -> ServerReport:
    """Read a reply to `srvr`. Anything may listen at the port, so no part of it is trusted."""
    fields = dict(re.findall(r"^([\w /]+): (.*)$", text, re.MULTILINE))
    if "Mode" not in fields:
        if "not currently serving" in text:
            return ServerReport(address=server, problem=_NO_QUORUM)
        return ServerReport(address=server, problem=_CLOSED if "whitelist" in text else _SILENT)
    version = fields.get("Zookeeper version", "").partition("-")[0].partition(",")[0].strip()
    latency = re.fullmatch(r"[0-9]+/([0-9]{1,9}(?:[.][0-9]{1,9})?)/[0-9]+", fields.get("Latency min/avg/max", ""))
    zxid = re.fullmatch("0x([0-7]?[0-9a-f]{1,15})", fields.get("Zxid", ""))
    return ServerReport(
        address=server,
        role=printable(fields["Mode"], MAX_TEXT),
        version=printable(version, MAX_TEXT),
        latency=float(latency[1]) / 1000 if latency else None,
        problem=_READ_ONLY if fields["Mode"] == "read-only" else "",
        zxid=int(zxid[1], 16) if zxid else -1,
    )


def _findings(
    report: EnsembleReport, session_timeout: float, reply_timeout: float = 1.0, own: OwnAnswer = OwnAnswer()
) -> Iterator[HealthFinding]:
    """Yield what is wrong. A quorum that has answered this process exists, whatever the servers say of themselves."""
    servers, voters, spare = report.servers, report.voters, report.spare
    serving = any(voter.serves for voter in voters)
    is_lone = len(configuration.parse(own.config)) == 1
    yield from _split(servers, own.server if is_lone else "")
    if not own.server and not any(server.is_unknown or server.serves for server in servers):
        yield _no_majority(voters, len(voters) // 2 + 1, reply_timeout)
    for server in servers:
        yield from _of_server(server, session_timeout, serving, 0 if spare is None else spare + 1)
    yield from _unjudged(report, own)
    yield from _versions(servers)


def _unjudged(report: EnsembleReport, own: OwnAnswer) -> Iterator[HealthFinding]:
    """Yield what is not known of the ensemble."""
    if report.is_weighted:
        texts = [_("The ensemble has groups or weights, so it was not judged how many servers may fail.")]
        yield HealthFinding("info", texts)
    if own.problem:
        texts = [_("The members of the ensemble are not known. Only the servers in URL were looked at. %(problem)s")]
        yield HealthFinding("warning", texts, {"problem": own.problem})


def _versions(servers: Sequence[ServerReport]) -> Iterator[HealthFinding]:
    versions = sorted({server.version for server in servers if server.version})
    if len(versions) > 1:
        texts = [_("The servers have different versions: %(versions)s.")]
        yield HealthFinding("warning", texts, {"versions": ", ".join(versions)}, "version", tuple(versions))


def _split(servers: Sequence[ServerReport], recluse: str) -> Iterator[HealthFinding]:
    """Yield that the servers are not one ensemble. `recluse` is the connected server, if it knows no other."""
    distinct = [server for server in servers if server.standing != "alias"]
    alone = {server.address for server in distinct if server.role == "standalone"} | {recluse} - {""}
    leaders = _leaders(servers)
    if not (len(leaders) > 1 or (alone and len(distinct) > 1)):
        return
    texts = [
        _("%(servers)s serves without the other servers.")
        if alone
        else _("The servers are not one ensemble, or one is cut off or hangs: %(servers)s."),
        _("Two of them would give the same lock to two holders."),
    ]
    named = [f"{server.address} ({server.role}, zxid {server.zxid:#x})" for server in leaders]
    yield HealthFinding("error", texts, {"servers": ", ".join(sorted(alone) or named)}, "split")


def _of_server(server: ServerReport, session_timeout: float, serving: bool, more: int) -> Iterator[HealthFinding]:
    """Yield what is wrong with one of the servers. If they are `serving`, `more` of them end that by their failure."""
    if server.standing == "stranger":
        texts: list[Any] = [
            _("%(server)s is in URL, and is no member of the ensemble."),
            _("It was removed, or belongs to another ensemble, or is a proxy. Name the members in URL."),
        ]
        yield HealthFinding("warning", texts, {"server": server.address}, about=(server.address,))
    elif server.problem:
        yield _failed(server, serving, more)
    if server.version and tuple(map(int, re.findall("[0-9]+", server.version)[:2])) < OLDEST:
        texts = [_("%(server)s has ZooKeeper %(version)s; 3.6 or newer is required.")]
        values, about = {"server": server.address, "version": server.version}, (server.version,)
        yield HealthFinding("error", texts, values, "version", about)
    if server.latency is not None and server.latency > session_timeout * SLOW_SHARE:
        texts = [
            _("%(server)s takes %(latency)s ms on average."),
            _("With replies this slow, leases may end."),
        ]
        values, about = {"server": server.address, "latency": server.milliseconds}, (server.address,)
        yield HealthFinding("warning", texts, values, "slow", about)


def _failed(server: ServerReport, serving: bool, more: int) -> HealthFinding:
    """Return that a server does not serve, or cannot be asked."""
    goes_on = ngettext_lazy(
        "Locks go on. They stop if one more server fails.",
        "Locks go on. They stop if %(more)d more servers fail.",
        more,
    )
    values = {"server": server.address, "problem": lazy(_translated, str)(server.problem), "more": more}
    cause = "certificate" if _NOT_VALID.search(server.problem) else ""
    if serving and (server.runs or server.problem.startswith(_AWAY)):  # others only cannot be asked
        cause = "down"
    texts = ["%(server)s %(problem)s.", *([goes_on] if more > 0 else [])]
    return HealthFinding("warning", texts, values, cause, (server.address,))


def _certificates(servers: Sequence[ServerReport], tls: TlsOptions | None) -> Iterator[HealthFinding]:
    """Yield which certificates are not valid, or end soon: those of the servers, and the files of this process."""
    if tls is None:
        return
    known = [(server.address, server.certificate) for server in servers]
    try:
        files = context(tls, RESOLVE).files
        known += [(f'{setting} in ZKLOCK["TLS"]', dates) for setting, dates in files.items()]
    except OSError as error:  # it is used at the next connect
        yield HealthFinding("error", ["%(problem)s."], {"problem": str(error)}, "certificate", ("TLS",))
    now = datetime.now(timezone.utc)
    for name, dates in known:
        if dates is None or not dates.needs_attention():
            continue
        days = (dates.ends - now).days
        values = {"name": name, "days": days, "begins": f"{dates.begins:%Y-%m-%d %H:%M} UTC"}
        values["ends"] = f"{dates.ends:%Y-%m-%d %H:%M} UTC"
        text: Any = ngettext_lazy(
            "The certificate of %(name)s ends in %(days)d day, at %(ends)s.",
            "The certificate of %(name)s ends in %(days)d days, at %(ends)s.",
            days,
        )
        if dates.ends < now:
            text = _("The certificate of %(name)s ended at %(ends)s.")
        elif now < dates.begins:
            text = _("The certificate of %(name)s is not valid before %(begins)s.")
        yield HealthFinding("warning", [text], values, "certificate", (name, str(dates.ends)))


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
        silent = tuple(server.address for server in voters if not server.runs)
        return HealthFinding("error", texts, values, "quorum", silent)
    texts = [
        _("No majority:"),
        ngettext_lazy("%(running)d of %(count)d servers runs,", "%(running)d of %(count)d servers run,", running),
        ngettext_lazy("%(majority)d is needed.", "%(majority)d are needed.", majority),
        _("No lock can be granted."),
    ]
    return HealthFinding("error", texts, values, "quorum")


def _translated(problem: str) -> str:
    """Return a problem of a server in the present language. The system's words after a colon stay as they are."""
    words, colon, reason = problem.partition(": ")
    return gettext(words) + colon + reason
