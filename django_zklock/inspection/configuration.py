"""The members of the ensemble, as the connected server knows them, and which of them the servers in `URL` are."""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final, TypeAlias

from django_zklock.core.queue.escaping import printable
from django_zklock.core.zk.outage import Host, address

MAX_SERVERS: Final = 100
MAX_NAME: Final = 100  # characters of a host
MAX_PORT: Final = 65535
Addresses: TypeAlias = Mapping[Host, Set[Host]]
"""The IP addresses of each host, with its port."""
_UNSPECIFIED: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - nothing binds to it
_VOTING: Final = frozenset({"leader", "follower"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredServer:
    """One server of the ensemble."""

    name: str
    """Its name in the configuration, such as "server.1"."""
    hosts: tuple[Host, ...]
    """Where it may serve clients, the likeliest first. The port is 0 if the configuration does not tell it."""
    votes: bool

    @property
    def host(self) -> Host | None:
        """Where it can be asked; None if that is not known."""
        return next((host for host in self.hosts if host[1]), None)

    def __str__(self) -> str:
        if not self.hosts:
            return self.name
        host, port = self.hosts[0]
        return f"{self.name} ({address((host, port)) if port else host})"

    def may_be(self, role: str) -> bool:
        """Return whether a server with this role, or with none, may be this member."""
        return role not in {"observer", *_VOTING} or self.votes is (role in _VOTING)


def parse(config: bytes) -> tuple[ConfiguredServer, ...]:
    """
    Return the members in the data of `/zookeeper/config`.

    A line is `server.1=zk1:2888:3888:participant;0.0.0.0:2181`. It has no address for clients if `clientPort` tells it
    to that server only.
    """
    lines = re.findall(r"^(server\.[0-9]{1,19})=(.{1,1000})$", config.decode(errors="replace"), re.MULTILINE)
    return tuple(_configured_server(name, value) for name, value in lines[:MAX_SERVERS])


def _configured_server(name: str, value: str) -> ConfiguredServer:
    quorum, _, client = value.strip().partition(";")
    quorum_hosts = re.findall(r"(?:^|[|])(\[[^\]|]+\]|[^:\[\]|]+):[0-9]+:[0-9]+", quorum)
    client_host, _, digits = client.rpartition(":")
    port = int(digits) if re.fullmatch("[0-9]{1,5}", digits) and int(digits) <= MAX_PORT else 0
    hosts = dict.fromkeys(map(_host, (client_host, *quorum_hosts)))
    known_hosts = tuple((host, port) for host in hosts if host not in _UNSPECIFIED)
    return ConfiguredServer(name=name, hosts=known_hosts, votes=not quorum.endswith(":observer"))


def _host(text: str) -> str:
    """Return a host; an IP address in its usual form, as Java writes all zeros of IPv6."""
    text = text.strip("[]")
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(text).compressed
    return printable(text, MAX_NAME)


def is_weighted(config: bytes) -> bool:
    """Return whether the servers are in groups, or have weights, so that not each majority is a quorum."""
    return re.search(rb"^(group|weight)\.", config, re.MULTILINE) is not None


def matches(
    roles: Mapping[Host, str], configured: Sequence[ConfiguredServer], addresses: Addresses
) -> dict[Host, ConfiguredServer]:
    """
    Return which members the servers with these roles are, by their addresses. No member is two servers.

    Servers that have said their role come first: they tell voters from observers where several are on one machine.
    """
    left, known = list(configured), {}
    for host in sorted(roles, key=lambda host: not roles[host]):
        for server in left:
            if server.may_be(roles[host]) and _is_at(addresses[host], server, addresses):
                known[host] = server
                left.remove(server)
                break
    return known


def _is_at(own: Set[Host], server: ConfiguredServer, addresses: Addresses) -> bool:
    wherever = {ip for ip, _ in own}
    for host in server.hosts:
        there = addresses.get(host, frozenset())
        if own & there or (not host[1] and wherever & {ip for ip, _ in there}):
            return True
    return False
