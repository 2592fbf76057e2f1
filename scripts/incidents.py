"""
Play the incidents that operators meet, with real processes on three real servers. `make incidents` is this script.

Prints for each: after how many seconds the first page names it, whether its cause and remedy are right, nobody else is
blamed and all places agree, whether the printed commands run as pasted, and how it goes away. Exits with 1 if one is
not right.

    scripts/incidents.py                all, which takes a quarter of an hour
    scripts/incidents.py chain hung     those whose names contain one of these words
"""

from __future__ import annotations

import contextlib
import json
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
sys.path[:0] = [str(TESTS), str(ROOT)]

from kazoo.exceptions import ConnectionLoss, KazooException  # noqa: E402
from kazoo.security import OPEN_ACL_UNSAFE, make_acl  # noqa: E402
from support.chaos import namespaces  # noqa: E402
from support.chaos.servers import repair, repaired  # noqa: E402
from support.drill import CALM, NO_REASON, OPERATOR, REASON, Drill, Program, plain  # noqa: E402
from support.ensemble import Ensemble, free_ports  # noqa: E402
from support.neighbours.protocol import kazoo  # noqa: E402
from support.proxy import Proxy  # noqa: E402
from support.quietday import LEADER  # noqa: E402
from support.worker import Worker  # noqa: E402
from support.zoo import Zoo, eventually  # noqa: E402

NO_DELETES: Final = make_acl("world", "anyone", read=True, write=True, create=True, admin=True)
NO_CREATES: Final = make_acl("world", "anyone", read=True, write=True, delete=True, admin=True)
NO_READS: Final = make_acl("world", "anyone", admin=True)
SLOW_DISK: Final = {"flushDelay": "700", "maxWriteQueuePollTime": "700", "maxBatchSize": "1000"}
NEVER: Final = {"SITE_ZKLOCK": json.dumps({"DEADLOCK_TIMEOUT": None})}
"""By this setting, no deadlock ends by itself."""
FENCES: Final = {"SITE_APPS": json.dumps(["django_zklock.contrib.fences"])}
RAISE_TOKENS: Final = """
from django.db.models import F
from django_zklock.contrib.fences.models import Fence
Fence.objects.update(token=F("token") + (1 << 40))
"""
CONTAINER: Final = """
import contextlib, sys, time
import django; django.setup()
from django_zklock import zk_lock
with contextlib.ExitStack() as stack:
    for pk in sys.argv[1:]:
        stack.enter_context(zk_lock("orders/{pk}", fields={"pk": pk}, timeout=None))
    print("held", flush=True)
    time.sleep(300)
"""


@dataclass(frozen=True, slots=True)
class Expected:
    """The incidents that have to be named, and nothing else."""

    causes: dict[str, str]
    """The locks or hosts in the title of each card, and its cause; without a cause, there is no card."""
    texts: tuple[str, ...]
    """Texts of the card."""
    remedy: str = ""
    within: float = 30.0
    """Seconds."""
    stays: bool = False
    """Whether it stays for a while after its end, as it is in the past."""
    is_seen: bool = True
    """Whether everything can be looked at. If not, nothing is green."""


DEATH: Final = 75.0
"""Seconds within which a hold without an end is named as a death: the next holder's row has to be 40 s old."""
AWAY: Final = 10.0
"""Seconds for which a database is away: a process that ends waits for it for less."""
AGREE_WITHIN: Final = 15.0
"""Seconds until all places tell the same: scrapes tell the last look."""

Play: TypeAlias = Callable[[Drill], Iterator[Expected]]
"""Begins an incident, yields what has to be seen, and then ends it."""


def hung(drill: Drill) -> Iterator[Expected]:
    """A hung call."""
    worker, web = drill.program("worker-1"), drill.program("web-1")
    worker.hold("stock/berlin")
    web.tell("wait", "stock/berlin")
    yield Expected({"stock/berlin": "hung"}, ("worker-1", "1 caller waits"), "Request release", 70)
    web.hear("used stock/berlin")  # as it was broken
    worker.tell("answer")


def hung_thread(drill: Drill) -> Iterator[Expected]:
    """One hung thread of eight: the others serve requests."""
    worker, web = drill.program("worker-1"), drill.program("web-1")
    worker.hold("stock/berlin")
    worker.tell("serve", *(f"cart/{number}" for number in range(7)))
    web.tell("wait", "stock/berlin")
    yield Expected({"stock/berlin": "hung"}, ("worker-1", "1 caller waits"), "Request release", 70)
    web.hear("used stock/berlin")
    worker.tell("answer")


def permits(drill: Drill) -> Iterator[Expected]:
    """Two hung holders of one semaphore."""
    workers, web = [drill.program(f"worker-{number}") for number in (1, 2)], drill.program("web-1")
    for worker in workers:
        worker.hold("pair/1")
    web.tell("wait", "pair/1")
    texts = ("2 processes have held pair/1", "2 of 2 permits", "1 caller waits")
    yield Expected({"pair/1": "hung"}, texts, "Request release", 70)
    web.hear("used pair/1")
    for worker in workers:
        worker.tell("answer")


def skipped(drill: Drill) -> Iterator[Expected]:
    """A hung call whose callers do not wait: they are skipped."""
    worker, web = drill.program("worker-1"), drill.program("web-1")
    worker.hold("stock/berlin")
    web.tell("skip", "stock/berlin")
    web.hear("refused stock/berlin LockBusy")
    yield Expected({"stock/berlin": "hung"}, ("worker-1", "skipped its work"), "Request release", 70)
    worker.tell("answer")


def kept_out(drill: Drill) -> Iterator[Expected]:
    """Callers that an operator keeps out."""
    held = drill.shell("python manage.py zklock hold stock/berlin --for 240s --reason 'a deploy'")
    assert held.returncode == 0, held.stderr
    web = drill.program("web-1")
    web.tell("try", *["stock/berlin"] * 30)
    web.hear(*["refused stock/berlin LockTimeout"] * 30)
    texts = ("30 callers were refused in the last minute", OPERATOR, "holds it until", "a deploy")
    yield Expected({"stock/berlin": "hot"}, texts, "before that ends")


def deadlock(drill: Drill) -> Iterator[Expected]:
    """A deadlock of two processes."""
    with processes(drill) as programs:
        yield Expected({"stock/berlin": "deadlock"}, ("stock/paris", "worker-1", "worker-2"), "Break one of them")
        for program in programs:
            program.tell("answer")


def deadlock_permit(drill: Drill) -> Iterator[Expected]:
    """A deadlock of a permit and a lock, which nothing ends."""
    with processes(drill, "pool/1") as programs:
        yield Expected({"stock/berlin": "deadlock"}, ("pool/1", "worker-1", "worker-2"), "Break one of them")
        for program in programs:
            program.tell("answer")


def deadlock_over(drill: Drill) -> Iterator[Expected]:
    """A deadlock of two processes that ends by itself."""
    with processes(drill) as programs:
        for program in programs:
            program.tell("answer")
        yield Expected({"stock/": "order"}, ("ended by themselves",), "in the same order", stays=True)


def bystander(drill: Drill) -> Iterator[Expected]:
    """A deadlock of two processes behind another waiter."""
    web = drill.program("web-1")
    with processes(drill, before_want=lambda: wait_behind(drill, web, "stock/berlin", "stock/paris")) as programs:
        texts = ("stock/paris", "worker-1", "worker-2", "4 callers wait")
        yield Expected({"stock/berlin": "deadlock"}, texts, "Break one of them")
        for program in programs:
            program.tell("answer")
        web.hear("used stock/berlin", "used stock/paris")


def wait_behind(drill: Drill, web: Program, *keys: str) -> None:
    """Have a process wait for these locks, and return when it is in their queues."""
    web.tell("wait", *keys)
    eventually(lambda: all(len(drill.zoo.children(key)) == 2 for key in keys), 30)


def refused_release(drill: Drill) -> Iterator[Expected]:
    """A release that the ACL of the queue refuses."""
    directory = f"{drill.zoo.base}/stock/berlin"
    drill.zoo.client.create(directory, acl=[NO_DELETES], makepath=True)
    worker, web = drill.program("worker-1"), drill.program("web-1")
    worker.tell("use", "stock/berlin")
    worker.hear("used stock/berlin")
    web.tell("wait", "stock/berlin")
    yield Expected({"stock/berlin": "refused"}, ("Release refused",), "right that is missing", stays=True)
    drill.zoo.client.set_acls(directory, OPEN_ACL_UNSAFE)
    web.hear("used stock/berlin")


def refused_creates(drill: Drill) -> Iterator[Expected]:
    """An ACL that lets nobody lock a new key."""
    web = drill.program("web-1")
    drill.zoo.client.ensure_path(drill.zoo.base)
    drill.zoo.client.set_acls(drill.zoo.base, [NO_CREATES])
    web.tell("use", *["stock/berlin"] * 5)
    web.hear(*["refused stock/berlin RequestRefused"] * 5)
    texts = ("5 callers in 5 minutes, on web-1", "NoAuthError")
    yield Expected({"callers no lock": "denied"}, texts, "Compare `AUTH`", stays=True)
    drill.zoo.client.set_acls(drill.zoo.base, OPEN_ACL_UNSAFE)


def slow_disk(drill: Drill) -> Iterator[Expected]:
    """A disk of ZooKeeper that needs 0.7 s for each write."""
    slow = drill.keep(Ensemble(nodes=1, fsync=True, properties=SLOW_DISK))
    with drill.reconfigured(ZKLOCK_URL=drill.zoo.url(slow.hosts)):
        yield Expected({"ZooKeeper is slow": "slow"}, ("a write takes",), "Look at the disks")


def unlisted(drill: Drill) -> Iterator[Expected]:
    """A queue that the site may not list."""
    directory = f"{drill.zoo.base}/stock/berlin"
    worker = drill.program("worker-1")
    worker.hold("stock/berlin")
    drill.zoo.client.set_acls(directory, [NO_READS])
    yield Expected({"stock/berlin": ""}, ("cannot be listed", "stock/berlin"), is_seen=False)
    drill.zoo.client.set_acls(directory, OPEN_ACL_UNSAFE)
    worker.tell("answer")


def restored(drill: Drill) -> Iterator[Expected]:
    """A ZooKeeper that was restored from a backup, so that fenced writes are refused."""
    worker = drill.program("worker-1")
    worker.tell("write", "stock/berlin")
    worker.hear("wrote stock/berlin")
    raised = drill.shell(f"python manage.py shell -c '{RAISE_TOKENS}'")
    assert raised.returncode == 0, raised.stderr
    worker.tell("write", *["stock/berlin"] * 5)
    worker.hear(*["stale stock/berlin"] * 5)
    texts = ("5 fenced writes were refused",)
    yield Expected({"stock/berlin": "stale"}, texts, "Was ZooKeeper restored?", stays=True)


def refused_callers(drill: Drill) -> Iterator[Expected]:
    """Callers whose timeouts are shorter than a hold."""
    worker, web = drill.program("worker-1"), drill.program("web-1")
    worker.hold("stock/berlin")
    web.tell("try", *["stock/berlin"] * 30)
    web.hear(*["refused stock/berlin LockTimeout"] * 30)
    texts = ("30 callers were refused in the last minute",)
    yield Expected({"stock/berlin": "hot"}, texts, "Hold it for a shorter time")
    worker.tell("answer")


def foreign(drill: Drill) -> Iterator[Expected]:
    """A client of kazoo that blocks a key."""
    web = drill.program("web-1")
    with kazoo(drill.zoo.hosts) as other:
        assert other.try_acquire("A", "lock", f"{drill.zoo.base}/stock/berlin")
        web.tell("wait", "stock/berlin")
        remedy = "End its program, or break the lock"
        yield Expected({"stock/berlin": "foreign"}, ("kazoo", "1 caller waits"), remedy)
        web.hear("used stock/berlin")


def convoy(drill: Drill) -> Iterator[Expected]:
    """A convoy of callers that each hold the lock for some seconds."""
    webs = [drill.program(f"web-{number}") for number in range(2)]
    for web in webs:
        web.tell("take", *["stock/berlin"] * 14)
    yield Expected({"stock/berlin": "crowded"}, ("callers wait", "The first has waited"), "Look at the holder", 120)
    for web in webs:
        web.hear(*["used stock/berlin"] * 14)


@contextlib.contextmanager
def processes(
    drill: Drill, other: str = "stock/paris", before_want: Callable[[], object] = bool
) -> Iterator[list[Program]]:
    """Have two processes, each of which holds a lock and wants that of the other."""
    pairs = {"worker-1": ("stock/berlin", other), "worker-2": (other, "stock/berlin")}
    programs = [drill.program(host) for host in pairs]
    for program, keys in zip(programs, pairs.values(), strict=True):
        program.tell("nest", *keys)
        program.hear(f"held {keys[0]}")
    before_want()
    for program in programs:
        program.tell("want")
    yield programs


def deadlock_celery(drill: Drill) -> Iterator[Expected]:
    """A deadlock of two Celery tasks."""
    finish = tasks(drill)
    yield Expected({"account/a": "deadlock"}, ("account/b", "worker-3", "transfer"), "Break one of them")
    finish()


def deadlock_celery_over(drill: Drill) -> Iterator[Expected]:
    """A deadlock of two Celery tasks that ends by itself."""
    tasks(drill)()
    yield Expected({"account/": "order"}, ("ended by themselves",), "in the same order", stays=True)


def tasks(drill: Drill) -> Callable[[], None]:
    """Have two Celery tasks in a deadlock; return a function that ends their work, once they have their locks."""
    home = drill.project.directory / "celery"
    home.mkdir()
    program = [*namespaces.on_host("worker-3"), sys.executable, "-m", "celery"]
    env = {**drill.site.environment, "ZKLOCK_URL": drill.zoo.url(session_timeout=10)}
    worker = drill.keep(Worker(drill.zoo, home, program=program, env=env))  # until it has written what has ended
    outer, inner = [worker.gate(), worker.gate()], [worker.gate(), worker.gate()]
    for number, (source, target) in enumerate((("a", "b"), ("b", "a"))):
        worker.send("transfer", source, target, str(outer[number]), str(inner[number]))
    for gate in outer:
        gate.wait_at_work()
    for gate in outer:
        gate.open()

    def finish() -> None:
        for gate in inner:
            gate.open()

    return finish


def killed(drill: Drill) -> Iterator[Expected]:
    """A kill -9 of three processes with a lock each."""
    keys = ("stock/berlin", "stock/paris", "stock/rome")
    workers, web = [drill.program("worker-1") for _ in keys], drill.program("web-1")
    for worker, key in zip(workers, keys, strict=True):
        worker.hold(key)
    web.tell("wait", *keys)
    drill.wait_recorded(len(keys))
    for worker in workers:
        worker.kill()
    texts = ("3 processes", "ended or were cut off while they held locks")
    yield Expected({"worker-1": "ended"}, texts, "Look at the host", within=DEATH, stays=True)


def database_away(drill: Drill) -> Iterator[Expected]:
    """Three processes that end in order while the database is away: no death."""
    keys = ("stock/berlin", "stock/paris", "stock/rome")
    workers, web = [drill.program("worker-1") for _ in keys], drill.program("web-1")
    for worker, key in zip(workers, keys, strict=True):
        worker.hold(key)
    drill.wait_recorded(len(keys))
    with drill.without_database():
        for worker in workers:
            worker.tell("answer")
            worker.end()
        web.tell("use", *keys)
        web.hear(*(f"used {key}" for key in keys))
        until = time.monotonic() + AWAY
        while time.monotonic() < until:
            assert CALM not in plain(drill.open())
    until = time.monotonic() + DEATH
    while time.monotonic() < until:
        assert "ended or were cut off" not in plain(drill.open())
    yield Expected({"worker-1": ""}, (CALM,))


def two_pods(drill: Drill) -> Iterator[Expected]:
    """One of two pods of one name hangs: both have the pid 1."""
    web = drill.program("web-1")
    with pod(drill, "1"), pod(drill, "2", "3", "4"):
        web.tell("wait", "orders/1")
        yield Expected({"orders/1": "hung"}, ("worker-1 · pid 1", "1 caller waits"), "Request release", 70)
        web.hear("used orders/1")


def flapping(drill: Drill) -> Iterator[Expected]:
    """Three processes of a host whose connections break."""
    keys = ("stock/berlin", "stock/paris", "stock/rome")
    with Proxy(drill.zoo.address) as proxy:
        workers, web = [drill.program("worker-1", proxy.address) for _ in keys], drill.program("web-1")
        for worker, key in zip(workers, keys, strict=True):
            worker.hold(key)
        proxy.hang = True
        web.tell("use", *keys)  # waits until the sessions have ended
        web.hear(*(f"used {key}" for key in keys))
        for worker, key in zip(workers, keys, strict=True):
            worker.tell("answer")
            worker.hear(f"lost {key} LockLost")
        proxy.heal()
        texts = ("worker-1", "has lost its locks 3 times")
        yield Expected({"worker-1": "flapping"}, texts, "Look at its network", stays=True)


def follower(drill: Drill) -> Iterator[Expected]:
    """A follower of ZooKeeper that is down."""
    with repaired(drill.zoo.ensemble):
        server = drill.zoo.ensemble.followers[0]
        server.kill()
        texts = (server.address, "Connection refused", "One more failure stops all locks")
        yield Expected({"2 of 3 servers": "down"}, texts, "Start this server")


def full_disk(drill: Drill) -> Iterator[Expected]:
    """A follower of ZooKeeper whose disk is full."""
    server = drill.zoo.ensemble.followers[0]
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))  # so each write of it fails
    with contextlib.suppress(ConnectionLoss):  # this client may be connected to that server
        drill.zoo.client.ensure_path(f"{drill.zoo.chroot}/written")
    try:
        yield Expected({"2 of 3 servers": "down"}, (server.address, "One more failure stops all locks"), "at its disk")
    finally:
        server.stop()
        repair(drill.zoo.ensemble)


def split(drill: Drill) -> Iterator[Expected]:
    """Servers in `URL` that are two ensembles."""
    peer, election = free_ports(2)
    alone = {"standaloneEnabled": "false", "reconfigEnabled": "true", "server.1": f"127.0.0.1:{peer}:{election}"}
    with Ensemble(nodes=1, properties=alone) as other:
        hosts = f"{drill.zoo.all_hosts},{other.hosts}"
        with drill.reconfigured(ZKLOCK_URL=drill.zoo.url(hosts)):
            yield Expected({"not one ensemble": "split"}, ("to two holders",), "Stop the work")


def quorum(drill: Drill) -> Iterator[Expected]:
    """A lost quorum."""
    ensemble = drill.zoo.ensemble
    with repaired(ensemble):
        web = drill.program("web-1")
        web.hold("stock/berlin")
        lost = [ensemble.followers[0], ensemble.leader]
        for server in lost:
            server.kill()
        texts = ("1 of 3 servers answered", *(server.address for server in lost))
        yield Expected({"no quorum": "quorum"}, texts, "Start the servers that are down")
        repair(ensemble)
        web.tell("answer")


def leader(drill: Drill) -> Iterator[Expected]:
    """A leader by `zk_leader` that is killed 4 times."""

    def lead(number: int) -> None:
        process = drill.zoo.spawn(LEADER, host="lead-1", **drill.site.environment)
        eventually(lambda: "reports" in drill.open("/admin/zklock/lock/data.json"), 30)
        drill.wait_recorded(number)
        process.kill()
        process.communicate()
        eventually(lambda: not drill.zoo.contenders(), 30)

    for number in range(1, 5):
        lead(number)
    yield Expected({"reports": "dying"}, ("its holder died",), "Look at the log", within=DEATH, stays=True)


def container(drill: Drill) -> Iterator[Expected]:
    """A container that is killed again and again: its host and its pid stay the same."""
    for life in range(1, 6):
        with pod(drill, "7"):
            drill.wait_recorded(life)
            if life == 5:
                yield Expected({"orders/7": "dying"}, ("its holder died",), "Look at the log", within=DEATH, stays=True)


@contextlib.contextmanager
def pod(drill: Drill, *orders: str) -> Iterator[None]:
    """Have a process with the host name worker-1 and the pid 1, which hangs with these locks; kill it in the end."""
    pids = [*namespaces.unshare("--pid"), "--fork", "--kill-child"]
    command = [*pids, *namespaces.on_host("worker-1"), sys.executable, "-c", CONTAINER, *orders]
    env = {**drill.zoo.environment(), **drill.site.environment, "ZKLOCK_URL": drill.zoo.url(session_timeout=4)}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield
    finally:
        process.kill()
        process.communicate()


def crowd(drill: Drill) -> Iterator[Expected]:
    """A lock with 203 waiters."""
    holder, webs = drill.program("worker-1"), [drill.program(f"web-{number}") for number in range(7)]
    holder.hold("report/all")
    for web in webs:
        web.tell("wait", *["report/all"] * 29)
    yield Expected({"report/all": "crowded"}, ("203 callers wait", "worker-1"), "Look at the holder")
    holder.tell("answer")
    for web in webs:
        web.hear(*["used report/all"] * 29)


def forgotten(drill: Drill) -> Iterator[Expected]:
    """A forgotten hold of an operator."""
    held = drill.shell("python manage.py zklock hold stock/berlin --for 240s --reason 'a deploy'")
    assert held.returncode == 0, held.stderr
    web = drill.program("web-1")
    web.tell("wait", "stock/berlin")
    yield Expected({"stock/berlin": "operator"}, ("a deploy", "1 caller waits"), "end this hold", 260)
    web.hear("used stock/berlin")


def chain(drill: Drill, *keys: str) -> Iterator[Expected]:
    """A chain of three holders."""
    keys = keys or ("root/1", "mid/1", "leaf/1")
    programs = [drill.program(f"worker-{number}") for number, _key in enumerate(keys, 1)]
    for program, inner, key in zip(programs, (None, *keys), keys, strict=False):
        program.tell("nest", *filter(None, (key, inner)))
        program.hear(f"held {key}")
    for program in programs[1:]:
        program.tell("want")
    web = drill.program("web-1")
    web.tell("wait", "leaf/1")
    texts = ("worker-1", f"{len(keys)} callers wait", "Behind it", "mid/1", "leaf/1")
    yield Expected({"root/1": "hung"}, texts, "Request release", 70)
    for program in programs:
        program.tell("answer")
    web.hear("used leaf/1")


def long_chain(drill: Drill) -> Iterator[Expected]:
    """A chain of five holders."""
    return chain(drill, "root/1", "mid/1", "leaf/1", "twig/1", "bud/1")


def host(drill: Drill) -> Iterator[Expected]:
    """A process that hangs with four locks."""
    keys = ["stock/berlin", "stock/paris", "stock/rome", "stock/oslo"]
    worker, web = drill.program("worker-3"), drill.program("web-1")
    worker.hold(*keys)
    web.tell("wait", keys[0])
    yield Expected({"worker-3": "host"}, ("with 4 locks", "1 caller waits"), "Look at the host", 70)
    web.hear(f"used {keys[0]}")
    worker.tell("answer")


def slow_processes(drill: Drill) -> Iterator[Expected]:
    """Three slow processes of a host, with a lock each."""
    keys = ["stock/berlin", "stock/paris", "stock/rome"]
    workers, web = [drill.program("worker-9") for _ in keys], drill.program("web-1")
    for worker, key in zip(workers, keys, strict=True):
        worker.hold(key)
    web.tell("wait", *keys)
    yield Expected(dict.fromkeys(keys, "hung"), ("worker-9", "1 caller waits"), "Request release", 70)
    for worker in workers:
        worker.tell("answer")


PLAYS: Final[tuple[Play, ...]] = (
    *(hung, hung_thread, permits, skipped, two_pods, kept_out, database_away),
    *(deadlock, deadlock_permit, deadlock_over, deadlock_celery, deadlock_celery_over, bystander, killed),
    *(flapping, leader),
    *(container, crowd, convoy, refused_callers, forgotten, foreign, chain, long_chain, slow_processes, host),
    *(refused_release, refused_creates, unlisted, restored, follower, full_disk, slow_disk, quorum, split),
)
ENVIRONMENTS: Final[dict[Play, dict[str, str]]] = {
    **dict.fromkeys((deadlock, deadlock_celery, bystander), NEVER),
    restored: FENCES,
}
"""The variables of the site and the programs of a play."""


def judge(drill: Drill, expected: Expected, play: Iterator[Expected]) -> list[str]:
    """Return the cells of the row of an incident that has begun."""
    began, wanted = time.monotonic(), [cause for cause in expected.causes.values() if cause]

    def seen() -> list[str]:
        return drill.cards() if wanted else [plain(drill.open())]

    def is_named() -> bool:
        cards = seen()
        return bool(cards) and all(text in cards[0] for text in expected.texts)  # equal cards are folded

    while not is_named() and time.monotonic() < began + expected.within:
        time.sleep(0.1)
    if not is_named():
        return ["never", "cards: " + " | ".join(seen())[:400], "", "", ""]
    named, card = time.monotonic() - began, seen()[0]
    done = drill.shell("python manage.py zklock status --json")
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    incidents = report["incidents"]
    of = {name: cause for name, cause in expected.causes.items() if cause}
    right = [incident["cause"] for incident in incidents] == list(of.values()) and all(
        any(name in incident["title"] for incident in incidents) for name in of
    )
    if not of:
        right = report["complete"] is expected.is_seen and all(text in str(report) for text in expected.texts)
    agree = all_agree(drill, (sorted(set(of.values())), not of and expected.is_seen))
    remedy = all(expected.remedy in text for text in (card, *(incident["remedy"] for incident in incidents)))
    ran = paste(drill, incidents)
    ended, away = time.monotonic(), ""
    next(play, None)
    if not expected.stays:
        eventually(lambda: CALM in plain(drill.open()), 60, "the page is not calm after")
        away = f"{time.monotonic() - ended:.1f} s"
        drill.is_calm()
    return [f"{named:.1f} s", yes(right and agree, incidents or report), yes(remedy, card), ran, away]


def all_agree(drill: Drill, expected: tuple[list[str], bool]) -> bool:
    """Wait until each place tells these causes, and is green or not; return whether all do."""
    until = time.monotonic() + AGREE_WITHIN
    while True:
        others = {name: seen for name, seen in drill.places().items() if seen != expected}
        if not others or time.monotonic() > until:
            break
    has_quorum = json.loads(drill.open("/health.json"))["healthy"]
    if has_quorum is not {"quorum", "denied"}.isdisjoint(expected[0]):
        others["health.json"] = ([], has_quorum)
    if others:
        sys.stderr.write(f"   these places differ from {expected}: {others}\n")
    return not others


def paste(drill: Drill, incidents: list[dict[str, Any]]) -> str:
    """Paste the first printed command of each verb; the one that asks for a reason gets it."""
    first = {line.split()[3]: line for incident in incidents for line in reversed(incident["commands"])}
    results = {}
    for verb, line in sorted(first.items(), key=lambda item: item[0] in {"break", "end-hold"}):
        refused = NO_REASON not in line or drill.shell(line).returncode == 2
        done = drill.shell(line.replace(NO_REASON, f"--reason='{REASON}'"))
        results[verb] = refused and (done.returncode == 0 or (verb in {"doctor", "show"} and bool(done.stdout)))
        if not results[verb]:
            sys.stderr.write(f"   {line}\n   {done.returncode} {done.stdout[-500:]} {done.stderr[-500:]}\n")
    return ", ".join(verb if ran else f"NO: {verb}" for verb, ran in results.items()) or "-"


def yes(right: object, seen: object) -> str:
    """Return the cell of a judgement. If it is not right, write what was seen."""
    if not right:
        sys.stderr.write(f"   not right: {str(seen)[:1500]}\n")
    return "yes" if right else "NO"


def played(ensemble: Ensemble, home: Path, play: Play) -> list[str]:
    """Play an incident on a site of its own; return the cells of its row."""
    zoo = Zoo(ensemble.hosts, ensemble)
    drill = Drill(zoo, home / play.__name__)
    drill.site.environment.update(ENVIRONMENTS.get(play, {}))
    try:
        with drill:
            eventually(lambda: CALM in plain(drill.open()), 30, "the site is not calm before")
            with contextlib.closing(play(drill)) as playing:
                return judge(drill, next(playing), playing)
    except (AssertionError, OSError, subprocess.SubprocessError, KazooException):
        traceback.print_exc(limit=-3)
        return ["failed", "", "", "", ""]
    finally:
        repair(ensemble)
        zoo.close()


def main(words: list[str]) -> int:
    """Play the incidents, and write a row for each."""
    failed, row = 0, "| {:77} | {:6} | {:5} | {:6} | {:30} | {:12} |\n"
    sys.stdout.write(row.format("incident", "named", "cause", "remedy", "commands that ran", "went away"))
    with Ensemble(nodes=3) as ensemble, tempfile.TemporaryDirectory() as home:
        for play in PLAYS:
            name = str(play.__doc__).removesuffix(".")
            if words and not any(word in name for word in words):
                continue
            cells = played(ensemble, Path(home), play)
            failed += cells[1:3] != ["yes", "yes"] or "NO" in cells[3]
            sys.stdout.write(row.format(name, *cells))
            sys.stdout.flush()
    sys.stdout.write(f"{failed} not right\n" if failed else "all right\n")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
