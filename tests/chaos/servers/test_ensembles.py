"""Servers that die, freeze or restart grant no lock twice, and cost none that need not be lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from support.chaos.servers import attached_to, repair, repaired, serving
from support.chaos.worker_pool import Call, LockWorker, WorkerPool
from support.ensemble import Ensemble
from support.zoo import Zoo, eventually

from django_zklock.zk.lease import LEASE_SHARE

pytestmark = [pytest.mark.zookeeper, pytest.mark.chaos]

LONGEST = 20.0  # seconds; of sessions
LATER = 0.5  # seconds of room for a busy machine

#: What kazoo's Lock leaves to its user: whether a lock is still one's own after the connection was suspended.
UNDECIDED = "kazoo says nothing of a lock after a suspended connection, so good practice gives it up"


@pytest.fixture(scope="module")
def servers() -> Iterator[Ensemble]:
    """Three servers."""
    with Ensemble(nodes=3, max_session_timeout=LONGEST) as ensemble:
        yield ensemble


@pytest.fixture
def ensemble(servers: Ensemble) -> Iterator[Ensemble]:
    """The servers, all of them serving before and after."""
    with repaired(servers) as ensemble:
        yield ensemble


def tokens_there(zoo: Zoo) -> list[int]:
    """Return which transactions created the contenders that are in the queue."""
    stats = [zoo.client.exists(f"{zoo.base}/k/{name}") for name in zoo.children("k")]
    return [stat.czxid for stat in stats if stat is not None]


@pytest.mark.scenario("F20")
def test_an_election_that_is_shorter_than_the_lease_costs_no_lock(
    pool: WorkerPool, ensemble: Ensemble, figure: Callable[..., None]
) -> None:
    """The same node goes on counting, and the work under it goes on."""
    if pool.lock != "zklock":
        pytest.skip(UNDECIDED)
    timeout = 12.0
    a, b = pool.start("A", "B", session_timeout=timeout)
    token = a.take(abort_on="lost")["token"]
    waiting = b.acquire(timeout=60, abort_on="lost")
    pool.wait_contenders(2)
    working = a.work(seconds=2 * LEASE_SHARE * timeout)
    killed = pool.note("kill server", target=None)
    ensemble.leader.kill()
    eventually(lambda: any(server.mode() == "leader" for server in ensemble.servers), 30)
    election = pool.note("heal") - killed
    figure("election", election, "s")
    assert election < LEASE_SHARE * timeout, "it took too long to tell anything"
    assert not working.result(30)["lost"]
    assert not waiting.done()
    serving(pool.zoo)
    assert token in tokens_there(pool.zoo)
    a.release().result()
    assert waiting.result(20)["granted"]
    b.release().result()
    pool.assert_kept()


@pytest.mark.scenario("F21")
@pytest.mark.timeout(120)
def test_without_a_quorum_the_holder_is_told_and_nobody_is_granted(
    pool: WorkerPool, ensemble: Ensemble, figure: Callable[..., None]
) -> None:
    """Three session timeouts long; one holder comes out of it."""
    a, b, c = pool.start("A", "B", "C")
    token = a.take(abort_on="lost")["token"]
    working = a.work()
    waiting = b.acquire(timeout=90)
    pool.wait_contenders(2)
    leader, follower, _ = ensemble.leader, *ensemble.followers
    killed = pool.note("kill server")
    for server in (leader, follower):
        server.kill()
    told = working.result(20)
    assert told["lost"]
    figure("told after", told["t"] - killed, "s")
    assert told["t"] - killed <= LEASE_SHARE * a.session_timeout + LATER
    released = a.release()
    hopeless = c.acquire(timeout=3)
    time.sleep(max(0.0, killed + 3 * a.session_timeout - time.monotonic()))
    assert not waiting.done() or not waiting.result()["granted"]
    assert hopeless.done(), "no answer within the deadline"
    assert not hopeless.result()["granted"]
    repair(ensemble)
    back = pool.note("heal")
    serving(pool.zoo)
    answer = waiting.result(100)
    if not answer["granted"]:  # kazoo's Lock gives up when its session is over
        answer = b.take(timeout=30)
    figure("next holder after the restart", answer["t"] - back, "s")
    assert answer["token"] > token
    once_more = c.acquire(timeout=30)
    b.work(seconds=1).result()
    assert not once_more.done()
    b.release().result()
    assert once_more.result(35)["granted"]
    c.release().result()
    released.result(30)
    pool.assert_kept()


@pytest.mark.scenario("F23")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("role", ["follower", "leader"])
def test_a_server_that_freezes_is_left_for_another_or_the_hold_is_lost_by_its_lease(
    pool: WorkerPool, ensemble: Ensemble, figure: Callable[..., None], role: str
) -> None:
    """It breaks no connection and answers nothing, for two session timeouts."""
    timeout = 6.0
    frozen = ensemble.leader if role == "leader" else ensemble.followers[0]
    others = ",".join(server.address for server in ensemble.servers if server is not frozen)
    b = pool.start_one("B", hosts=others, session_timeout=timeout)
    a = hire_attached(pool, ensemble, frozen.address, others, timeout)
    token = a.take(abort_on="lost")["token"]
    working = a.work()
    waiting = b.acquire(timeout=60, abort_on="lost")
    pool.wait_contenders(2)
    began = pool.note("pause server")
    frozen.pause()
    eventually(lambda: attached_to(a, ensemble) not in (None, frozen), 2 * timeout, "still with the frozen server")
    figure(f"elsewhere after ({role})", time.monotonic() - began, "s")
    time.sleep(max(0.0, began + 2 * timeout - time.monotonic()))
    lost = working.done()
    figure(f"the lock ({role})", "lost" if lost else "held")
    frozen.resume()
    pool.note("heal")
    serving(pool.zoo)
    if lost:
        told = working.result()
        assert told["t"] - began <= LEASE_SHARE * timeout + LATER or pool.lock != "zklock"
    else:
        assert not waiting.done()
        assert token in tokens_there(pool.zoo)
        a.stop_work()
    a.release().result()
    assert waiting.result(40)["granted"]
    b.release().result()
    pool.assert_kept(settle=5)


def hire_attached(pool: WorkerPool, ensemble: Ensemble, address: str, others: str, timeout: float) -> LockWorker:
    """Hire until one is with this server; clients draw theirs."""
    for number in range(30):
        worker = pool.start_one(f"A{number}", hosts=f"{address},{others}", session_timeout=timeout)
        server = attached_to(worker, ensemble)
        if server is not None and server.address == address:
            return worker
        worker.dismiss()
    raise AssertionError(f"no client connected to {address}")


@pytest.mark.scenario("F24")
@pytest.mark.timeout(240)
def test_a_rolling_restart_costs_no_lock(pool: WorkerPool, ensemble: Ensemble, figure: Callable[..., None]) -> None:
    """
    Twelve processes, each with a session of 20 s, three to a key, take turns while one server after the other restarts.

    Two cores bear no more of them; a session's fate does not depend on how many others there are.
    """
    if pool.lock != "zklock":
        pytest.skip(UNDECIDED)
    pool.keys = tuple(f"k{number}" for number in range(4))
    workers = pool.start(*(f"P{number}" for number in range(12)), session_timeout=LONGEST)
    turns = Turns(workers, pool.keys)
    for server in ensemble.servers:
        turns.take_for(4)
        pool.note("kill server")
        server.terminate()
        turns.take_until(lambda server=server: not server.running)  # type: ignore[misc]
        server.start()
        turns.take_until(lambda server=server: server.mode() is not None)  # type: ignore[misc]
        pool.note("heal")
    turns.take_for(4)
    turns.end()
    figure("turns", len(turns.taken))
    assert [turn for turn in turns.taken if not turn["granted"] or turn["lost"]] == []
    serving(pool.zoo)
    pool.assert_kept()


class Turns:
    """Processes that take a lock, work for a while, and give it back, again and again."""

    def __init__(self, workers: list[LockWorker], keys: tuple[str, ...]) -> None:
        self.taken: list[dict[str, object]] = []
        self._keys = {worker: keys[number % len(keys)] for number, worker in enumerate(workers)}
        self._calls = {worker: self._begin(worker) for worker in workers}

    def _begin(self, worker: LockWorker) -> Call:
        about = {"as": "main", "key": self._keys[worker], "timeout": 60, "seconds": 0.2, "abort_on": "lost"}
        return worker.tell("turn", **about)

    def take_until(self, condition: Callable[[], bool], timeout: float = 60.0) -> None:
        """Have all processes take turns until something has happened."""
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline
            for worker, call in self._calls.items():
                if call.done():
                    self.taken.append(call.result())
                    self._calls[worker] = self._begin(worker)
            time.sleep(0.02)

    def take_for(self, seconds: float) -> None:
        """Have all processes take turns for a while."""
        end = time.monotonic() + seconds
        self.take_until(lambda: time.monotonic() > end)

    def end(self) -> None:
        """Let the last turns end."""
        self.taken += [call.result(90) for call in self._calls.values()]
