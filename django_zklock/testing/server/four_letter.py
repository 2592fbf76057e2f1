"""The four-letter commands (`ruok`, `srvr`, ...), which operators and monitors send on a plain connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from django_zklock.testing.server.service import Service

#: The server behaves like this version. Clients choose their features by its numbers.
VERSION: Final = "3.8.0-devserver, built on 2022-02-25 08:49 UTC"


def _srvr(service: Service) -> str:
    return (  # the server does not measure latencies, and shows zeros
        f"Zookeeper version: {VERSION}\n"
        "Latency min/avg/max: 0/0.0/0\n"
        f"Received: {service.received}\n"
        f"Sent: {service.sent}\n"
        f"Connections: {len(service.connections)}\n"
        "Outstanding: 0\n"
        f"Zxid: 0x{service.db.zxid:x}\n"
        "Mode: standalone\n"
        f"Node count: {len(service.db.tree.nodes)}\n"
    )


def _conf(service: Service) -> str:
    sessions = service.db.sessions
    return (
        f"clientPort={service.port}\n"
        "secureClientPort=-1\n"
        f"tickTime={sessions.tick * 1000:.0f}\n"
        "maxClientCnxns=0\n"
        f"minSessionTimeout={sessions.shortest * 1000:.0f}\n"
        f"maxSessionTimeout={sessions.longest * 1000:.0f}\n"
        "clientPortListenBacklog=-1\n"
        "serverId=0\n"
    )


COMMANDS: Final[dict[bytes, Callable[[Service], str]]] = {
    b"ruok": lambda service: "imok",
    b"srvr": _srvr,
    b"conf": _conf,
    b"envi": lambda service: f"Environment:\nzookeeper.version={VERSION}\n",  # kazoo asks it for the version
}
