"""The identity of an incident, by which it is acknowledged: each process has the same."""

from __future__ import annotations

from django_zklock.dashboard.incidents import Incident


def test_a_deadlock_of_several_hosts_has_one_identity_whichever_host_comes_first() -> None:
    deadlocks = [Incident(cause="deadlock", host=host, keys=("a", "b")) for host in ("web-1", "web-2")]
    assert len({deadlock.identity for deadlock in deadlocks}) == 1


def test_hosts_that_hang_are_different_incidents() -> None:
    assert len({Incident(cause="host", host=host, keys=("a",)).identity for host in ("web-1", "web-2")}) == 2
