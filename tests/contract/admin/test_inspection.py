"""Snapshots, `look_at` and the report about each server: what they show, and what they cost."""

import asyncio
import contextlib
import functools
import json
import os
import threading
import time
import uuid
from types import SimpleNamespace

import pytest
from kazoo.security import OPEN_ACL_UNSAFE, make_acl
from support.faults import BackgroundCall, acquire_once, connected, results, within
from support.locking import ending
from support.proxy import CREATE2, DELETE, MULTI_READ, SET_DATA, Proxy
from support.refused import on_real_server
from support.work import seen
from support.zoo import ROOM, eventually

from django_zklock import inspection, zk_lock
from django_zklock.core.execution import work
from django_zklock.core.execution.work import Work
from django_zklock.core.queue import nodes
from django_zklock.core.queue.nodes import Payload
from django_zklock.core.queue.operator_hold import RESERVATIONS
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.inspection import check_quorum, ensemble, look_at, scan, snapshot
from django_zklock.operations import clear_limit, set_limit

pytestmark = pytest.mark.usefixtures("emptied")


def join(zoo, key, prefix, data=b""):
    """Add a contender of any kind to a queue, with nobody behind it; return its name."""
    path = zoo.client.create(f"{zoo.base}/{key}/{prefix}", data, ephemeral=True, sequence=True, makepath=True)
    return path.rpartition("/")[2]


def contender(zoo, key, kind=nodes.Kind.LOCK, **more):
    """Add a contender that looks like one of ours."""
    guid = nodes.new_guid(nodes.Mark.OWN)
    given = {"host": "web-1", "pid": 7, "thread": "MainThread", "what": "GET /buy", "since": "", "template": key}
    return join(zoo, key, nodes.prefix(guid, kind), Payload(**{"guid": guid, **given, **more}).encode())


def permit(zoo, key, limit=0):
    """Add a contender for a permit that knows of this limit."""
    return contender(zoo, key, nodes.Kind.PERMIT, limit=limit)


def fresh(**more):
    shown = snapshot(**{"max_age": 0, "reply_timeout": 5, **more})
    assert not shown.problem
    return shown


def test_a_holder_is_shown_with_its_znode_and_its_session(zoo):
    with zk_lock("inventory/{sku}", fields={"sku": "a b"}) as hold:
        (lock,) = fresh().locks
        (name,) = zoo.children(lock.key)
        stat = zoo.client.exists(f"{lock.path}/{name}")
    assert (lock.key, lock.kind, lock.problem) == ("inventory/a%20b", "lock", "")
    assert lock.path == f"{zoo.base}/{lock.key}"
    (holder,) = lock.holders
    assert (holder.name, holder.path) == (name, f"{lock.path}/{name}")
    assert (holder.token, holder.session_id) == (hold.token, stat.ephemeralOwner)
    assert (holder.client, holder.template, holder.waits_behind) == ("zklock", "inventory/{sku}", "")
    assert holder.came.timestamp() == pytest.approx(stat.ctime / 1000)
    assert holder.guid in name


def test_waiters_are_shown_in_order_with_their_work(zoo):
    about = {"task": "buy", "id": "7"}
    first = contender(zoo, "k")
    waiting = [contender(zoo, "k", host=f"web-{number}", about=about) for number in (1, 2)]
    (lock,) = fresh(max_waiters=2).locks
    assert lock.waiting == 2
    assert [(waiter.name, waiter.waits_behind) for waiter in lock.waiters] == [
        (waiting[0], first),
        (waiting[1], waiting[0]),
    ]
    assert [(waiter.host, dict(waiter.about)) for waiter in lock.waiters] == [("web-1", about), ("web-2", about)]
    assert seen("k").waiters[1].name == waiting[1]


def test_locks_are_found_at_any_depth(zoo):
    for key in ("a", "a/b", "a/b/c/d", "z"):
        contender(zoo, key)
    zoo.client.ensure_path(f"{zoo.base}/free/lock")
    zoo.client.create(f"{zoo.base}/!records/x/t-worker", makepath=True)
    shown = fresh()
    assert [lock.key for lock in shown.locks] == ["a", "a/b", "a/b/c/d", "z"]
    assert shown.total == 4
    assert look_at("free/lock") is None
    assert look_at("never/seen") is None
    assert look_at("no//key") is None


@pytest.fixture
def crowd(zoo):
    for key, many in (("a", 2), ("b", 5), ("c", 1)):
        for _ in range(many):
            contender(zoo, key)


@pytest.mark.usefixtures("crowd")
def test_waiters_that_are_not_shown_are_counted():
    few = fresh(max_waiters=0, max_locks=2)
    assert [(lock.key, lock.waiting, lock.waiters) for lock in few.locks] == [("a", 1, ()), ("b", 4, ())]
    assert few.total == 3
    assert all(lock.longest_wait is not None and len(lock.holders) == 1 for lock in few.locks)


@pytest.mark.usefixtures("crowd")
def test_so_many_waiters_of_each_lock_are_shown():
    more = fresh(max_waiters=2)
    assert [(lock.key, len(lock.waiters)) for lock in more.locks] == [("a", 1), ("b", 2), ("c", 0)]


def test_reservations_hide_no_lock(zoo):
    """There may be a reservation for each task in a queue."""
    for key in ("orders/1", f"{RESERVATIONS}/task/report/1", f"{RESERVATIONS}/task/report/2", "z"):
        contender(zoo, key)
    assert [lock.key for lock in fresh(max_locks=2).locks] == ["orders/1", "z"]
    assert len(fresh(max_locks=3).locks) == 3


def test_clients_are_distinguished(zoo):
    guid = str(uuid.uuid4())
    join(zoo, "k", nodes.prefix(guid), b"10.0.3.9")
    join(zoo, "k", nodes.prefix(str(uuid.uuid4())), b"indexer on\x1b web-7")
    join(zoo, "k", nodes.prefix(str(uuid.uuid4())), b"__REVOKE__")
    join(zoo, "k", nodes.prefix(nodes.new_guid(nodes.Mark.OWN)), b"{nonsense")
    join(
        zoo,
        "k",
        nodes.prefix(str(uuid.uuid4())),
        Payload(guid=guid, host="evil", pid=1, thread="", what="", since="", template="").encode(),
    )
    join(zoo, "l", f"{uuid.uuid4().hex}__lock__", b"cron on db-1")
    contenders = (first for lock in (seen("k"), seen("l")) for first in (*lock.holders, *lock.waiters))
    assert [(contender.client, contender.host, contender.what) for contender in contenders] == [
        ("Curator", "10.0.3.9", ""),
        ("Curator", "", "indexer on\\x1b web-7"),
        ("Curator", "", ""),
        ("unknown", "", "{nonsense"),
        ("unknown", "evil", ""),
        ("kazoo", "", "cron on db-1"),
    ]


def test_readers_hold_a_lock_together(zoo):
    kinds = [nodes.Kind.READ, nodes.Kind.READ, nodes.Kind.WRITE, nodes.Kind.READ, nodes.Kind.READ]
    names = [join(zoo, "k", nodes.prefix(str(uuid.uuid4()), kind)) for kind in kinds]
    lock = seen("k")
    assert lock.kind == "read-write"
    assert [holder.name for holder in lock.holders] == names[:2]
    assert [waiter.waits_behind for waiter in lock.waiters] == [names[1], names[2], names[2]]


LIMITS = [2, 1, 3, 4, 2, 2, 2]
"""Of the contenders in a queue. The one with the low limit waits, and two with higher ones behind it hold permits."""


@pytest.mark.parametrize("max_waiters", [0, 1, 50])
def test_a_limit_that_was_set_is_that_of_all_holders(zoo, max_waiters):
    """The second contender knows of one permit, so it holds none by its code. By the new limit it does."""
    names = [permit(zoo, "k", limit) for limit in LIMITS]
    set_limit("k", 2, by="anna", reason="they differ")
    (lock,) = fresh(max_waiters=max_waiters).locks
    assert (lock.limit, lock.own_limits, lock.waiting) == (2, (), 3)
    assert [holder.name for holder in lock.holders] == names[:4]
    assert lock.holders_at_most
    clear_limit("k", by="anna", reason="mended")


def test_a_limit_that_was_set_is_shown_with_user_and_reason(zoo):
    names = [permit(zoo, "k", 3) for _ in range(5)]
    set_limit("k", 1, by="anna", reason="the printer is slow")
    try:
        permit(zoo, "k", 9)
        for lock in (*fresh().locks, seen("k")):
            assert (lock.limit, lock.waiting, lock.holders_at_most) == (1, 3, True)
            assert [holder.name for holder in lock.holders] == names[:3]
            change = lock.limit_set
            assert change is not None
            assert (change.by, change.reason) == ("anna", "the printer is slow")
            assert abs((change.when - lock.holders[0].came).total_seconds()) < 60
    finally:
        clear_limit("k", by="anna", reason="mended")


def test_a_contender_in_the_grammar_of_kazoo_is_known_by_its_payload(zoo):
    with zk_lock("k", compat="kazoo"):
        join(zoo, "k", f"{uuid.uuid4().hex}__lock__", b"other")
        lock = seen("k")
        assert [contender.client for contender in (*lock.holders, *lock.waiters)] == ["zklock", "kazoo"]
        assert lock.holders[0].pid == os.getpid()


def test_an_unreadable_queue_is_shown_with_the_reason(zoo):
    contender(zoo, "fine")
    join(zoo, "odd", "who-knows-")
    contender(zoo, "odd")
    fine, odd = fresh().locks
    assert (fine.key, fine.problem) == ("fine", "")
    assert (odd.key, odd.holders, odd.waiting) == ("odd", (), 2)
    assert "no known client writes" in odd.problem
    assert seen("odd").problem == odd.problem


def test_names_that_are_not_keys_are_skipped_and_reported(zoo):
    contender(zoo, "fine")
    zoo.client.ensure_path(f"{zoo.base}/evil\u202elock")
    zoo.client.ensure_path(f"{zoo.base}/{'x' * 1100}")
    shown = fresh()
    assert [lock.key for lock in shown.locks] == ["fine"]
    assert len(shown.skipped) == 2
    assert all(note.isascii() and note.isprintable() and len(note) < 200 for note in shown.skipped)


HOSTILE = [
    b"<script>alert(1)</script>",
    b"\x1b]0;owned\x07\x1b[2J",
    b'{"guid":"GUID","pid":1e999,"what":["x"],"about":[1],"host":{"a":1}}',
    json.dumps(
        {"guid": "GUID", "what": "\x1b[31mred\r\n\u202egnp.exe", "host": "\ud800", "thread": "t" * 9000}
    ).encode(),
    json.dumps(
        {"guid": "GUID", "about": {f"\x1b{n}": "\x9b" * 2000 for n in range(50)}, "template": "\u2028"}
    ).encode(),
    json.dumps({"guid": "GUID", "about": {"operator": "\x1b[2J", "seconds": "1e999", "reason": "\n"}}).encode(),
]


@pytest.mark.parametrize("data", HOSTILE, ids=lambda data: repr(data[:12]))
def test_texts_are_capped_and_printable(zoo, data):
    guid = str(uuid.uuid4())
    join(zoo, "k", nodes.prefix(guid), data.replace(b"GUID", guid.encode()))
    contender(zoo, "other")
    lock, other = fresh().locks
    (holder,) = lock.holders
    texts = [holder.host, holder.thread, holder.what, holder.template, *holder.about, *holder.about.values()]
    assert all(text.isprintable() and len(text) <= 512 for text in texts)
    assert len(holder.about) <= 8
    assert 0 <= holder.pid < 2**31
    assert holder.operator is None
    "".join(texts).encode()
    assert other.holders[0].host == "web-1"


def test_ages_are_by_the_clock_of_zookeeper(zoo, monkeypatch):
    contender(zoo, "k")
    monkeypatch.setattr(scan, "time", SimpleNamespace(time=lambda: time.time() + 3600))
    shown = fresh()
    assert shown.locks[0].holders[0].age < 60
    assert abs((shown.taken_at - shown.locks[0].holders[0].came).total_seconds()) < 60
    assert "!clock" not in zoo.client.get_children(zoo.base)


def test_a_holder_that_does_not_say_since_when_holds_at_most_since_it_came(zoo):
    """It may be another client. So its hold does not count as long. In the first seconds, that makes no difference."""
    contender(zoo, "k")
    (lock,) = fresh().locks
    assert not lock.holders[0].held_at_most
    (lock,) = eventually(lambda: [lock for lock in fresh().locks if lock.holders[0].held_at_most])
    (holder,) = lock.holders
    assert holder.held_since == holder.came
    assert holder.granted is holder.ends is None
    assert not lock.holders[0].certain_duration
    with zoo.configured(DEFAULTS={"warn_after": 0.1}):
        assert lock.state == "held"


def test_a_holder_says_after_which_time_its_hold_is_long(zoo):
    """Also if only its code knows: then all that look judge it by that."""
    with zk_lock("k", warn_after=90.5):
        (lock,) = fresh().locks
    assert lock.holders[0].long_after == 90.5


def test_callers_at_the_same_time_share_one_scan(zoo, proxy):
    contender(zoo, "k")
    fresh()
    proxy.reset()
    proxy.delay = 0.1
    askers = [BackgroundCall(lambda: snapshot(max_age=30, max_waiters=3, reply_timeout=30)) for _ in range(20)]
    answers = [asker.result() for asker in askers]
    proxy.delay = 0.0
    assert all([lock.key for lock in answer.locks] == ["k"] for answer in answers)
    assert proxy.counts[MULTI_READ] == 3


def test_requests_hardly_grow_with_the_waiters(zoo, proxy):
    keys = [f"shop/sku-{number}" for number in range(40)]

    def join_each(waiters):
        for key in keys * waiters:
            contender(zoo, key)

    def asked():
        fresh()  # the next look knows the sizes
        proxy.reset()
        fresh()
        assert not any(proxy.counts[opcode] for opcode in (CREATE2, SET_DATA, DELETE))
        return proxy.reads, proxy.counts[MULTI_READ]

    join_each(3)
    assert asked() == (42 + 80, 4)  # three levels of directories; the holders, and the first waiters
    join_each(10)
    assert asked() == (42 + 80, 4)


@pytest.mark.parametrize(
    ("look", "reads", "waiters"), [(lambda: fresh().locks[0], 2 + 2, 1), (lambda: seen("k"), 1 + 51, 50)]
)
def test_of_a_long_queue_only_the_first_waiters_are_read(zoo, proxy, look, reads, waiters):
    for _ in range(60):
        contender(zoo, "k")
    proxy.reset()
    lock = look()
    assert proxy.reads == reads
    assert (len(lock.waiters), lock.waiting) == (waiters, 59)


def test_without_zookeeper_the_last_snapshot_is_shown_with_its_age(zoo, proxy):
    contender(zoo, "k")
    fresh()
    eventually(lambda: snapshot(max_age=60).age >= 0.3)
    proxy.hang = True
    proxy.cut_all()
    with within(1.2):
        shown = snapshot(max_age=0, reply_timeout=0.5)
    assert "No connection to ZooKeeper at" in shown.problem
    assert [lock.key for lock in shown.locks] == ["k"]
    assert shown.age >= 0.3
    assert shown.connection.state == "suspended"
    assert shown.connection.server == ""
    with within(1.2), pytest.raises(ZooKeeperUnavailable):
        look_at("k", reply_timeout=0.5)
    proxy.hang = False
    proxy.cut_all()
    connected()
    assert fresh().connection.server == proxy.address


def test_a_process_that_never_reached_zookeeper_gets_an_empty_snapshot(zoo):
    with Proxy(zoo.address) as proxy:
        proxy.refuse = True
        with zoo.configured(proxy.address), within(1.2):
            shown = snapshot(reply_timeout=0.4)
            assert shown.problem
            assert (shown.locks, shown.total, shown.connection.session_id) == ((), 0, 0)


def test_the_connection_is_described(zoo):
    connection = fresh().connection
    assert connection.state == "connected"
    assert connection.server in zoo.all_hosts.split(",")
    assert connection.session_id == connected().session_id
    assert connection.timeout == pytest.approx(20)
    assert connection.hosts == tuple(zoo.hosts.split(","))


async def cross(mine, others, met):
    async with zk_lock(mine):
        await asyncio.to_thread(met.wait, 30)
        async with zk_lock(others, timeout=30):
            pass


async def hold_or_wait(key):
    async with zk_lock(key, timeout=30):
        await asyncio.sleep(30)


def cross_in_thread(mine, others, met):
    with zk_lock(mine):
        met.wait(30)
        if zk_lock(others).acquire(timeout=4) is not None:
            zk_lock(others).release()


@contextlib.contextmanager
def acquiring_crosswise_in_threads():
    met = threading.Barrier(2)
    threads = [BackgroundCall(functools.partial(cross_in_thread, mine, others, met)) for mine, others in ("xy", "yx")]
    yield
    results(threads)


def acquiring_crosswise_in_tasks():
    met = threading.Barrier(2)
    return in_tasks(cross("x", "y", met), cross("y", "x", met))


@contextlib.contextmanager
def in_tasks(*works):
    """Run coroutines in one loop, of another thread, and cancel them at the end of the block."""
    loop = asyncio.new_event_loop()
    tasks = [loop.create_task(work) for work in works]
    runner = BackgroundCall(lambda: loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True)))
    try:
        yield
    finally:
        for task in tasks:
            loop.call_soon_threadsafe(task.cancel)
        runner.result()
        loop.close()


def test_a_snapshot_has_an_owner_for_each_coroutine(zoo):
    with in_tasks(*(hold_or_wait(key) for key in "xxyy")):
        for key in "xy":
            zoo.wait_contenders(key, 2)
        shown = fresh()
        assert sum(lock.waiting for lock in shown.locks) == 2
        assert (shown.waits, shown.cycles) == ((), ())


@pytest.mark.usefixtures("told_waits")
@pytest.mark.parametrize("acquiring", [acquiring_crosswise_in_threads, acquiring_crosswise_in_tasks])
def test_a_deadlock_is_found(zoo, acquiring):
    with zoo.configured(DEADLOCK_TIMEOUT=None), acquiring():
        cycles = eventually(lambda: fresh().cycles, 5)
    ((first, second),) = cycles
    assert {(first.holds, first.waits_for), (second.holds, second.waits_for)} == {("x", "y"), ("y", "x")}
    assert first.owner != second.owner


def test_a_snapshot_without_limits_has_every_contender(zoo):
    names = [contender(zoo, "k", pid=index + 1) for index in range(60)]
    join(zoo, "odd", "who-knows-")
    lock, odd = fresh(max_locks=None, max_waiters=None).locks
    contenders = (*lock.holders, *lock.waiters)
    assert [contender.name for contender in contenders] == names
    assert [contender.pid for contender in contenders] == list(range(1, 61))
    assert "no known client writes" in odd.problem


@pytest.mark.django_db
def test_data_of_a_hostile_client_stop_no_waiter_and_no_look(zoo):
    deep, huge = b'{"by":' + b"[" * 10_000, b'{"pid":1' + b"0" * 400 + b',"until":1' + b"0" * 400 + b"}"
    endless = b'{"ends":NaN,"until":1e999,"about":{"operator":"\\u001b[2J","seconds":"inf"}}'
    hold = nodes.prefix(nodes.new_guid(nodes.Mark.OPERATOR))
    with zk_lock("k") as held:
        waiter = BackgroundCall(lambda: acquire_once("k", timeout=60))
        zoo.wait_contenders("k", 2)
        for number, data in enumerate([deep, huge, endless, b"\xff\x00", b"__REVOKE__", b"x" * 900_000]):
            zoo.client.set(held.path, data)
            join(zoo, "k", nodes.prefix(str(uuid.uuid4())), data)
            join(zoo, "k", hold, data)
            names = ("%21unique/u", "!beat/b", "!broken/b")
            for name in (*names, f"!ends/000000000{number}-..!..!{hold}000000000"):
                zoo.client.create(f"{zoo.base}/{name}{number}", data, makepath=True)
        shown = [ending(*command.split())[1] for command in ("list", "status", "show k", "doctor")]
        assert all(text and text.replace("\n", "").isprintable() for text in shown)
        assert fresh().total == 1
        acquire_once("another", timeout=5, min_hold=0.1)
    assert waiter.result()
    eventually(lambda: not zoo.children("another"))


def task(task_id):
    return Work(f"task shop.pay {task_id}", {"task": "shop.pay", "id": task_id, "retries": "0", "queue": "celery"})


def look():
    return inspection.snapshot(max_age=0, reply_timeout=5)


class Threads:
    """Threads that work for tasks, until `end`."""

    def __init__(self):
        self._stop = threading.Event()
        self._calls = []

    def start(self, of, key, then=""):
        """Let a thread of this work hold a lock, and wait for another one. Return an event: it holds the first."""
        held = threading.Event()

        def run():
            work.begin(of)
            with zk_lock(key, timeout=40):
                held.set()
                if then:
                    acquire_once(then, timeout=40)
                self._stop.wait(60)

        self._calls.append(BackgroundCall(run))
        return held

    def end(self):
        self._stop.set()
        results(self._calls, 60)


@pytest.fixture
def threads():
    threads = Threads()
    yield threads
    threads.end()


@pytest.mark.usefixtures("told_waits")
def test_a_search_that_reached_its_limit_says_so(zoo, monkeypatch, threads):
    monkeypatch.setattr(inspection.waits, "MAX_WAITS", 1)
    monkeypatch.setattr(inspection.queries, "MAX_WAITS", 1)
    assert threads.start(task("1"), "a").wait(20)
    assert threads.start(task("2"), "b", then="a").wait(20)
    zoo.wait_contenders("a", 2)
    eventually(lambda: not look().complete)


def test_the_report_has_role_version_and_the_time_of_a_write(zoo):
    check_quorum(reply_timeout=1 + ROOM)
    report = ensemble(max_age=0)
    (server,) = report.servers
    assert (server.address, server.role, server.serves, server.problem) == (zoo.address, "standalone", True, "")
    assert server.version.startswith("3.")
    assert report.has_quorum
    assert 0 < report.write_seconds < ROOM
    assert (report.refused, report.is_slow) == ("", False)


def test_writes_that_take_long_are_slow(zoo, proxy):
    connected()
    proxy.delay = 0.5
    report = ensemble(reply_timeout=ROOM, max_age=0)
    assert report.has_quorum
    assert report.is_slow


@on_real_server
def test_a_root_in_which_this_process_may_not_create_is_told(zoo):
    """Without the right to delete there, locks work."""
    zoo.client.ensure_path(zoo.base)
    try:
        zoo.client.set_acls(zoo.base, [make_acl("world", "anyone", read=True, create=True, admin=True)])
        check_quorum(reply_timeout=1 + ROOM, max_age=0)
        zoo.client.set_acls(zoo.base, [make_acl("world", "anyone", read=True, delete=True, admin=True)])
        report = ensemble(reply_timeout=ROOM, max_age=0)
        with pytest.raises(ZooKeeperUnavailable, match='the right "create"'):
            check_quorum(reply_timeout=1 + ROOM, max_age=0)
    finally:
        zoo.client.set_acls(zoo.base, OPEN_ACL_UNSAFE)
    assert report.has_quorum
    assert 'the right "create"' in report.refused
