"""
Publishers and workers of unique tasks as plain processes that are killed at random, and the check of them.

Each process writes what it does into one history, before it does it or after, so that an interval of the history never
claims more than was true. Times are those of the one machine's monotonic clock.
"""

from __future__ import annotations

import itertools
import json
import random
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.zoo import Zoo, eventually

KEYS = ("a", "b/c")

PROCESS = """
import json, os, random, sys, time, uuid
from pathlib import Path
from django_zklock.contrib.celery.unique import reservations
from django_zklock.exceptions import ZkLockError
from django_zklock.contrib.celery.unique.reservations import Duplicate

role, home, done, late = sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "done", sys.argv[4] == "late"
KEYS = sys.argv[5:]
history = os.open(home / "history", os.O_APPEND | os.O_WRONLY | os.O_CREAT)

def log(what, key, task, **more):
    line = json.dumps({"at": time.monotonic(), "pid": os.getpid(), "what": what, "key": key, "task": task, **more})
    os.write(history, line.encode() + b"\\n")

def publish():
    key, task = random.choice(KEYS), str(uuid.uuid4())
    called = time.monotonic()
    until = None if late else time.time() + 4
    found = reservations.reserve(key, task, late=late, until=until, timeout=10)
    if isinstance(found, Duplicate):
        log("taken", key, found.task_id, called=called)
        return
    log("sent", key, task)
    draft = home / f"draft-{task}"
    draft.write_text(json.dumps([key, task]))
    draft.rename(home / "messages" / task)
    reservations.conclude(found, sent=True, reply_timeout=10)
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
    reservations.start(key, task, late=late, reply_timeout=10)
    if not done and not reservations.end(key, task, reply_timeout=10):
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


@dataclass
class Event:
    at: float
    pid: int
    what: str
    key: str
    task: str
    called: float = 0.0
    error: str = ""


class Turmoil:
    """Two publishers and three workers, of which one is killed now and then, and another one takes its place."""

    def __init__(self, zoo: Zoo, home: Path, *, done: bool, late: bool, seed: int) -> None:
        self.zoo = zoo
        self.home = home
        self.done = done
        self.late = late
        self.random = random.Random(seed)
        self._processes: dict[subprocess.Popen[str], str] = {}
        for name in ("messages", "claimed"):
            (home / name).mkdir()

    @contextmanager
    def running(self) -> Iterator[None]:
        try:
            for role in ("publisher", "publisher", "worker", "worker", "worker"):
                self._spawn(role)
            yield
        finally:
            for process in list(self._processes):
                self._kill(process)

    def _spawn(self, role: str) -> None:
        words = (role, str(self.home), "done" if self.done else "start", "late" if self.late else "early", *KEYS)
        self._processes[self.zoo.spawn(PROCESS, *words)] = role

    def strike(self) -> None:
        """Kill one process, have its messages delivered again if they were not acknowledged, and start another."""
        process = self.random.choice(list(self._processes))
        role = self._kill(process)
        self._spawn(role)

    def _kill(self, process: subprocess.Popen[str]) -> str:
        role = self._processes.pop(process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
        with (self.home / "history").open("a") as file:
            event = {"at": time.monotonic(), "pid": process.pid, "what": "killed", "key": "", "task": ""}
            file.write(json.dumps(event) + "\n")
        for claimed in (self.home / "claimed").glob(f"{process.pid}.*"):
            claimed.rename(self.home / "messages" / claimed.suffix[1:])
        return role

    def settle(self) -> None:
        """Stop the publishers, and wait until all messages are done with."""
        (self.home / "stop").touch()
        remaining: list[object] = []

        def is_settled() -> bool:
            messages = [*(self.home / "messages").iterdir(), *(self.home / "claimed").iterdir()]
            ended = [process.pid for process in self._processes if process.poll() is not None]
            remaining[:] = ["messages", *messages, "ended", *ended]
            return not messages

        eventually(is_settled, 30, remaining)

    def events(self) -> list[Event]:
        lines = (self.home / "history").read_text().splitlines()
        return sorted((Event(**json.loads(line)) for line in lines), key=lambda event: event.at)


class Verdict:
    """The judgement on the history of a turmoil."""

    def __init__(self, events: list[Event]) -> None:
        self.events = events
        self.killed = {event.pid: event.at for event in events if event.what == "killed"}
        self.of: dict[str, dict[str, list[Event]]] = defaultdict(lambda: defaultdict(list))
        for event in events:
            if event.task:
                self.of[event.task][event.what].append(event)
        # Killed between sending and saying so: the one case in which a second one may be sent.
        self.excused = {task for task, history in self.of.items() if history["sent"] and not history["confirmed"]}

    def count(self, what: str) -> int:
        return sum(event.what == what for event in self.events)

    def spans(self, *, late: bool) -> dict[str, list[tuple[float, float, str]]]:
        """From each task's sending to its end, by key: that it was done, or that all who had it were killed."""
        spans = defaultdict(list)
        for task, history in self.of.items():
            if not history["sent"] or task in self.excused:
                continue
            ends = [event.at for event in history["leave"]]
            if not ends and not late:
                ends = [self.killed[event.pid] for event in history["claimed"] if event.pid in self.killed]
            spans[history["sent"][0].key].append((history["sent"][0].at, ends[0] if ends else float("inf"), task))
        return {key: sorted(spans_of_key) for key, spans_of_key in spans.items()}

    def assert_one_at_a_time(self, *, late: bool) -> None:
        """Never are two tasks of one key queued or running."""
        for key, spans in self.spans(late=late).items():
            for (_, end, first), (begin, _, second) in itertools.pairwise(spans):
                assert begin >= end, f"{key}: {second} was sent {end - begin:.3f} s before the end of {first}"

    def assert_told_the_truth(self) -> None:
        """Fail if a publisher was refused because of a task that was never sent."""
        for task, history in self.of.items():
            assert not history["taken"] or history["sent"], f"{task} was never sent"

    def assert_nothing_lost(self) -> None:
        """Fail if a task that was sent was not done, where messages outlive the workers."""
        for task, history in self.of.items():
            assert not history["sent"] or not history["confirmed"] or history["leave"], f"{task} was lost"

    def assert_begun_after_each_call(self) -> None:
        """Fail if a publisher was refused because of a task that had started before the call."""
        for task, history in self.of.items():
            for call in history["taken"]:
                assert any(start.at > call.called for start in history["enter"]), f"{task} had begun before"


def deadline(seconds: float) -> Any:
    """Return a function that is true for so long."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end
