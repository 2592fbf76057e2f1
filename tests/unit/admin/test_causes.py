"""Which causes the report finds in given queues and servers: limits, who is to blame, and cycles of waits."""

import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from support.lookinfo import HOLDER, NOTHING, NOW

from django_zklock import operations
from django_zklock.core import clock
from django_zklock.core.queue.deadlock import WaitsFor
from django_zklock.core.queue.nodes import Child, Kind
from django_zklock.core.queue.operator_hold import OperatorHold
from django_zklock.core.queue.order import Queue
from django_zklock.inspection import EnsembleReport, LockInfo, ServerReport, Wait
from django_zklock.inspection.ensemble import OwnAnswer, _findings
from django_zklock.inspection.waits import MAX_CYCLES, MAX_WAITS, find_cycles, find_waits
from django_zklock.report import past
from django_zklock.report.facts import Facts
from django_zklock.report.verdict import CAUSES, look

RUNS = tuple(
    ServerReport(address=f"zk{number}:2181", role=role, version="3.9.3", latency=0.001, zxid=5 << 32 | 7)
    for number, role in enumerate(("leader", "follower", "follower"), 1)
)
NO_SERVERS = EnsembleReport((), ())


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
    cycles = find_cycles(waits, known)
    deadlocked = {wait.holds for cycle in cycles for wait in cycle}
    locks = tuple(replace(lock, deadlocked=lock.key in deadlocked) for lock in known)
    connection = replace(NOTHING.connection, state="connecting")  # nothing more is read, nothing is acknowledged
    fields = {"connection": connection, **more}
    return look(replace(NOTHING, locks=locks, total=len(locks), waits=waits, cycles=cycles, **fields), servers)


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

    assert found(*slow(7, 7, 7)) == [("host", ("job/0", "job/1", "job/2"))]
    assert [cause for cause, _keys in found(*slow(7, 8, 9))] == ["hung"] * 3
    victims = [queue("job/3", {"owner": 53, "pid": 7}, waiters=(60,)), queue("x", 61, waiters=(53,))]
    assert ("host", ("job/0", "job/1")) not in found(*slow(7, 7), *victims)


def test_a_permit_that_another_holder_will_release_is_not_behind():
    root = queue("root", 1, waiters=(2,))
    pool = queue("pool", 2, {"owner": 3, "pid": 3, "age": 1.0}, waiters=(4, 5), kind="semaphore")
    (incident,) = verdict(root, pool).incidents
    assert (incident.keys, incident.blocked) == (("root",), 1)
    assert verdict(root, replace(pool, holders=pool.holders[:1])).incidents[0].blocked == 3


@pytest.mark.parametrize(
    ("waiting", "usual", "fields", "causes"),
    [
        (49, None, {}, []),
        (50, None, {}, ["crowded"]),
        (20, 2.0, {}, ["crowded"]),
        (20, 2.1, {}, []),
        (9, 0.0, {}, []),
        (50, None, {"age": 90.0}, ["hung"]),
        (50, None, {"lasts": "leader"}, []),
    ],
    ids=[
        "one fewer",
        "fifty, as nothing is usual",
        "ten times the usual",
        "less than that",
        "few, where none is usual",
        "behind a holder that hangs",
        "of candidates",
    ],
)
def test_a_queue_that_grows_is_named_at_once(waiting, usual, fields, causes, monkeypatch):
    monkeypatch.setattr(past, "ask", lambda name, *args, default=None: {"facts.usual_queue": usual}.get(name))
    lock = queue("report/all", {"owner": 1, "age": 1.0, **fields}, waiting=waiting)
    (*incidents,) = verdict(lock).incidents
    assert [incident.cause for incident in incidents] == causes
    assert all(incident.blocked == waiting for incident in incidents)


@pytest.mark.parametrize(
    ("wait", "usual", "fields", "causes"),
    [
        (59.0, None, {}, []),
        (61.0, None, {}, ["crowded"]),
        (61.0, 20.0, {}, ["crowded"]),
        (61.0, 30.0, {}, []),
        (61.0, None, {"lasts": "lease"}, []),
        (61.0, None, {"age": 90.0}, ["hung"]),
        (61.0, None, operator(age=30.0), []),
    ],
    ids=[
        "less than a minute",
        "a minute, as nothing is usual",
        "three times the usual",
        "less than that",
        "for a lease",
        "behind a holder that hangs",
        "behind an operator",
    ],
)
def test_a_wait_that_is_unusually_long_is_named_though_no_holder_hangs(wait, usual, fields, causes, monkeypatch):
    monkeypatch.setattr(past, "ask", lambda name, *args, default=None: {"facts.usual_wait": usual}.get(name))
    lock = replace(queue("stock", {"owner": 1, "age": 1.0, **fields}, waiting=3), longest_wait=wait)
    assert [incident.cause for incident in verdict(lock).incidents] == causes


def test_a_crowd_behind_a_victim_is_that_of_the_root():
    root = queue("root", {"owner": 1, "age": 1.0}, waiters=(2,))
    (incident,) = verdict(root, queue("mid", {"owner": 2, "age": 1.0}, waiting=60)).incidents
    assert (incident.cause, incident.keys, incident.blocked) == ("crowded", ("root",), 61)


def test_tables_that_cannot_be_read_are_asked_once_in_a_look(monkeypatch):
    """Each question may wait for a database that is away. The verdict says what was not looked at."""
    asked = []

    def ask(name, *args, default=None):
        asked.append(name)
        return default

    monkeypatch.setattr(past, "ask", ask)
    said = verdict(*(queue(f"job/{number}", {"owner": number, "age": 20.0}, waiters=(90,)) for number in range(5)))
    assert len(asked) == 1
    assert "the tables of events cannot be read" in str(said)


def report(*servers, epochs=()):
    return with_findings(servers, "zk1:2181", epochs)


def with_findings(servers, connected, epochs=()):
    report = EnsembleReport(servers, (), epochs)
    return replace(report, findings=tuple(_findings(report, 10.0, own=OwnAnswer(server=connected))))


DOWN = ServerReport(address="zk3:2181", problem="does not answer: Connection refused")


def incidents_of(*servers, **more):
    connected = {"connection": replace(NOTHING.connection, state="connected")}
    return list(verdict(servers=report(*servers, **more), **connected).incidents)


@pytest.fixture
def none_acknowledged(monkeypatch):
    monkeypatch.setattr(operations, "acknowledgements", lambda **_: {})  # no server would answer


@pytest.mark.usefixtures("none_acknowledged")
def test_a_server_that_is_down_is_in_the_verdict():
    (incident,) = incidents_of(*RUNS[:2], DOWN)
    shown = incident.describe()
    assert shown["title"] == "ZooKeeper runs on 2 of 3 servers"
    assert shown["explanation"].startswith("zk3:2181 does not answer: Connection refused. Locks go on.")


@pytest.mark.parametrize(
    ("server", "causes"),
    [
        (RUNS[2], []),
        (replace(DOWN, problem="runs, and is in no quorum"), ["down"]),
        (replace(RUNS[2], latency=2.0), ["slow"]),
        (replace(RUNS[2], version="3.8.4"), ["version"]),
        (replace(DOWN, problem="may not be asked until srvr is in 4lw.commands.whitelist"), []),
    ],
    ids=["runs", "in no quorum", "slow", "other version", "may not be asked"],
)
@pytest.mark.usefixtures("none_acknowledged")
def test_a_finding_about_a_server_is_in_the_verdict(server, causes):
    assert [incident.cause for incident in incidents_of(*RUNS[:2], server)] == causes


@pytest.mark.usefixtures("none_acknowledged")
def test_repeated_elections_are_in_the_verdict():
    """Those of the last ten minutes count."""
    now = clock.now()
    assert incidents_of(*RUNS, epochs=((now - 700, 1), (now - 500, 3), (now, 5))) == []
    (incident,) = incidents_of(*RUNS, epochs=((now - 500, 2), (now, 5)))
    assert incident.describe()["explanation"].startswith("3 elections in the last 10 minutes.")


def test_silence_is_a_missing_reply_and_not_the_state_of_the_connection():
    connected = replace(NOTHING.connection, state="connected")
    said = verdict(
        servers=report(*RUNS), connection=connected, silent=True, problem="ZooKeeper did not answer.", age=3.0
    )
    assert [incident.cause for incident in said.incidents] == ["quorum"]
    assert said.incidents[0].describe()["title"] == "ZooKeeper does not answer"


NOON = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
SERVER = ServerReport(address="zk1:2181", role="leader", version="3.9.3", zxid=5 << 32 | 7)


def identity_in(*servers, problem="", locks=()):
    state = replace(NOTHING.connection, state="lost" if problem else "connecting")  # nothing is acknowledged
    snapshot = replace(NOTHING, problem=problem, connection=state, locks=locks, total=len(locks))
    (incident,) = look(snapshot, with_findings(servers, "" if problem else "zk1:2181")).incidents
    return incident.identity


def split(*addresses, epoch=5, counter=7):
    zxids = [(epoch + number) << 32 | counter for number in range(len(addresses))]
    servers = [
        replace(SERVER, address=address, zxid=zxid, latency=counter / 1000)
        for address, zxid in zip(addresses, zxids, strict=True)
    ]
    return identity_in(*servers)


def test_a_deadlock_of_several_hosts_has_one_identity_whichever_host_comes_first():
    deadlocks = [CAUSES["deadlock"](host=host, keys=("a", "b")) for host in ("web-1", "web-2")]
    assert len({deadlock.identity for deadlock in deadlocks}) == 1


def test_a_split_is_that_of_its_servers_and_their_epochs():
    first = split("zk1:2181", "zk2:2181")
    assert split("zk1:2181", "zk2:2181", counter=900) == first
    assert len({first, split("zk2:2181", "zk3:2181"), split("zk1:2181", "zk2:2181", epoch=6)}) == 3
    servers = [replace(SERVER, address=f"zk{number}:2181", zxid=number << 32) for number in (1, 2)]
    assert identity_in(*servers) == identity_in(*reversed(servers))


def test_a_lost_quorum_is_that_of_the_servers_that_are_down():
    runs = ServerReport(address="zk1:2181", problem="runs, and is in no quorum")
    others = [replace(DOWN, address=f"zk{number}:2181") for number in (2, 3)]
    lost = identity_in(runs, *others, problem="no answer within 1.5 s")
    assert identity_in(runs, *reversed(others), problem="no answer within 2.5 s") == lost
    assert identity_in(replace(DOWN, address="zk1:2181"), *others, problem="no answer") != lost


def test_an_unknown_znode_is_one_incident_and_the_next_one_another():
    def unreadable(name, waiting=0):
        return identity_in(SERVER, locks=(LockInfo(key="k", path="/k", problem=f"holds {name!r}", waiting=waiting),))

    assert unreadable("a", 7) == unreadable("a")
    assert unreadable("b") != unreadable("a")


def of(**fields):
    holders = tuple((key, replace(HOLDER, token=token)) for key, token in fields.pop("tokens", ()))
    return CAUSES[fields.pop("cause")](**fields, holders=holders).identity


@pytest.mark.parametrize(
    ("first", "same", "others"),
    [
        (
            {"cause": "host", "host": "web-1", "tokens": [("a", 5), ("b", 7)]},
            {"tokens": [("c", 9), ("b", 7), ("a", 5)], "keys": ("c",)},
            [{"tokens": [("a", 8)]}, {"host": "web-2", "tokens": []}],
        ),
        (
            {"cause": "hung", "keys": ("a",), "tokens": [("a", 5)]},
            {"age": 90.0, "blocked": 7},
            [{"tokens": [("a", 6)]}, {"cause": "foreign", "tokens": []}],
        ),
        (
            {"cause": "silent", "keys": ("a",), "tokens": [("a", 5)], "since": NOON},
            {"age": 90.0},
            [{"since": NOON + timedelta(hours=1)}],
        ),
        (
            {"cause": "flapping", "host": "web-1", "since": NOON, "values": {"count": 3}},
            {"values": {"count": 9}},
            [{"since": "later"}, {"cause": "ended"}],
        ),
        (
            {"cause": "hot", "keys": ("a",), "since": NOON, "values": {"refused": 30}},
            {"values": {"refused": 99}, "blocked": 3},
            [{"since": "later"}, {"keys": ("b",)}],
        ),
        (
            {"cause": "wearing", "keys": ("a",), "detail": "About 9,000 acquisitions are left."},
            {"detail": "About 8,999 acquisitions are left."},
            [{"cause": "counter"}, {"keys": ("b",)}],
        ),
    ],
)
def test_an_incident_is_itself(first, same, others):
    assert of(**{**first, **same}) == of(**first)
    assert of(**first) not in [of(**{**first, **other}) for other in others]


# --- cycles of waits --------------------------------------------------------------------------------------------------


def somebody(pid, *, session=0, owner=1):
    names = {"name": f"n{pid}", "guid": "", "thread": "MainThread", "what": "work", "about": {}}
    return replace(HOLDER, holds=False, granted=None, session_id=session or pid, pid=pid, owner=owner, **names)


def lock(key, holder, *waiters):
    return LockInfo(key=key, path=key, holders=(holder,), waiters=waiters, waiting=len(waiters))


def wait(holds, waits_for):
    return Wait(who=holds + waits_for, holds=holds, waits_for=waits_for)


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


def waits_of(locks, now=0.0):
    return find_waits(*told(locks), now)


PAIR = [lock("x", somebody(1), somebody(3)), lock("y", somebody(2), somebody(1))]


def test_an_owner_that_holds_one_lock_and_waits_for_another_is_found():
    (waits,) = waits_of(PAIR)
    assert (waits.holds, waits.waits_for) == ("x", "y")
    assert waits.who == "web-1 pid 1 MainThread: work"


def test_a_wait_of_which_no_znode_tells_is_not_found():
    assert find_waits(PAIR, told(PAIR)[1], 0.0) == ()


def test_a_wait_that_the_queue_does_not_confirm_is_not_found():
    assert find_waits(told(PAIR)[0], {}, 0.0) == ()


def crosswise(**more):
    """Return the locks of a circle. These fields are in the text of one holder."""
    first, second = told([lock("x", somebody(1), somebody(2)), lock("y", somebody(2), somebody(1))])[0]
    wait = first.holders[0].wait
    return [replace(first, holders=(replace(first.holders[0], wait=wait._replace(**more)),)), second]


@pytest.mark.parametrize(
    ("fields", "waits", "cycles"),
    [({}, 2, 1), ({"until": 9000}, 2, 1), ({"until": 7000}, 1, 0), ({"may_end": 1}, 2, 0)],
    ids=["lasts", "lasts for a second", "is over", "of a lock that another thread may release"],
)
def test_a_wait_is_part_of_a_deadlock_as_long_as_it_lasts(fields, waits, cycles):
    locks = crosswise(**fields)
    read = find_waits(locks, told(locks)[1], 8.0)
    assert (len(read), len(find_cycles(read))) == (waits, cycles)


def test_a_second_try_for_the_same_lock_is_not_a_wait():
    assert waits_of([lock("x", somebody(1), somebody(1))]) == ()


def test_each_cycle_is_found_once_and_in_order():
    circle = [wait("a", "b"), wait("b", "c"), wait("c", "a")]
    pair = [wait("p", "q"), wait("q", "p")]
    strays = [wait("in", "a"), wait("c", "out"), wait("out", "further"), wait("b", "p")]
    cycles = find_cycles([*strays, *reversed(circle), *pair])
    assert cycles == (tuple(circle), tuple(pair))
    assert find_cycles(strays) == ()
    assert find_cycles([]) == ()


def shared(key, kind, holders, waiter):
    contenders = tuple(replace(somebody(pid), kind=kind) for pid in holders)
    return replace(lock(key, contenders[0], waiter), holders=contenders)


PERMIT, WRITER = replace(somebody(9), kind="semaphore"), replace(somebody(9), kind="write")


@pytest.mark.parametrize(
    ("kind", "holders", "waiter", "cycles"),
    [
        ("semaphore", [1], PERMIT, 1),
        ("semaphore", [1, 2], PERMIT, 1),
        ("semaphore", [1, 3], PERMIT, 0),
        ("semaphore", [3, 1, 2], PERMIT, 0),
        ("semaphore", [1, 3], somebody(9), 1),  # an exclusive waiter waits for all of them
        ("read", [1, 3], WRITER, 1),
    ],
)
def test_a_semaphore_is_in_a_cycle_only_if_all_its_holders_wait(kind, holders, waiter, cycles):
    """Any other holder will release its permit. A writer waits for all readers."""
    locks, queues = told([shared("pool", kind, holders, waiter), lock("a", somebody(9), somebody(1), somebody(2))])
    assert len(find_cycles(find_waits(locks, queues, 0.0), locks)) == cycles


def test_a_free_permit_also_resolves_the_waits_behind_it():
    first = shared("first", "semaphore", [1, 3], replace(somebody(2), kind="semaphore"))
    second = shared("second", "semaphore", [2], replace(somebody(1), kind="semaphore"))
    locks, queues = told([first, second])
    assert find_cycles(find_waits(locks, queues, 0.0), locks) == ()


def test_forged_waits_are_capped_in_number_and_time():
    """Anybody may write payloads that seem to wait for everything."""
    owners = [somebody(number) for number in range(MAX_WAITS + 500)]
    everybody = [lock(str(owner.pid), owner, owners[owner.pid - 1]) for owner in owners]
    began = time.process_time()
    waits = waits_of(everybody)
    assert len(waits) == MAX_WAITS
    assert len(find_cycles(waits)) <= MAX_CYCLES
    assert time.process_time() - began < 5


def test_a_chain_of_forged_waits_is_no_cycle_and_costs_no_time():
    chain = [wait(f"{number:05}", f"{number + 1:05}") for number in range(MAX_WAITS)]
    began = time.process_time()
    assert find_cycles(chain) == ()
    assert time.process_time() - began < 5


def test_forged_cycles_are_capped_in_number():
    pairs = [(f"a{number}", f"b{number}") for number in range(500)]
    forged = [wait(*pair) for first, second in pairs for pair in ((first, second), (second, first))]
    assert len(find_cycles(forged)) == MAX_CYCLES


def test_a_server_that_runs_is_not_to_be_started():
    """Its disk is full, or the others do not reach it."""
    for problem, remedy in (("does not answer: timed out", "Start this server"), ("runs, and is in no quorum", "Look")):
        sick = ServerReport(address="zk3:2181", problem=problem)
        report = EnsembleReport((*RUNS[:2], sick), ())
        findings = tuple(_findings(report, 20.0, own=OwnAnswer(server="zk1:2181")))
        connected = replace(NOTHING.connection, state="connected")
        (incident,) = CAUSES["down"].find(
            Facts(replace(NOTHING, connection=connected), replace(report, findings=findings))
        )
        assert incident.describe()["remedy"].startswith(remedy)
