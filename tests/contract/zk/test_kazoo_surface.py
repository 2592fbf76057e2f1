"""
The private names of kazoo that `zk` uses, as they are in kazoo 2.11.0.

A release of kazoo that changes one fails here, not in production.
"""

import inspect

import pytest
from support.zoo import eventually

from django_zklock import zk_lock
from django_zklock.core.zk import process
from django_zklock.core.zk.client import Client
from django_zklock.core.zk.connection import Connection
from django_zklock.core.zk.options import SessionOptions


def test_the_client_has_the_private_attributes():
    client = Client(SessionOptions(hosts=(("127.0.0.1", 1),)))
    for name in (
        "_queue",
        "_pending",
        "_connection",
        "_session_id",
        "_session_passwd",
        "_data_watchers",
        "_stopped",
    ):
        assert hasattr(client, name), name
    for name in ("_socket", "_read_sock", "_write_sock", "_xid", "connection_stopped", "close"):
        assert hasattr(client._connection, name), name


@pytest.mark.parametrize(("ours", "count"), [(Client, 1), (Connection, 12)])
def test_the_methods_of_kazoo_that_are_replaced_exist_and_have_the_known_parameters(ours, count):
    theirs = dict(inspect.getmembers(ours.__base__, inspect.isfunction))
    replaced = theirs.keys() & vars(ours).keys() - {"__init__"}
    assert len(replaced) == count, replaced
    for name in replaced:
        assert [*inspect.signature(vars(ours)[name]).parameters] == [*inspect.signature(theirs[name]).parameters], name


def ask(method, *arguments):
    replies = []
    process.current().post(method, *arguments, replies.append)
    return eventually(lambda: replies)[0]


def test_requests_that_kazoo_does_not_have_work(zoo):
    with zk_lock("deep/er") as hold:
        gateway = process.current().gateway
        assert ask(gateway.own_ephemerals, zoo.base) == [hold.path]
        assert ask(gateway.ensure_path, f"{zoo.base}/x/y/z") is None
        assert zoo.client.exists(f"{zoo.base}/x/y/z")
        assert ask(gateway.ensure_path, f"{zoo.base}/x/y/z") is None, "an existing path is no error"
    # A container looks like any other node (its owner is 0). Only its deletion by the server shows that it is one.
    eventually(lambda: not zoo.client.exists(f"{zoo.base}/deep"), message="the empty parents are not reaped")


def test_a_quorum_check_succeeds_or_names_the_missing_node(zoo):
    with zk_lock("a") as hold:
        gateway = process.current().gateway
        before = zoo.client.get(hold.path)[1]
        assert ask(gateway.quorum_check, [hold.path]) is None
        assert ask(gateway.quorum_check, [hold.path, hold.path + "x"]) == hold.path + "x"
        assert zoo.client.get(hold.path)[1] == before


@pytest.mark.parametrize(("asked", "granted"), [(8.04, pytest.approx(8.04, abs=0.001)), (3600, 20.0)])
def test_the_lease_is_based_on_the_timeout_that_is_granted_and_a_change_is_logged(zoo, caplog, asked, granted):
    """The wire carries whole milliseconds. That difference is not logged. The most that is granted are 20 s."""
    with zoo.configured(session_timeout=asked), zk_lock("a") as hold:
        timeout = process.current().timeout
        assert timeout == granted
        eventually(lambda: 0.3 * timeout < hold.lease_remaining)
        assert hold.lease_remaining <= 0.4 * timeout
    assert ("for a session timeout of 3600 s and got 20 s" in caplog.text) is (asked == 3600)
