"""The options of a session. This module does not import kazoo, so that the app can while Django starts."""

from __future__ import annotations

import contextlib
import ipaddress
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Acl: TypeAlias = Literal["open", "creator"] | tuple[tuple[str, str, str], ...]
"""Access to the znodes: "open" for all clients, "creator" for ours, or entries (scheme, id, letters of "crwda")."""


def is_loopback(host: str) -> bool:
    """Return whether `host` is certainly this machine, without a DNS query."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost" or host.lower().endswith(".localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """TLS options. Only the given authority is trusted, and the host name is checked unless that is switched off."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """
        Return a new context, so that renewed certificates are read at the next connect.

        Raises `TlsProblem` if a file is missing or wrong. OpenSSL never asks for a password.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.check_hostname
        if self.ca:
            # kazoo's own context would also trust every public authority.
            with _naming("CA", self.ca):
                context.load_verify_locations(self.ca)
        else:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        if self.cert:
            with _naming("CERT", self.cert):
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(self.cert)  # is it a certificate?
            with _naming("KEY", self.key or self.cert):
                context.load_cert_chain(self.cert, self.key, self._password)
        return context

    def _password(self) -> str:
        """Return the password of the key. OpenSSL calls this if the key is encrypted; without it, it would ask."""
        if not self.key_password:
            raise TlsProblem("it is encrypted, and KEY_PASSWORD is missing")
        return self.key_password


class TlsProblem(OSError):
    """A file of the TLS settings cannot be used. The text names the setting and the file."""


class TlsFileAbsent(TlsProblem):
    """The file cannot be read here. On another machine it may."""


@contextlib.contextmanager
def _naming(setting: str, path: str) -> Iterator[None]:
    """Make an error of the block a `TlsProblem` of this file."""
    try:
        with open(path, "rb"):
            pass
        yield
    except (ssl.SSLError, TlsProblem, ValueError) as error:
        reason = str(error)
        if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            reason = "it is not the key of CERT"
        elif isinstance(error, ssl.SSLError):
            reason = "it is damaged, or KEY_PASSWORD is wrong" if setting == "KEY" else "it has no certificate"
            reason += "; the files must have the format PEM"
        raise TlsProblem(f'{setting} in ZKLOCK["TLS"] is {path}: {reason}') from error
    except OSError as error:
        raise TlsFileAbsent(f'{setting} in ZKLOCK["TLS"] is {path}: {str(error.strerror).lower()}') from error


class Secret(str):
    """A text whose repr shows nothing, because error reporters and debug pages print the locals of frames."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<secret>"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerSession:
    """A session that another process has left open, for a process that goes on with it."""

    id: int
    password: Secret
    """16 bytes, in hexadecimal digits."""
    timeout: float
    """Seconds: the smallest that the servers have granted to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """The options of a session; times in seconds."""

    hosts: tuple[tuple[str, int], ...]
    base: str = "/zklock"
    """An absolute path, never "/", without a slash at its end."""
    session_timeout: float = 20.0
    connect_timeout: float = 5.0
    deadlock_timeout: float | None = 1.0  # how long an owner of locks waits before it looks for a deadlock; None: never
    auth: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    acl: Acl = field(default="open", repr=False)
    tls: TlsOptions | None = None
    jute_maxbuffer: int = 0xFFFFF  # bytes; the default of the servers
    max_lingering: int = 1000  # locks that are kept for their next owner
    former: FormerSession | None = field(default=None, repr=False)
    """The session to go on with, if it is still alive."""

    @property
    def tell_wait_after(self) -> float:
        """How long an owner of locks waits before their znodes say so. The admin reads it, so it is always written."""
        return 1.0 if self.deadlock_timeout is None else self.deadlock_timeout
