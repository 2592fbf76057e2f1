"""Processes of Apache Curator and of kazoo on one path with ours: who keeps whom out, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.neighbours.curator import curator
from support.neighbours.kazooneighbour import kazoo
from support.neighbours.ours import Ours, our_process
from support.neighbours.protocol import PATIENCE, Neighbour, NeighbourGone
from support.neighbours.sides import Side, granted, waits
from support.zoo import Zoo

pytestmark = pytest.mark.zookeeper

# Their client and lock, and ours. On one path, each keeps the other out.
EXCLUSIVE = [
    ("curator", "mutex", "lock"),
    ("curator", "write", "write"),
    ("curator", "write", "read"),
    ("curator", "read", "write"),
    ("kazoo", "lock", "lock+kazoo"),
    ("kazoo", "lock+", "lock"),
    ("kazoo", "write", "write+kazoo"),
    ("kazoo", "write", "read+kazoo"),
    ("kazoo", "read", "write+kazoo"),
]
SHARED = [("curator", "read", "read", "write"), ("kazoo", "read", "read+kazoo", "write+kazoo")]


def name(case: tuple[str, ...]) -> str:
    return "-".join(case)


@pytest.fixture
def ours(zoo: Zoo) -> Iterator[Ours]:
    ours = Ours(zoo.base)
    yield ours
    ours.close()


def started(which: str, zoo: Zoo) -> Neighbour:
    return (curator if which == "curator" else kazoo)(zoo.hosts, session_timeout=2)


@pytest.fixture
def theirs(request: pytest.FixtureRequest) -> Neighbour:
    which = request.node.callspec.params["case"][0]
    found: Neighbour = request.getfixturevalue("jvm" if which == "curator" else "plain_kazoo")
    return found


def sides(zoo: Zoo, theirs: Neighbour, ours: Ours | Neighbour, case: tuple[str, ...]) -> tuple[Side, Side]:
    path = f"{zoo.base}/a"
    return Side(theirs, case[1], path), Side(ours, case[2], path)


@pytest.mark.parametrize("first", ["theirs", "ours"])
@pytest.mark.parametrize("case", EXCLUSIVE, ids=name)
def test_each_keeps_the_other_out(zoo: Zoo, theirs: Neighbour, ours: Ours, case: tuple[str, ...], first: str) -> None:
    """A try fails while the other side has it, and who waits has it as soon as that lets go."""
    holder, other = sides(zoo, theirs, ours, case)
    if first == "ours":
        holder, other = other, holder
    assert holder.take()
    assert not other.take("b", 0)
    waiter = other.begin("b")
    zoo.wait_contenders("a", 2)
    assert waits(waiter)
    holder.release()
    assert granted(waiter)
    assert not holder.take("c", 0)
    other.release("b")


@pytest.mark.parametrize("case", EXCLUSIVE, ids=name)
def test_first_come_first_served(zoo: Zoo, theirs: Neighbour, ours: Ours, case: tuple[str, ...]) -> None:
    """Whichever client they are of."""
    if "read" in case[1:][0] or "read" in case[2]:
        pytest.skip("readers next to each other share")
    one, other = sides(zoo, theirs, ours, case)
    assert one.take("0")
    queue = []
    for number in range(1, 7):
        side = (one, other)[number % 2]
        queue.append((side, str(number), side.begin(str(number))))
        zoo.wait_contenders("a", number + 1)
    before, actor = one, "0"
    for index, (side, waiter, answer) in enumerate(queue):
        assert not any(later.done() for *_, later in queue[index:])
        before.release(actor)
        assert granted(answer)
        before, actor = side, waiter
    before.release(actor)


# --- a process is killed ----------------------------------------------------------------------------------------------

# A killed process is waited for until its session is over.
KILLED = [
    pytest.param(case, marks=[] if case[1] in ("mutex", "lock+") else pytest.mark.chaos, id=name(case))
    for case in EXCLUSIVE
]


@pytest.mark.parametrize("killed", ["theirs", "ours"])
@pytest.mark.parametrize("case", KILLED)
def test_who_is_killed_is_out_of_the_queue(
    zoo: Zoo, theirs: Neighbour, ours: Ours, case: tuple[str, ...], killed: str
) -> None:
    """Be it holding or waiting: who waits behind has its turn once the session is over, whichever client it is of."""
    doomed, other = sides(zoo, theirs, ours, case)
    if killed == "ours":
        doomed, other = other, doomed
    with started(case[0], zoo) if killed == "theirs" else our_process(zoo) as process:
        doomed = replace(doomed, client=process)
        assert doomed.take("1")
        second = other.begin("2")
        zoo.wait_contenders("a", 2)
        third = doomed.begin("3")
        zoo.wait_contenders("a", 3)
        last = other.begin("4")
        zoo.wait_contenders("a", 4)
        process.kill()
        assert isinstance(third.exception(PATIENCE), NeighbourGone)
        assert granted(second)
        other.release("2")
        assert granted(last)
        other.release("4")


# --- readers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["theirs", "ours"])
@pytest.mark.parametrize("case", SHARED, ids=name)
def test_readers_share_and_nobody_starves(
    zoo: Zoo, theirs: Neighbour, ours: Ours, case: tuple[str, ...], first: str
) -> None:
    """Readers of both clients hold together; who comes behind a waiting writer of either waits for that one."""
    path = f"{zoo.base}/a"
    their_read, their_write = Side(theirs, case[1], path), Side(theirs, "write", path)
    our_read, our_write = Side(ours, case[2], path), Side(ours, case[3], path)
    pairs = [(their_read, their_write), (our_read, our_write)]
    (read, write), (other_read, other_write) = pairs if first == "theirs" else pairs[::-1]
    assert read.take("1")
    assert other_read.take("2")
    writer = write.begin("3")
    zoo.wait_contenders("a", 3)
    late = other_read.begin("4")
    zoo.wait_contenders("a", 4)
    later = read.begin("5")
    zoo.wait_contenders("a", 5)
    last = other_write.begin("6")
    zoo.wait_contenders("a", 6)
    read.release("1")
    assert waits(writer)
    other_read.release("2")
    assert granted(writer)
    assert waits(late)
    assert waits(later)
    write.release("3")
    assert granted(late)
    assert granted(later)
    other_read.release("4")
    assert waits(last)
    read.release("5")
    assert granted(last)
    other_write.release("6")
