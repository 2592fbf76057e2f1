"""The arithmetic of `benchmarks/capacity.py`, and the simulation of a leader."""

from __future__ import annotations

import pytest
from capacity import OUTSTANDING, Demand, Measured, load, memory, need
from leader import Leader, Simulation

MEASURED = Measured(heartbeats=5000.0, lock_writes=8000.0, alone=0.002)
DEMAND = Demand(servers=100_000, paths=1_000_000, share=0.1, grants=1000.0, timeout=20.0, held=0.1)


def simulated(holders: int, seconds: float = 20.0) -> Simulation:
    """Simulate holders whose heartbeats take 1 ms each, and 2 ms for each batch."""
    simulation = Simulation(Leader(batch=0.002, heartbeat=0.001, lock_write=0.001), timeout=20.0, held=0.0, seed=1)
    simulation.run(holders=holders, paths=1, grants=0.0, fresh=0.0, seconds=seconds)
    return simulation


def test_each_holder_sends_a_heartbeat_in_a_sixth_of_the_timeout() -> None:
    assert DEMAND.heartbeats == pytest.approx(10_000 / (20 / 6))


def test_a_grant_is_two_writes_and_three_more_if_its_directory_was_removed() -> None:
    assert DEMAND.fresh_grants == pytest.approx(10_000 / 60)  # the leader removes no more
    assert DEMAND.lock_writes == pytest.approx(2000 + 3 * 10_000 / 60)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 1.0])
def test_as_few_ensembles_as_keep_the_leaders_below_the_limit(share: float) -> None:
    demand = Demand(servers=100_000, paths=1_000_000, share=share, grants=1000.0, timeout=20.0, held=0.1)
    found = need(demand, MEASURED, utilisation=0.5, sessions=10_000, heap=8e9)
    assert load(demand.part(found.ensembles), MEASURED) <= 0.5
    assert found.ensembles == 1 or load(demand.part(found.ensembles - 1), MEASURED) > 0.5


def test_memory_is_a_bottleneck_too() -> None:
    found = need(DEMAND, MEASURED, utilisation=1.0, sessions=10_000, heap=1e8)
    assert found.bottleneck == "memory"
    assert memory(DEMAND.part(found.ensembles), MEASURED) <= 1e8


def test_observers_are_as_many_as_the_sessions_need_while_one_server_is_down() -> None:
    found = need(DEMAND, MEASURED, utilisation=2.0, sessions=10_000, heap=8e9)
    assert (found.ensembles, found.observers) == (1, 8)  # 11 servers, of which 10 have the 100,000 sessions


def test_the_simulated_leader_is_as_fast_as_the_measured_one() -> None:
    leader = MEASURED.leader()
    assert leader.batch + leader.heartbeat == pytest.approx(0.002)
    assert OUTSTANDING / (leader.batch + OUTSTANDING * leader.heartbeat) == pytest.approx(5000)
    assert OUTSTANDING / (leader.batch + OUTSTANDING * leader.lock_write) == pytest.approx(8000)


def test_a_lone_heartbeat_takes_the_time_of_a_batch_and_its_own() -> None:
    assert simulated(holders=1).heartbeats == pytest.approx([0.003] * 6)


def test_an_overloaded_leader_loses_leases_and_another_does_not() -> None:
    """At most 1000 heartbeats fit into a second; 3334 holders send 1000."""
    half, thrice = simulated(holders=1667), simulated(holders=10_000)
    assert half.lost == half.suspect == 0
    assert max(half.heartbeats) < 0.1
    assert thrice.lost > 1000
    assert thrice.suspect > 1000


def test_a_lock_is_granted_to_the_next_when_the_delete_of_the_holder_is_committed() -> None:
    leader = Leader(batch=0.002, heartbeat=0.001, lock_write=0.001)
    simulation = Simulation(leader, timeout=20.0, held=0.05, seed=1)
    simulation.run(holders=0, paths=1, grants=10.0, fresh=0.0, seconds=30.0)
    apart = Simulation(leader, timeout=20.0, held=0.05, seed=1)
    apart.run(holders=0, paths=1_000_000, grants=10.0, fresh=0.0, seconds=30.0)
    assert max(apart.acquisitions) < 0.01 < 0.05 < max(simulation.acquisitions)


def test_two_runs_with_one_seed_are_equal() -> None:
    assert simulated(holders=500).heartbeats == simulated(holders=500).heartbeats
