"""The processes of the project: started from one state of the package, and replaced by those of the other."""

import itertools
import json
import signal
import subprocess
import sys
import threading
import uuid

from support import celeryfolder
from support.chaos.history import Recorder, read
from support.versions.keys import COUNTED
from support.versions.record import HISTORY, NAME
from support.worker import Worker
from support.zoo import TESTS, eventually

END = 60.0  # seconds that a process has for its end: its work, and what waits
SESSION = 10.0  # seconds; no session is lost, unless a process hangs
CONCURRENCY = 4
WORKERS = ("worker-1", "worker-2")
BEATS = ("beat-1", "beat-2")
ACTORS = ("actor-1", "actor-2")
SLOTS = tuple(itertools.chain(*zip(ACTORS, WORKERS, BEATS, strict=True)))
"""In the order in which they are replaced: for half of the time, each role has both versions."""


class Process:
    def __init__(self, fleet, name, state, *words, **pipes):
        self.name = name
        self.log = fleet.home / f"log-{name}"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", *words],
                cwd=TESTS,
                env=fleet.environment(name, state),
                stderr=log,
                text=True,
                **{"stdin": subprocess.DEVNULL, "stdout": log, **pipes},
            )

    def alive(self):
        return self._process.poll() is None

    def stop(self):
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(END)

    def kill(self):
        self._process.kill()
        self._process.__exit__(None, None, None)


class Operator(Process):
    def __init__(self, fleet, name, state):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        super().__init__(fleet, name, state, "support.versions.operator", **pipes)
        self._turn = threading.Lock()

    def run(self, *words):
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._turn:
            print(json.dumps(words), file=self._process.stdin, flush=True)
            answer = json.loads(self._process.stdout.readline())
        return answer["status"], answer["text"]


class TaskWorker(Worker):
    def __init__(self, fleet, name, state):
        super().__init__(
            fleet.zoo,
            fleet.home,
            concurrency=CONCURRENCY,
            env=fleet.environment(name, state),
            tasks="support.versions.shop",
            program=(sys.executable, "-m", "celery"),  # no fork of a process that has imported the checkout
        )

    def alive(self):
        return self.process.poll() is None

    def stop(self, timeout=END):
        return super().stop(timeout)

    def kill(self):
        self.__exit__(None)


class Fleet:
    def __init__(self, zoo, home, broker, database):
        self.zoo = zoo
        self.home = home
        self.history = home / "history"
        self.history.mkdir()
        (home / celeryfolder.SETTINGS).write_text(json.dumps(broker))
        self._env = {
            **zoo.environment(session_timeout=SESSION),
            "DJANGO_SETTINGS_MODULE": "support.versions.settings",
            "MIXED_DATABASE": json.dumps(database),
            celeryfolder.HOME: str(home),
            HISTORY: str(self.history),
        }
        self.recorder = Recorder(self.history, "driver")
        self.slots = {}
        self.operators = {}
        self._started = []
        self.statuses = {}  # the exit statuses of those that were asked to end

    def environment(self, name, state):
        return {**self._env, NAME: name, "PYTHONPATH": state.path}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in self._started:
            process.kill()
        self.recorder.close()

    def start(self, slot, state):
        name = f"{state.name}-{slot}-{uuid.uuid4().hex[:4]}"
        process = self._make(name, slot, state)
        self._started.append(process)
        self.slots[slot] = process
        if isinstance(process, Worker):
            process.__enter__()
            return
        self._wait_ready(process)

    def _make(self, name, slot, state):
        if slot in WORKERS:
            return TaskWorker(self, name, state)
        if slot in BEATS:
            files = (f"--schedule={self.home / name}", f"--pidfile={self.home / name}.pid")
            words = ("celery", "-A", "support.versions.shop", "beat", "--loglevel=INFO", *files)
        else:
            words = ("support.versions.actor", slot)
        return Process(self, name, state, *words)

    def _wait_ready(self, process):
        note = self.history / f"ready-{process.name}"
        try:
            eventually(lambda: note.exists() or not process.alive(), 60)
            assert process.alive(), f"{process.name} has ended"
        except AssertionError:
            print(process.log.read_text(errors="replace"))
            raise

    def prepare(self, state):
        self.migrate(state)
        rows = [{"model": "ledgers.account", "fields": {"name": key}} for key in COUNTED]
        (self.home / "rows.json").write_text(json.dumps(rows))
        self.succeed(state, "loaddata", str(self.home / "rows.json"))

    def migrate(self, state):
        self.succeed(state, "migrate", "--run-syncdb")

    def balances(self, state):
        rows = json.loads(self.succeed(state, "dumpdata", "ledgers.account"))
        return {row["fields"]["name"]: row["fields"]["balance"] for row in rows}

    def succeed(self, state, *words):
        status, text = self.operators[state.name].run(*words)
        assert status == 0, f"{' '.join(words)}: {text}"
        return text

    def begin_operator(self, state):
        operator = Operator(self, f"{state.name}-operator", state)
        self._started.append(operator)
        self.operators[state.name] = operator
        self._wait_ready(operator)

    def stop(self, *slots):
        for slot in slots:
            process = self.slots.pop(slot)
            self.statuses[process.log.name] = process.stop()

    def replace(self, slot, state):
        self.recorder.write("replaced", slot=slot, by=state.name)
        self.stop(slot)
        self.start(slot, state)

    def events(self):
        return read(self.history.glob("*.jsonl"))

    def logs(self):
        return {process.log.name: process.log.read_text(errors="replace") for process in self._started}
