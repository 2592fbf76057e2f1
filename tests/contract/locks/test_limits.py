"""The limit of a semaphore is set for all processes while permits are taken and let go."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import logging
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError
from support.faults import BackgroundCall
from support.primitives import watched
from support.proxy import MULTI, Proxy
from support.zoo import Zoo, eventually

from django_zklock import Hold, zk_lock
from django_zklock.exceptions import LockBusy, LockChangedHands, LockLost, ZooKeeperUnavailable
from django_zklock.inspection import look_at
from django_zklock.operations import break_lock, clear_limit, limit_of, limits, request_release, set_limit
from django_zklock.operations.client import QueueClient
from django_zklock.queue import guids, nodes, order, standing
from django_zklock.queue.limits import Record
from django_zklock.queue.order import Queue
from django_zklock.queue.signs import Limit
from django_zklock.signals import limit_changed
from django_zklock.zk.gateway import DirectoryState

pytestmark = pytest.mark.zookeeper

WHY: dict[str, Any] = {"reason": "the printer is slow", "by": "anna"}


class Crowd:
    """Threads that want permits of one semaphore, and hold them until they are told to let go."""

    def __init__(self, zoo: Zoo, key: str, limit: int) -> None:
        self.held: list[int] = []  # numbers, in the order of the grants
        self.holds: dict[int, Hold] = {}
        self._zoo = zoo
        self._key = key
        self._limit = limit
        self._stops: list[threading.Event] = []
        self._threads: list[BackgroundCall[None]] = []

    def come(self, many: int) -> None:
        """Have so many more come, one after the other."""
        for _ in range(many):
            number = len(self._stops)
            self._stops.append(threading.Event())
            before = len(self._zoo.children(self._key))
            self._threads.append(BackgroundCall(lambda number=number: self._take(number)))  # type: ignore[misc]
            self._zoo.wait_contenders(self._key, before + 1)

    def _take(self, number: int) -> None:
        with zk_lock(self._key, limit=self._limit, timeout=30) as self.holds[number]:
            self.held.append(number)
            try:
                self._stops[number].wait(30)
            finally:
                self.held.remove(number)

    def go(self, *numbers: int) -> None:
        """Have these let go; wait until they have."""
        for number in numbers:
            self._stops[number].set()
            self._threads[number].result()

    def hold(self, *numbers: int) -> None:
        """Wait until exactly these have permits, and stay so for a moment."""
        eventually(lambda: sorted(self.held) == list(numbers), message=f"{self.held}, not {numbers}")
        time.sleep(0.1)  # nothing is awaited: nobody else may be granted
        assert sorted(self.held) == list(numbers)


@pytest.fixture
def crowd(zoo: Zoo) -> Iterator[Crowd]:
    """A semaphore of three permits in everybody's code."""
    found = Crowd(zoo, "k", 3)
    yield found
    found.go(*range(len(found._stops)))
    clear_limit("k", **WHY)


def signs_of(zoo: Zoo) -> list[str]:
    return [name for name in zoo.names(f"{zoo.base}/k") if name.startswith("!")]


def queue_of(zoo: Zoo) -> Queue:
    return order.ordered(zoo.names(f"{zoo.base}/k"))


# --- what it does -----------------------------------------------------------------------------------------------------


def test_a_raised_limit_gives_permits_to_as_many_more_as_there_are(zoo: Zoo, crowd: Crowd) -> None:
    """The first who wait; the others wait on."""
    crowd.come(7)
    crowd.hold(0, 1, 2)
    set_limit("k", 5, **WHY)
    crowd.hold(0, 1, 2, 3, 4)
    set_limit("k", 6, **WHY)
    crowd.hold(0, 1, 2, 3, 4, 5)


def test_a_lowered_limit_takes_no_permit_away_and_binds_who_comes(zoo: Zoo, crowd: Crowd) -> None:
    """The next is granted once fewer are held than there are permits now."""
    crowd.come(5)
    crowd.hold(0, 1, 2)
    set_limit("k", 1, **WHY)
    crowd.hold(0, 1, 2)
    crowd.go(0)
    crowd.hold(1, 2)
    crowd.go(2)
    crowd.hold(1)
    crowd.go(1)
    crowd.hold(3)
    with pytest.raises(LockBusy), zk_lock("k", limit=3, timeout=0):
        pass


def test_a_cleared_limit_lets_that_of_the_code_count_again(zoo: Zoo, crowd: Crowd) -> None:
    """For those who wait at that moment, too; and the directory is one that nothing but contenders are in."""
    set_limit("k", 1, **WHY)
    crowd.come(4)
    crowd.hold(0)
    assert clear_limit("k", **WHY)
    crowd.hold(0, 1, 2)
    assert signs_of(zoo) == []
    assert zoo.client.get(f"{zoo.base}/k")[0] == b""
    assert not clear_limit("k", **WHY)


def test_who_holds_beyond_what_its_code_says_is_seen_and_can_be_reached_when_the_limit_is_cleared(zoo: Zoo) -> None:
    """And nobody is let in for it; the sign that says so goes with the next who comes once they are gone."""
    crowd = Crowd(zoo, "k", 1)
    crowd.come(3)
    set_limit("k", 3, **WHY)
    crowd.hold(0, 1, 2)
    assert clear_limit("k", **WHY)
    crowd.come(1)
    crowd.hold(0, 1, 2)
    info = look_at("k")
    assert info is not None
    assert (len(info.holders), info.waiting, info.limit, info.limit_set) == (3, 1, 1, None)
    assert limit_of("k") is None
    assert not clear_limit("k", **WHY)
    assert len(request_release("k", "drain", by="anna").holders) == 3
    third = info.holders[2]
    break_lock("k", guid=third.guid, token=third.token, **WHY)
    eventually(lambda: crowd.holds[2].lost)
    with pytest.raises(LockLost):
        crowd.go(2)
    (waiter,) = info.waiters
    with pytest.raises(LockChangedHands):
        break_lock("k", guid=waiter.guid, token=waiter.token, **WHY)
    crowd.go(0)
    crowd.hold(1)
    crowd.go(1)
    crowd.hold(3)
    crowd.come(1)
    eventually(lambda: signs_of(zoo) == [])
    crowd.go(3, 4)


def test_a_limit_that_is_set_knows_those_who_hold_by_one_that_was_cleared(zoo: Zoo) -> None:
    """However often it is set and cleared."""
    crowd = Crowd(zoo, "k", 1)
    crowd.come(4)
    for limit in (3, 2):
        set_limit("k", limit, **WHY)
        crowd.hold(0, 1, 2)
        clear_limit("k", **WHY)
        assert len(signs_of(zoo)) == 1
    set_limit("k", 1, **WHY)
    assert standing.holders(queue_of(zoo)) == 3
    crowd.go(0, 1, 2, 3)
    clear_limit("k", **WHY)
    assert signs_of(zoo) == []


def test_who_has_not_heard_of_its_permit_has_it_all_the_same(zoo: Zoo) -> None:
    """Who looks sees that it has one, and so does it: a limit may be set and cleared while its answer is on the way."""

    def take() -> None:
        with zk_lock("k", limit=1, timeout=30):
            pass

    with zk_lock("k", limit=1) as hold:
        thread = BackgroundCall(take)
        waiting = zoo.wait_contenders("k", 2)[1]
        eventually(lambda: f"{zoo.base}/k" in watched(zoo))
        change = zoo.client.transaction()
        change.create(f"{zoo.base}/k/{Limit(0, int(waiting[-10:])).name}")
        change.set_data(f"{zoo.base}/k", b"")
        change.commit()
        thread.result()
        assert not hold.lost


def test_who_held_by_an_older_limit_counts_for_a_newer_one(zoo: Zoo, crowd: Crowd) -> None:
    """Nobody is granted because two changes came one after the other, and all who have permits are known for it."""
    crowd.come(5)
    crowd.hold(0, 1, 2)
    set_limit("k", 1, **WHY)
    set_limit("k", 2, **WHY)
    crowd.hold(0, 1, 2)
    assert standing.holders(queue_of(zoo)) == 3
    crowd.go(0)
    crowd.hold(1, 2)
    crowd.go(1)
    crowd.hold(2, 3)


def test_who_asks_whether_a_permit_is_free_has_none_by_an_older_limit(zoo: Zoo, crowd: Crowd) -> None:
    """Though there are numbers left that had one: they were those of others, and are given to nobody again."""
    crowd.come(3)
    crowd.hold(0, 1, 2)
    set_limit("k", 1, **WHY)
    crowd.go(1, 2)
    created = zoo.client.get(f"{zoo.base}/k")[1].cversion
    assert zk_lock("k", limit=3).locked()
    assert zk_lock("k", limit=3).acquire(blocking=False) is None
    assert zoo.client.get(f"{zoo.base}/k")[1].cversion == created  # nobody went in for it
    crowd.go(0)
    assert not zk_lock("k", limit=3).locked()


def test_a_limit_is_set_where_nobody_has_ever_been(zoo: Zoo) -> None:
    """It waits there for those who come; once it is cleared, the server may delete the directory."""
    assert limit_of("far/away") is None
    set_limit("far/away", 1, **WHY)
    found = limit_of("far/away")
    assert found is not None
    assert (found.limit, found.by, found.reason) == (1, "anna", "the printer is slow")
    assert found.when is not None
    with (
        zk_lock("far/away", limit=5),
        pytest.raises(LockBusy),
        zk_lock("far/away", limit=5, timeout=0, reentrant=False),
    ):
        pass
    clear_limit("far/away", **WHY)
    assert limit_of("far/away") is None
    with contextlib.suppress(NoNodeError):  # it has done so
        assert zoo.client.get_children(f"{zoo.base}/far/away") == []


def test_a_change_is_audited_and_told_by_a_signal(zoo: Zoo, caplog: pytest.LogCaptureFixture) -> None:
    """With who did it and why; a limit that was cleared is told as None."""

    def receiver(**given: Any) -> None:
        told.append((given["lock"], given["limit"], given["by"], given["reason"]))

    told: list[tuple[Any, ...]] = []
    limit_changed.connect(receiver)
    try:
        with caplog.at_level(logging.INFO, "zklock.audit"):
            set_limit("k", 2, **WHY)
            clear_limit("k", reason="it is mended", by="ben")
            eventually(lambda: len(told) == 2)
    finally:
        limit_changed.disconnect(receiver)
    assert told == [("k", 2, "anna", "the printer is slow"), ("k", None, "ben", "it is mended")]
    assert [record.getMessage() for record in caplog.records if record.name == "zklock.audit"] == [
        "the limit of lock 'k' was set to 2 by anna: the printer is slow",
        "the limit of lock 'k' was cleared by ben: it is mended",
    ]


@pytest.mark.parametrize("limit", [0, -1, 10_001, True, 2.5, None])
def test_what_is_no_number_of_permits_is_refused(zoo: Zoo, limit: Any) -> None:
    """Before anything is sent."""
    with pytest.raises(ValueError, match="from 1 to 10000"):
        set_limit("k", limit, **WHY)


@pytest.mark.parametrize("missing", [{"reason": " "}, {"by": ""}])
def test_a_change_needs_a_name_and_a_reason(zoo: Zoo, missing: dict[str, str]) -> None:
    """Others will ask."""
    for change in (lambda **why: set_limit("k", 1, **why), lambda **why: clear_limit("k", **why)):
        with pytest.raises(ValueError, match="empty"):
            change(**{**WHY, **missing})


# --- while the queue moves --------------------------------------------------------------------------------------------


class Race:
    """A change of the limit to 1, taken apart: its look, and its write; the queue may move between them."""

    def __init__(self, zoo: Zoo) -> None:
        self.client = QueueClient("k", 5)
        self.setting = limits._Setting(self.client.parent, 1, Record("anna", "x"))
        self.setting.limits = dict.fromkeys(zoo.children("k"), 3)

    def look(self) -> Any:
        family: DirectoryState = self.client.request(
            lambda gateway, done: gateway.read_directory(self.client.parent, done)
        )
        return self.setting(family, 0)

    def write(self, step: Any) -> bool:
        answer = self.client.request(lambda gateway, done: gateway.commit(step.operations, done))
        return answer is None


def sign(zoo: Zoo) -> Any:
    found = queue_of(zoo).limit
    assert found is not None
    return found


def leave(zoo: Zoo, place: int) -> None:
    zoo.client.delete(f"{zoo.base}/k/{zoo.children('k')[place]}")


def enter(zoo: Zoo, limit: int = 3) -> str:
    """Have a contender come that is nobody's, with so many permits in its code."""
    data = nodes.Payload(guid="g", host="h", pid=1, thread="t", what="", since="", template="k", limit=limit).encode()
    prefix = nodes.prefix(guids.new(guids.Mark.OWN), nodes.Kind.LEASE)
    return str(zoo.client.create(f"{zoo.base}/k/{prefix}", data, ephemeral=True, sequence=True, makepath=True))


def swap(zoo: Zoo) -> None:
    """Have the first leave and another one come."""
    leave(zoo, 0)
    enter(zoo)


@pytest.fixture
def empty(zoo: Zoo) -> Iterator[None]:
    """Who has come is gone at the end."""
    yield
    for path in zoo.contenders():
        zoo.client.delete(path)
    clear_limit("k", **WHY)


MOVES: dict[str, tuple[int, Callable[[Zoo], object]]] = {
    "somebody comes, and there is room": (2, enter),
    "a holder leaves, and another is behind": (4, functools.partial(leave, place=1)),
    "the first that waits leaves": (5, functools.partial(leave, place=3)),
    "one leaves and one comes": (3, swap),
    "nobody is there, and one comes": (0, enter),
}


@pytest.mark.usefixtures("empty")
@pytest.mark.parametrize("move", MOVES)
def test_a_change_fails_if_other_contenders_have_permits_than_it_saw(zoo: Zoo, move: str) -> None:
    """So the sign names the last that had a permit at the very moment; who comes later has none by it."""
    many, happens = MOVES[move]
    zoo.client.ensure_path(f"{zoo.base}/k")
    for _ in range(many):
        enter(zoo)
    race = Race(zoo)
    step = race.look()
    happens(zoo)
    assert not race.write(step)
    assert signs_of(zoo) == []
    race.setting.limits = dict.fromkeys(zoo.children("k"), 3)
    while not race.write(race.look()):
        pass
    queue = queue_of(zoo)
    granted = queue[:3]
    assert sign(zoo).through == granted[-1].sequence
    assert standing.holders(queue) == len(granted)


@pytest.mark.usefixtures("empty")
def test_a_change_does_not_mind_who_comes_to_wait(zoo: Zoo) -> None:
    """It decides nothing, and a busy queue has always somebody coming."""
    for _ in range(4):
        enter(zoo)
    race = Race(zoo)
    step = race.look()
    enter(zoo)
    assert race.write(step)
    assert standing.holders(queue_of(zoo)) == 3


@pytest.mark.usefixtures("empty")
def test_a_change_minds_who_comes_if_it_may_know_of_more_permits(zoo: Zoo) -> None:
    """The last waits, as it knows of one permit; who comes behind it knows of three, and has one at once."""
    for limit in (3, 1):
        enter(zoo, limit)
    race = Race(zoo)
    race.setting.limits = dict(zip(zoo.children("k"), (3, 1), strict=True))
    step = race.look()
    late = enter(zoo).rpartition("/")[2]
    if race.write(step):
        assert not sign(zoo).sure
    else:
        race.setting.limits[late] = 3
        while not race.write(race.look()):
            pass
        assert sign(zoo).through == int(late[-10:])


@pytest.mark.usefixtures("empty")
def test_that_somebody_may_have_a_permit_still_is_said_for_as_long_as_that_one_is_there(zoo: Zoo) -> None:
    """Whoever comes meanwhile does not take it for over, for all that everybody who is known for it has gone."""
    first = enter(zoo)
    set_limit("k", 3, **WHY)
    race = Race(zoo)
    race.setting = limits._Clearing(race.client.parent)  # type: ignore[assignment]
    race.setting._tries = limits.STEADY
    step = race.look()
    for _ in range(2):
        enter(zoo, 1)
    assert race.write(step)
    zoo.client.delete(first)
    assert zk_lock("k", limit=1).acquire(timeout=0.2) is None
    info = look_at("k")
    assert info is not None
    assert [each.may_hold for each in info.waiters] == [True]
    for path in zoo.contenders():
        zoo.client.delete(path)
    with zk_lock("k", limit=1):
        eventually(lambda: signs_of(zoo) == [])


@pytest.mark.usefixtures("empty")
def test_in_a_queue_that_never_holds_still_nobody_is_granted_beyond_both_limits(zoo: Zoo) -> None:
    """After some tries the change is made as the queue was seen: it may know too few for holders, never too many."""
    for _ in range(5):
        enter(zoo)
    race = Race(zoo)
    for _ in range(limits.STEADY):
        step = race.look()
        leave(zoo, 0)
        enter(zoo)
        race.setting.limits = dict.fromkeys(zoo.children("k"), 3)
        assert not race.write(step)
    step = race.look()
    before = queue_of(zoo)
    leave(zoo, 0)
    enter(zoo)
    assert race.write(step)
    assert sign(zoo).through == before[2].sequence
    assert standing.holders(queue_of(zoo)) == 2  # a third has a permit


@pytest.mark.usefixtures("empty")
@pytest.mark.parametrize("clears", [False, True])
def test_who_may_have_a_permit_still_is_shown_as_that_and_can_be_reached(zoo: Zoo, clears: bool) -> None:
    """Of those that came before a change for which the queue never stood still; by name, and no other."""
    for _ in range(4):
        enter(zoo)
    race = Race(zoo)
    if clears:
        set_limit("k", 4, **WHY)
        race.setting = limits._Clearing(race.client.parent)  # type: ignore[assignment]
    race.setting.limits = dict.fromkeys(zoo.children("k"), 1)
    race.setting._tries = limits.STEADY
    step = race.look()
    leave(zoo, 0)
    late = enter(zoo).rpartition("/")[2]
    assert race.write(step)
    after = enter(zoo).rpartition("/")[2]
    info = look_at("k")
    assert info is not None
    doubtful = [each.name for each in info.waiters if each.may_hold]
    assert late in doubtful
    assert after not in doubtful
    assert after in [each.name for each in info.waiters]
    assert not any(each.may_hold for each in info.holders)
    meant = {each.name: each for each in info.waiters}
    (asked,) = request_release("k", "drain", by="anna", guid=meant[late].guid, token=meant[late].token).holders
    assert asked.name == late
    with pytest.raises(LockChangedHands):
        break_lock("k", guid=meant[after].guid, token=meant[after].token, **WHY)
    break_lock("k", guid=meant[late].guid, token=meant[late].token, **WHY)
    assert late not in zoo.children("k")
    set_limit("k", 1, **WHY)
    assert not sign(zoo).sure  # the queue stood still, but who had a permit before is still not known


def test_two_changes_at_once_leave_one_limit(zoo: Zoo) -> None:
    """The later one's."""
    with zk_lock("k", limit=2):
        changes = [BackgroundCall(lambda limit=limit: set_limit("k", limit, **WHY)) for limit in range(1, 9)]  # type: ignore[misc]
        for change in changes:
            change.result()
        (name,) = signs_of(zoo)
        found = limit_of("k")
        assert found is not None
        assert name.startswith(f"!limit:{found.limit}:")
    clear_limit("k", **WHY)


WORKER = """
import fcntl, json, sys, threading, time, random
def change(path, by):
    with open(path, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        state = json.load(file)
        state["inside"] += by
        state["grants"] += by > 0
        if state["inside"] > state["allowed"]:
            state["wrong"].append((state["inside"], state["allowed"]))
        file.seek(0); file.truncate(); json.dump(state, file)
        return state["stop"]
def work():
    while True:
        with zk_lock("k", limit=3, timeout=30, reentrant=False):
            change(sys.argv[1], 1)
            time.sleep(random.random() * 0.01)
            if change(sys.argv[1], -1):
                return
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


class Counter:
    """How many are inside at the moment, over all processes; in a file that each of them locks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_text(json.dumps({"inside": 0, "allowed": 3, "grants": 0, "wrong": [], "stop": False}))

    @contextlib.contextmanager
    def state(self) -> Iterator[dict[str, Any]]:
        with self.path.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            state = json.load(file)
            yield state
            file.seek(0)
            file.truncate()
            json.dump(state, file)

    def allow(self, many: int) -> None:
        with self.state() as state:
            state["allowed"] = many


@pytest.mark.chaos
def test_never_more_are_inside_than_the_limit_allows_while_it_is_changed_under_load(zoo: Zoo, tmp_path: Path) -> None:
    """
    Three processes take and let go of permits all the time.

    What is allowed rises before the limit does. It falls once so few of those that were there at the change are left:
    by then, none may be inside by an older limit but those that were counted.
    """
    counter = Counter(tmp_path / "inside")
    processes: list[subprocess.Popen[str]] = [zoo.spawn(WORKER, str(counter.path)) for _ in range(3)]
    now = 3
    try:
        zoo.wait_contenders("k", 12, 30)
        for limit in (6, 1, 4, 2, 8, 3, 1, 5):
            with counter.state() as state:
                grants = state["grants"]
                state["allowed"] = max(now, limit)
            set_limit("k", limit, **WHY)
            there = sum(child.sequence <= sign(zoo).through for child in queue_of(zoo))
            while there > limit:
                there = sum(child.sequence <= sign(zoo).through for child in queue_of(zoo))
            counter.allow(limit)
            now = limit
            eventually(lambda: json_of(counter)["grants"] > grants + 20)  # noqa: B023
    finally:
        with counter.state() as state:
            state["stop"] = True
        told = [process.communicate(timeout=30) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], told
    assert json_of(counter)["wrong"] == []
    clear_limit("k", **WHY)


def json_of(counter: Counter) -> dict[str, Any]:
    with counter.state() as state:
        return state


# --- while answers are lost -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["kill_before_op", "kill_after_op"])
def test_a_change_survives_a_cut(zoo: Zoo, proxy: Proxy, caplog: pytest.LogCaptureFixture, when: str) -> None:
    """It is known as one's own work, written once, and audited once."""
    zoo.client.ensure_path(f"{zoo.base}/k")
    with caplog.at_level(logging.INFO, "zklock.audit"):
        fired = getattr(proxy, when)(MULTI)
        set_limit("k", 2, **WHY)
        assert fired.is_set()
        assert len(signs_of(zoo)) == 1
        assert zoo.client.exists(f"{zoo.base}/k").version == 1
        fired = getattr(proxy, when)(MULTI)
        assert clear_limit("k", **WHY)
        assert fired.is_set()
        assert signs_of(zoo) == []
    assert [record.name for record in caplog.records].count("zklock.audit") == 2


def test_a_change_whose_answer_never_comes_is_audited_as_that(
    zoo: Zoo, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    """And no one waits longer than was said."""
    proxy.refuse = True
    proxy.cut_all()
    with caplog.at_level(logging.INFO, "zklock.audit"):
        for change in (lambda: set_limit("k", 2, patience=0.3, **WHY), lambda: clear_limit("k", patience=0.3, **WHY)):
            with pytest.raises(ZooKeeperUnavailable):
                change()
    assert all("may have been" in record.getMessage() for record in caplog.records if record.name == "zklock.audit")
    proxy.heal()
