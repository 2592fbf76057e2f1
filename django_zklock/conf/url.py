"""Parse the `zk://` URL of an ensemble. This module needs neither settings nor kazoo."""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from django_zklock.conf.table import InvalidValue
from django_zklock.core.zk.options import is_loopback as is_loopback

SCHEMES: Final = {"zk": False, "zookeeper": False, "zk+tls": True}
"""The scheme of a URL, and whether it turns TLS on."""

DEFAULT_PORT: Final = 2181

EXAMPLE: Final = "For example zk://zk1:2181,zk2:2181,zk3:2181/myproject."

_URL: Final = re.compile(r"(?P<scheme>[^:]*)://(?P<authority>[^/?]*)(?P<path>[^?]*)\??(?P<query>.*)", re.DOTALL)
_HOST: Final = re.compile(r"(?:\[(?P<ip>[^\]]+)\]|(?P<name>[\w.-]+))(?::(?P<port>[0-9]{1,5}))?")
_PATH: Final = re.compile(r"(?:[\w.~&+=:/-]|%[0-9A-Fa-f]{2})*")  # without the signs of all templates and shells
# The characters that ZooKeeper refuses in a path (PathUtils.validatePath). It checks UTF-16 units, so it refuses all
# characters above U+FFFF.
_NOT_IN_PATHS: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The parts of a URL. The query is not checked yet."""

    hosts: tuple[tuple[str, int], ...]
    chroot: str
    """The path of the URL: absolute, without a slash at its end. It is empty if the URL names none."""
    credential: str | None = field(default=None, repr=False)
    """The credential as `user:password`, percent-decoded."""
    tls: bool = False
    query: tuple[tuple[str, str], ...] = ()


def parse(url: str) -> Address:
    """
    Read `zk://[user:password@]host[:port][,host...][/chroot][?key=value&...]`.

    `urllib.parse` cannot be used: it allows one host only, and its errors quote the invalid part, which may be a
    password. Raises `InvalidValue`.
    """
    match = _URL.fullmatch(url.strip())
    if match is None or match["scheme"].lower() not in SCHEMES:
        raise InvalidValue("does not begin with zk://, zk+tls:// or zookeeper://", hint=EXAMPLE)
    if "@" in match["path"] + match["query"]:
        # Otherwise the first half of a password such as "s3cr/et" would be read as a port.
        raise InvalidValue(
            "has an @ after its first / or ?",
            hint="Percent-encode a / (%2F), ? (%3F) or @ (%40) that belongs to the user, the password or the path.",
        )
    user_info, at, hosts = match["authority"].rpartition("@")
    path = _decoded(match["path"])
    check_expanded(match["path"])
    return Address(
        hosts=_hosts(hosts),
        chroot=znode_path(path),
        credential=_credential(user_info) if at else None,
        tls=SCHEMES[match["scheme"].lower()],
        query=tuple(_pairs(match["query"])),
    )


def check_expanded(path: str) -> None:
    """Raise `InvalidValue` if a path has a sign of a variable that nobody has expanded, or of a list."""
    valid = _PATH.match(path)
    if valid and valid.end() < len(path):
        # With a comma, there is most likely a chroot after each host. All after the first slash would be one chroot.
        raise InvalidValue(
            f"has {path[valid.end()]!r} in its path",
            hint="Is it a variable that nobody has expanded? Name the chroot once, after the last host. Percent-encode "
            "such a character (%2C) if it belongs to the path.",
        )


def znode_path(path: str) -> str:
    """Return `path` without a slash at its end. Raises `InvalidValue` if ZooKeeper would refuse it."""
    path = path.removesuffix("/")
    root, *parts = path.split("/")
    if root or {"", ".", ".."} & {*parts} or parts[:1] == ["zookeeper"] or _NOT_IN_PATHS.search(path):
        raise InvalidValue(
            "has a path that ZooKeeper does not allow",
            hint="It begins with a slash, has no empty, '.' or '..' part and no special characters (ASCII is safe), "
            "and is not below /zookeeper.",
        )
    return path


def host_port(host: str, port: int) -> str:
    """Return "host:port" as in a URL, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _hosts(text: str) -> tuple[tuple[str, int], ...]:
    if not text:
        raise InvalidValue("names no host", hint=EXAMPLE)
    return tuple(_host(item.strip(), number) for number, item in enumerate(text.split(","), 1))


def _host(item: str, number: int) -> tuple[str, int]:
    match = _HOST.fullmatch(item)
    ip, name, port = match.group("ip", "name", "port") if match else ("", "", "0")
    with suppress(ValueError):
        ipaddress.IPv6Address(ip or "::1")
        (name or "").encode("idna")  # fails if a part is empty or too long
        if 1 <= int(port or DEFAULT_PORT) <= 65535:
            return ip or name, int(port or DEFAULT_PORT)
    # The message does not quote the host: without its @, `user:password` looks like a host and port.
    raise InvalidValue(
        f"has no valid host:port at host {number} of its list",
        hint="A port is from 1 to 65535, no part of a name is empty (a variable?), and an IPv6 address goes into "
        "brackets: [::1]:2181. A password ends with an @: zk://user:password@host.",
    )


def _credential(user_info: str) -> str:
    user, colon, password = (_decoded(part) for part in user_info.partition(":"))
    if not (user and colon and password):
        raise InvalidValue("has no user:password before its @", hint="Both are needed (variables?), or neither.")
    return f"{user}:{password}"


def _pairs(query: str) -> list[tuple[str, str]]:
    halves = [pair.partition("=") for pair in query.split("&") if pair]
    return [(_decoded(key), _decoded(value)) for key, _, value in halves]


def _decoded(text: str) -> str:
    try:
        text.encode()
        return unquote(text, errors="strict")
    except UnicodeError:
        raise InvalidValue(
            "has text that is not UTF-8, plain or percent-encoded", hint="A % itself is written %25."
        ) from None
