"""Start processes that use locks, send them commands, inject faults, and check their history."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time

from support.chaos.checker import check_history
from support.chaos.history import Recorder, read
from support.zoo import PYTHONPATH, TESTS


class WorkerFailed(RuntimeError):
    """A process of the harness failed, which says nothing about the lock."""


class Call:
    def __init__(self, worker, what):
        self.worker = worker
        self._what = what
        self._answers = queue.SimpleQueue()
        self._answer = None
        self.put = self._answers.put

    def done(self):
        return self._answer is not None or not self._answers.empty()

    def result(self, timeout=30.0):
        if self._answer is None:
            try:
                self._answer = self._answers.get(timeout=timeout)
            except queue.Empty:
                raise AssertionError(f"{self.worker.name}: no answer to {self._what} within {timeout:g} s") from None
        if "failed" in self._answer:
            raise WorkerFailed(f"{self.worker.name}, {self._what}: {self._answer['failed']}\n{self.worker.errors()}")
        return self._answer["answer"]

    def granted(self, timeout=30.0):
        """Return the answer of an acquisition, which must have succeeded."""
        answer = self.result(timeout)
        assert answer["granted"], f"{self.worker.name} was refused the lock: {answer}"
        return answer


class LockWorker:
    def __init__(self, pool, name, hosts, session_timeout, env):
        self.name = name
        self.session_timeout = session_timeout
        self._pool = pool
        self._calls = {}
        self._numbers = iter(range(1, sys.maxsize))
        self._log = pool.directory / f"{name}.log"
        orders = {
            "name": name,
            "lock": pool.lock,
            "url": pool.zoo.url(hosts, session_timeout, pool.connect_timeout),
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

    def _listen(self):
        assert self.process.stdout is not None
        for line in self.process.stdout:
            answer = json.loads(line)
            call = self._calls.pop(answer["id"], None)
            if call is not None:
                call.put(answer)
        status = self.process.wait()
        for call in list(self._calls.values()):
            call.put({"failed": f"the process ended with status {status}"})

    def errors(self):
        return "\n".join(self._log.read_text().splitlines()[-30:])

    def tell(self, do, **arguments):
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

    def acquire(self, key="k", timeout=10, *, owner="main", **options):
        return self.tell("acquire", **{"as": owner}, key=key, timeout=timeout, **options)

    def must_acquire(self, key="k", timeout=10, *, owner="main", **options):
        answer_timeout = 60.0 if timeout is None else timeout + 15
        return self.acquire(key, timeout, owner=owner, **options).granted(answer_timeout)

    def use(self, key="k", timeout=10):
        """Acquire a lock, and release it; return its token."""
        token = int(self.must_acquire(key, timeout)["token"])
        self.release(key).result()
        return token

    def release(self, key="k", *, owner="main"):
        return self.tell("release", **{"as": owner}, key=key)

    def work(self, key="k", seconds=None, *, owner="main"):
        return self.tell("work", **{"as": owner}, key=key, seconds=seconds)

    def stop_work(self, key="k"):
        self.tell("stop", key=key).result()

    def check(self, key="k", *, owner="main"):
        return bool(self.tell("check", **{"as": owner}, key=key).result())

    def ask(self, what, **arguments):
        return self.tell(what, **arguments).result()

    def pause(self):
        t = self._pool.note("pause", target=self.name)
        os.kill(self.process.pid, signal.SIGSTOP)
        return t

    def resume(self):
        t = self._pool.note("resume", target=self.name)
        os.kill(self.process.pid, signal.SIGCONT)
        return t

    def kill(self):
        t = self._pool.note("kill", target=self.name)
        self.process.kill()
        self.process.wait()
        return t

    def close(self):
        if self.alive:
            self.process.kill()
        self.process.wait()
        self._listener.join(10)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    @property
    def alive(self):
        return self.process.poll() is None


class WorkerPool:
    connect_timeout = 3  # seconds, of the workers that start from now on

    def __init__(self, zoo, lock, directory, keys=("k",)):
        self.zoo = zoo
        self.lock = lock
        self.directory = directory
        self.keys = tuple(keys)
        self._recorder = Recorder(directory, "driver")
        self.workers = []

    def start(self, *names, hosts=None, session_timeout=4, **env):
        started = [LockWorker(self, name, hosts or self.zoo.hosts, session_timeout, env) for name in names]
        self.workers += started
        for worker in started:
            worker.ready.result(60)
        return started

    def start_one(self, name, hosts=None, session_timeout=4, **env):
        return self.start(name, hosts=hosts, session_timeout=session_timeout, **env)[0]

    def note(self, what, **about):
        """Write down what is done to the processes or to ZooKeeper; just before it is done."""
        return self._recorder.write("nemesis", what=what, **about)

    def history(self):
        return read(self.directory.glob("*.jsonl"))

    def wait_contenders(self, count, key="k", timeout=15.0):
        return self.zoo.wait_contenders(key, count, timeout)

    def orphans(self):
        """Return the contenders and their signs in ZooKeeper that no process answers for, by key."""
        known = [guid for worker in self.workers if worker.alive for guid in worker.ask("known")]
        orphaned = {}
        for key in self.keys:
            there = self.zoo.children(key)
            left = [name for name in there if not any(guid in name for guid in known)]
            if left:
                orphaned[key] = left
        return orphaned

    def assert_kept(self, *, settle=2.0):
        """Fail unless every promise was kept. Contenders may stay for a while; of the killed, for their session."""
        killed = [worker.session_timeout for worker in self.workers if not worker.alive and worker.process.returncode]
        longest = max([settle, *(timeout * 1.5 + settle for timeout in killed)])
        deadline = time.monotonic() + longest
        while (left := self.orphans()) and time.monotonic() < deadline:
            time.sleep(0.05)
        verdict = check_history(self.history(), left=left)
        assert verdict.ok, f"{verdict.short()}\nthe history: {self.directory}"
        return verdict

    def close(self):
        for worker in self.workers:
            worker.close()
        self._recorder.close()
