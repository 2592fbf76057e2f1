"""The private names of kazoo that `zk` leans on: a release of kazoo that changes one fails here, not in production."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.connection import ConnectionHandler
from support.zoo import Zoo, eventually

from django_zklock import zk_lock
from django_zklock.zk import process
from django_zklock.zk.client import Client, SessionOptions
from django_zklock.zk.gateway import Gateway

pytestmark = pytest.mark.zookeeper


def test_the_client_has_what_is_reached_into() -> None:
    """Every private attribute that is used exists on a client that was never started."""
    client = Client(SessionOptions(hosts=(("127.0.0.1", 1),)))
    for name in (
        "_queue",
        "_pending",
        "_state",
        "_connection",
        "_session_id",
        "_data_watchers",
        "_conn_retry",
        "_stopped",
    ):
        assert hasattr(client, name), name
    for name in ("_socket", "_read_sock", "_write_sock", "_xid", "connection_stopped", "_connection_routine"):
        assert hasattr(client._connection, name), name


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        (KazooClient._call, ["request", "async_object"]),
        (ConnectionHandler.zk_loop, []),
        (ConnectionHandler.close, []),
        (ConnectionHandler._expand_client_hosts, []),
        (ConnectionHandler._connect_loop, ["retry"]),
        (ConnectionHandler._connect, ["host", "hostip", "port"]),
        (ConnectionHandler._invoke, ["timeout", "request", "xid"]),
        (ConnectionHandler._read_socket, ["read_timeout"]),
        (ConnectionHandler._read_response, ["header", "buffer", "offset"]),
        (ConnectionHandler._send_request, ["read_timeout", "connect_timeout"]),
        (ConnectionHandler._send_ping, ["connect_timeout"]),
        (ConnectionHandler._read_header, ["timeout"]),
        (ConnectionHandler._read, ["length", "timeout"]),
        (ConnectionHandler._write, ["msg", "timeout"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_called_or_overridden_takes_what_it_did(method: Callable[..., Any], parameters: list[str]) -> None:
    """Every private method that is called or overridden has the parameters it is known by."""
    assert list(inspect.signature(method).parameters) == ["self", *parameters]


def test_the_negotiated_timeout_is_read_from_the_connect_reply(zoo: Zoo) -> None:
    """A session timeout beyond the server's maximum is cut by the server, and that is what counts."""
    with zoo.configured(session_timeout=3600), zk_lock("a") as hold:
        assert process.current().timeout == 10.0  # 20 ticks of 0.5 s
        assert 3.0 < hold.lease_remaining <= 4.0


def ask(verb: Any, *arguments: Any) -> Any:
    """Call a verb of the gateway on its thread, and return what it answers."""
    answers: list[Any] = []
    process.current().post(verb, *arguments, answers.append)
    return eventually(lambda: answers)[0]


def test_requests_that_kazoo_has_no_verb_for_work(zoo: Zoo) -> None:
    """Containers are made and the own ephemeral nodes are listed, as the real server understands it."""
    with zk_lock("deep/er") as hold:
        gateway = Gateway(process.current())
        assert ask(gateway.own_ephemerals, zoo.base) == [hold.path]
        assert ask(gateway.ensure_path, f"{zoo.base}/x/y/z") is None
        assert zoo.client.exists(f"{zoo.base}/x/y/z")
        assert ask(gateway.ensure_path, f"{zoo.base}/x/y/z") is None, "there already is as good as made"
    # The server shows a container like any node (an owner of 0); that it reaps them tells.
    eventually(lambda: not zoo.client.exists(f"{zoo.base}/deep"), message="the empty parents are not reaped")


def test_a_transaction_of_checks_vouches_and_names_what_is_missing(zoo: Zoo) -> None:
    """The heartbeat's request changes nothing, succeeds when all nodes are there, and names the first that is not."""
    with zk_lock("a") as hold:
        gateway = Gateway(process.current())
        before = zoo.client.get(hold.path)[1]
        assert ask(gateway.quorum_check, [hold.path]) is None
        assert ask(gateway.quorum_check, [hold.path, hold.path + "x"]) == hold.path + "x"
        assert zoo.client.get(hold.path)[1] == before


@pytest.mark.parametrize(("asked", "warned"), [(2.01, False), (3600, True)])
def test_a_session_timeout_is_warned_of_that_is_not_the_one_asked_for(
    zoo: Zoo, caplog: pytest.LogCaptureFixture, asked: float, warned: bool
) -> None:
    """The wire carries whole milliseconds, and what is lost by that is worth no word."""
    with zoo.configured(session_timeout=asked), zk_lock("a"):
        pass
    assert ("asked for a session timeout" in caplog.text) is warned
