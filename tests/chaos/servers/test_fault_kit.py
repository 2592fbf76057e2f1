"""The firewall of the fault kit loses the packets that it should, and no others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from support.chaos import firewall, namespaces
from support.chaos.firewall import needs_firewall
from support.chaos.namespaces import NotInside
from support.chaos.servers import looking_in, repaired
from support.ensemble import Ensemble

pytestmark = [pytest.mark.zookeeper]

SILENCE = 0.7  # seconds in which an answer would have come, many times over


def port_of(client: KazooClient) -> int:
    """The local port of a client's connection."""
    port: int = client._connection._socket.getsockname()[1]
    return port


def answer(call: Any, timeout: float = 15.0) -> Any:
    """Return the result of an asynchronous call of a client."""
    return call.get(timeout=timeout)


def assert_silent(call: Any) -> None:
    """Fail if an asynchronous call is answered in the time that an answer takes."""
    assert not call.wait(SILENCE), "it was answered"


# --- namespaces -------------------------------------------------------------------------------------------------------


def test_the_firewall_of_the_machine_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that says that we are in other namespaces is not believed when they are those it was set in."""
    monkeypatch.setenv(namespaces.OUTSIDE, namespaces.environment()[namespaces.OUTSIDE])
    assert not namespaces.inside()
    with pytest.raises(NotInside):
        firewall.blackhole(1).begin()


# --- the firewall -----------------------------------------------------------------------------------------------------


@needs_firewall
def test_a_blackhole_silences_one_connection_and_no_other(single: Ensemble) -> None:
    with looking_in(single.hosts) as victim, looking_in(single.hosts) as other:
        assert {port_of(victim), port_of(other)} <= set(firewall.connections_of(os.getpid(), [single.servers[0].port]))
        with firewall.blackhole(port_of(victim)) as fault:
            call = victim.exists_async("/")
            assert_silent(call)
            assert answer(other.exists_async("/"))
            assert fault.hits > 0
        assert answer(call), "TCP sends it again"


@pytest.fixture
def whole(three: Ensemble) -> Iterator[Ensemble]:
    """The three servers, all of them serving before and after."""
    with repaired(three):
        yield three


@needs_firewall
def test_a_cut_off_follower_answers_reads_and_no_writes(whole: Ensemble) -> None:
    follower, leader = whole.followers[0], whole.leader
    with looking_in(follower.address) as writer, looking_in(follower.address) as reader:
        with firewall.cut_link(follower, leader) as fault:
            write = writer.set_async("/zookeeper/quota", b"")
            assert_silent(write)
            assert answer(reader.exists_async("/"), SILENCE)
            assert fault.hits > 0
        answer(write)
    for server in whole.servers:
        assert server.wait_ready(45)
