"""The clients of the lock coordinator in all languages keep their leases on new connections when old ones are lost."""

import contextlib
import json
import time

import pytest
from support import lease_clients
from support.chaos.namespaces import unshare
from support.ensemble import Ensemble
from support.lease_clients import Holder, Soak
from support.relay import Relay
from support.serving import Serving
from support.zoo import eventually

from zklock_client import LockTimeout, ZkLockClient

pytestmark = [pytest.mark.timeout(600)]  # the first test of a language compiles its client

TERM = 10.0
SESSION = 60.0  # long enough for such leases, however long ago the last heartbeat of the coordinator was
USABLE = 0.9 * TERM
LEFT = USABLE * 2 / 3  # seconds of a lease, at least, if each request to keep it is answered


@pytest.fixture(scope="module")
def ensemble():
    with Ensemble(nodes=1, max_session_timeout=SESSION) as ensemble:
        yield ensemble


@pytest.fixture(params=["python", "node", "go", "java"])
def language(request):
    lease_clients.holder(request.param)
    return str(request.param)


@pytest.fixture
def coordinator(arena):
    with Serving(arena, session_timeout=SESSION) as coordinator:
        yield coordinator


@pytest.fixture
def link(coordinator):
    with Relay(coordinator.port) as link:
        yield link


@pytest.fixture
def holder(language, link):
    with Holder(language, f"127.0.0.1:{link.port}", term=TERM) as holder:
        holder.token()
        yield holder


def assert_is_kept(holder, coordinator, term=TERM):
    """See that nobody gets the lock for longer than a lease lasts that is not kept."""
    with ZkLockClient(coordinator.address) as client, pytest.raises(LockTimeout), client.lock("a", wait=term + 1):
        pass
    holder.release()


def test_a_keep_alive_that_finds_nobody_is_tried_again(holder, coordinator, link):
    """Until the lease ends: the coordinator comes back shortly before. The client comes back within a second."""
    link.refuses = True
    link.reset()
    time.sleep(LEFT - 2)  # what is tried
    accepted = link.accepted
    link.refuses = False
    eventually(lambda: link.accepted > accepted, 1)
    assert_is_kept(holder, coordinator)


def test_a_connection_that_hangs_costs_no_lease(holder, coordinator, link):
    """Nothing comes back, as when the machine of a coordinator has vanished, and another one has its address."""
    link.strand()
    assert_is_kept(holder, coordinator)


def test_a_connection_that_is_accepted_and_never_answered_costs_no_lease(holder, coordinator, link):
    accepted = link.accepted
    link.freeze()
    link.reset()
    eventually(lambda: link.accepted > accepted)
    link.strand()
    assert_is_kept(holder, coordinator)


def test_a_call_that_waits_keeps_its_place(language, coordinator, link):
    """Its connection seems to hang. The client keeps the lease on another one, and the call goes on where it is."""
    zoo = coordinator.zoo
    with zoo.hold_elsewhere("b"), Holder(language, f"127.0.0.1:{link.port}", term=TERM, also=["b"]) as holder:
        holder.token()
        places, accepted = zoo.wait_contenders("b", 2), link.accepted
        with coordinator.paused():
            eventually(lambda: link.accepted > accepted, TERM)
        with ZkLockClient(coordinator.address) as client, pytest.raises(LockTimeout), client.lock("a", wait=TERM):
            pass
        assert zoo.children("b") == places
        zoo.delete("b")
        assert holder.line() == "also held"
        holder.release()


def test_a_coordinator_that_comes_back_with_another_address_is_found(language, coordinator, tmp_path):
    """By its name, as a pod of a StatefulSet. The first look at the name was a moment ago."""
    hosts, term = tmp_path / "hosts", 1.5 * TERM  # Go reads the file every 5 s
    to_hosts = [*unshare("--mount"), "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(hosts)]
    hosts.write_text("127.0.0.2 coordinator.test\n")
    with contextlib.ExitStack() as stack:
        with Relay(coordinator.port, "127.0.0.2") as former:
            address = f"coordinator.test:{former.port}"
            holder = stack.enter_context(Holder(language, address, term=term, before=to_hosts))
            holder.token()
        hosts.write_text("127.0.0.3 coordinator.test\n")
        stack.enter_context(Relay(coordinator.port, "127.0.0.3", former.port))
        assert_is_kept(holder, coordinator, term)


def test_no_lease_is_believed_in_for_longer_than_it_was_told(holder, link):
    """No connection can be made again, and the answer to the last keep-alive comes when the lease is over."""
    link.freeze()
    frozen = time.monotonic()
    assert "was not kept in time" in holder.line()
    assert time.monotonic() < frozen + TERM
    link.heal()
    assert holder.process.wait(10) == 0


def test_a_block_begins_with_a_whole_lease(language, coordinator, tmp_path):
    """However long the call has waited: else the lease would be late before the first keep-alive has its answer."""
    zoo = coordinator.zoo
    with Soak(
        language, [coordinator.address], tmp_path, tasks=1, keys=1, terms=[TERM], hold=TERM, seconds=2 * TERM
    ) as program:
        with zoo.hold_elsewhere("k0"):
            zoo.wait_contenders("k0", 2)
            time.sleep(USABLE / 5)  # what is tried: a call shorter than a third of the lease
        eventually(program.has_begun)
        events = [json.loads(line) for line in (tmp_path / f"{language}.jsonl").read_text().splitlines()]
    granted = next(event for event in events if event["e"] == "granted")
    assert granted["until"] - granted["t"] > 0.9 * USABLE
