"""Why there is no connection to ZooKeeper: the last failure of each server, and the sentence that reports them."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Sequence
from typing import TypeAlias

from kazoo.exceptions import AuthFailedError

from django_zklock.log import Logger

Host: TypeAlias = tuple[str, int]

logger = Logger("django_zklock.zk")

NO_ANSWER = "no answer"
NO_HOST = "no such host"
SILENT = "it accepts connections, but does not answer as ZooKeeper does"
CLOSED = "it closes connections without an answer; it has no quorum, or expects TLS, or is no ZooKeeper"
NO_TLS = "it speaks no TLS; use its port for TLS, or zk:// instead of zk+tls://"
TLS_ONLY = "it expects TLS; use zk+tls://, or its port without TLS"
REFUSED = "connection refused"

_TLS_RECORD = (b"\x15\x03", b"\x16\x03")  # how an alert, and a handshake, begin
_DEVSERVER = "For development, start one with: manage.py zklock devserver"


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

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = tuple(map(_key, hosts))
        self._causes: dict[Host, str] = {}
        self._logged = False

    def trying(self, host: Host, so_far: str = NO_ANSWER) -> None:
        """Record how far a try has come. The failure of an earlier try says more, so it stays until this try ends."""
        if self._causes.get(_key(host), NO_ANSWER) == NO_ANSWER:
            self._causes[_key(host)] = so_far

    def failed(self, host: Host, cause: str) -> None:
        """Record why a server could not be connected to."""
        self._causes[_key(host)] = cause

    def end(self) -> None:
        """Forget all failures, because there is a connection."""
        self._causes = {}
        self._logged = False

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
        hint = f" {_DEVSERVER}" if cause == REFUSED and _is_loopback(self._hosts[0][0]) else ""
        return f"No connection to ZooKeeper at {address(self._hosts[0])}{time}: {cause}.{hint}"


def cause_of(error: BaseException, *, in_handshake: bool, connected: bool) -> str:
    """
    Return in a few words why a server could not be connected to.

    `in_handshake`: TLS was being set up. `connected`: the server had accepted the TCP connection.
    """
    cause = error.__cause__ or error.__context__  # the system's error or ours, which kazoo replaces by its own
    origin = cause if isinstance(cause, (OSError, NotZooKeeper)) else error
    if isinstance(error, AuthFailedError):
        return 'it refuses the credentials in ZKLOCK["AUTH"]'
    if isinstance(origin, ssl.SSLCertVerificationError):
        return f"its TLS certificate is not valid here: {origin.verify_message}"
    if isinstance(origin, ssl.SSLError) and origin.reason not in (None, "WRONG_VERSION_NUMBER", *_ENDS_OF_FILE):
        return f"TLS failed: {origin.reason.lower().replace('_', ' ')}"
    if in_handshake:
        return NO_TLS
    if isinstance(origin, NotZooKeeper):
        return str(origin)
    if isinstance(origin, ConnectionRefusedError):
        return REFUSED
    if connected:
        return SILENT if _is_timeout(origin) else CLOSED
    if _is_timeout(origin):
        return NO_ANSWER
    return (getattr(origin, "strerror", None) or str(origin)).lower()


_ENDS_OF_FILE = ("UNEXPECTED_EOF_WHILE_READING", "UNEXPECTED_EOF")


def _is_timeout(error: BaseException) -> bool:
    return isinstance(error, (TimeoutError, socket.timeout)) or "time-out" in str(error)


def _key(host: Host) -> Host:
    return host[0].lower(), host[1]  # as kazoo spells it


def address(host: Host) -> str:
    """Return "host:port", with brackets around an IPv6 address."""
    return "[{}]:{}".format(*host) if ":" in host[0] else "{}:{}".format(*host)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
