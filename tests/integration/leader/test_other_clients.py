"""Candidates of other clients in our queue: Curator's `LeaderSelector` and `LeaderLatch`, and kazoo's `Election`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.faults import BackgroundCall
from support.neighbours.protocol import TIMEOUT, OtherClient
from support.neighbours.sides import waits
from support.zoo import Zoo

from django_zklock import inspection, zk_leader, zk_lock, zk_locks
from django_zklock.conf.arguments import Compat
from django_zklock.core.queue.nodes import Payload
from django_zklock.exceptions import UnreadableQueue

pytestmark = pytest.mark.zookeeper

# Their client and candidate, what that answers about who is there, and our option compat.
THEIRS = [
    ("curator", "selector", "participants", None),
    ("kazoo", "election", "contenders", "kazoo"),
    ("kazoo", "election+", "contenders", None),
]
CLIENTS = {"curator": "Curator", "kazoo": "kazoo"}


@pytest.fixture
def theirs(request: pytest.FixtureRequest, which: str) -> OtherClient:
    process: OtherClient = request.getfixturevalue("jvm" if which == "curator" else "plain_kazoo")
    return process


@contextmanager
def leading(zoo: Zoo, client: OtherClient, kind: str, name: str, key: str = "a") -> Iterator[None]:
    path = f"{zoo.base}/{key}"
    assert client.acquire("1", kind, path, 10, name).result(TIMEOUT) == "true"
    try:
        yield
    finally:
        client.release("1", kind, path)


@pytest.mark.parametrize(("which", "kind", "asked", "compat"), THEIRS)
def test_other_clients_show_our_candidates(
    zoo: Zoo, theirs: OtherClient, which: str, kind: str, asked: str, compat: Compat | None
) -> None:
    path = f"{zoo.base}/a"
    with zk_leader("a", compat=compat, what="index über") as hold:
        waiter = theirs.acquire("1", kind, path, -1, "web-7")
        zoo.wait_contenders("a", 2)
        leader, other = theirs.ask("2", asked, kind, path).split("\t")
        if which == "curator":
            assert theirs.ask("2", "leader", kind, path) == leader
            leader, other = leader.removeprefix("leads:"), other.removeprefix("waits:")
        assert other == "web-7"
        said = Payload.decode(leader.encode())
        assert said is not None
        assert (said.what, said.pid) == ("index über", os.getpid())
        hold.check()
    assert waiter.result(TIMEOUT) == "true"
    theirs.release("1", kind, path)


@pytest.mark.parametrize(("which", "kind", "asked", "compat"), THEIRS)
def test_candidates_of_other_clients_are_shown(
    zoo: Zoo, theirs: OtherClient, which: str, kind: str, asked: str, compat: Compat | None
) -> None:
    onlooker = zk_leader("a", compat=compat)
    with leading(zoo, theirs, kind, "web-7"):
        leader = onlooker.current_leader()
        assert leader is not None
        assert (leader.client, leader.what, leader.host, leader.pid) == (CLIENTS[which], "web-7", "", 0)
        assert str(leader) == f"'web-7', a client of {CLIENTS[which]}, {zoo.children('a')[0]}"
        waiter = BackgroundCall(lambda: zk_leader("a", compat=compat, what="ours").run(lambda hold: hold.token))
        zoo.wait_contenders("a", 2)
        first, second = onlooker.candidates()
        assert (first, second.client, second.what) == (leader, "zklock", "ours")
        (holder,) = inspection.snapshot().locks[0].holders
        assert (holder.client, holder.what) == (CLIENTS[which], "web-7")
    assert waiter.result() == second.token > leader.token


def test_a_selector_without_an_id_is_known_by_its_address(zoo: Zoo, jvm: OtherClient) -> None:
    with leading(zoo, jvm, "selector", ""):
        leader = zk_leader("a").current_leader()
        assert leader is not None
        assert (leader.client, leader.what, leader.host) == ("Curator", "", "127.0.0.1")
        assert str(leader).startswith("a client of Curator on 127.0.0.1, _c_")


LOOKS: list[Callable[[], Any]] = [
    lambda: zk_leader("a").run(lambda hold: hold.token),
    lambda: zk_leader("a").current_leader(),
    lambda: zk_leader("a").candidates(),
    lambda: zk_lock("a").acquire(blocking=False),
    lambda: zk_lock("a").locked(),
]


def test_an_election_refuses_the_queue_of_a_leader_latch(
    zoo: Zoo, jvm: OtherClient, caplog: pytest.LogCaptureFixture
) -> None:
    with leading(zoo, jvm, "latch", "web-7"), caplog.at_level(logging.ERROR, "django_zklock"):
        for look in LOOKS:
            with pytest.raises(UnreadableQueue, match="LeaderLatch") as caught:
                look()
            assert caught.value.lock == "a"
        assert "LeaderLatch" in inspection.snapshot().locks[0].problem
        zoo.wait_contenders("a", 1)
    assert caplog.records == []
    zoo.wait_contenders("a", 0)  # it deletes its node without waiting for that
    assert zk_leader("a").run(lambda hold: hold.token)


def test_a_leader_latch_that_comes_second_leads_at_the_same_time(zoo: Zoo, jvm: OtherClient) -> None:
    """It sees only its own kind, which we cannot prevent. Our observers and later candidates get an error."""
    with zk_leader("a") as hold:
        assert jvm.ask("2", "leader", "latch", f"{zoo.base}/a").startswith('leads:{"version":1')
        with leading(zoo, jvm, "latch", "web-7"):
            assert jvm.ask("2", "leader", "latch", f"{zoo.base}/a") == "leads:web-7"
            hold.check()
            for look in LOOKS:
                with pytest.raises(UnreadableQueue, match="LeaderLatch"):
                    BackgroundCall(look).result()


def test_several_locks_share_their_queues_with_curators(zoo: Zoo, jvm: OtherClient) -> None:
    """Clients that acquire them in the order of their keys do not deadlock."""
    paths = ",".join(f"{zoo.base}/{key}" for key in "ab")
    with zk_locks("b", "a"):
        waiter = jvm.acquire("1", "multi", paths)
        zoo.wait_contenders("a", 2)
        assert waits(waiter)
    assert waiter.result(TIMEOUT) == "true"
    assert zk_locks("a", "b").acquire(blocking=False) is None
    ours = BackgroundCall(acquire_both)
    zoo.wait_contenders("a", 2)
    jvm.release("1", "multi", paths)
    ours.result()


def acquire_both() -> None:
    with zk_locks("a", "b", timeout=TIMEOUT) as hold:
        hold.check()
