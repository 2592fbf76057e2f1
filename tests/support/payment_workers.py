"""Celery workers that book payments while their processes are killed, and the check of what they did."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from celery.result import AsyncResult

from support.chaos.checker import Verdict, check_history, keep
from support.chaos.history import Recorder, read
from support.chaos.journal import Journal
from support.payments import HISTORY, JOURNAL, SPAWN, process_name
from support.proxy import Proxy
from support.trail import Trail
from support.worker import Worker
from support.zoo import Zoo, eventually

ORPHANS = 10.0  # seconds that the pool of a killed worker may live on
LIMIT = 0.1, 0.6  # seconds, the least and the most, of time limits
LOOK = 5.0  # seconds between two looks for messages that were lost
EXPLAINED = 5  # tasks at most that a failure tells of
READY = frozenset({"SUCCESS", "FAILURE", "REVOKED"})


class PaymentWorkers:
    """Some workers on one broker, for the length of a with block; those that are killed are replaced."""

    def __init__(
        self,
        zoo: Zoo,
        home: Path,
        conf: Mapping[str, Any],
        keys: Sequence[str],
        *,
        workers: int,
        concurrency: int,
        session_timeout: float,
        tasks: Sequence[str] = ("pay", "pay_patiently", "pay_again"),
        chance: random.Random,
        trail: Trail | None = None,
        troubled: bool = False,
        mixed: bool = False,
    ) -> None:
        (home / HISTORY).mkdir()
        Journal(home / JOURNAL, keys).close()
        self._zoo = zoo
        self.home = home
        self.keys = keys
        self.tasks = tasks
        self.results: dict[str, AsyncResult[Any]] = {}  # by the ref of a payment
        self.done: Counter[str] = Counter()  # what was done to the workers
        self._make: Callable[..., Worker] = lambda hosts, env: Worker(
            zoo,
            home,
            concurrency=concurrency,
            session_timeout=session_timeout,
            hosts=hosts,
            env=env,
            conf=conf,
            tasks="support.payments",
        )
        self._session_timeout = session_timeout
        self._troubled = troubled  # connections are cut and stalled, workers paused, and tasks have time limits
        self._mixed = mixed  # every second worker cannot have its tasks wait in the main process
        self._hired = 0
        self._links: dict[Worker, Proxy] = {}
        self._chance = chance
        self._trail = trail
        self._count = workers
        self._workers: list[Worker] = []
        self._sent: dict[str, tuple[str, str]] = {}  # task and key, by ref
        self._stack = contextlib.ExitStack()
        self._history = Recorder(home / HISTORY, "test")

    def __enter__(self) -> PaymentWorkers:
        with contextlib.ExitStack() as stack:
            self._stack = stack
            for _ in range(self._count):
                self._hire()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        self._history.close()

    def _hire(self) -> Worker:
        link = self._stack.enter_context(Proxy(self._zoo.address)) if self._troubled else None
        self._hired += 1
        env = {SPAWN: "yes"} if self._mixed and self._hired % 2 else {}
        worker = self._stack.enter_context(self._make(None if link is None else link.address, env))
        if link is not None:
            self._links[worker] = link
        self._workers.append(worker)
        return worker

    def send(self, count: int) -> None:
        """Send so many payments, spread over the keys and the kinds of tasks."""
        kinds = itertools.cycle(itertools.product(self.tasks, self.keys))
        for number, (task, key) in zip(range(count), kinds, strict=False):
            ref = f"{key}/{number}"
            self._sent[ref] = (task, key)
            self._send(ref)

    def _send(self, ref: str) -> None:
        task, key = self._sent[ref]
        options = {}
        if self._troubled and key != self.keys[0]:
            kind = "time_limit" if key == self.keys[1] else "soft_time_limit"
            options = {kind: self._chance.uniform(*LIMIT)}
        self.results[ref] = self._workers[0].send(task, key, ref, **options)

    def count_booked(self) -> int:
        """Return how many payments have been booked."""
        with contextlib.closing(Journal(self.home / JOURNAL)) as journal:
            return len(journal.times())

    def wait_done(self, timeout: float, *, every: float = math.inf) -> float:
        """Wait until every task has ended, and kill something every so many seconds; return how long it took."""
        began = time.monotonic()
        due = began + every
        look = began + LOOK
        open_refs = set(self.results)
        while open_refs:
            now = time.monotonic()
            assert now < began + timeout, self._explain(open_refs)
            if now > due:
                self.kill_any()
                due = time.monotonic() + every
            if now > look:
                self._send_lost_again(open_refs)
                look = time.monotonic() + LOOK
            open_refs -= {ref for ref in list(open_refs)[:50] if self._has_ended(ref)}
            time.sleep(0.02)
        return time.monotonic() - began

    def _has_ended(self, ref: str) -> bool:
        """
        Return whether a task has ended. It is sent again if a time limit ended it: Celery does not.

        A soft limit ends it if it strikes in the code of Celery around the function.
        """
        result = self.results[ref]
        if result.state not in READY:
            return False
        if "TimeLimitExceeded" in repr(result.result):  # by its text, as Celery wraps the error of a soft limit
            self.done["ended by a time limit, sent again"] += 1
            self._send(ref)
            return False
        return True

    def _send_lost_again(self, refs: Iterable[str]) -> None:
        """Send payments again if a killed worker has lost their message, as the sender has to on Redis."""
        if self._trail is None:
            return
        tasks = {result.id: ref for ref in refs if (result := self.results[ref]).state not in READY}
        for task in self._trail.lost(tasks):
            self.done["messages lost with a worker, sent again"] += 1
            self._send(tasks[task])

    def _explain(self, refs: Collection[str]) -> str:
        """Tell what became of tasks that have not ended: where their messages are, and what the workers logged."""
        lines = [f"{len(refs)} of {len(self.results)} tasks have not succeeded"]
        for ref in sorted(refs)[:EXPLAINED]:
            result = self.results[ref]
            lines.append(f"{ref}: {result.id}, {result.state}, {result.traceback or ''}")
            lines += self._trail.tell(result.id) if self._trail is not None else []
            for log in self.home.glob("log-*"):
                said = [line for line in log.read_text(errors="replace").splitlines() if result.id in line]
                lines += [f"{log.name}: {line}" for line in said]
        lines += self._trail.tell_killed() if self._trail is not None else []
        return "\n".join(lines)

    # --- harm ---------------------------------------------------------------------------------------------------

    def kill_any(self) -> None:
        """Kill a pool process, or, one time in four, a whole worker; do something else if the workers have trouble."""
        if self._troubled and self._chance.random() < 0.6:
            self._chance.choice([self.cut, self.stall, self.pause_worker])()
        elif self._chance.random() < 0.25:
            self.kill_worker()
        else:
            self.kill_process()

    def cut(self) -> None:
        """Cut the connection of a worker to ZooKeeper."""
        self._links[self._chance.choice(self._workers)].cut_all()
        self.done["connections cut"] += 1

    def stall(self) -> None:
        """Let nothing through between a worker and ZooKeeper for a while, which may be longer than its session."""
        link = self._links[self._chance.choice(self._workers)]
        link.hang = True
        time.sleep(self._a_while())
        link.hang = False
        self.done["connections stalled"] += 1

    def pause_worker(self) -> None:
        """Stop the main process of a worker for a while. Its pool works on."""
        worker = self._chance.choice(self._workers)
        worker.process.send_signal(signal.SIGSTOP)
        time.sleep(self._a_while())
        worker.process.send_signal(signal.SIGCONT)
        self.done["workers paused"] += 1

    def _a_while(self) -> float:
        return self._chance.uniform(0.1, 1.5) * self._session_timeout

    def kill_process(self) -> None:
        """Kill a process of a pool, as the kernel does when memory runs out: one that holds a lock, if there is one."""
        pid = self._chance.choice(sorted(self._holders() or self._processes()))
        self._history.write("nemesis", what="kill", target=process_name(pid), given_back=True)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self.done["processes killed"] += 1

    def kill_worker(self) -> None:
        """
        Kill a worker's main process, and start another worker while its pool lives on.

        The messages of its tasks go back to the queue at once, so that they run at the same time as their copies.
        """
        worker = self._workers.pop(self._chance.randrange(len(self._workers)))
        pool = worker.children()
        pid = worker.process.pid
        with self._trail.kill(worker.name, pid, ORPHANS) if self._trail is not None else contextlib.nullcontext():
            worker.process.kill()
            worker.process.wait()
        self.done["workers killed"] += 1
        self._hire()
        worker.wait_ended(ORPHANS)
        for pid in pool:
            self._history.write("nemesis", what="kill", target=process_name(pid))

    def _processes(self) -> set[int]:
        return {pid for worker in self._workers for pid in worker.children()}

    def _holders(self) -> set[int]:
        """Return the processes of the pools that stand first in a queue."""
        first = [payload for key in self.keys for payload in self._zoo.payloads(key)[:1] if payload is not None]
        return {payload.pid for payload in first} & self._processes()

    # --- judgement ----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Let the workers finish what they have begun, and end."""
        for worker in self._workers:
            worker.process.send_signal(signal.SIGTERM)
        for worker in self._workers:
            worker.process.wait(60)

    def check_history(self) -> Verdict:
        """Judge what was done, by the history and by the journal."""
        events = read((self.home / HISTORY).glob("*.jsonl"))
        with contextlib.closing(Journal(self.home / JOURNAL)) as journal:
            verdict = check_history(events, final=journal.final())
        if not verdict.ok:
            print(f"kept: {keep(verdict, events, self.home)}")
        return verdict

    def assert_kept(self) -> Verdict:
        """Fail unless each payment was booked once, in turn under its key, and every lock kept its promises."""
        with contextlib.closing(Journal(self.home / JOURNAL)) as journal:
            times = journal.times()
            values = {key: journal.values(key) for key in self.keys}
        assert not set(self.results) - set(times), "payments were lost"
        assert set(times.values()) == {1}, f"booked more than once: {[ref for ref, n in times.items() if n > 1]}"
        failed = {ref: result for ref, result in self.results.items() if result.state != "SUCCESS"}
        assert not failed, self._explain(failed)
        for key, booked in values.items():
            assert booked == list(range(1, len(booked) + 1)), f"not in turn: {key}"
        verdict = self.check_history()
        assert verdict.ok, verdict.short()
        return verdict

    def count_in_vain(self) -> int:
        """Return how many tasks found in the end that they had been booked by an earlier run."""
        return sum(result.get() == "was booked" for result in self.results.values())

    def count_deliveries(self) -> Counter[str]:
        """Return how often tasks ran, by the history, and how often they found the lock busy."""
        kinds = {"granted": "runs", "refused": "runs without the lock"}
        events = read((self.home / HISTORY).glob("*.jsonl"))
        return Counter(kinds[event["e"]] for event in events if event["e"] in kinds)


def wait_booked(workers: PaymentWorkers, count: int, timeout: float = 30.0) -> None:
    """Wait until so many payments have been booked."""
    eventually(lambda: workers.count_booked() >= count, timeout, f"not {count} payments were booked")
