"""Celery workers that book payments while their processes are killed, and the check of what they did."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.chaos.checker import check_history
from support.chaos.history import Recorder, read
from support.payments import HISTORY, JOURNAL, SPAWN, Journal, process_name
from support.proxy import Proxy
from support.worker import Worker
from support.zoo import Zoo

COUNT = 2  # workers
SESSION = 4.0  # seconds
ORPHANS = 10.0  # seconds that the pool of a killed worker may live on
LIMIT = 0.1, 0.6  # seconds, the least and the most, of time limits
READY = frozenset({"SUCCESS", "FAILURE", "REVOKED"})


@dataclass
class PaymentWorkers:
    """Two workers, replaced when killed. If `troubled`, they are cut off, paused and limited; every second spawns."""

    zoo: Zoo
    home: Path
    conf: Mapping[str, Any]
    keys: Sequence[str]
    tasks: Sequence[str]
    chance: random.Random
    troubled: bool
    resend: float  # seconds after which a payment is sent again that has not ended

    def __post_init__(self):
        (self.home / HISTORY).mkdir()
        Journal(self.home / JOURNAL, self.keys).close()
        self.done = Counter()  # what was done to the workers
        self._results = {}  # by the ref of a payment
        self._sent = {}  # when, by ref
        self._hired = itertools.count()
        self._links = {}
        self._workers = []
        self._stack = contextlib.ExitStack()
        self._history = Recorder(self.home / HISTORY, "test")

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            self._stack = stack
            for _ in range(COUNT):
                self._hire()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error):
        self._stack.close()
        self._history.close()

    def _hire(self):
        link = self._stack.enter_context(Proxy(self.zoo.address))
        env = {SPAWN: "yes"} if self.troubled and next(self._hired) % 2 else {}
        how = {"session_timeout": SESSION, "hosts": link.address, "env": env, "conf": self.conf}
        worker = Worker(self.zoo, self.home, concurrency=4, tasks="support.payments", **how)
        self._workers.append(self._stack.enter_context(worker))
        self._links[worker] = link

    def send(self, count):
        kinds = itertools.cycle(itertools.product(self.tasks, self.keys))
        for number, (task, key) in zip(range(count), kinds, strict=False):
            self._send(f"{task}/{key}/{number}")

    def _send(self, ref):
        task, key, _ = ref.split("/")
        options = {}
        if self.troubled and key != self.keys[0]:
            kind = "time_limit" if key == self.keys[1] else "soft_time_limit"
            options = {kind: self.chance.uniform(*LIMIT)}
        self._results[ref] = self._workers[0].send(task, key, ref, **options)
        self._sent[ref] = time.monotonic()

    def wait_done(self, timeout, *, every):
        """Wait until every task has ended, and do harm every so many seconds."""
        began = time.monotonic()
        due = began + every
        open_refs = set(self._results)
        while open_refs:
            now = time.monotonic()
            assert now < began + timeout, f"{len(open_refs)} tasks have not ended: {sorted(open_refs)[:5]}"
            if now > due:
                self._harm()
                due = time.monotonic() + every
            open_refs -= {ref for ref in list(open_refs)[:50] if self._has_ended(ref)}
            time.sleep(0.02)

    def _has_ended(self, ref):
        """Return whether a task has ended. Send it again if a time limit struck the code around its function."""
        result = self._results[ref]
        is_ready = result.state in READY
        # By its text, as Celery wraps the error of a soft limit.
        is_struck = is_ready and "TimeLimitExceeded" in repr(result.result)
        if is_struck or (not is_ready and time.monotonic() > self._sent[ref] + self.resend):
            self.done["sent again"] += 1
            self._send(ref)
        return is_ready and not is_struck

    def _harm(self):
        """Kill a pool process, or, one time in four, a whole worker; do something else if the workers have trouble."""
        if self.troubled and self.chance.random() < 0.6:
            harm = self.chance.choice([self._cut, self._stall, self._pause])
        else:
            harm = self._kill_worker if self.chance.random() < 0.25 else self._kill_process
        harm()
        self.done[harm.__name__] += 1

    def _cut(self):
        self._links[self.chance.choice(self._workers)].cut_all()

    def _stall(self):
        """Let nothing through between a worker and ZooKeeper for a while, which may be longer than its session."""
        link = self._links[self.chance.choice(self._workers)]
        link.hang = True
        time.sleep(self._a_while())
        link.hang = False

    def _pause(self):
        """Stop the main process of a worker for a while. Its pool works on."""
        worker = self.chance.choice(self._workers)
        worker.process.send_signal(signal.SIGSTOP)
        time.sleep(self._a_while())
        worker.process.send_signal(signal.SIGCONT)

    def _a_while(self):
        return self.chance.uniform(0.1, 1.5) * SESSION

    def _kill_process(self):
        """Kill a process of a pool, as the kernel does when memory runs out: one that holds a lock, if there is one."""
        pool = {pid for worker in self._workers for pid in worker.children()}
        first = [payload for key in self.keys for payload in self.zoo.payloads(key)[:1] if payload is not None]
        holders = {payload.pid for payload in first} & pool
        pid = self.chance.choice(sorted(holders or pool))
        self._history.write("nemesis", what="kill", target=process_name(pid), given_back=True)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def _kill_worker(self):
        """Kill a main process. Its tasks' messages go back to the queue while its pool lives on, so copies run, too."""
        worker = self._workers.pop(self.chance.randrange(len(self._workers)))
        pool = worker.children()
        worker.process.kill()
        worker.process.wait()
        self._hire()
        worker.wait_ended(ORPHANS)
        for pid in pool:
            self._history.write("nemesis", what="kill", target=process_name(pid))

    def stop(self):
        """Let the workers finish what they have begun, and end."""
        for worker in self._workers:
            worker.process.send_signal(signal.SIGTERM)
        for worker in self._workers:
            worker.process.wait(60)

    def assert_kept(self):
        """Fail unless each payment was booked once, in turn under its key, and every lock kept its promises."""
        with contextlib.closing(Journal(self.home / JOURNAL)) as journal:
            times = journal.times()
            values = {key: journal.values(key) for key in self.keys}
        assert not set(self._results) - set(times), "payments were lost"
        assert set(times.values()) == {1}, f"booked more than once: {[ref for ref, n in times.items() if n > 1]}"
        failed = {ref: result.traceback for ref, result in self._results.items() if result.state != "SUCCESS"}
        assert not failed, failed
        for key, booked in values.items():
            assert booked == list(range(1, len(booked) + 1)), f"not in turn: {key}"
        verdict = check_history(read((self.home / HISTORY).glob("*.jsonl")))
        assert verdict.ok, f"{verdict.short()}\nthe history: {self.home / HISTORY}"
