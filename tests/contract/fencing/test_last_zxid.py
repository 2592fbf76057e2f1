"""The last zxid of the ensemble, confirmed by a quorum."""

from __future__ import annotations

import pytest
from support.ensemble import free_ports
from support.zoo import Zoo

from django_zklock import zk_lock
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.fencing import last_zxid


def test_it_lies_between_the_tokens_before_and_after(zoo: Zoo) -> None:
    """Tokens from before the request are not above it, and later tokens are higher."""
    with zk_lock("a") as first:
        reached = last_zxid.ask()
        assert reached is not None
        assert first.token < reached
        again = last_zxid.current()
        assert again > reached
    with zk_lock("a") as second:
        assert second.token > again


def test_writes_of_other_clients_count(zoo: Zoo) -> None:
    """It is the ensemble's last zxid, not the last one that this session has seen."""
    with zk_lock("a"):
        path = zoo.client.create(f"{zoo.chroot}/foreign", makepath=True)
        theirs = zoo.client.get(path)[1].czxid
        reached = last_zxid.ask()
        assert reached is not None
        assert reached > theirs


def test_without_a_connection_it_is_an_error(zoo: Zoo) -> None:
    """A guess could raise a false alarm, or miss a real one."""
    (port,) = free_ports(1)
    with zoo.configured(f"127.0.0.1:{port}"), pytest.raises(ZooKeeperUnavailable, match="connection refused"):
        last_zxid.current()
