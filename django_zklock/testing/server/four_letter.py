"""The four-letter commands (`ruok`, `srvr`, ...), which operators and monitors send on a plain connection."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from django_zklock.core import clock
from django_zklock.testing.server.database import now

if TYPE_CHECKING:
    from django_zklock.testing.server.connection import Connection
    from django_zklock.testing.server.service import Service

#: The server behaves like this version. Clients choose their features by its numbers.
VERSION: Final = "3.8.0-devserver, built on 2022-02-25 08:49 UTC"


def _line(connection: Connection) -> str:
    return f" {connection.client}[{int(connection.session is not None)}](queued=0,recved={connection.received}"


def _clients(service: Service) -> list[Connection]:
    return sorted(service.connections, key=lambda connection: connection.since)


def _counter_lines(service: Service) -> str:
    return (  # the server does not measure latencies, and shows zeros
        "Latency min/avg/max: 0/0.0/0\n"
        f"Received: {service.received}\n"
        f"Sent: {service.sent}\n"
        f"Connections: {len(service.connections)}\n"
        "Outstanding: 0\n"
        f"Zxid: 0x{service.db.zxid:x}\n"
        "Mode: standalone\n"
        f"Node count: {len(service.db.tree.nodes)}\n"
    )


def _srvr(service: Service) -> str:
    return f"Zookeeper version: {VERSION}\n{_counter_lines(service)}"


def _stat(service: Service) -> str:
    clients = "".join(f"{_line(client)},sent={client.sent})\n" for client in _clients(service))
    return f"Zookeeper version: {VERSION}\nClients:\n{clients}\n{_counter_lines(service)}"


def _cons(service: Service) -> str:
    lines = []
    for client in _clients(service):
        line = f"{_line(client)},sent={client.sent}"
        if client.session is not None:
            line += (
                f",sid=0x{client.session.id:x},lop={client.last or 'SESS'}"
                f",est={now() - (clock.now() - client.since) * 1000:.0f}"
                f",to={client.session.timeout * 1000:.0f},lcxid=0x{client.last_xid & 0xFFFFFFFF:x}"
                f",lzxid=0x{service.db.zxid:x},lresp=0,llat=0,minlat=0,avglat=0,maxlat=0"
            )
        lines.append(f"{line})\n")
    return "".join(lines) + "\n"


def _dump(service: Service) -> str:
    database = service.db
    by_deadline: dict[float, list[int]] = {}
    for session in database.sessions.values():
        by_deadline.setdefault(session.deadline, []).append(session.id)
    text = f"SessionTracker dump:\nSession Sets ({len(by_deadline)})/({len(database.sessions)}):\n"
    for deadline, ids in sorted(by_deadline.items()):
        at = datetime.fromtimestamp(now() / 1000 + deadline - clock.now(), timezone.utc)
        text += f"{len(ids)} expire at {at:%a %b %d %H:%M:%S} UTC {at:%Y}:\n" + "".join(
            f"\t0x{client:x}\n" for client in ids
        )
    ephemerals = database.tree.ephemerals
    text += f"ephemeral nodes dump:\nSessions with Ephemerals ({len(ephemerals)}):\n"
    for session_id, paths in ephemerals.items():
        text += f"0x{session_id:x}:\n" + "".join(f"\t{path}\n" for path in paths)
    text += f"Connections dump:\nConnections Sets (1)/({len(service.connections)}):\n"
    for client in _clients(service):
        text += f"\tip: {client.client} sessionId: 0x{client.session_id:x}\n"
    return text


def _mntr(service: Service) -> str:
    tree = service.db.tree
    nodes = [(path, node) for path, node in tree.nodes.items() if path]
    values: dict[str, object] = {
        "version": VERSION,
        "server_state": "standalone",
        "ephemerals_count": sum(map(len, tree.ephemerals.values())),
        "num_alive_connections": len(service.connections),
        "avg_latency": 0.0,
        "min_latency": 0,
        "max_latency": 0,
        "outstanding_requests": 0,
        "znode_count": len(tree.nodes),
        "global_sessions": len(service.db.sessions),
        "local_sessions": 0,
        "packets_received": service.received,
        "packets_sent": service.sent,
        "watch_count": len(service.db.watches),
        "approximate_data_size": sum(len(path.encode()) + len(node.data or b"") for path, node in nodes),
        "uptime": int((clock.now() - service.started) * 1000),
    }
    return "".join(f"zk_{name}\t{value}\n" for name, value in values.items())


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


def _envi(service: Service) -> str:
    return (
        "Environment:\n"
        f"zookeeper.version={VERSION}\n"
        f"host.name={platform.node()}\n"
        f"python.version={platform.python_version()}\n"
        f"python.executable={sys.executable}\n"
        f"os.name={platform.system()}\n"
        f"os.arch={platform.machine()}\n"
        f"os.version={platform.release()}\n"
        f"user.dir={os.getcwd()}\n"
    )


COMMANDS: Final[dict[bytes, Callable[[Service], str]]] = {
    b"ruok": lambda service: "imok",
    b"isro": lambda service: "rw",
    b"srvr": _srvr,
    b"stat": _stat,
    b"cons": _cons,
    b"dump": _dump,
    b"mntr": _mntr,
    b"conf": _conf,
    b"envi": _envi,
}
