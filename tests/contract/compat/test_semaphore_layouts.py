"""Permits behind a gate, as Curator's and kazoo's semaphores have one: faults, deadlines, and what is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from kazoo.exceptions import NoNodeError
from support.faults import Elsewhere, connected, cut, expire, lose, proxied, session, within
from support.proxy import CREATE2, DELETE, GET_CHILDREN, SET_DATA
from support.zoo import Zoo, eventually

from django_zklock import Hold, Lock, zk_lock
from django_zklock.exceptions import LimitMismatch, LockBusy, LockTimeout, ZooKeeperUnavailable
from django_zklock.execution.waiters import ThreadWaiter
from django_zklock.locks.acquisition import Acquisition
from django_zklock.locks.looking import contenders
from django_zklock.locks.protocol.contender import Outcome
from django_zklock.locks.protocol.gated import Gated
from django_zklock.locks.protocol.registry import Registry
from django_zklock.queue import nodes
from django_zklock.queue.nodes import Kind
from django_zklock.zk import process

pytestmark = pytest.mark.zookeeper


@dataclass(frozen=True)
class Semaphore:
    """The semaphore `a`, by the recipe of one layout, and strangers in it."""

    zoo: Zoo
    layout: str

    @property
    def gate(self) -> str:
        return "a/locks" if self.layout == "curator" else "a-__lock__"

    @property
    def leases(self) -> str:
        return "a/leases" if self.layout == "curator" else "a"

    def lock(self, limit: int = 1) -> Lock:
        return zk_lock("a", limit=limit, layout=self.layout)

    @contextlib.contextmanager
    def stranger(self, key: str) -> Iterator[str]:
        """Have another client stand at the gate, or hold a permit."""
        kind = Kind.LOCK if key == self.gate else Kind.LEASE
        if self.layout == "kazoo":
            name = f"{uuid.uuid4().hex}__lock__" if key == self.gate else uuid.uuid4().hex
        else:
            name = nodes.prefix(str(uuid.uuid4()), kind)
        path = self.zoo.client.create(
            f"{self.zoo.base}/{key}/{name}",
            b"",
            ephemeral=True,
            sequence=key == self.gate or self.layout == "curator",
            makepath=True,
        )
        try:
            yield path
        finally:
            self.zoo.client.delete(path)

    def at_gate(self, count: int) -> list[str]:
        return self.zoo.wait_contenders(self.gate, count)

    def permits(self, count: int) -> list[str]:
        path = f"{self.zoo.base}/{self.leases}"

        def found() -> list[list[str]]:
            try:
                names = list(self.zoo.client.get_children(path))
            except NoNodeError:
                names = []  # an empty directory is reaped
            return [names] if len(names) == count else []

        return eventually(found, message=f"there are not {count} permits")[0]

    def waiting(self) -> Elsewhere[Hold | None]:
        """Begin to wait for the only permit, which is taken, in a thread that lets go of it at once."""

        def call() -> Hold | None:
            lock = zk_lock("a", limit=1, layout=self.layout, abort_on="lost")  # a cut in between is no loss
            hold = lock.acquire(timeout=20)
            if hold is not None:
                hold.check()
                assert len(self.permits(1)) == 1
                lock.release()
            return hold

        return Elsewhere(call)


@pytest.fixture(params=["curator", "kazoo"])
def semaphore(request: pytest.FixtureRequest, zoo: Zoo) -> Semaphore:
    return Semaphore(zoo, request.param)


def test_who_has_a_permit_can_be_seen_whoever_it_is(semaphore: Semaphore) -> None:
    """Other clients' nodes may have no number, and say nothing of themselves."""
    with semaphore.stranger(semaphore.leases) as stranger, semaphore.lock(2) as hold:
        found = contenders(semaphore.lock(2))
    assert {each.name: each.payload is not None for each in found} == {
        stranger.rpartition("/")[2]: False,
        hold._grant.path.rpartition("/")[2]: True,
    }


def test_as_many_as_the_limit_hold_and_the_others_wait(semaphore: Semaphore) -> None:
    """Each with a token of its own; the gate is free again as soon as one is through."""
    holds = [Elsewhere(lambda: semaphore.lock(2).acquire()).result() for _ in range(2)]
    assert all(holds)
    assert len({hold.token for hold in holds if hold}) == 2
    assert semaphore.at_gate(0) == []
    assert semaphore.lock(2).locked()
    with pytest.raises(LockBusy), zk_lock("a", limit=2, layout=semaphore.layout, timeout=0):
        pass
    for hold in holds:
        assert hold
        hold._held.release_to(0)
    semaphore.permits(0)
    assert not semaphore.lock(2).locked()
    with semaphore.lock(2) as hold:
        assert hold.kind == "semaphore"
        assert [each.name for each in contenders(semaphore.lock(2))] == [hold.path.rpartition("/")[2]]
        assert hold.path.startswith(f"{semaphore.zoo.base}/{semaphore.leases}/")


@pytest.mark.parametrize("where", ["gate", "leases"])
def test_who_gives_up_leaves_nothing(semaphore: Semaphore, where: str) -> None:
    """At the gate, or behind it; in time, and the next one passes."""
    lock = zk_lock("a", limit=1, layout=semaphore.layout, timeout=0.3)
    with semaphore.stranger(getattr(semaphore, where)):
        with within(1.5), pytest.raises(LockTimeout), lock:
            pass
        semaphore.at_gate(int(where == "gate"))
    with semaphore.lock():
        pass


def test_a_cancelled_task_leaves_nothing(semaphore: Semaphore) -> None:
    """Neither at the gate nor behind it."""

    async def wait() -> None:
        async with semaphore.lock():
            raise AssertionError("there is no permit")

    async def cancel() -> None:
        tasks = [asyncio.create_task(wait()) for _ in range(2)]
        while len(semaphore.zoo.children(semaphore.gate)) < 2:
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    with semaphore.stranger(semaphore.leases):
        asyncio.run(cancel())
        semaphore.permits(1)
        semaphore.at_gate(0)


@pytest.mark.parametrize("where", ["gate", "leases"])
def test_who_waits_does_so_in_the_next_session_too(semaphore: Semaphore, where: str) -> None:
    """A lost session takes gate and lease away, and what was seen behind the gate does not count any more."""
    connected()
    with semaphore.stranger(getattr(semaphore, where)):
        waiter = semaphore.waiting()
        semaphore.at_gate(1 if where == "leases" else 2)
        before = session().session_id
        expire(semaphore.zoo)
        eventually(lambda: session().session_id not in (None, before))
        semaphore.at_gate(1 if where == "leases" else 2)
        assert waiter.is_alive()
    assert waiter.result()


@pytest.mark.parametrize("where", ["gate", "leases"])
def test_who_waits_outlives_a_cut_connection(semaphore: Semaphore, where: str) -> None:
    """The session is the same, so its place is, too."""
    with proxied(semaphore.zoo) as proxy:
        connected()
        with semaphore.stranger(getattr(semaphore, where)):
            waiter = semaphore.waiting()
            names = semaphore.at_gate(1 if where == "leases" else 2)
            cut(proxy)
            assert semaphore.at_gate(len(names)) == names
            assert waiter.is_alive()
        assert waiter.result()


@pytest.mark.parametrize("when", ["kill_before_op", "kill_after_op"])
@pytest.mark.parametrize("opcode", [CREATE2, GET_CHILDREN, DELETE])
@pytest.mark.parametrize("behind", [False, True], ids=["at the gate", "behind it"])
def test_a_cut_at_any_step_takes_no_permit_twice(semaphore: Semaphore, opcode: int, when: str, behind: bool) -> None:
    """Whether gate and lease were made, or let go of, or not: there is one lease in the end, and then none."""
    with semaphore.lock():
        pass
    with proxied(semaphore.zoo) as proxy:
        connected()
        if behind:
            with semaphore.stranger(semaphore.gate):
                waiter = semaphore.waiting()
                semaphore.at_gate(2)
                fired = getattr(proxy, when)(opcode)
        else:
            fired = getattr(proxy, when)(opcode)
            waiter = semaphore.waiting()
        assert waiter.result()
        semaphore.permits(0)
        semaphore.at_gate(0)
        eventually(fired.is_set)


def test_who_is_put_out_of_the_gate_passes_it_once_more(semaphore: Semaphore) -> None:
    """Somebody else may have passed meanwhile, so that what was seen behind it does not count any more."""
    with semaphore.stranger(semaphore.leases):
        waiter = semaphore.waiting()
        (name,) = semaphore.at_gate(1)
        semaphore.permits(2)
        semaphore.zoo.client.delete(f"{semaphore.zoo.base}/{semaphore.gate}/{name}")
        eventually(lambda: semaphore.zoo.children(semaphore.gate) not in ([], [name]))
        assert waiter.is_alive()
    assert waiter.result()


def test_a_permit_taken_away_stops_the_work(semaphore: Semaphore) -> None:
    """As with any lock."""
    hold, said = lose(semaphore.lock(), lambda hold: semaphore.zoo.client.delete(hold.path), 2)
    assert "deleted" in said
    assert hold.lost


def test_a_try_that_must_fail_writes_nothing(semaphore: Semaphore) -> None:
    """It looks first, and does not even go to the gate."""
    with semaphore.lock():
        pass
    with proxied(semaphore.zoo) as proxy, semaphore.stranger(semaphore.leases):
        connected()
        proxy.reset()
        if semaphore.layout == "kazoo":
            with pytest.raises(LimitMismatch), zk_lock("a", limit=5, layout="kazoo", timeout=0):
                pass
        assert semaphore.lock().acquire(blocking=False) is None
        assert not {CREATE2, DELETE, SET_DATA} & proxy.counts.keys(), proxy.counts


def test_a_try_waits_a_moment_at_the_gate_if_there_is_a_permit(semaphore: Semaphore) -> None:
    """Who is in it is about to go through, most likely; not longer than a second, though."""
    with semaphore.stranger(semaphore.gate):
        with within(1.5):
            assert semaphore.lock().acquire(blocking=False) is None
        semaphore.at_gate(1)
        patient = Elsewhere(lambda: semaphore.lock().acquire(blocking=False))
        semaphore.at_gate(2)
    hold = patient.result()
    assert hold
    hold._held.release_to(0)
    semaphore.permits(0)


def test_the_audit_knows_gate_and_lease(semaphore: Semaphore) -> None:
    """It deletes what nobody here knows; these are known, in any grammar."""
    with semaphore.lock() as hold:
        waiter = semaphore.waiting()
        names = semaphore.at_gate(1)
        semaphore.permits(2)
        registry = process.current().attached(Registry)
        process.current().post(registry.audit)
        with zk_lock("another"):
            hold.check()
        assert semaphore.at_gate(1) == names
        semaphore.permits(2)
        hold.check()
    assert waiter.result()


@pytest.mark.parametrize("kind", ["lock", "read", "write"])
def test_the_audit_knows_contenders_in_the_grammar_of_kazoo(zoo: Zoo, kind: str) -> None:
    """The name tells the guid without its dashes, and it is the same contender."""
    with zk_lock("a", kind=kind, layout="kazoo") as hold:
        registry = process.current().attached(Registry)
        process.current().post(registry.audit)
        with zk_lock("another"):
            hold.check()
        assert zoo.client.exists(hold.path)
        assert zoo.payloads("a")[0]


@pytest.mark.parametrize("timeout", [0, 0.5, None])
def test_nobody_waits_for_ever_where_there_is_no_zookeeper(semaphore: Semaphore, timeout: float | None) -> None:
    """That nobody can be asked is told within the time to connect, as by any lock."""
    lock = zk_lock("a", limit=1, layout=semaphore.layout, timeout=timeout)
    with (
        semaphore.zoo.configured("127.0.0.1:1", CONNECT_TIMEOUT=0.8),
        within(2.0),
        pytest.raises(ZooKeeperUnavailable),
        lock,
    ):
        pass


def test_a_layout_for_neighbours_goes_with_no_rest(semaphore: Semaphore) -> None:
    """They would wait for a node that only processes of ours know to end."""
    with pytest.raises(ValueError, match="would not know when that time is over"):
        zk_lock("a", limit=1, layout=semaphore.layout, hold_at_least=5).acquire()


# --- the number that kazoo's processes go by --------------------------------------------------------------------------


def test_the_limit_is_written_where_kazoo_looks_for_it(zoo: Zoo) -> None:
    """By whoever is first, so that a process with another number refuses to go on; kazoo's do, and ours."""
    with zk_lock("a", limit=2, layout="kazoo"):
        assert zoo.client.get(f"{zoo.base}/a")[0] == b"2"
        with pytest.raises(LimitMismatch, match="has 2 permits, and not 3"):
            Elsewhere(zk_lock("a", limit=3, layout="kazoo").acquire).result()
        with pytest.raises(ValueError, match="Inconsistent max leases"):
            zoo.client.Semaphore(f"{zoo.base}/a", max_leases=3).acquire()


@pytest.mark.parametrize(("data", "after"), [(b"", b"2"), (b"2", b"2"), (b"notes", b"notes")])
def test_what_is_written_there_is_minded_if_it_is_a_number(zoo: Zoo, data: bytes, after: bytes) -> None:
    """A node that was never written may be one that kazoo has just made; what is no number is somebody's own."""
    zoo.client.create(f"{zoo.base}/a", data, makepath=True)
    with zk_lock("a", limit=2, layout="kazoo"):
        assert zoo.client.get(f"{zoo.base}/a")[0] == after


def test_directories_in_the_layout_of_kazoo_last(zoo: Zoo) -> None:
    """For kazoo's recipes remember that there is one, and fail where the server has reaped it."""
    theirs = zoo.client.Lock(f"{zoo.base}/a")
    semaphore = zoo.client.Semaphore(f"{zoo.base}/b", max_leases=2)
    with zk_lock("a", layout="kazoo"), zk_lock("b", limit=2, layout="kazoo"), zk_lock("c"):
        assert not theirs.acquire(blocking=False)
        assert semaphore.acquire()
        semaphore.release()
    eventually(lambda: not zoo.client.exists(f"{zoo.base}/c"), 8)  # which nobody was to keep
    assert theirs.acquire(blocking=False)
    theirs.release()
    assert semaphore.acquire(blocking=False)
    semaphore.release()


def test_who_gives_up_just_as_the_gate_opens_takes_no_permit(semaphore: Semaphore) -> None:
    """What the gate comes to while it is being left is of no use: nobody would ever let go of the permit behind it."""
    connected()
    with semaphore.stranger(semaphore.gate) as stranger:
        attempt = Acquisition(semaphore.lock().terms)
        attempt.start(process.current(), ThreadWaiter[Outcome](), 20, 0)
        assert attempt.contender
        semaphore.at_gate(2)
        eventually(lambda: attempt.contender and (attempt.contender.ahead is not None or attempt.contender.placed))
        left, told = threading.Event(), threading.Event()

        def leave() -> None:
            assert isinstance(attempt.contender, Gated)
            attempt.contender._leave(lambda gone: told.set())
            left.set()
            eventually(lambda: session().loop._delivered, 5)

        session().post(leave)
        assert left.wait(5)
        semaphore.zoo.client.delete(stranger)
        semaphore.zoo.client.create(stranger, b"", ephemeral=True)  # for the end of the block
        assert told.wait(5)
        semaphore.at_gate(1)
        eventually(lambda: len(semaphore.zoo.contenders()) == 1, 2)  # no lease
        assert not session().attached(Registry).members
