"""Start processes that use locks, send them commands, inject faults, and check their history."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.chaos.checker import Verdict, check_history
from support.chaos.history import Event, Recorder, read
from support.zoo import PYTHONPATH, TESTS, Zoo


class WorkerFailed(RuntimeError):
    """A process of the harness failed, which says nothing about the lock."""


class Call:
    def __init__(self, worker: LockWorker, what: str) -> None:
        self.worker = worker
        self._what = what
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._answer: dict[str, Any] | None = None
        self.put = self._answers.put

    def done(self) -> bool:
        return self._answer is not None or not self._answers.empty()

    def result(self, timeout: float = 30.0) -> Any:
        if self._answer is None:
            try:
                self._answer = self._answers.get(timeout=timeout)
            except queue.Empty:
                raise AssertionError(f"{self.worker.name}: no answer to {self._what} within {timeout:g} s") from None
        if "failed" in self._answer:
            raise WorkerFailed(f"{self.worker.name}, {self._what}: {self._answer['failed']}\n{self.worker.errors()}")
        return self._answer["answer"]

    def granted(self, timeout: float = 30.0) -> dict[str, Any]:
        """Return the answer of an acquisition, which must have succeeded."""
        answer: dict[str, Any] = self.result(timeout)
        assert answer["granted"], f"{self.worker.name} was refused the lock: {answer}"
        return answer


class LockWorker:
    def __init__(self, pool: WorkerPool, name: str, hosts: str, session_timeout: float, env: dict[str, str]) -> None:
        self.name = name
        self.session_timeout = session_timeout
        self._pool = pool
        self._calls: dict[int, Call] = {}
        self._numbers = iter(range(1, sys.maxsize))
        self._log = pool.directory / f"{name}.log"
        orders = {
            "name": name,
            "lock": pool.lock,
            "url": pool.zoo.url(hosts, session_timeout),
            "hosts": hosts,
            "base": pool.zoo.base,
            "session_timeout": session_timeout,
            "directory": str(pool.directory),
        }
        ready = self._calls[0] = Call(self, "start")
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "support.chaos.worker", json.dumps(orders)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=TESTS,
                env={**os.environ, "PYTHONPATH": PYTHONPATH, **env},
            )
        self.ready = ready
        self._listener = threading.Thread(target=self._listen, daemon=True, name=f"worker-{name}")
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            answer = json.loads(line)
            call = self._calls.pop(answer["id"], None)
            if call is not None:
                call.put(answer)
        status = self.process.wait()
        for call in list(self._calls.values()):
            call.put({"failed": f"the process ended with status {status}"})

    def errors(self) -> str:
        return "\n".join(self._log.read_text().splitlines()[-30:])

    def tell(self, do: str, **arguments: Any) -> Call:
        """Send a command; `as` says which owner does it."""
        number = next(self._numbers)
        call = self._calls[number] = Call(self, do)
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"id": number, "do": do, **arguments}) + "\n")
            self.process.stdin.flush()
        except OSError:
            call.put({"failed": "the process is gone"})
        return call

    def acquire(self, key: str = "k", timeout: float | None = 10, *, owner: str = "main", **options: Any) -> Call:
        return self.tell("acquire", **{"as": owner}, key=key, timeout=timeout, **options)

    def must_acquire(
        self, key: str = "k", timeout: float | None = 10, *, owner: str = "main", **options: Any
    ) -> dict[str, Any]:
        answer_timeout = 60.0 if timeout is None else timeout + 15
        return self.acquire(key, timeout, owner=owner, **options).granted(answer_timeout)

    def use(self, key: str = "k", timeout: float = 10) -> int:
        """Acquire a lock, and release it; return its token."""
        token = int(self.must_acquire(key, timeout)["token"])
        self.release(key).result()
        return token

    def release(self, key: str = "k", *, owner: str = "main") -> Call:
        return self.tell("release", **{"as": owner}, key=key)

    def work(self, key: str = "k", seconds: float | None = None, *, owner: str = "main") -> Call:
        return self.tell("work", **{"as": owner}, key=key, seconds=seconds)

    def stop_work(self, key: str = "k") -> None:
        self.tell("stop", key=key).result()

    def check(self, key: str = "k", *, owner: str = "main") -> bool:
        return bool(self.tell("check", **{"as": owner}, key=key).result())

    def ask(self, what: str, **arguments: Any) -> Any:
        return self.tell(what, **arguments).result()

    def pause(self) -> float:
        t = self._pool.note("pause", target=self.name)
        os.kill(self.process.pid, signal.SIGSTOP)
        return t

    def resume(self) -> float:
        t = self._pool.note("resume", target=self.name)
        os.kill(self.process.pid, signal.SIGCONT)
        return t

    def kill(self) -> float:
        t = self._pool.note("kill", target=self.name)
        self.process.kill()
        self.process.wait()
        return t

    def close(self) -> None:
        if self.alive:
            self.process.kill()
        self.process.wait()
        self._listener.join(10)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None


class WorkerPool:
    def __init__(self, zoo: Zoo, lock: str, directory: Path, keys: Sequence[str] = ("k",)) -> None:
        self.zoo = zoo
        self.lock = lock
        self.directory = directory
        self.keys = tuple(keys)
        self._recorder = Recorder(directory, "driver")
        self.workers: list[LockWorker] = []

    def start(self, *names: str, hosts: str | None = None, session_timeout: float = 4, **env: str) -> list[LockWorker]:
        started = [LockWorker(self, name, hosts or self.zoo.hosts, session_timeout, env) for name in names]
        self.workers += started
        for worker in started:
            worker.ready.result(60)
        return started

    def start_one(self, name: str, hosts: str | None = None, session_timeout: float = 4, **env: str) -> LockWorker:
        return self.start(name, hosts=hosts, session_timeout=session_timeout, **env)[0]

    def note(self, what: str, **about: Any) -> float:
        """Write down what is done to the processes or to ZooKeeper; just before it is done."""
        return self._recorder.write("nemesis", what=what, **about)

    def history(self) -> list[Event]:
        return read(self.directory.glob("*.jsonl"))

    def wait_contenders(self, count: int, key: str = "k", timeout: float = 15.0) -> list[str]:
        return self.zoo.wait_contenders(key, count, timeout)

    def orphans(self) -> dict[str, list[str]]:
        """Return the contenders and their signs in ZooKeeper that no process answers for, by key."""
        known = [guid for worker in self.workers if worker.alive for guid in worker.ask("known")]
        orphaned = {}
        for key in self.keys:
            there = [*self.zoo.children(key), *self.zoo.reading(key)]
            left = [name for name in there if not any(guid in name for guid in known)]
            if left:
                orphaned[key] = left
        return orphaned

    def assert_kept(self, *, settle: float = 2.0) -> Verdict:
        """Fail unless every promise was kept. Contenders may stay for a while; of the killed, for their session."""
        killed = [worker.session_timeout for worker in self.workers if not worker.alive and worker.process.returncode]
        longest = max([settle, *(timeout * 1.5 + settle for timeout in killed)])
        deadline = time.monotonic() + longest
        while (left := self.orphans()) and time.monotonic() < deadline:
            time.sleep(0.05)
        verdict = check_history(self.history(), left=left)
        assert verdict.ok, f"{verdict.short()}\nthe history: {self.directory}"
        return verdict

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self._recorder.close()
