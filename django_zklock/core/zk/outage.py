"""Why there is no connection to ZooKeeper: the last failure of each server, and the sentence that reports them."""

from __future__ import annotations

import errno
import ipaddress
import random
import re
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import TypeAlias

from kazoo.exceptions import AuthFailedError, SessionClosedRequireSaslError

from django_zklock.core import clock
from django_zklock.core.log import Logger
from django_zklock.core.queue.command_line import command
from django_zklock.core.zk.codes import CREDENTIALS, REQUIRES_AUTHENTICATION

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
CLOSED_EARLY = "it closes each connection at the first request; it requires authentication, or is older than 3.6"
REFUSALS = {SessionClosedRequireSaslError.code: Refusal(REQUIRES_AUTHENTICATION)}
"""The codes with which a server refuses a session at its first request, and what they mean."""
NO_TLS = Refusal("it speaks no TLS; use its port for TLS, or zk:// instead of zk+tls://")
TLS_ONLY = Refusal("it expects TLS; use zk+tls://, or its port without TLS")
REFUSED = "connection refused"
CLOSES_AT = "it closes the connection at "
_NEWER = {"create2", "createContainer", "getEphemerals"}  # requests that some servers before 3.6 do not know
_NEEDS = "it needs ZooKeeper 3.6 or newer, and proxies that let this pass"
_REFUSED_BETWEEN = "a proxy may refuse it, or the server's jute.maxbuffer is too small for it"
_OR_CREDENTIALS = ", or it requires authentication"

FIRST_PAUSE, PAUSE_FACTOR, LONGEST_PAUSE = 0.1, 5, 10.0
"""Seconds between connections to a server that refuses this process, and their growth: ten in the first minute."""
PAUSE_SHARE = 0.7
"""
The share of the connect timeout that a pause takes at most before an address that only closes connections.

A balancer without servers is one. It may be whole again at any moment. Each caller sees a try, if it has the default
connect timeout or a longer one.
"""
LEAST_LONGEST_PAUSE = 3.5
"""Seconds that such a pause may always take: a short connect timeout must not cost a server more connections."""
IDLE_PAUSE = 60.0
"""Seconds more while nobody waits, so that the state that metrics show is right again some time after an outage."""

_CERT = 'it refuses the certificate of this process, CERT in ZKLOCK["TLS"]'
_NOTHING_IN_COMMON = "it has no version or cipher in common with this process; let it accept TLS 1.2 or 1.3"
_ALERTS = {
    "CERTIFICATE_EXPIRED": f"{_CERT}: it has expired; renew it",
    "CERTIFICATE_REVOKED": f"{_CERT}: it is revoked; replace it",
    "UNKNOWN_CA": f"{_CERT}: the truststore of the server does not have its authority",
    **dict.fromkeys(("CERTIFICATE_REQUIRED", "NO_CERTIFICATE"), f"{_CERT}: there is none; set CERT and KEY"),
    **dict.fromkeys(("PROTOCOL_VERSION", "INSUFFICIENT_SECURITY", "UNSUPPORTED_PROTOCOL"), _NOTHING_IN_COMMON),
    **dict.fromkeys(("NO_PROTOCOLS_AVAILABLE", "WRONG_SSL_VERSION", "UNSUPPORTED_VERSION"), _NOTHING_IN_COMMON),
    "HANDSHAKE_FAILURE": f"{_NOTHING_IN_COMMON}, and set CERT if it asks for a certificate",
    "UNRECOGNIZED_NAME": "it does not serve the host name; use a name in URL that it serves",
    **dict.fromkeys(
        ("BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN", "UNSUPPORTED_CERTIFICATE", "ACCESS_DENIED", "DECRYPT_ERROR"),
        f"{_CERT}: it is missing, expired or revoked, or the server does not trust its authority; set or renew it",
    ),
}
"""The meaning of the alerts of a server and of failures of TLS, and the remedy; by OpenSSL's names without prefixes."""
_OTHER_ALERT = "TLS with it is not possible; see its log"
_INVALID = "its TLS certificate is not valid here"
_ANY_INVALID = 'renew it, or correct CA in ZKLOCK["TLS"]'
_VERIFIED = {
    9: "set the clocks of both machines",
    10: "renew it on the server",
    23: "replace it on the server",
    62: "use a name in URL that the certificate has",
    64: "use an address in URL that the certificate has",
}
"""The remedies if this process refuses the certificate of a server; by OpenSSL's codes X509_V_ERR_*."""
_TLS_RECORD = (b"\x15\x03", b"\x16\x03")  # how an alert, and a handshake, begin
_DEVSERVER = f"For development, start one with: {command('devserver')}"


class NotZooKeeper(Exception):
    """The first bytes of a reply cannot be ZooKeeper's."""

    def __init__(self, first: bytes) -> None:
        shown = first.decode("latin-1")
        super().__init__(
            TLS_ONLY if first[:2] in _TLS_RECORD else f"it is no ZooKeeper; its answer begins with {shown!r}"
        )


class Outage:
    """
    The last failure to connect to each server of a session, until there is a connection.

    kazoo's thread writes it, any thread reads it: each entry is a plain value.
    """

    def __init__(self, hosts: Sequence[Host], connect_timeout: float) -> None:
        self._longest_pause = max(LEAST_LONGEST_PAUSE, PAUSE_SHARE * connect_timeout)
        self._hosts = tuple(map(_key, hosts))
        self._causes: dict[Host, str] = {}
        self._logged = False
        self._refusals: dict[Address, tuple[int, float]] = {}  # in a row, and when to try again, on clock.now()
        self.closed: dict[Address, list[str]] = {}  # requests at which a server closed the connection, without a reply
        self._idle_pause = float("inf")  # until a server has carried out a request

    def trying(self, host: Host, so_far: str = NO_ANSWER) -> None:
        """Record how far a try has come. The failure of an earlier try says more, so it stays until this try ends."""
        if self._causes.get(_key(host), NO_ANSWER) == NO_ANSWER:
            self._causes[_key(host)] = so_far

    def failed(self, host: Host, cause: str) -> None:
        """Record why a server could not be connected to."""
        self._causes[_key(host)] = cause

    def cannot_try(self, error: Exception) -> None:
        """Record why this process cannot try any server."""
        self._causes = dict.fromkeys(self._hosts, Refusal(_text(error)))

    def answered(self, host: Host) -> None:
        """Forget all failures, because a server has answered. After a refusal, it must also carry out a request."""
        if not self.is_refused:
            self.end()
        elif self._causes.get(_key(host)) in {NO_ANSWER, SILENT}:  # how far the try had come
            del self._causes[_key(host)]

    def end(self) -> None:
        """Forget all failures, because there is a connection."""
        self._causes = {}
        self._logged = False

    def accepted(self) -> None:
        """Forget failures and refusals, because a server has carried out a request, but not those of other requests."""
        self.closed = {address: requests for address, requests in self.closed.items() if requests}
        self._refusals = {address: refusal for address, refusal in self._refusals.items() if address in self.closed}
        self._idle_pause = IDLE_PAUSE
        self._causes = {host: cause for host, cause in self._causes.items() if cause.startswith(CLOSES_AT)}
        self._logged = self._logged and len(self._causes) >= len(set(self._hosts))  # the next outage is another one

    def refused(self, host: Host, address: Address, cause: str) -> None:
        """
        Record that a server has closed a connection before it carried out a request, and why, if that is known.

        If it goes on, the pauses grow, so that many processes cannot harm a server.
        """
        count = self._refusals.get(address, (0, 0.0))[0] + 1
        pause = min(_pause(count), self._longest_pause) if cause == CLOSED else _pause(count)
        self._refusals[address] = count, clock.now() + pause
        if count > 1 or not cause.startswith((CLOSED_EARLY, CLOSES_AT)):
            self._causes[_key(host)] = cause

    def closed_at(self, host: Host, address: Address, requests: Sequence[str], *, answered: bool) -> None:
        """
        Record the requests without a reply when a server closed a connection, the oldest first.

        Two times are likely restarts. If three connections in a row end at the same request, the server or a proxy does
        not know it, and goes on to close connections. `answered`: the connection had a reply to another request.
        """
        before = self.closed.get(address)
        again = [request for request in dict.fromkeys(requests) if request in (before or ())]
        self.closed[address] = again or list(requests)
        if again:
            why = _REFUSED_BETWEEN if _NEWER.isdisjoint(again) else _NEEDS
            self.refused(host, address, f"{CLOSES_AT}{' or '.join(again)}; {why}{'' if answered else _OR_CREDENTIALS}")
        elif before is not None and not answered:
            self.refused(host, address, CLOSED_EARLY)

    def restarts(self, address: Address) -> None:
        """Forget what a server has closed, because nothing listens there now: it will be another process."""
        self.closed.pop(address, None)
        self._refusals.pop(address, None)

    def carried_out(self, host: Host, address: Address, request: str) -> None:
        """Forget that a server has closed connections at this request, because it has answered one."""
        requests = self.closed.get(address, [])
        if request in requests:
            requests.remove(request)
            if not requests:
                self._causes.pop(_key(host), None)
                self.restarts(address)
                self.accepted()

    def expired(self, host: Host, address: Address) -> None:
        """
        Forget failures, because a server has told that the session has expired.

        A server that has closed connections at a request may close that of the next session, too.
        """
        closes_at_request = self._causes.get(_key(host), "").startswith((CLOSED_EARLY, CLOSES_AT))
        self.answered(host)
        if closes_at_request and address in self._refusals:
            count = self._refusals[address][0]
            self._refusals[address] = count, clock.now() + _pause(count)

    def may_try(self, address: Address, is_wanted: Callable[[], bool]) -> bool:
        """Return whether it is time to connect to a server; hardly ever if it goes on to refuse, and nobody waits."""
        count, at = self._refusals.get(address, (0, 0.0))
        return not count or clock.now() >= at + (0 if count == 1 or is_wanted() else self._idle_pause)

    def asks_anew(self) -> None:
        """Let each server be tried at once, because the next client asks for a session. Only the old may be refused."""
        self._refusals = {address: (count, clock.now()) for address, (count, _) in dict(self._refusals).items()}

    @property
    def is_refused(self) -> bool:
        """Whether a server has refused its last connection."""
        return bool(self._refusals)

    @property
    def refuses(self) -> bool:
        """Whether a server refuses this process, or the settings are wrong. For any thread."""
        return any(isinstance(cause, Refusal) for cause in list(self._causes.values()))

    def log(self) -> None:
        """Log the outage once, as soon as each server has failed."""
        if not self._logged and len(self._causes) >= len(set(self._hosts)):
            self._logged = True
            logger.warning("%s", self.explain())

    def explain(self, within: float | None = None, server: str = "") -> str:
        """Return the sentence for a wait of `within` seconds. `server` is the connected one, if any."""
        causes = self._causes
        time = "" if within is None else f" within {within:.1f} s"
        if server and not causes:
            return f"ZooKeeper at {server} did not answer{time}."
        if len(self._hosts) > 1:
            servers = "; ".join(f"{address(host)}: {causes.get(host, 'not tried yet')}" for host in self._hosts)
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
    if isinstance(origin, NotZooKeeper):
        return Refusal(origin)
    if getattr(origin, "errno", None) in _NO_ROOM:
        return Refusal(_text(origin))
    if isinstance(origin, ssl.SSLCertVerificationError):
        return Refusal(f"{_INVALID}: {origin.verify_message}; {_VERIFIED.get(origin.verify_code, _ANY_INVALID)}")
    if isinstance(origin, ssl.SSLError) and origin.reason not in (None, "WRONG_VERSION_NUMBER", *_ENDS_OF_FILE):
        return _tls_failure(origin.reason)
    return _failure(origin, in_handshake=in_handshake, connected=connected)


def _failure(error: BaseException, *, in_handshake: bool, connected: bool) -> str:
    """Return the cause of a connection that no side has refused by its own words."""
    is_timeout = isinstance(error, (TimeoutError, socket.timeout)) or "time-out" in str(error)
    if in_handshake:
        return SILENT if is_timeout else NO_TLS
    if isinstance(error, ConnectionRefusedError):
        return REFUSED
    if connected or isinstance(error, (ConnectionResetError, BrokenPipeError)):
        return SILENT if is_timeout else CLOSED
    return NO_ANSWER if is_timeout else _text(error).lower()


_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)  # in this process, or on its machine


def _tls_failure(reason: str) -> Refusal:
    """Return the cause for an error of OpenSSL: an alert of the server, or a failure of this process."""
    alert = re.sub("^(SSLV3|TLSV13?)_(ALERT_)?", "", reason)
    advice = _ALERTS.get(alert, _OTHER_ALERT)
    return Refusal(f"TLS failed: {alert.lower().replace('_', ' ')}; {advice}")


_ENDS_OF_FILE = ("UNEXPECTED_EOF_WHILE_READING", "UNEXPECTED_EOF")


def _text(error: BaseException) -> str:
    strerror: str | None = getattr(error, "strerror", None)
    return strerror.lower() if strerror else str(error) or type(error).__name__


def _pause(count: int) -> float:
    pause: float = min(FIRST_PAUSE * PAUSE_FACTOR ** min(count - 1, 10), LONGEST_PAUSE)
    return pause * random.uniform(1, 1.2)  # noqa: S311


def _key(host: Host) -> Host:
    return host[0].lower(), host[1]  # as kazoo spells it


def address(host: Host) -> str:
    """Return "host:port", with brackets around an IPv6 address."""
    return "[{}]:{}".format(*host) if ":" in host[0] else "{}:{}".format(*host)


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine itself."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
