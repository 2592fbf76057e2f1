"""Which causes the report finds in given queues and servers, and who is to blame."""

from dataclasses import replace

import pytest
from support.lookinfo import HOLDER, NOTHING, NOW

from django_zklock.core.queue.deadlock import WaitsFor
from django_zklock.core.queue.nodes import Child, Kind
from django_zklock.core.queue.operator_hold import OperatorHold
from django_zklock.core.queue.order import Queue
from django_zklock.inspection import EnsembleReport, Graph, LockInfo, ServerReport
from django_zklock.inspection.waits import find_waits
from django_zklock.report import past
from django_zklock.report.verdict import CAUSES, look

RUNS = tuple(
    ServerReport(address=f"zk{number}:2181", state="serves", role=role, zxid=5 << 32 | 7)
    for number, role in enumerate(("leader", "follower", "follower"), 1)
)
NO_SERVERS = EnsembleReport((), True)


@pytest.fixture(autouse=True)
def without_past(monkeypatch):
    """No app records the past."""
    monkeypatch.setattr(past, "source", None)


def told(locks):
    """Return locks whose holders say what they wait for, as owners with a number do, and the queues."""
    guids = {
        (waiter.session_id, waiter.owner): (lock.key, f"{lock.key} {number}")
        for lock in locks
        for number, waiter in enumerate(lock.waiters)
        if waiter.owner
    }

    def tell(holder):
        said = guids.get((holder.session_id, holder.owner))
        return holder if said is None else replace(holder, wait=WaitsFor(*said, 1))

    queues = {lock.key: [] for lock in locks}
    for key, guid in guids.values():
        queues[key].append(Child(guid, Kind.LOCK, guid, len(queues[key])))
    known = [replace(lock, holders=tuple(map(tell, lock.holders))) for lock in locks]
    return known, {key: Queue(tuple(children)) for key, children in queues.items()}


def queue(key, *holders, waiters=(), kind="lock", waiting=0):
    """Return a lock that owners hold and wait for. An owner is a number, or the fields of its contender."""

    def contender(of, number, **fields):
        given = of if isinstance(of, dict) else {"owner": of, "pid": of}
        fields = {"token": hash((key, number)) % 999, "kind": kind, "thread": "", "about": {}, **fields}
        return replace(HOLDER, **{"name": f"{key}-{number}", **fields, **given})

    held = tuple(contender(of, number) for number, of in enumerate(holders))
    behind = tuple(contender(of, number, holds=False, waits_behind="x") for number, of in enumerate(waiters, 100))
    count = max(waiting, len(behind))
    limit = len(held) if kind == "semaphore" else None
    return LockInfo(
        key=key, path=f"/{key}", kind=kind, holders=held, waiters=behind, waiting=count, limit=limit, longest_wait=20.0
    )


def verdict(*locks, servers=NO_SERVERS, **more):
    known, queues = told(locks)
    waits = find_waits(known, queues, 0.0)
    cycles = Graph(waits, known).cycles
    deadlocked = {wait.holds for cycle in cycles for wait in cycle}
    locks = tuple(replace(lock, deadlocked=lock.key in deadlocked) for lock in known)
    return look(replace(NOTHING, locks=locks, total=len(locks), waits=waits, cycles=cycles, **more), servers)


def found(*locks, **more):
    return [(incident.cause, incident.keys) for incident in verdict(*locks, **more).incidents]


def operator(**fields):
    hold = OperatorHold(key="root", path="", by="anna", reason="deploy", since=NOW, seconds=95.0, token=5)
    return {"operator": hold, "session_id": 7, **fields}


@pytest.mark.parametrize(
    ("root", "cause"),
    [
        (queue("root", 1, waiters=(2,)), "hung"),
        (queue("root", {"owner": 1, "kind": "read"}, waiters=(2,), kind="read-write"), "hung"),
        (queue("root", operator(owner=None), waiters=(2,)), "operator"),
        (queue("root", {"client": "unknown", "owner": None}, waiters=(2,)), "foreign"),
        (queue("root", {"owner": 1, "lasts": "leader"}, waiters=(2,)), "hung"),
        (queue("root", {"owner": 1, "lasts": "run"}, waiters=(2,)), "hung"),
    ],
    ids=["lock", "reader", "operator", "foreign", "leader", "command"],
)
def test_only_the_root_of_a_chain_is_blamed(root, cause):
    report = verdict(root, queue("mid", 2, waiters=(3,)), queue("leaf", 3, waiters=(4,)))
    (incident,) = report.incidents
    assert (incident.cause, incident.keys, incident.blocked) == (cause, ("root",), 3)
    shown = incident.describe()
    assert [(row["depth"], row["key"], row["waits_for"]) for row in shown["behind"]] == [
        (1, "mid", "root"),
        (2, "leaf", "mid"),
    ]
    assert "3 callers wait." in shown["explanation"]
    assert not any("mid" in command or "leaf" in command for command in shown["commands"])


def test_candidates_that_stand_by_are_no_incident():
    leader = queue("root", {"owner": 1, "lasts": "leader"}, waiters=(2, 9))
    assert found(leader, queue("mid", {"owner": 2, "age": 5.0}, waiters=(3,)), queue("own", 9)) == []


def test_a_task_that_waits_in_another_session_is_no_cause():
    """The main process of the worker holds its lock; a process of the pool waits."""
    waits = {"session_id": 99, "owner": 7}
    outer = queue("outer", {"owner": 5, "wait": WaitsFor("root", "root 0", 1)}, waiters=(8,))
    assert found(queue("root", 1, waiters=(waits,)), outer) == [("hung", ("root",))]


def test_one_process_with_three_slow_locks_hangs_and_three_processes_do_not():
    def slow(*pids):
        return [
            queue(f"job/{number}", {"owner": number, "pid": pid}, waiters=(50 + number,))
            for number, pid in enumerate(pids)
        ]

    idle = queue("job/3", {"owner": 3, "pid": 7})
    assert found(*slow(7, 7), idle) == [("host", ("job/0", "job/1", "job/3"))], "nobody waits for one of them"
    assert found(*slow(7, 7, 7)) == [("host", ("job/0", "job/1", "job/2"))]
    assert [cause for cause, _keys in found(*slow(7, 8, 9))] == ["hung"] * 3
    victims = [queue("job/3", {"owner": 53, "pid": 7}, waiters=(60,)), queue("x", 61, waiters=(53,))]
    assert ("host", ("job/0", "job/1")) not in found(*slow(7, 7), *victims)


def test_a_process_is_blamed_for_the_holds_that_are_late_themselves():
    """One of its threads hangs. The others serve short requests, each under a lock of its own."""
    short = [queue(f"cart/{number}", {"owner": number, "pid": 7, "age": 0.4}) for number in range(7)]
    kept = queue("kept", {"owner": 9, "pid": 7, "idle_since": NOW})
    assert found(queue("stock", {"owner": 8, "pid": 7}, waiters=(50,)), kept, *short) == [("hung", ("stock",))]


def test_processes_of_one_name_and_number_are_told_apart_by_their_sessions():
    mail = [queue(f"mail/{number}", {"owner": number, "pid": 1, "session_id": 99}) for number in range(3)]
    assert found(queue("stock", {"owner": 8, "pid": 1}, waiters=(50,)), *mail) == [("hung", ("stock",))]


@pytest.mark.parametrize(
    ("kind", "client", "title"),
    [
        ("read-write", "zklock", "3 processes have held prices for 1 min 30 s"),
        ("semaphore", "zklock", "3 processes have held prices for 1 min 30 s"),
        ("semaphore", "Curator", "Another client blocks prices"),
    ],
)
def test_several_holders_of_one_lock_are_one_incident(kind, client, title):
    holders = [{"owner": number, "pid": number, "client": client} for number in (1, 2, 3)]
    (incident,) = verdict(queue("prices", *holders, waiters=(50,), kind=kind)).incidents
    assert (str(incident.describe()["title"]), len(incident.holders), incident.blocked) == (title, 3, 1)


def test_permits_that_one_process_has_leaked_are_counted():
    leaked = [{"owner": number, "pid": 5} for number in range(4)]
    (incident,) = verdict(queue("pool", *leaked, {"owner": 9, "age": 1.0}, waiters=(50,), kind="semaphore")).incidents
    shown = incident.describe()
    assert shown["title"] == "web-1 · pid 5 has held pool for 1 min 30 s"
    assert "4 of 5 permits." in shown["explanation"]


@pytest.mark.parametrize(("warn_after", "default", "is_named"), [(80, 60, True), (100, 60, False), (0, 100, False)])
def test_a_hold_is_judged_by_its_own_warn_after_else_by_that_of_all(settings, warn_after, default, is_named):
    settings.ZKLOCK = {**settings.ZKLOCK, "DEFAULTS": {"warn_after": default}}
    lock = queue("report", {"owner": 1, "warn_after": warn_after}, waiters=(2,))
    assert lock.state == ("long" if is_named else "contended")
    assert [cause for cause, _keys in found(lock)] == ["hung"] * is_named


def test_a_permit_that_another_holder_will_release_is_not_behind():
    root = queue("root", 1, waiters=(2,))
    pool = queue("pool", 2, {"owner": 3, "pid": 3, "age": 1.0}, waiters=(4, 5), kind="semaphore")
    (incident,) = verdict(root, pool).incidents
    assert (incident.keys, incident.blocked) == (("root",), 1)
    assert verdict(root, replace(pool, holders=pool.holders[:1])).incidents[0].blocked == 3


@pytest.mark.parametrize(
    ("waiting", "fields", "causes"),
    [
        (49, {}, []),
        (50, {}, ["crowded"]),
        (50, {"age": 90.0}, ["hung"]),
        (50, {"lasts": "leader"}, []),
    ],
    ids=["one fewer", "fifty", "behind a holder that hangs", "of candidates"],
)
def test_a_long_queue_is_named_at_once(waiting, fields, causes):
    lock = queue("report/all", {"owner": 1, "age": 1.0, **fields}, waiting=waiting)
    incidents = verdict(lock).incidents
    assert [incident.cause for incident in incidents] == causes
    assert all(incident.blocked == waiting for incident in incidents)


@pytest.mark.parametrize(
    ("wait", "fields", "causes"),
    [
        (59.0, {}, []),
        (61.0, {}, ["crowded"]),
        (61.0, {"warn_after": 5}, ["crowded"]),
        (61.0, {"warn_after": 90}, []),
        (61.0, {"lasts": "lease"}, []),
        (61.0, {"age": 90.0}, ["hung"]),
        (61.0, operator(age=30.0), []),
    ],
    ids=[
        "less than a minute",
        "a minute",
        "warned of early",
        "less than warn_after",
        "for a lease",
        "behind a holder that hangs",
        "behind an operator",
    ],
)
def test_a_long_wait_is_named_though_no_holder_hangs(wait, fields, causes):
    lock = replace(queue("stock", {"owner": 1, "age": 1.0, **fields}, waiting=3), longest_wait=wait)
    assert [incident.cause for incident in verdict(lock).incidents] == causes


@pytest.mark.parametrize(
    ("waiting", "title"), [(1, "Long wait: stock"), (2, "Long wait: stock"), (3, "Long queue: stock")]
)
def test_a_queue_begins_with_three_waiters(waiting, title):
    lock = replace(queue("stock", {"owner": 1, "age": 1.0}, waiting=waiting), longest_wait=61.0)
    (incident,) = verdict(lock).incidents
    shown = incident.describe()
    assert shown["title"] == title
    assert ("max_waiters" in shown["remedy"]) is (waiting == 3)


def test_a_crowd_behind_a_victim_is_that_of_the_root():
    root = queue("root", {"owner": 1, "age": 1.0}, waiters=(2,))
    (incident,) = verdict(root, queue("mid", {"owner": 2, "age": 1.0}, waiting=60)).incidents
    assert (incident.cause, incident.keys, incident.blocked) == ("crowded", ("root",), 61)


def test_tables_that_cannot_be_read_are_asked_once_in_a_look(monkeypatch):
    """Each question may wait for a database that is away. The verdict says what was not looked at."""
    asked = []

    def ask(name, *args):
        asked.append(name)
        return past.UNREADABLE

    monkeypatch.setattr(past, "ask", ask)
    said = verdict(*(queue(f"job/{number}", {"owner": number, "age": 20.0}, waiters=(90,)) for number in range(5)))
    assert len(asked) == 1
    assert "the tables of events cannot be read" in str(said)


def judged(*servers, has_quorum=True):
    return EnsembleReport(servers, has_quorum)


DOWN = ServerReport(address="zk3:2181", state="down", problem="does not answer: Connection refused")
NO_QUORUM = replace(DOWN, state="runs", problem="runs, and is in no quorum")
UNASKED = replace(DOWN, state="unknown", problem="may not be asked until srvr is in 4lw.commands.whitelist")


def test_a_server_that_is_down_is_in_the_verdict():
    (incident,) = verdict(servers=judged(*RUNS[:2], DOWN)).incidents
    shown = incident.describe()
    assert shown["title"] == "ZooKeeper: 2 of 3 servers run. One more failure stops all locks"
    assert shown["explanation"] == "zk3:2181 does not answer: Connection refused."


@pytest.mark.parametrize(
    ("server", "causes", "complete"),
    [(RUNS[2], [], True), (NO_QUORUM, ["down"], True), (UNASKED, [], False)],
    ids=["runs", "in no quorum", "may not be asked"],
)
def test_a_server_that_cannot_be_asked_is_neither_green_nor_down(server, causes, complete):
    said = verdict(servers=judged(*RUNS[:2], server))
    assert ([incident.cause for incident in said.incidents], said.complete) == (causes, complete)
    assert ("whitelist" in str(said)) is not complete


def test_nothing_is_green_while_a_write_is_not_answered():
    said = verdict(servers=judged(*RUNS, has_quorum=False))
    assert (said.healthy, said.incidents) == (False, ())
    assert "a write was not answered" in str(said)


SLOW = {"has_quorum": True, "write_seconds": 0.8}


@pytest.mark.parametrize(
    ("report", "titles"),
    [
        (SLOW, ["ZooKeeper is slow: a write takes 0.8 s"]),
        ({**SLOW, "has_quorum": False}, ["ZooKeeper is slow: a write takes more than 0.8 s"]),
        ({**SLOW, "write_seconds": 0.2}, []),
        ({"has_quorum": True, "refused": "NoAuthError."}, ["ZooKeeper gives callers no lock"]),
    ],
    ids=["slow", "not answered", "fast", "refused"],
)
def test_a_look_names_what_its_own_write_meets(report, titles):
    said = verdict(servers=EnsembleReport(RUNS, **report))
    assert [incident.describe()["title"] for incident in said.incidents] == titles
    assert said.healthy is not bool(titles)


def test_a_write_without_a_leader_is_not_slow():
    """An election is under way, or the quorum is lost."""
    said = verdict(servers=EnsembleReport(RUNS[1:], **{**SLOW, "has_quorum": False}))
    assert (said.incidents, said.healthy) == ((), False)


@pytest.mark.parametrize(
    ("server", "remedy"), [(DOWN, "Start this server"), (NO_QUORUM, "Look at the log")], ids=["down", "runs"]
)
def test_a_server_that_runs_is_not_to_be_started(server, remedy):
    """Its disk is full, or the others do not reach it."""
    (incident,) = verdict(servers=judged(*RUNS[:2], server)).incidents
    assert incident.describe()["remedy"].startswith(remedy)


def test_silence_is_a_missing_reply_and_not_the_state_of_the_connection():
    said = verdict(servers=judged(*RUNS), silent=True, problem="ZooKeeper did not answer.", age=3.0)
    assert [incident.cause for incident in said.incidents] == ["quorum"]


@pytest.mark.parametrize(
    ("first", "same", "others"),
    [
        ({"cause": "host", "host": "web-1", "keys": ("a", "b")}, {"keys": ("c",)}, [{"host": "web-2"}]),
        (
            {"cause": "hung", "host": "web-1", "keys": ("a",)},
            {"host": "web-2"},
            [{"keys": ("b",)}, {"cause": "foreign"}],
        ),
        ({"cause": "flapping", "host": "web-1"}, {"age": 90.0}, [{"host": "web-2"}, {"cause": "ended"}]),
    ],
)
def test_an_incident_is_that_of_its_locks_or_of_its_host(first, same, others):
    """Readers that hang, one after the other, are one. So is a lock whose next holder hangs."""

    def identity(**fields):
        return CAUSES[fields.pop("cause")](**fields).identity

    assert identity(**{**first, **same}) == identity(**first)
    assert identity(**first) not in [identity(**{**first, **other}) for other in others]
