"""Incidents of real processes that show after some time: page and doctor name the cause, and the remedy works."""

from __future__ import annotations

import re
import runpy
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from support.chaos import namespaces, wrap
from support.drill import LOGIN, OPERATOR, Drill
from support.ensemble import Ensemble
from support.neighbours.protocol import OtherClient
from support.proxy import Proxy
from support.worker import Worker
from support.zoo import TESTS, Zoo

from django_zklock.core.queue.order import LAST_SEQUENCE

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(300)]

KEY = "orders/1042"
FIFTY = [f"orders/{number:03}" for number in range(50)]


INCIDENTS = runpy.run_path(str(TESTS.parent / "scripts" / "incidents.py"))


@pytest.mark.parametrize("play", INCIDENTS["PLAYS"], ids=lambda play: play.__name__)
def test_an_incident_is_named_with_its_cause_and_remedy(three: Ensemble, tmp_path: Path, play: Any) -> None:
    """The page and the doctor name it, and nothing else, the printed commands run, and it goes away."""
    _named, cause, remedy, commands, _away = INCIDENTS["played"](three, tmp_path, play)
    assert (cause, remedy, "NO" in commands) == ("yes", "yes", False), commands


def test_a_hung_holder_with_forty_waiters(drill: Drill) -> None:
    """After the break, the next one has the lock, and the work that has not ended stays visible until it ends."""
    worker, web = drill.hang("worker-1", KEY, waiters=20)
    other = drill.program("web-2")  # a process has up to 32 waiters of one lock in the queue
    other.tell("wait", *[KEY] * 20)
    drill.zoo.wait_contenders(KEY, 41)
    commands = drill.finds("hung", "worker-1", KEY, "40 callers wait", "its usual time", "Break")
    drill.paste(commands, "break")
    for program in (web, other):
        program.hear(*[f"used {KEY}"] * 20)
    drill.finds("broken", f"Broken by {OPERATOR}", KEY, "worker-1", "has not ended")
    worker.tell("answer")
    worker.hear(f"lost {KEY} LockLost")
    drill.is_calm()


def test_a_paused_host_is_not_said_to_be_dead(drill: Drill) -> None:
    """Its work goes on when the host does, without the locks."""
    batch, web = drill.program("batch-1"), drill.program("web-1")
    batch.hold(*FIFTY[:3])
    drill.wait_recorded(3)
    batch.process.send_signal(signal.SIGSTOP)
    web.tell("use", *FIFTY[:3])
    web.hear(*(f"used {key}" for key in FIFTY[:3]))
    drill.finds("ended", "batch-1", "ended or were cut off, with 3 locks", "killed or paused", "or still run")
    batch.process.send_signal(signal.SIGCONT)
    batch.tell("answer")
    batch.hear(*(f"lost {key} LockLost" for key in FIFTY[:3]))
    drill.is_calm()


def test_a_hung_host_with_fifty_locks(drill: Drill) -> None:
    """Its locks are broken on one page. Nobody is told that a process was killed that lives."""
    batch, web = drill.hang("batch-1", *FIFTY, waiters=1)
    commands = drill.finds("host", "batch-1", "with 50 locks", "50 callers wait", "If it hangs, break them")
    assert all(key in drill.paste(commands, "list --host=batch-1") for key in FIFTY)
    (card,) = drill.cards()
    (page,) = [href for label, href in card.links.items() if "All locks of batch-1" in label]
    drill.press(page, "break", confirm="batch-1")
    web.hear(*(f"used {key}" for key in FIFTY))
    drill.finds("broken", f"Broken by {LOGIN}", "batch-1", "has not ended")
    assert "killed" not in " ".join(card.text for card in drill.cards())
    batch.tell("answer")
    batch.hear(*(f"lost {key} LockLost" for key in FIFTY))
    drill.is_calm()


def test_flapping_connections_of_one_host(drill: Drill) -> None:
    """Three processes lose their locks, and get them again when the network is repaired."""
    with Proxy(drill.zoo.address) as proxy:
        programs = [drill.program("batch-1", proxy.address) for _ in range(3)]
        for number, program in enumerate(programs):
            program.hold(f"orders/{number}")
        proxy.hang = True
        web = drill.program("web-1")
        web.tell("use", "orders/0", "orders/1", "orders/2")  # waits until the sessions have ended
        web.hear("used orders/0", "used orders/1", "used orders/2")
        for number, program in enumerate(programs):
            program.tell("answer")
            program.hear(f"lost orders/{number} LockLost")
        proxy.heal()
        commands = drill.finds("flapping", "batch-1", "has lost its locks 3 times", "Look at its network")
        assert "batch-1" in drill.paste(commands, "history --host=batch-1")
        for number, program in enumerate(programs):
            program.learn(f"orders/{number}")
        drill.acknowledge()


@pytest.mark.parametrize(("client", "name"), [("plain_kazoo", "kazoo"), ("jvm", "Curator")])
def test_another_client_blocks_a_key(drill: Drill, request: pytest.FixtureRequest, client: str, name: str) -> None:
    other: OtherClient = request.getfixturevalue(client)
    path = f"{drill.zoo.base}/{KEY}"
    kind = "mutex" if client == "jvm" else "lock"
    assert other.try_acquire("A", kind, path)
    web = drill.program("web-1")
    web.tell("wait", KEY)
    commands = drill.finds("foreign", KEY, name, "1 caller waits", "End its program, or break the lock")
    drill.paste(commands, "break")
    web.hear(f"used {KEY}")
    drill.is_calm()


@pytest.mark.parametrize(
    ("number", "cause", "texts"),
    [
        (-5, "counter", ["Counter used up", "delete the empty directory"]),
        (
            LAST_SEQUENCE - 1_000_000,
            "wearing",
            ["Counter nearly used up", "Delete its directory", "acquisitions are left"],
        ),
    ],
    ids=["worn out", "nearly"],
)
def test_a_worn_out_key(tmp_path: Path, number: int, cause: str, texts: list[str]) -> None:
    """Each caller is refused and leaves, so a look finds an empty queue. Without its directory, the key works again."""
    directory = tmp_path / "server"
    directory.mkdir()
    wrap.prepare(directory, {f"/worn/zklock/{KEY}": number})
    with Ensemble(nodes=1, directory=directory) as ensemble:
        zoo = Zoo(ensemble.hosts, ensemble)
        zoo.chroot, zoo.base = "/worn", "/worn/zklock"
        with Drill(zoo, tmp_path / "site") as drill, calling(drill, KEY):
            drill.finds(cause, KEY, *texts)
            page = drill.open(next(iter(drill.cards()[0].links.values())))
            (path,) = set(re.findall(r"delete (/worn/\S+)<", page))
            zoo.client.delete(path)  # what the page says; there is no zkCli.sh in the tests
            drill.is_calm()
            web = drill.program("web-2")
            web.learn(KEY)
        zoo.close()


class calling(threading.Thread):  # noqa: N801
    """A real caller, once a second, for the length of a with block."""

    def __init__(self, drill: Drill, key: str) -> None:
        super().__init__()
        self._web, self._key, self._over = drill.program("web-1"), key, threading.Event()

    def run(self) -> None:
        while not self._over.wait(1):
            self._web.tell("use", self._key)

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self.join()


def test_a_planned_hold_with_a_waiter_is_no_incident(drill: Drill) -> None:
    """Not before its time is nearly over. Then it is forgotten, or its time ends it."""
    held = drill.shell("python manage.py zklock hold orders/shop --for 2h --reason 'a deploy'")
    assert held.returncode == 0, held.stderr
    web = drill.program("web-1")
    web.tell("wait", "orders/shop")
    drill.zoo.wait_contenders("orders/shop", 2)
    drill.is_calm()


@pytest.mark.parametrize("held", [3, 6])
def test_a_killed_celery_worker(drill: Drill, tmp_path: Path, held: int) -> None:
    """The tasks of its pool end with it, and their locks are free."""
    program = [*namespaces.on_host("worker-9"), sys.executable, "-m", "celery"]
    env = drill.site.environment
    with Worker(drill.zoo, tmp_path, concurrency=held, program=program, env=env, session_timeout=4) as worker:
        for number in range(held):
            worker.begin("plain", f"order-{number}")
        web = drill.program("web-1")
        web.tell("wait", *(f"order-{number}" for number in range(held)))
        drill.wait_recorded(held)
        worker.process.kill()
        commands = drill.finds("ended", "worker-9", f"with {held} locks", "Check the work of these locks")
        web.hear(*(f"used order-{number}" for number in range(held)))
        assert "order-0" in drill.paste(commands, "history --host=worker-9")
        drill.acknowledge()


def test_a_hammered_lock(drill: Drill) -> None:
    """Forty callers at a time: most are refused. It is over a minute after they have stopped."""
    over = threading.Event()

    def call() -> list[int]:
        statuses = []
        while not over.is_set():
            try:
                with urlopen(f"{drill.site.url}/sell/lamp", timeout=30) as answer:
                    statuses.append(answer.status)
            except HTTPError as error:
                statuses.append(error.code)
        return statuses

    with ThreadPoolExecutor(40) as callers:
        calls = [callers.submit(call) for _ in range(40)]
        try:
            commands = drill.finds("hot", "stock/lamp", "callers were refused in the last minute")
            for command in commands:
                drill.paste([command], "zklock")
        finally:
            over.set()
    statuses = [status for made in calls for status in made.result()]
    assert statuses.count(409) > len(statuses) / 2
    drill.is_calm(90)
