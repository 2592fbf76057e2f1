"""Why there is no connection to ZooKeeper: the last failure of each server, and the sentence that reports them."""

from __future__ import annotations

import errno
import random
import ssl
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kazoo.exceptions import AuthFailedError, SessionClosedRequireSaslError

from django_zklock.core import clock
from django_zklock.core.log import Logger
from django_zklock.core.queue.command_line import command
from django_zklock.core.zk.codes import CREDENTIALS, REQUIRES_AUTHENTICATION
from django_zklock.core.zk.options import is_loopback

Host: TypeAlias = tuple[str, int]
"""As in the settings."""
Address: TypeAlias = tuple[str, int]
"""An IP address and a port."""

logger = Logger("django_zklock.zk")


class Refusal(str):
    """The cause if a server refuses this process, or the settings are wrong. To start servers is no remedy."""

    __slots__ = ()


NO_ANSWER = "no answer"
SILENT = "it accepts connections, but does not answer as ZooKeeper does"
CLOSED = (
    "it closes connections without an answer; it has no quorum, or expects TLS, or has as many connections as its "
    "maxClientCnxns or maxCnxns allows, or refuses CERT, or is no ZooKeeper"
)
CLOSED_AT_REQUEST = Refusal(
    "it closes each connection at a request; it requires authentication, or is older than 3.6, or its jute.maxbuffer "
    "or a proxy refuses the request"
)
REFUSALS = {SessionClosedRequireSaslError.code: Refusal(REQUIRES_AUTHENTICATION)}
"""The codes with which a server refuses a session at its first request, and what they mean."""
NO_TLS = Refusal("it speaks no TLS; use its port for TLS, or zk:// instead of zk+tls://")
TLS_ONLY = Refusal("it expects TLS; use zk+tls://, or its port without TLS")
REFUSED = "connection refused"

SOON = 1.0
"""Seconds after which a connection that breaks is not blamed on its server, if that has carried out a request."""
FIRST_PAUSE, PAUSE_FACTOR, LONGEST_PAUSE = 0.02, 5, 10.0
"""Seconds between connections to a server that closes them, and their growth: ten in the first minute."""
PAUSE_SHARE = 0.8
"""
The share of the connect timeout that a pause takes at most before an address that answers no connect.

A balancer without servers is one. It may be whole again at any moment. Each caller sees a try, if it has the default
connect timeout or a longer one.
"""
LEAST_LONGEST_PAUSE = 4.0
"""Seconds that such a pause may always take: a short connect timeout must not cost a server more connections."""

IDLE_PAUSE = 60.0
"""
Seconds more while nobody waits, so that the state that metrics show is right again some time after an outage.

So the pause is over when the first caller comes, and the server is tried for it at once.
"""

_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)  # in this process, or on its machine
_TLS_RECORD = (b"\x15\x03", b"\x16\x03")  # how an alert, and a handshake, begin
_NO_ALERTS = (None, "WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "UNEXPECTED_EOF")  # reasons of OpenSSL
_DEVSERVER = f"For development, start one with: {command('devserver')}"


class NotZooKeeper(Exception):
    """The first bytes of a reply cannot be ZooKeeper's."""

    def __init__(self, first: bytes) -> None:
        shown = first.decode("latin-1")
        super().__init__(
            TLS_ONLY if first[:2] in _TLS_RECORD else f"it is no ZooKeeper; its answer begins with {shown!r}"
        )


@dataclass(slots=True)
class Closings:
    """That a server has closed connections, one after another."""

    count: int = 0
    until: float = 0.0  # when it may be tried again, on `clock.now()`
    kinds: frozenset[type] = frozenset()  # of requests: each connection had some of these without a reply


class Outage:
    """
    The last failure of each server, until there is a connection, and how long it is left alone.

    kazoo's thread writes it. Any thread reads the failures: each is a plain value.
    """

    def __init__(self, hosts: Sequence[Host], connect_timeout: float) -> None:
        self._hosts = tuple(dict.fromkeys(hosts))
        self._longest_pause = max(LEAST_LONGEST_PAUSE, PAUSE_SHARE * connect_timeout)
        self._causes: dict[Host, str] = {}
        self._logged = False
        self.closings: dict[Address, Closings] = defaultdict(Closings)

    def failed(self, host: Host, cause: str) -> None:
        """Record why a server could not be connected to."""
        self._causes[host] = cause

    def cannot_try(self, error: Exception) -> None:
        """Record why this process cannot try any server."""
        self._causes = dict.fromkeys(self._hosts, Refusal(text_of(error)))

    def closed(
        self, host: Host, address: Address, cause: str = CLOSED_AT_REQUEST, kinds: frozenset[type] = frozenset()
    ) -> None:
        """
        Record that a server has closed a connection soon, and why, if that is known. `kinds`: of unanswered requests.

        Two times are likely restarts, and so are connections that have no kind in common. If it goes on, the pauses
        grow, so that many processes cannot harm a server.
        """
        closings = self.closings[address]
        again = closings.kinds & kinds
        closings.count = 1 if kinds and not again else closings.count + 1
        closings.kinds = again or kinds
        pause = _pause(closings.count)
        closings.until = clock.now() + (min(pause, self._longest_pause) if cause == CLOSED else pause)
        if closings.count > 2 or cause is not CLOSED_AT_REQUEST:
            self.failed(host, cause)

    def answered(self, host: Host, address: Address, *, expired: bool = False) -> None:
        """
        Forget failures, because a server has opened a session, or has told that it has `expired`.

        One that refuses this process may close the next connection, too. It must carry out requests.
        """
        cause = self._causes.get(host) if address in self.closings else None
        if cause == CLOSED:
            self.restarts(address)
        elif expired and address in self.closings:
            closings = self.closings[address]
            closings.until = clock.now() + _pause(closings.count)
        self._causes = {host: cause} if isinstance(cause, Refusal) else {}
        self._logged = self._logged and bool(self._causes)

    def carried_out(self, address: Address, kind: type, connected_at: float) -> None:
        """
        Forget failures, because a server has carried out a request on a connection that was made then.

        If it has closed connections, it must have kept this one for a while, or have carried out all kinds of requests
        at which it has closed them.
        """
        if address not in self.closings:
            return
        closings = self.closings[address]
        closings.kinds -= {kind}
        if not closings.kinds or clock.now() >= connected_at + SOON:
            self.restarts(address)
            self._causes, self._logged = {}, False

    def restarts(self, address: Address) -> None:
        """Forget what a server has closed, because nothing listens there now: it will be another process."""
        self.closings.pop(address, None)

    def may_try(self, address: Address, is_wanted: Callable[[], bool]) -> bool:
        """Return whether it is time to connect to a server; hardly ever if it goes on to refuse, and nobody waits."""
        if address not in self.closings:
            return True
        closings = self.closings[address]
        return clock.now() >= closings.until + (IDLE_PAUSE if closings.count > 1 and not is_wanted() else 0)

    @property
    def refuses(self) -> bool:
        """Whether a server refuses this process, or the settings are wrong. For any thread."""
        return any(isinstance(cause, Refusal) for cause in list(self._causes.values()))

    def log(self) -> None:
        """Log the outage once, as soon as each server has failed."""
        if not self._logged and len(self._causes) >= len(self._hosts):
            self._logged = True
            logger.warning("%s", self.explain())

    def explain(self, within: float | None = None, server: str = "") -> str:
        """Return the sentence for a wait of `within` seconds. `server` is the connected one, if any."""
        causes = self._causes
        time = "" if within is None else f" within {within:.1f} s"
        if server and not causes:
            return f"ZooKeeper at {server} did not answer{time}."
        if len(self._hosts) > 1:
            servers = "; ".join(f"{address(host)}: {causes.get(host, 'no answer yet')}" for host in self._hosts)
            return f"No connection to ZooKeeper{time}. {servers}."
        cause = causes.get(self._hosts[0], NO_ANSWER)
        hint = f" {_DEVSERVER}" if cause == REFUSED and is_loopback(self._hosts[0][0]) else ""
        return f"No connection to ZooKeeper at {address(self._hosts[0])}{time}: {cause}.{hint}"


def cause_of(error: BaseException, *, in_handshake: bool, connected: bool) -> str:
    """
    Return in a few words why a server could not be connected to.

    `in_handshake`: TLS was being set up. `connected`: the server had accepted the TCP connection.
    """
    cause = error.__cause__ or error.__context__  # the system's error or ours, which kazoo replaces by its own
    origin = cause if isinstance(cause, (OSError, NotZooKeeper)) else error
    if isinstance(error, AuthFailedError):
        return Refusal(CREDENTIALS)
    if isinstance(origin, NotZooKeeper) or getattr(origin, "errno", None) in _NO_ROOM:
        return Refusal(text_of(origin))
    if isinstance(origin, ssl.SSLError) and origin.reason not in _NO_ALERTS:
        return _tls_failure(origin)
    return _failure(origin, in_handshake=in_handshake, connected=connected)


def _failure(error: BaseException, *, in_handshake: bool, connected: bool) -> str:
    """Return the cause of a connection that no side has refused by its own words."""
    if isinstance(error, TimeoutError) or "time-out" in str(error):
        return SILENT if in_handshake or connected else NO_ANSWER
    if in_handshake:
        return NO_TLS
    if isinstance(error, ConnectionRefusedError):
        return REFUSED
    return CLOSED if connected or isinstance(error, ConnectionError) else text_of(error)


def _tls_failure(error: ssl.SSLError) -> Refusal:
    """Return the cause if one side refuses the other one: this process the certificate of the server, or the server."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = f"its TLS certificate is not valid here: {error.verify_message}"
        return Refusal(f'{why}; renew it, or correct CA in ZKLOCK["TLS"], the name in URL, or the clocks')
    return Refusal(
        f'TLS failed: {error.reason.lower().replace("_", " ")}; set or renew CERT in ZKLOCK["TLS"], let the server '
        "trust its authority and accept TLS 1.2 or 1.3, and see its log"
    )


def _pause(count: int) -> float:
    pause: float = min(FIRST_PAUSE * PAUSE_FACTOR ** min(count - 1, 10), LONGEST_PAUSE)
    return pause * random.uniform(1, 1.2)  # noqa: S311


def text_of(error: BaseException) -> str:
    """Return an error in a few words, without the number of an error of the system."""
    strerror: str | None = getattr(error, "strerror", None)
    return strerror.lower() if strerror else str(error) or type(error).__name__


def address(host: Host) -> str:
    """Return "host:port", with brackets around an IPv6 address."""
    return "[{}]:{}".format(*host) if ":" in host[0] else "{}:{}".format(*host)
