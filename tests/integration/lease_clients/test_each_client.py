"""The clients of the lock coordinator behave alike in all languages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support import lease_clients
from support.balancer import Balancer
from support.ensemble import Ensemble
from support.lease_clients import Holder
from support.serving import Serving
from support.zoo import Zoo

from django_zklock import operations
from zklock_client import LockTimeout, ZkLockClient

pytestmark = pytest.mark.zookeeper


@pytest.fixture(
    params=[
        "python",
        "node",
        pytest.param("go", marks=pytest.mark.chaos),
        pytest.param("java", marks=pytest.mark.chaos),
    ]
)
def language(request: pytest.FixtureRequest) -> str:
    """A language whose client can run here. Those that must be compiled are left to `make chaos`."""
    try:
        lease_clients.holder(request.param)
    except lease_clients.Unavailable as reason:
        pytest.skip(str(reason))
    return str(request.param)


@pytest.fixture(scope="module")
def coordinator(single: Ensemble) -> Iterator[Serving]:
    """A coordinator for the tests that leave it alive. It has a namespace of its own."""
    zoo = Zoo(single.hosts, single)
    with Serving(zoo, session_timeout=10) as coordinator:
        yield coordinator
    zoo.close()


def test_a_lock_is_held_until_it_is_released(coordinator: Serving, language: str) -> None:
    """It waits for longer than its term, has the lock for longer than its term, and releases it."""
    with ZkLockClient(coordinator.address) as client:
        with client.lock("a") as lease:
            holder = Holder(language, coordinator.address)
            coordinator.zoo.wait_contenders("a", 2)
            with pytest.raises(LockTimeout), client.lock("a", wait=1.8):
                pass
        with holder:
            assert holder.token() > lease.token
            with pytest.raises(LockTimeout), client.lock("a", wait=2):
                pass
            holder.release()
            coordinator.zoo.assert_empty()


def test_a_busy_lock_is_refused(coordinator: Serving, language: str) -> None:
    """At once, or when the wait is over; as it is if it was computed from a time in the past. Go calls that NoWait."""
    with coordinator.zoo.hold_elsewhere("a"):
        with Holder(language, coordinator.address, wait=0) as holder:
            assert holder.line().startswith("LockBusy: ")
        for wait, error in ((0.5, "LockTimeout"), (-60, "LockBusy" if language == "go" else "LockTimeout")):
            with Holder(language, coordinator.address, wait=wait) as holder:
                assert holder.line().startswith(f"{error}: ")
        coordinator.zoo.wait_contenders("a", 1)


def test_a_loss_is_noticed(zoo: Zoo, language: str) -> None:
    """When the lock is lost, and when the coordinator is gone."""
    with Serving(zoo, session_timeout=2) as coordinator:
        with Holder(language, coordinator.address) as holder:
            holder.token()
            zoo.client.delete(f"{zoo.base}/a/{zoo.children('a')[0]}")
            assert holder.line().startswith("LockLost: ")
        with Holder(language, coordinator.address) as holder:
            holder.token()
            coordinator.kill()
            assert "was not kept in time" in holder.line()
            assert holder.process.wait(30) == 0
    zoo.assert_empty(10)


def test_release_requests_are_passed_on(zoo: Zoo, language: str) -> None:
    """Of an operator, and of a coordinator that is about to end. It waits for the lease, which is released in time."""
    with Serving(zoo, session_timeout=10) as coordinator, zoo.configured(session_timeout=10):
        with Holder(language, coordinator.address) as holder:
            holder.token()
            operations.request_release("a", by="ada", reason="a deployment")
            assert holder.line() == "wanted ada: a deployment"
            holder.release()
        with Holder(language, coordinator.address, term=8) as holder:
            holder.token()
            coordinator.process.terminate()
            assert holder.line() == "wanted the coordinator is about to end"
            holder.release()
            assert coordinator.process.wait(30) == 0


def test_a_coordinator_that_is_gone_is_left_for_another(zoo: Zoo, language: str) -> None:
    """Or comes back within the wait."""
    with Serving(zoo, session_timeout=10) as coordinator:
        with Holder(language, f"127.0.0.1:1,{coordinator.address}") as holder:
            holder.token()
            holder.release()
        coordinator.kill()
        with Holder(language, coordinator.address) as holder:
            coordinator.start()
            holder.token()
            holder.release()


def test_a_call_that_fails_on_the_way_is_tried_again(coordinator: Serving, language: str) -> None:
    """Such as one that a flooded server cancels."""
    with Balancer(coordinator.address, failures=3) as balancer, Holder(language, balancer.address) as holder:
        holder.token()
        assert balancer.calls["RecordLock"] == 4
        holder.release()


def test_a_lease_is_kept_and_released_where_it_is(coordinator: Serving, language: str) -> None:
    """A balancer sends the calls to another coordinator, which names the address of the right one."""
    with Balancer(coordinator.address) as balancer:
        with Holder(language, balancer.address) as holder, ZkLockClient(coordinator.address) as client:
            holder.token()
            with pytest.raises(LockTimeout), client.lock("a", wait=2):
                pass
            holder.release()
            coordinator.zoo.assert_empty()
        assert balancer.calls["KeepAlive"] >= 1  # more, if the client connects again on a busy machine
