"""How far the tokens of an ensemble have come, as a quorum says it."""

from __future__ import annotations

import pytest
from support.zoo import Zoo

from django_zklock import zk_lock
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.fencing import horizon
from django_zklock.testing.ensemble import free_ports


def test_it_lies_between_the_tokens_before_and_after(zoo: Zoo) -> None:
    """No token above it was given before the question, and each that is given after it is higher."""
    with zk_lock("a") as first:
        reached = horizon.ask(first)
        assert reached is not None
        assert first.token < reached
        again = horizon.current()
        assert again > reached
    with zk_lock("a") as second:
        assert second.token > again


def test_another_clients_writes_count(zoo: Zoo) -> None:
    """It is the ensemble's, and not what this session happens to have seen."""
    with zk_lock("a") as hold:
        path = zoo.client.create(f"{zoo.chroot}/foreign", makepath=True)
        theirs = zoo.client.get(path)[1].czxid
        reached = horizon.ask(hold)
        assert reached is not None
        assert reached > theirs


def test_without_an_answer_nothing_is_said(zoo: Zoo) -> None:
    """A guess would be a wrong alarm, or none."""
    (port,) = free_ports(1)
    with zoo.configured(f"127.0.0.1:{port}"), pytest.raises(ZooKeeperUnavailable, match="connection refused"):
        horizon.current()
