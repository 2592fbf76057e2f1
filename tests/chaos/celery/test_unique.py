"""Unique tasks under random kills of publishers and workers: one at a time, none lost, no key stuck."""

import itertools
import json
import random
import signal
import time
from collections import defaultdict
from contextlib import contextmanager

import pytest
from support.reserving import holder
from support.zoo import eventually

from django_zklock import inspection

pytestmark = pytest.mark.timeout(180)

SESSION = 10  # seconds; of the processes that `Zoo.spawn` starts
SECONDS = 20.0
KEYS = ("a", "b/c")
ROLES = ("publisher", "publisher", "worker", "worker", "worker")

# Each process writes what it does into one history, before it does it or after, so that an interval of the history
# never claims more than was true.
PROCESS = """
import json, os, random, sys, time, uuid
from pathlib import Path
from django_zklock.contrib.celery.unique import reservations
from django_zklock.exceptions import ZkLockError

role, home, done, late = sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "done", sys.argv[4] == "late"
KEYS = sys.argv[5:]
history = os.open(home / "history", os.O_APPEND | os.O_WRONLY | os.O_CREAT)

def log(what, key, task, **more):
    line = json.dumps({"at": time.monotonic(), "pid": os.getpid(), "what": what, "key": key, "task": task, **more})
    os.write(history, line.encode() + b"\\n")

def publish():
    key, task = random.choice(KEYS), str(uuid.uuid4())
    called = time.monotonic()
    with reservations.reserved(key, task, task="work", seconds=60 if late else 4, timeout=10) as other:
        if other is not None:
            log("taken", key, other, called=called)
            return
        log("sent", key, task)
        draft = home / f"draft-{task}"
        draft.write_text(json.dumps([key, task]))
        draft.rename(home / "messages" / task)
    log("confirmed", key, task)

def work():
    messages = list((home / "messages").iterdir())
    if not messages:
        return
    mine = home / "claimed" / f"{os.getpid()}.{random.choice(messages).name}"
    try:
        (home / "messages" / mine.suffix[1:]).rename(mine)
    except FileNotFoundError:
        return
    key, task = json.loads(mine.read_text())
    log("claimed", key, task)
    if not late:
        mine.unlink()
    if not done and reservations.end(key, task, reply_timeout=10) is not None:
        if late:
            mine.rename(home / "messages" / task)
        raise ZkLockError("the end was not confirmed")
    log("enter", key, task)
    time.sleep(random.uniform(0, 0.03))
    log("leave", key, task)
    if done:
        reservations.end(key, task)
    mine.unlink(missing_ok=True)

while role == "worker" or not (home / "stop").exists():
    try:
        publish() if role == "publisher" else work()
    except ZkLockError as error:
        log("error", "", "", error=repr(error))
    time.sleep(random.uniform(0, 0.02))
"""


class Turmoil:
    def __init__(self, zoo, home, *words):
        self._zoo = zoo
        self._home = home
        self._words = words
        self._processes = {}
        self._failures = []
        for name in ("messages", "claimed"):
            (home / name).mkdir()

    @contextmanager
    def running(self):
        try:
            for role in ROLES:
                self._spawn(role)
            yield
        finally:
            for process in list(self._processes):
                self._kill(process)
            assert not self._failures, "\n".join(self._failures)

    def _spawn(self, role):
        self._processes[self._zoo.spawn(PROCESS, role, str(self._home), *self._words, *KEYS)] = role

    def strike(self, chance):
        self._spawn(self._kill(chance.choice(list(self._processes))))

    def _kill(self, process):
        event = {"at": time.monotonic(), "pid": process.pid, "what": "killed", "key": "", "task": ""}
        process.kill()
        _, errors = process.communicate()
        if process.returncode not in (0, -signal.SIGKILL):
            self._failures.append(errors)
        with (self._home / "history").open("a") as file:
            file.write(json.dumps(event) + "\n")
        for claimed in (self._home / "claimed").glob(f"{process.pid}.*"):
            claimed.rename(self._home / "messages" / claimed.suffix[1:])
        return self._processes.pop(process)

    def settle(self):
        (self._home / "stop").touch()
        for process in [process for process, role in self._processes.items() if role == "publisher"]:
            process.wait(30)  # killed while it waits for a key, it would leave its contender until its session is over
        eventually(lambda: not [*(self._home / "messages").iterdir(), *(self._home / "claimed").iterdir()], 30)

    def events(self):
        history = self._home / "history"
        lines = history.read_text().splitlines() if history.exists() else []
        return sorted(map(json.loads, lines), key=lambda event: float(event["at"]))


@pytest.mark.parametrize("late", [True, False], ids=["late", "early"])
@pytest.mark.parametrize("done", [True, False], ids=["done", "start"])
def test_unique_tasks_survive_kills(zoo, tmp_path, pytestconfig, done, late):
    chance = random.Random(pytestconfig.getoption("--soak-seed"))
    turmoil = Turmoil(zoo, tmp_path, "done" if done else "start", "late" if late else "early")
    with turmoil.running():
        eventually(lambda: sum(event["what"] == "enter" for event in turmoil.events()) > 3, 60, "hardly a task ran")
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            time.sleep(chance.uniform(0.2, 1.0))
            turmoil.strike(chance)
        turmoil.settle()
        # Of the dead, the sessions end by themselves; of the living, the work does.
        eventually(lambda: all(holder(key) is None for key in KEYS), 2 * SESSION, "a key is stuck")
        # Nobody deletes the reservation of a lost message before somebody looks at the locks.
        inspection.snapshot(max_age=0)
        # A killed publisher has a contender until its session is over, also while no task has the key.
        zoo.assert_empty(timeout=2 * SESSION)
    judge(turmoil.events(), done=done, late=late)


def judge(events, *, done, late):
    """See that each publisher was told the truth, that tasks of a key were one at a time, and that none was lost."""
    killed = {event["pid"]: event["at"] for event in events if event["what"] == "killed"}
    tasks = defaultdict(lambda: defaultdict(list))
    for event in events:
        tasks[event["task"]][event["what"]].append(event)
    del tasks[""]
    spans = defaultdict(list)  # by key, from sending to the end
    for task, seen in tasks.items():
        assert not seen["taken"] or seen["sent"], f"{task} was never sent"
        # A publisher killed between sending and saying so: the one case in which a second one may be sent.
        if not seen["sent"] or not seen["confirmed"]:
            continue
        assert seen["leave"] or not late, f"{task} was lost, although messages outlive the workers"
        sent = seen["sent"][0]
        spans[sent["key"]].append((sent["at"], end_of(seen, killed)))
        if late and not done:
            assert_began_later(task, seen)
    if done:
        assert_one_at_a_time(spans)


def end_of(seen, killed):
    """Return when a task ended: with its work, or with the worker that had its message."""
    ends = [event["at"] for event in seen["leave"]]
    ends = ends or [killed[event["pid"]] for event in seen["claimed"] if event["pid"] in killed]
    return ends[0] if ends else float("inf")


def assert_began_later(task, seen):
    """A publisher that meets a task relies on it: the work begins after the call."""
    for call in seen["taken"]:
        assert any(start["at"] > call["called"] for start in seen["enter"]), f"{task} had begun before"


def assert_one_at_a_time(spans):
    for of_key in spans.values():
        for (_, end), (begin, _) in itertools.pairwise(sorted(of_key)):
            assert begin >= end, f"a task was sent {end - begin:.3f} s before the end of another"
