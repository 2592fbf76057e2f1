"""Processes of Apache Curator and of kazoo on one path with ours: who keeps whom out, in which order, and who leads."""

import logging
import os
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest
from support.faults import acquire_once
from support.neighbours.curator import curator
from support.neighbours.ours import Ours, options_of, our_process
from support.neighbours.protocol import TIMEOUT, OtherClientGone, kazoo
from support.neighbours.sides import Side, granted, waits
from support.zoo import eventually

from django_zklock import inspection, zk_leader, zk_lock
from django_zklock.core.queue.nodes import Payload
from django_zklock.exceptions import UnreadableQueue

CHAOS = pytest.mark.chaos

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
    ("kazoo", "write+", "write"),
    ("kazoo", "read+", "write"),
    ("kazoo", "write+", "read"),
    ("curator", "selector", "leader"),
    ("kazoo", "election", "leader+kazoo"),
    ("kazoo", "election+", "leader"),
]
SHARED = [
    ("curator", "read", "read", "write"),
    ("kazoo", "read", "read+kazoo", "write+kazoo"),
    ("kazoo", "read+", "read", "write"),
]


name = "-".join


@pytest.fixture
def ours(zoo):
    with closing(Ours(zoo.base)) as ours:
        yield ours


@pytest.fixture
def theirs(request):
    params = request.node.callspec.params
    which = params["which"] if "which" in params else params["case"][0]
    return request.getfixturevalue("jvm" if which == "curator" else "plain_kazoo")


def sides(zoo, theirs, ours, case):
    path = f"{zoo.base}/a"
    return Side(theirs, case[1], path), Side(ours, case[2], path)


@pytest.mark.parametrize("first", ["theirs", "ours"])
@pytest.mark.parametrize("case", EXCLUSIVE, ids=name)
def test_locks_of_both_clients_exclude_each_other(zoo, theirs, ours, case, first):
    holder, other = sides(zoo, theirs, ours, case)
    if first == "ours":
        holder, other = other, holder
    assert holder.try_acquire()
    assert not other.try_acquire("b", 0)
    waiter = other.begin("b")
    zoo.wait_contenders("a", 2)
    assert waits(waiter)
    holder.release()
    assert granted(waiter)
    assert not holder.try_acquire("c", 0)
    other.release("b")


@pytest.mark.parametrize("case", [case for case in EXCLUSIVE if "read" not in name(case)], ids=name)
def test_both_clients_share_the_order_of_the_queue(zoo, theirs, ours, case):
    first, other = sides(zoo, theirs, ours, case)
    assert first.try_acquire("0")
    queue = []
    for number in range(1, 7):
        side = (first, other)[number % 2]
        queue.append((side, str(number), side.begin(str(number))))
        zoo.wait_contenders("a", number + 1)
    before, actor = first, "0"
    for index, (side, waiter, answer) in enumerate(queue):
        assert not any(later.done() for *_, later in queue[index:])
        before.release(actor)
        assert granted(answer)
        before, actor = side, waiter
    before.release(actor)


# A killed process is waited for until its session is over, which takes two seconds; so one case of each client here.
def kills(cases, quick):
    return [
        pytest.param(case, killed, id=f"{name(case)}-{killed}", marks=[] if (case[1], killed) in quick else [CHAOS])
        for case in cases
        for killed in ("theirs", "ours")
    ]


@pytest.mark.parametrize(
    ("case", "killed"), kills(EXCLUSIVE, {("mutex", "theirs"), ("lock+", "theirs"), ("lock", "ours")})
)
@pytest.mark.chaos
def test_a_killed_client_leaves_the_queue(zoo, theirs, ours, case, killed):
    doomed, other = sides(zoo, theirs, ours, case)
    if killed == "ours":
        doomed, other = other, doomed
    start = {"curator": curator, "kazoo": kazoo}[case[0]]
    with start(zoo.hosts, session_timeout=2) if killed == "theirs" else our_process(zoo) as process:
        doomed = replace(doomed, client=process)
        assert doomed.try_acquire("1")
        second = other.begin("2")
        zoo.wait_contenders("a", 2)
        third = doomed.begin("3")
        zoo.wait_contenders("a", 3)
        last = other.begin("4")
        zoo.wait_contenders("a", 4)
        process.kill()
        assert isinstance(third.exception(TIMEOUT), OtherClientGone)
        assert granted(second)
        other.release("2")
        assert granted(last)
        other.release("4")


@pytest.mark.parametrize("first", ["theirs", "ours"])
@pytest.mark.parametrize("case", SHARED, ids=name)
def test_readers_of_both_clients_share_and_no_writer_starves(zoo, theirs, ours, case, first):
    path = f"{zoo.base}/a"
    their_read, their_write = Side(theirs, case[1], path), Side(theirs, case[1].replace("read", "write"), path)
    our_read, our_write = Side(ours, case[2], path), Side(ours, case[3], path)
    pairs = [(their_read, their_write), (our_read, our_write)]
    (read, write), (other_read, other_write) = pairs if first == "theirs" else pairs[::-1]
    assert read.try_acquire("1")
    assert other_read.try_acquire("2")
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


# Their lock, and ours in the same directory, which theirs does not see.
BLIND = [
    ("mutex", "read", "read-write lock znode"),
    ("mutex", "write", "read-write lock znode"),
    ("read", "lock", 'use kind="read" or kind="write"'),
    ("write", "lock", 'use kind="read" or kind="write"'),
    ("mutex", "lock+kazoo", "in kazoo's grammar"),
    ("write", "write+kazoo", "in kazoo's grammar"),
]


@pytest.mark.parametrize(("their", "our", "said"), BLIND)
def test_a_lock_next_to_a_recipe_of_curator_that_ignores_it_is_refused(zoo, jvm, their, our, said):
    path = f"{zoo.base}/a"
    assert jvm.try_acquire("1", their, path)
    lock = zk_lock("a", **options_of(our))
    assert lock.acquire(blocking=False) is None
    with pytest.raises(UnreadableQueue, match=said):
        lock.acquire()
    zoo.wait_contenders("a", 1)
    jvm.release("1", their, path)
    acquire_once("a", **options_of(our), timeout=30)


def test_a_contender_behind_a_mutex_of_curator_gets_an_error(zoo, jvm, ours):
    """Curator's mutex passes over a writer of ours, which cannot be prevented; nobody of ours goes on from there."""
    path = f"{zoo.base}/a"
    with zk_lock("a", kind="write") as hold:
        assert jvm.try_acquire("1", "mutex", path)
        with pytest.raises(UnreadableQueue, match="does not see"):
            ours.try_acquire("2", "write", path)
        hold.check()
        jvm.release("1", "mutex", path)


def test_a_plain_lock_of_kazoos_does_not_see_readers(zoo, plain_kazoo):
    """It does not see kazoo's own readers. Its node is named like a writer's, so nobody can tell; the docs say so."""
    path = f"{zoo.base}/a"
    assert plain_kazoo.try_acquire("1", "read", path)
    assert plain_kazoo.try_acquire("2", "lock", path)
    assert zk_lock("a", kind="write", compat="kazoo").acquire(blocking=False) is None
    for actor, kind in (("1", "read"), ("2", "lock")):
        plain_kazoo.release(actor, kind, path)


@pytest.mark.parametrize(
    ("theirs", "options"), [("mutex", {}), ("read", {"kind": "write"}), ("write", {"kind": "read"})]
)
def test_a_release_can_be_requested_of_a_holder_of_curator(zoo, jvm, theirs, options):
    """By the word that Curator's own `Revoker` writes, if that process has said that it minds it."""
    path = f"{zoo.base}/a"
    assert jvm.ask("1", "revocable", theirs, path) == "true"
    assert jvm.try_acquire("1", theirs, path)
    (name,) = zoo.wait_contenders("a", 1)
    zoo.client.set(f"{path}/{name}", b"__REVOKE__")
    eventually(lambda: jvm.ask("1", "revoked", theirs, path) == "true")
    assert zk_lock("a", **options).acquire(blocking=False) is None
    jvm.release("1", theirs, path)


# --- elections: Curator's `LeaderSelector` and `LeaderLatch`, and kazoo's `Election` ----------------------------------


# Their client and candidate, what that answers about who is there, and our option compat.
THEIRS = [
    ("curator", "selector", "participants", None),
    ("kazoo", "election", "contenders", "kazoo"),
    ("kazoo", "election+", "contenders", None),
]


@contextmanager
def leading(zoo, client, kind, name, key="a"):
    path = f"{zoo.base}/{key}"
    assert client.acquire("1", kind, path, 10, name).result(TIMEOUT) == "true"
    try:
        yield
    finally:
        client.release("1", kind, path)


@pytest.mark.parametrize(("which", "kind", "asked", "compat"), THEIRS)
def test_other_clients_show_our_candidates(zoo, theirs, which, kind, asked, compat):
    path = f"{zoo.base}/a"
    with zk_leader("a", compat=compat, what="index über") as hold:
        waiter = theirs.acquire("1", kind, path, -1, "web-7")
        zoo.wait_contenders("a", 2)
        leader, other = theirs.ask("2", asked, kind, path).split("\t")
        if which == "curator":
            eventually(lambda: theirs.ask("2", asked, kind, path).startswith(theirs.ask("2", "leader", kind, path)))
            leader, other = leader.removeprefix("leads:"), other.removeprefix("waits:")
        assert other == "web-7"
        said = Payload.decode(leader.encode())
        assert (said.what, said.pid) == ("index über", os.getpid())
        hold.check()
    assert waiter.result(TIMEOUT) == "true"
    theirs.release("1", kind, path)


LOOKS = [
    lambda: zk_leader("a").run(lambda hold: hold.token),
    lambda: zk_leader("a").locked(),
    lambda: zk_lock("a").acquire(blocking=False),
    lambda: zk_lock("a").locked(),
]


def test_an_election_refuses_the_queue_of_a_leader_latch(zoo, jvm, caplog):
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
