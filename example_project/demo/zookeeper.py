"""Find a ZooKeeper for the demo: a running server, or what starts one."""

from __future__ import annotations

from urllib.parse import urlsplit

from support import debian
from support.ensemble import find_zookeeper, four_letter


def answers(url: str) -> bool:
    """Return whether a server of a `zk://` URL answers."""
    for host in urlsplit(url).netloc.rpartition("@")[2].split(","):
        name, _, port = host.rpartition(":") if not host.endswith("]") and ":" in host else (host, "", "2181")
        try:
            if four_letter(name.strip("[]"), int(port), "srvr"):
                return True
        except (OSError, ValueError):
            continue
    return False


def ensure_jars() -> None:
    """Make sure that a server can be started here. Install Debian's package if that is allowed."""
    debian.ensure(find_zookeeper)
