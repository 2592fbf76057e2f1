"""Real Celery worker processes: started, waited for, sent to, and ended."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid

import psutil
from celery import Celery
from kazoo.exceptions import KazooException

from support import celeryfolder, forked
from support.debian import NotInstalled
from support.zoo import SESSION, TESTS, eventually


class Gate:
    """A task with the verb "linger" waits here, under its lock."""

    def __init__(self, folder):
        self.path = folder / uuid.uuid4().hex
        self.path.mkdir()

    def __str__(self):
        return str(self.path)

    def wait_at_work(self, timeout=20):
        note = self.path / "entered"
        return int(eventually(lambda: note.exists() and note.read_text(), timeout, "no task came to the gate"))

    def open(self):
        (self.path / "open").touch()


class Worker:
    """One `celery worker`; those of the same home share a broker: a folder, unless `conf` names another."""

    def __init__(
        self,
        zoo,
        home,
        *,
        pool="prefork",
        concurrency=2,
        session_timeout=SESSION,
        hosts=None,
        options=(),
        env=None,
        conf=None,
        tasks="support.celeryapp",
        program=(),
    ):
        self.zoo = zoo
        self.home = home
        self.name = f"{uuid.uuid4().hex}@test"
        self.log = home / f"log-{self.name}"
        if conf is not None:
            (home / celeryfolder.SETTINGS).write_text(json.dumps(conf))
        self._program = program  # instead of Celery's own
        self.app = celeryfolder.configure(Celery("client", set_as_current=False), home)
        self._command = [
            *("-A", tasks, "worker"),
            *(f"--pool={pool}", f"--concurrency={concurrency}", f"--queues={','.join(celeryfolder.QUEUES)}"),
            "--loglevel=INFO",
            *("--without-gossip", "--without-mingle", "--without-heartbeat", f"--hostname={self.name}"),
            *options,
        ]
        self.env = zoo.environment(hosts, session_timeout) | {celeryfolder.HOME: str(home), **(env or {})}
        self._process = None
        self._gates = []

    @property
    def process(self):
        assert self._process is not None
        return self._process

    def __enter__(self):
        if sys.platform == "linux" and not os.access("/dev/shm", os.W_OK):
            raise NotInstalled("/dev/shm to write to, in which Celery keeps its semaphores")
        with self.log.open("wb") as log:
            command = [*(self._program or ("-m", "celery")), *self._command]
            start = subprocess.Popen if self._program else forked.start
            self._process = start(command, cwd=TESTS, env=self.env, stdout=log, stderr=log, start_new_session=True)
        try:
            eventually(self._is_ready, 30, "the worker was not ready in 30 s")
        except BaseException as error:
            self.__exit__(type(error))
            raise
        return self

    def _is_ready(self):
        assert self.process.poll() is None, "the worker ended"
        return (self.home / f"ready-{self.name}").exists()

    def __exit__(self, error, *more):
        if error is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, celeryfolder.SHOW_THREADS)
            time.sleep(0.5)  # the processes show what their threads do
            print(self.log.read_text(errors="replace"))
        elif self.process.poll() is None:
            self._settle()
        with contextlib.suppress(ProcessLookupError):  # the group is the worker and its pool
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._forget_results()
        self.app.close()

    def _settle(self, most=2.0):
        """Let the main process release the locks of tasks that have ended: it does so after their results are there."""
        until = time.monotonic() + most
        with contextlib.suppress(KazooException):
            while self.zoo.client.connected and self.zoo.contenders() and time.monotonic() < until:
                time.sleep(0.01)

    def _forget_results(self):
        """Stop reports to Redis: a result unsubscribes when it is collected, perhaps after the end of the test."""
        consumer = getattr(self.app.backend, "result_consumer", None)
        if consumer is not None:
            consumer.subscribed_to.clear()
            consumer.stop()
        pool = getattr(getattr(self.app.backend, "client", None), "connection_pool", None)
        if pool is not None:
            pool.disconnect()  # redis-py 5, which Celery 5.5 needs, leaves its sockets to the garbage collector

    def send(self, name, *args, **options):
        return self.app.send_task(name, args, **options)

    def ask(self, command, **options):
        options |= {"destination": [self.name], "reply": True, "limit": 1, "timeout": 10}
        ((answer,),) = [reply.values() for reply in self.app.control.broadcast(command, **options) or []]
        return answer

    def wait_scheduled(self, task_id, count=1):
        """Wait until so many messages with this id wait without a slot, for a lock or for the next try."""

        def scheduled():
            with self.app.connection_for_write() as connection:  # the broker may have cut those of the pool
                inspect = self.app.control.inspect([self.name], timeout=2, limit=1, connection=connection)
                entries = (inspect.scheduled() or {}).get(self.name, ())
            return [entry["request"]["id"] for entry in entries].count(task_id)

        eventually(lambda: scheduled() == count, 20)

    def run(self, name, *args, timeout=20, **options):
        return self.get(self.send(name, *args, **options), timeout)

    def begin(self, name, key, *args, **options):
        gate = self.gate()
        result = self.send(name, key, "linger", str(gate), *args, **options)
        gate.wait_at_work()
        return result, gate

    def finish(self, tasks):
        tasks = list(tasks)
        for _, gate in tasks:
            gate.open()
        return [self.get(result) for result, _ in tasks]

    def get(self, result, timeout=20):
        return result.get(timeout=timeout, interval=0.02)

    def wait_failed(self, result, timeout=20):
        error = result.get(timeout=timeout, interval=0.02, propagate=False)
        assert isinstance(error, BaseException), error
        return error

    def lose_lock_in_inner_wait(self):
        """Have a task lose its lock while it waits, without a limit, for one that stays busy; return its error."""
        with self.zoo.hold_elsewhere("inner"):
            gate = self.gate()
            result = self.send("waiting.inner", "outer", str(gate), "inner", None)
            gate.wait_at_work()
            gate.open()
            self.zoo.wait_contenders("inner", 2)
            self.zoo.delete("outer")
            error = self.wait_failed(result)
            self.zoo.wait_contenders("inner", 1)
        return error

    def wait_accepted(self, count):
        """Wait until so many tasks run, in the view of the main process: a cold shutdown cancels these alone."""
        eventually(lambda: (busy := self._busy()) is not None and len(busy) == count)

    def kill_process(self, pid):
        """Kill a pool process of whose task the main process knows: it looks for those of a dead one only once."""
        eventually(lambda: pid in (self._busy() or ()))
        os.kill(pid, signal.SIGKILL)

    def _busy(self):
        answer = self.app.control.inspect([self.name], timeout=2, limit=1).active()
        return None if answer is None else [task["worker_pid"] for task in answer[self.name]]

    @contextlib.contextmanager
    def log_shown(self):
        """Print what the worker logs in the block, so that a failing test shows it."""
        begin = self.log.stat().st_size
        try:
            yield
        finally:
            with self.log.open(errors="replace") as log:
                log.seek(begin)
                print(log.read())

    def gate(self):
        self._gates.append(Gate(self.home))
        return self._gates[-1]

    def open_gates(self):
        """Let all tasks continue that a failed test has left at work: others need their slots."""
        while self._gates:
            self._gates.pop().open()

    def children(self):
        return {child.pid for child in psutil.Process(self.process.pid).children()}

    def group(self):
        pids = set()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                if os.getpgid(process.pid) == self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    pids.add(process.pid)
        return pids

    def wait_ended(self, timeout):
        """Wait until no process of the worker is left. If one is, make it log its stack, and fail."""
        try:
            eventually(lambda: not self.group(), timeout)
        except AssertionError:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGUSR1)
                time.sleep(1)
            raise AssertionError(f"after {timeout:g} s there were still {self.group()} of {self.process.pid}") from None

    def stop(self, timeout=20):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)


def outcome(result):
    value = result.get(timeout=20, interval=0.02, propagate=False)
    return type(value).__name__ if isinstance(value, BaseException) else value


def settled(result):
    return str(eventually(lambda: result.state if result.state not in ("PENDING", "STARTED") else None, 20))
