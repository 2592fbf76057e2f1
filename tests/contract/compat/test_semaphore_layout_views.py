"""A semaphore with a gate is seen, and stepped into, as the one lock that it is."""

from __future__ import annotations

import contextlib
import uuid
from typing import Any

import pytest
from support.faults import Elsewhere, taken
from support.locking import as_json, zklock
from support.zoo import Zoo, eventually

from django_zklock import Hold, zk_lock
from django_zklock.exceptions import LockChangedHands, NotRevocable
from django_zklock.inspection import LockInfo, look_at, snapshot, survey
from django_zklock.operations import break_lock, end_hold, hold_lock, revoke
from django_zklock.queue import nodes
from django_zklock.queue.nodes import Kind, Payload

pytestmark = pytest.mark.zookeeper

WHY: dict[str, Any] = {"reason": "it hangs", "by": "anna"}
LAYOUTS = {"curator": ("a/locks", "a/leases"), "kazoo": ("a-__lock__", "a")}


@pytest.fixture(params=sorted(LAYOUTS))
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def wanted(layout: str, many: int, inside: int) -> contextlib.AbstractContextManager[list[Hold]]:
    """Have so many threads want a permit of `a`, of which so many get one; one may lose it."""
    return taken("a", many, inside, forgiven=(Exception,), limit=2, layout=layout, abort_on="never")


def looks() -> list[LockInfo]:
    """The only lock there is, by a snapshot and by a look at it alone."""
    found = snapshot(max_age=0)
    assert (found.problem, found.notes) == ("", ())
    (lock,) = found.locks
    assert found.total == 1
    alone = look_at("a")
    assert alone is not None
    return [lock, alone]


def settled(layout: str, zoo: Zoo, waiting: int) -> None:
    """Wait until so many stand at the gate, of whom the first has a node among the permits, too."""
    gate, leases = LAYOUTS[layout]
    zoo.wait_contenders(gate, waiting)
    zoo.wait_contenders(leases, 2 + min(1, waiting))


def enter(zoo: Zoo, key: str, name: str, *, numbered: bool) -> str:
    """Make a node as another client does; it has the one session of the plain client."""
    path = zoo.client.create(f"{zoo.base}/{key}/{name}", b"", ephemeral=True, sequence=numbered, makepath=True)
    return str(path).rpartition("/")[2]


@pytest.mark.parametrize("waiting", [0, 1, 3])
def test_who_has_a_permit_holds_and_who_stands_at_the_gate_waits(zoo: Zoo, layout: str, waiting: int) -> None:
    """In one lock, by its own key; the first at the gate waits, though it has made its node among the permits."""
    with wanted(layout, 2 + waiting, 2) as holds:
        settled(layout, zoo, waiting)
        for lock in looks():
            assert (lock.key, lock.kind, lock.limit, lock.layout) == ("a", "semaphore", 2, layout)
            assert lock.path == f"{zoo.base}/a"
            assert {each.token for each in lock.holders} == {hold.token for hold in holds}
            assert (lock.waiting, len(lock.waiters)) == (waiting, waiting)
            assert {each.kind for each in (*lock.holders, *lock.waiters)} == {"semaphore"}
            assert all(each.held_since and not each.waits_behind for each in lock.holders)
            behind = [lock.holders[-1].name, *(each.name for each in lock.waiters)]
            assert [each.waits_behind for each in lock.waiters] == behind[:waiting]
            assert all(each.held_since is None for each in lock.waiters)
            assert (lock.own_limits, lock.problem) == ((), "")
        assert "2 of 2" in zklock("list")
        assert f"a (semaphore, 2 of 2 permits, layout {layout})" in zklock("show", "a")
        assert as_json("list")["locks"][0]["layout"] == layout
        held = survey(2).held_by
        assert sum(map(len, held.values())) == 2
    eventually(lambda: not snapshot(max_age=0).locks)
    assert look_at("a") is None


def test_who_has_a_permit_is_broken_or_asked_by_the_key_of_the_semaphore(zoo: Zoo, layout: str) -> None:
    """And nobody who waits, though it has a node among the permits; the permit goes to the first at the gate."""
    _, leases = LAYOUTS[layout]
    with wanted(layout, 4, 2) as holds:
        settled(layout, zoo, 2)
        (lock, _) = looks()
        asked = revoke("a", "drain", by="anna").holders
        assert {each.token for each in asked} == {hold.token for hold in holds}
        assert all(hold.wait_revoked(10) for hold in holds)
        (name,) = set(zoo.children(leases)) - {each.name for each in lock.holders}
        waits = zoo.client.get(f"{zoo.base}/{leases}/{name}")[1].czxid
        guid = name[3:39]
        first, next_ = lock.holders[0], lock.waiters[0]
        for wrong, token in ((guid, waits), (next_.guid, next_.token), (first.guid, 7)):
            with pytest.raises(LockChangedHands):
                break_lock("a", guid=wrong, token=token, **WHY)
        with pytest.raises(LockChangedHands):
            revoke("a", "drain", by="anna", guid=guid)
        assert break_lock("a", guid=first.guid, token=first.token, **WHY).holder.token == first.token
        (broken,) = [hold for hold in holds if hold.token == first.token]
        eventually(lambda: broken.lost)
        eventually(lambda: len(holds) == 3)
        settled(layout, zoo, 1)
        assert {each.token for each in looks()[0].holders} == {hold.token for hold in holds} - {first.token}


def test_an_operator_s_hold_of_it_is_refused(zoo: Zoo, layout: str) -> None:
    """Nobody at the gate would see it, and whoever set it would believe that nobody gets in."""
    locks = {"a": {"path": "a", "limit": 2, "layout": layout}, "b": {"path": "b", "layout": layout}}
    with zoo.configured(LOCKS=locks):
        with pytest.raises(ValueError, match="another client's recipe"):
            hold_lock("a", seconds=30, **WHY)
        end_hold("b", token=hold_lock("b", seconds=30, **WHY).token, by="anna")
        with zk_lock("c", limit=2, layout="kazoo"), pytest.raises(ValueError, match="another client's recipe"):
            hold_lock("c", seconds=30, **WHY)


@pytest.mark.parametrize("tail", ["a" * 10, "1" * 10])
def test_permits_of_a_client_of_kazoo_are_seen_and_can_be_broken(zoo: Zoo, tail: str) -> None:
    """They have no number, and may look as if they had."""
    theirs = zoo.client.Semaphore(f"{zoo.base}/a", max_leases=2)
    theirs.create_path = f"{zoo.base}/a/{uuid.uuid4().hex[:22]}{tail}"
    theirs.acquire()
    with wanted("kazoo", 3, 1) as holds:
        zoo.wait_contenders("a-__lock__", 2)
        for lock in looks():
            assert [each.client for each in lock.holders] == ["kazoo", "zklock"]
            assert (lock.holders[1].token, lock.waiting, lock.limit) == (holds[0].token, 2, 2)
        stranger = looks()[0].holders[0]
        assert stranger.guid == theirs.create_path.rpartition("/")[2]
        with pytest.raises(NotRevocable):
            revoke("a", "drain", by="anna", guid=stranger.guid)
        break_lock("a", guid=stranger.guid, token=stranger.token, **WHY)
        eventually(lambda: len(holds) == 2)


def test_permits_of_kazoo_alone_are_seen_and_so_are_keys_that_look_like_some(zoo: Zoo) -> None:
    """Without a gate, as the server has deleted it: by the limit that is written at their path."""
    theirs = zoo.client.Semaphore(f"{zoo.base}/a", max_leases=2)
    theirs.acquire()
    zoo.client.delete(f"{zoo.base}/a-__lock__")
    for lock in looks():
        assert (lock.layout, lock.limit, len(lock.holders), lock.waiting) == ("kazoo", 2, 1, 0)
    theirs.release()
    nested = f"tasks/{uuid.uuid4().hex}"
    with zk_lock(nested):
        (found,) = snapshot(max_age=0).locks
        assert (found.key, found.kind) == (nested, "lock")


def test_permits_of_curator_alone_are_seen(zoo: Zoo) -> None:
    """How many there are nobody tells; the newest one waits, if it is of the session that stands at the gate."""

    def guid() -> str:
        return str(uuid.uuid4())

    held = [enter(zoo, "a/leases", nodes.prefix(guid(), Kind.LEASE), numbered=True) for _ in range(2)]
    for lock in looks():
        assert ([each.name for each in lock.holders], lock.waiting) == (held, 0)
        assert (lock.layout, lock.limit) == ("curator", None)
    first = enter(zoo, "a/locks", nodes.prefix(guid()), numbered=True)
    enter(zoo, "a/leases", nodes.prefix(guid(), Kind.LEASE), numbered=True)
    for lock in looks():
        assert [each.name for each in lock.holders] == held
        assert [each.name for each in lock.waiters] == [first]
        assert {each.client for each in lock.waiters} <= {"Curator", "unknown"}
    with pytest.raises(NotRevocable, match="Curator"):
        revoke("a", "drain", by="anna")
    for path in zoo.contenders():
        zoo.client.delete(path)


def test_locks_whose_keys_are_like_those_of_the_parts_are_locks_of_their_own(zoo: Zoo) -> None:
    """Whoever has chosen the keys `a/locks` and `a/leases`, or `a` and `a-__lock__`."""
    with (
        zk_lock("a/locks"),
        zk_lock("a/leases", limit=2),
        zk_lock("b", limit=2),
        zk_lock("b-__lock__"),
    ):
        found = {lock.key: (lock.kind, len(lock.holders), lock.layout) for lock in snapshot(max_age=0).locks}
        assert look_at("a") is None
        assert [look_at(key) is not None for key in found] == [True] * 4
    assert found == {
        "a/locks": ("lock", 1, "own"),
        "a/leases": ("semaphore", 1, "own"),
        "b": ("semaphore", 1, "own"),
        "b-__lock__": ("lock", 1, "own"),
    }


@pytest.mark.parametrize("options", [{}, {"limit": 2}, {"kind": "read"}])
def test_who_has_a_lock_whose_key_is_like_that_of_a_part_is_not_reached_by_the_key_above(
    zoo: Zoo, options: dict[str, Any]
) -> None:
    """Nobody holds `a`, so whoever asks those who do asks nobody, and takes nothing from who waits for another lock."""

    def take() -> None:
        with zk_lock("a/leases", timeout=20):
            pass

    with zk_lock("a/leases", **options) as hold:
        waits = Elsewhere(take)
        zoo.wait_contenders("a/leases", 2)
        with pytest.raises(LockChangedHands):
            revoke("a", "drain", by="anna")
        found = look_at("a/leases")
        assert found is not None
        for each in (*found.holders, *found.waiters):
            with pytest.raises(LockChangedHands):
                break_lock("a", guid=each.guid, token=each.token, **WHY)
        zoo.wait_contenders("a/leases", 2)
        assert not hold.revoke_requested
    waits.result()


def test_a_semaphore_that_has_left_kazoo_s_recipe_is_one_of_ours_though_the_limit_stays_at_its_path(zoo: Zoo) -> None:
    """Who waits in its queue is not taken for a holder, nor can be broken; a plain lock there is one, too."""
    with zk_lock("a", limit=1, layout="kazoo"):
        pass
    assert zoo.client.get(f"{zoo.base}/a")[0] == b"1"

    def take() -> None:
        with zk_lock("a", limit=1, timeout=20):
            pass

    with zk_lock("a", limit=1) as hold:
        waits = Elsewhere(take)
        zoo.wait_contenders("a", 2)
        for lock in looks():
            assert ([each.token for each in lock.holders], lock.waiting, lock.layout) == ([hold.token], 1, "own")
        waiter = looks()[0].waiters[0]
        with pytest.raises(LockChangedHands):
            break_lock("a", guid=waiter.guid, token=waiter.token, **WHY)
        assert [each.token for each in revoke("a", "drain", by="anna").holders] == [hold.token]
    waits.result()
    with zk_lock("a") as plain:
        assert [(lock.kind, lock.holders[0].token) for lock in looks()] == [("lock", plain.token)] * 2
    eventually(lambda: not zoo.contenders())
    end_hold("a", token=hold_lock("a", seconds=30, **WHY).token, by="anna")


def test_limits_that_differ_are_told_of_a_semaphore_with_a_gate(zoo: Zoo) -> None:
    """Nobody can set one for all: clients of Curator would not see it."""
    with zk_lock("a", limit=2, layout="curator"):
        data = Payload(
            guid="g", host="h", pid=1, thread="t", what="", since="", template="a", limit=3, layout="curator"
        )
        prefix = nodes.prefix("0c1a0000-0000-8000-8000-000000000000", Kind.LEASE)
        path = zoo.client.create(f"{zoo.base}/a/leases/{prefix}", data.encode(), ephemeral=True, sequence=True)
        for lock in looks():
            assert (lock.own_limits, lock.limit) == ((2, 3), 3)
        shown = zklock("show", "a")
        assert "different limits in their code, 2 and 3" in shown
        assert "set one" not in shown
        zoo.client.delete(path)
