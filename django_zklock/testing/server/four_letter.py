"""The four-letter commands (`ruok`, `srvr`, ...), which operators and monitors send on a plain connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from django_zklock.testing.server.service import Service

#: The server behaves like this version. Clients choose their features by its numbers.
VERSION: Final = "3.8.0-devserver, built on 2022-02-25 08:49 UTC"


def _srvr(service: Service) -> str:
    return (  # the server does not measure, and shows zeros
        f"Zookeeper version: {VERSION}\n"
        "Latency min/avg/max: 0/0.0/0\n"
        "Received: 0\n"
        "Sent: 0\n"
        f"Connections: {len(service.connections)}\n"
        "Outstanding: 0\n"
        f"Zxid: 0x{service.db.zxid:x}\n"
        "Mode: standalone\n"
        f"Node count: {len(service.db.tree.nodes)}\n"
    )


COMMANDS: Final[dict[bytes, Callable[[Service], str]]] = {
    b"ruok": lambda service: "imok",
    b"srvr": _srvr,
    b"envi": lambda service: f"Environment:\nzookeeper.version={VERSION}\n",  # kazoo asks it for the version
}
