"""Operations on an ensemble's servers other than start and stop, and what tests read from them."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

from support.ensemble import Server
from support.relay import Relay
from support.zoo import eventually


@contextlib.contextmanager
def repaired(ensemble):
    try:
        yield ensemble
    finally:
        repair(ensemble)


def repair(ensemble):
    for server in ensemble.servers:
        server.start()
        server.resume()
    for server in ensemble.servers:
        server.wait_ready()


@contextlib.contextmanager
def looking_in(address, timeout=10.0):
    """A plain client, of one server or of several; its session has so many seconds."""
    client = KazooClient(hosts=address, timeout=timeout)
    client.start(timeout=20)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def serving(zoo):
    """Wait until the test's own client, which was hurt with the others, is served again."""

    def served():
        try:
            zoo.client.sync(zoo.chroot)
        except KazooException:
            return False
        return True

    eventually(served, 30, "the test's own client is not served")


def replace_client(zoo):
    """Replace the test's own client: a plain one never comes back to servers that have lost their data."""
    old, zoo._client = zoo._client, None
    if old is not None:
        old.stop()
        old.close()


@dataclass(frozen=True)
class Partition:
    leader: Server
    follower: Server
    wire: Relay


@contextlib.contextmanager
def partition(ensemble):
    """Lead the link of a follower to its leader through a relay. The follower restarts before and after."""
    leader, follower = ensemble.leader, ensemble.followers[0]
    config = follower.directory / "zoo.cfg"
    before = config.read_text()
    match = re.search(rf"^server\.{leader.number}=127\.0\.0\.1:(\d+):(\d+)$", before, re.MULTILINE)
    assert match, f"{leader} is alone, and has no followers"
    with Relay(int(match[1])) as wire:
        try:
            restart(follower, before.replace(match[0], f"server.{leader.number}=127.0.0.1:{wire.port}:{match[2]}"))
            assert ensemble.leader is leader
            yield Partition(leader, follower, wire)
        finally:
            wire.heal()
            restart(follower, before)


def restart(server, configuration):
    """Stop a server, and start it with this configuration."""
    server.stop()
    (server.directory / "zoo.cfg").write_text(configuration)
    server.start()
    server.wait_ready()
