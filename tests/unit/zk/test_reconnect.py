"""A client reconnects in a hurry only while a lease lasts."""

from __future__ import annotations

import pytest
from kazoo.retry import KazooRetry

from django_zklock.core.zk.client import Client
from django_zklock.core.zk.options import SessionOptions


@pytest.mark.parametrize(("hurry", "longest"), [(True, 0.5), (False, 5.0)])
def test_the_pause_between_two_rounds_is_short_while_a_lease_lasts(hurry: bool, longest: float) -> None:
    """Most processes are idle during an outage, and their attempts must not flood the servers when these return."""
    client = Client(SessionOptions(hosts=(("127.0.0.1", 1),), session_timeout=20))
    client.lease_lasts = lambda: hurry
    client._connection.negotiated_timeout = 20.0
    retry = KazooRetry()
    client._connection._connect_loop(retry)  # it does not connect, because the client was never started
    assert retry.max_delay * (1 + retry.max_jitter) == pytest.approx(longest)
