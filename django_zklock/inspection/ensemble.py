"""
The servers of the ensemble: which are up, which one leads, how fast they are, and what is wrong.

Each server is asked over a connection of its own, by the command `srvr`, which ZooKeeper allows by default.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, pairwise, permutations, product
from typing import Any, Final, TypeAlias

from django.utils.functional import lazy
from django.utils.translation import gettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from django_zklock.core import clock
from django_zklock.core.queue.escaping import gettext_noop, printable
from django_zklock.core.zk import process
from django_zklock.core.zk.errors import ZkError
from django_zklock.core.zk.gateway import Callback, Gateway, Node, NodeReply
from django_zklock.core.zk.options import SessionOptions, TlsProblem
from django_zklock.core.zk.outage import address
from django_zklock.core.zk.outside import context, resolve
from django_zklock.core.zk.session import ConnectionState
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.locks.requests import call
from django_zklock.shared import Shared

MAX_REPLY: Final = 64 * 1024  # bytes
SLOW_SHARE: Final = 0.05  # of the session timeout; slower replies may let leases end
OLDEST: Final = (3, 6)
MAX_TEXT: Final = 40  # characters of a role or version
CERTAIN: Final = 3.0  # seconds that servers must disagree for; a leader that was replaced notices it earlier
PAUSE: Final = 0.1  # seconds between two looks at servers that seem to disagree
FIRST: Final = 0.25  # seconds that a write of this process gets before the first look, which may show it then
ENOUGH: Final = 4  # looks; one leader may pass the zxid of another between two of them
MAX_EPOCHS: Final = 20  # leaders that are remembered
LATE: Final = 300  # transactions; a server that is only late carries out more of them within CERTAIN
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
        """Whether it may serve: only the command is refused to this process."""
        return self.problem.startswith((_CLOSED, _SILENT, _TLS_FAILED))

    @property
    def serves(self) -> bool:
        """Whether it belongs to a quorum, and answers clients."""
        return self.role in {"leader", "follower", "observer", "standalone"}


_Looks: TypeAlias = Sequence[Sequence[ServerReport]]


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
    """All servers in the order of the settings, and what is wrong with them."""

    servers: tuple[ServerReport, ...]
    findings: tuple[HealthFinding, ...]
    epochs: tuple[tuple[float, int], ...] = ()
    """Of the leaders that this process has seen lately: the last time on `clock.now()`, and the epoch."""

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
    return _reports.get((process.current().options, reply_timeout), reply_timeout, max_age)


@Shared
def _reports(key: tuple[SessionOptions, float], timeout: float) -> EnsembleReport:
    options, reply_timeout = key
    ask = partial(_ask, options=options, timeout=timeout)
    with ThreadPoolExecutor(1 + min(len(options.hosts), 16)) as pool:
        answer = pool.submit(_own_answer, timeout)
        wait([answer], FIRST)
        looks = [tuple(pool.map(ask, options.hosts))]
        zxid, recluse = answer.result()
        ends, doubts = clock.now() + CERTAIN, 2 * bool(_strangers(looks, zxid))
        while doubts and clock.now() < ends:
            time.sleep(PAUSE)
            looks.append(tuple(pool.map(ask, options.hosts)))
            doubts = 2 if _strangers(looks, zxid) else doubts - 1  # one ensemble may pass the other
    if doubts and not _own_answer(timeout)[0]:
        zxid = 0  # without a leader that answers, the servers of one ensemble may disagree for some time
    findings = _findings(looks, options.session_timeout, reply_timeout, answer=(zxid, recluse))
    epochs = _epochs.setdefault(options.hosts, deque(maxlen=MAX_EPOCHS))
    epoch = max((server.zxid >> 32 for server in looks[-1] if server.serves), default=-1)
    if epochs and epochs[-1][1] == epoch:
        epochs.pop()
    epochs.extend([(clock.now(), epoch)] if epoch > 0 else [])
    return EnsembleReport(looks[-1], tuple(findings), tuple(epochs))


def _own_answer(timeout: float) -> tuple[int, str]:
    """
    Return the zxid of a transaction that a quorum has carried out for this process, and the server that knows no other.

    The zxid is 0 if this process has no answer. The address of the server is empty if it knows others.
    """

    def read(gateway: Gateway, done: Callback[NodeReply]) -> None:
        gateway.read(_CONFIG, done)

    session, deadline = process.peek(), clock.now() + timeout
    if session is None or not (session.connected or session.state is ConnectionState.CONNECTING):
        return 0, ""

    def connect(gateway: Gateway, done: Callback[Any]) -> None:
        session.call_when_connected(partial(done, None))

    try:
        call(session, connect, deadline)
        zxid, config = call(session, Gateway.last_zxid, deadline), call(session, read, deadline)
    except ZooKeeperUnavailable:
        return 0, ""
    members = re.findall(rb"^server\.", config.data, re.MULTILINE) if isinstance(config, Node) else []
    return 0 if isinstance(zxid, ZkError) else zxid, session.server if len(members) == 1 else ""


def _strangers(looks: _Looks, zxid: int = 0) -> list[ServerReport]:
    """
    Return the servers that are not of one ensemble, if the looks took `CERTAIN` seconds; before, those that may not be.

    An ensemble has one leader, and each server soon reaches the zxid that this process, or another server at the look
    before, has had. The first zxid of a leader, with the number 0, is an exception: the others never have it. If no
    quorum has answered this process (`zxid` is 0), only two leaders count.
    """
    strangers: set[int] = set()
    for pair in permutations(range(len(looks[0])), 2):
        mine, its = ([look[index] for look in looks] for index in pair)
        if all(server.serves and server.zxid >= 0 for server in (*mine, *its)):
            began, now, goal = mine[0].zxid, mine[-1].zxid, max(its[-2:][0].zxid, zxid)
            is_behind = zxid and now < goal and goal & 0xFFFFFFFF and (now - began < LATE or now >> 32 != goal >> 32)
            both_lead = all(server.role in _LEADS for server in (*mine, *its))
            if is_behind or (both_lead and not _may_be_one(looks, pair)):
                strangers.update(pair)
    return [looks[-1][index] for index in sorted(strangers)]


def _may_be_one(looks: _Looks, pair: tuple[int, int]) -> bool:
    """Return whether two addresses may be those of one leader: its zxid does not decrease from one look to the next."""
    return len(looks) >= ENOUGH and all(
        look[index].role in _LEADS and 0 <= before[index].zxid <= look[other].zxid
        for before, look in pairwise(looks)
        for index, other in product(pair, pair)
    )


_epochs: Final[dict[object, deque[tuple[float, int]]]] = {}  # by servers; each epoch when this process last saw it
_peers: Final[dict[tuple[str, int], tuple[str, int]]] = {}  # the address that answered last, by host; it is tried first


def _ask(host: tuple[str, int], options: SessionOptions, timeout: float) -> ServerReport:
    try:
        text = _srvr(host, options, clock.now() + timeout)
    except TimeoutError:
        return ServerReport(address=address(host), problem=_TIMED_OUT)
    except (ConnectionResetError, BrokenPipeError):
        return ServerReport(address=address(host), problem=_SILENT)
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
    looks: _Looks, session_timeout: float, reply_timeout: float = 1.0, *, answer: tuple[int, str] = (0, "")
) -> Iterator[HealthFinding]:
    """Yield what is wrong. A quorum whose `answer` this process has exists, whatever the servers say of themselves."""
    (answered, recluse), servers, strangers = answer, looks[-1], _strangers(looks, answer[0])
    alone = {server.address for server in servers if server.role == "standalone"} | {recluse} - {""}
    are_one = all(_may_be_one(looks, pair) for pair in combinations(range(len(servers)), 2))
    known = not any(server.is_unknown for server in servers)
    voters = [server for server in servers if server.role != "observer"]  # one that is down may be an observer
    serving, majority = sum(server.serves for server in voters), len(voters) // 2 + 1
    if (alone or strangers) and not are_one:
        texts = [
            _("%(servers)s serves without the other servers.")
            if alone
            else _("The servers are not one ensemble, or one is cut off or hangs: %(servers)s."),
            _("Two of them would give the same lock to two holders."),
        ]
        named = [f"{server.address} ({server.role}, zxid {server.zxid:#x})" for server in strangers]
        yield HealthFinding("error", texts, {"servers": ", ".join(sorted(alone) or named)}, "split")
    elif known and not answered and not any(server.serves for server in servers):
        yield _no_majority(voters, majority, reply_timeout)
    for server in servers:
        yield from _of_server(server, session_timeout, serving, serving - majority + 1)
    versions = sorted({server.version for server in servers if server.version})
    if len(versions) > 1:
        texts = [_("The servers have different versions: %(versions)s.")]
        yield HealthFinding("warning", texts, {"versions": ", ".join(versions)}, "version", tuple(versions))


def _of_server(server: ServerReport, session_timeout: float, serving: int, more: int) -> Iterator[HealthFinding]:
    """Yield what is wrong with one of the servers, of which `serving` serve, and `more` may fail."""
    if server.problem:
        goes_on = ngettext_lazy(
            "Locks go on. They stop if one more server fails.",
            "Locks go on. They stop if %(more)d more servers fail.",
            more,
        )
        values = {"server": server.address, "problem": lazy(_translated, str)(server.problem), "more": more}
        is_down = serving and (server.runs or server.problem.startswith(_AWAY))  # others only cannot be asked
        texts = ["%(server)s %(problem)s.", *([goes_on] if more > 0 else [])]
        yield HealthFinding("warning", texts, values, "down" if is_down else "", (server.address,))
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
