"""The private names of kazoo that `zk` uses. A release of kazoo that changes one fails here, not in production."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.connection import ConnectionHandler
from support.zoo import Zoo, eventually

from django_zklock import zk_lock
from django_zklock.core.zk import process
from django_zklock.core.zk.client import Client
from django_zklock.core.zk.options import SessionOptions


def test_the_client_has_the_private_attributes() -> None:
    client = Client(SessionOptions(hosts=(("127.0.0.1", 1),)))
    for name in ("_queue", "_pending", "_connection", "_session_id", "_data_watchers", "_conn_retry", "_stopped"):
        assert hasattr(client, name), name
    for name in ("_socket", "_read_sock", "_write_sock", "_xid", "connection_stopped", "_connection_routine"):
        assert hasattr(client._connection, name), name


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        (KazooClient._notify_pending, ["state"]),
        (ConnectionHandler.zk_loop, []),
        (ConnectionHandler.close, []),
        (ConnectionHandler._expand_client_hosts, []),
        (ConnectionHandler._connect_loop, ["retry"]),
        (ConnectionHandler._connect_attempt, ["host", "hostip", "port", "retry"]),
        (ConnectionHandler._connect, ["host", "hostip", "port"]),
        (ConnectionHandler._invoke, ["timeout", "request", "xid"]),
        (ConnectionHandler._read_socket, ["read_timeout"]),
        (ConnectionHandler._send_request, ["read_timeout", "connect_timeout"]),
        (ConnectionHandler._send_ping, ["connect_timeout"]),
        (ConnectionHandler._read_header, ["timeout"]),
        (ConnectionHandler._read, ["length", "timeout"]),
        (ConnectionHandler._write, ["msg", "timeout"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_private_methods_have_the_known_parameters(method: Callable[..., Any], parameters: list[str]) -> None:
    assert list(inspect.signature(method).parameters) == ["self", *parameters]


def test_the_negotiated_timeout_is_read_from_the_connect_reply(zoo: Zoo) -> None:
    """The server cuts a session timeout above its maximum, and the lease is based on the result."""
    with zoo.configured(session_timeout=3600), zk_lock("a") as hold:
        assert process.current().timeout == 10.0  # 20 ticks of 0.5 s
        assert 3.0 < hold.lease_remaining <= 4.0


def ask(method: Any, *arguments: Any) -> Any:
    replies: list[Any] = []
    process.current().post(method, *arguments, replies.append)
    return eventually(lambda: replies)[0]


def test_requests_that_kazoo_does_not_have_work(zoo: Zoo) -> None:
    with zk_lock("deep/er") as hold:
        gateway = process.current().gateway
        assert ask(gateway.own_ephemerals, zoo.base) == [hold.path]
        assert ask(gateway.ensure_path, f"{zoo.base}/x/y/z") is None
        assert zoo.client.exists(f"{zoo.base}/x/y/z")
        assert ask(gateway.ensure_path, f"{zoo.base}/x/y/z") is None, "an existing path is no error"
    # A container looks like any other node (its owner is 0). Only its deletion by the server shows that it is one.
    eventually(lambda: not zoo.client.exists(f"{zoo.base}/deep"), message="the empty parents are not reaped")


def test_a_quorum_check_succeeds_or_names_the_missing_node(zoo: Zoo) -> None:
    with zk_lock("a") as hold:
        gateway = process.current().gateway
        before = zoo.client.get(hold.path)[1]
        assert ask(gateway.quorum_check, [hold.path]) is None
        assert ask(gateway.quorum_check, [hold.path, hold.path + "x"]) == hold.path + "x"
        assert zoo.client.get(hold.path)[1] == before


@pytest.mark.parametrize(("asked", "warned"), [(2.01, False), (3600, True)])
def test_a_changed_timeout_is_logged(zoo: Zoo, caplog: pytest.LogCaptureFixture, asked: float, warned: bool) -> None:
    """The wire carries whole milliseconds. That difference is not logged."""
    with zoo.configured(session_timeout=asked), zk_lock("a"):
        pass
    assert ("asked for a session timeout" in caplog.text) is warned
