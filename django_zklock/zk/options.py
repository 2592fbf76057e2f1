"""The options of a session. This module does not import kazoo, so that the app can while Django starts."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """TLS options. Only the given authority is trusted, and the host name is checked unless that is switched off."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """Return a new context, so that renewed certificates are read at the next connect."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.check_hostname
        if self.ca:
            # kazoo's own context would also trust every public authority.
            context.load_verify_locations(self.ca)
        else:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        if self.cert:
            context.load_cert_chain(self.cert, self.key, self.key_password)
        return context


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """The options of a session; times in seconds."""

    hosts: tuple[tuple[str, int], ...]
    base: str = "/zklock"
    session_timeout: float = 20.0
    connect_timeout: float = 5.0
    auth: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    acl: Literal["open", "creator"] | tuple[tuple[str, str, str], ...] = "open"
    tls: TlsOptions | None = None
    jute_maxbuffer: int = 0xFFFFF  # bytes; the default of the servers
    max_lingering: int = 1000  # locks that are kept for their next owner

    def host_timeout(self, round_time: float) -> float:
        """Return the seconds in which one host must answer, so that a round through all takes `round_time` at most."""
        return min(self.connect_timeout, round_time / len(self.hosts))
