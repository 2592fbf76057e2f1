"""Locks of one client under the commands of `protocol`. An actor is a thread, which owns what it takes."""

import abc
import os
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet

GLANCE = 0.15  # seconds after which a call without an answer counts as waiting


class Candidate:
    """An election under the methods of a lock; it is for one lead, or one try."""

    def __init__(self, run, cancel):
        self._stand, self._cancel = run, cancel
        self._elected = Future()  # the hold, or what came instead
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        try:
            self._stand(self._lead)
        except BaseException as error:
            self._elected.set_exception(error)

    def _lead(self, hold=True):
        self._elected.set_result(hold)
        self._over.wait()

    def acquire(self, wait):
        self._thread.start()
        try:
            return self._elected.result(None if wait < 0 else wait or GLANCE)
        except (NotYet, TimeoutError):
            self._cancel()
            self._thread.join()
            return None

    def release(self):
        self._over.set()
        self._thread.join()


class Locks(abc.ABC):
    """Locks of this process: each actor has an object of its own for each path."""

    def __init__(self):
        self._actors = {}
        self._locks = {}

    @abc.abstractmethod
    def make(self, kind, path, name): ...

    @abc.abstractmethod
    def acquired(self, lock, wait): ...

    def send(self, actor, call):
        if actor not in self._actors:
            self._actors[actor] = ThreadPoolExecutor(1, thread_name_prefix=actor)
        return self._actors[actor].submit(call)

    def acquire(self, actor, kind, path, wait=-1, name=""):
        def call():
            lock = self._locks.get((actor, kind, path))
            if lock is None or isinstance(lock, Candidate):
                lock = self._locks[actor, kind, path] = self.make(kind, path, name)
            done = lock.acquire(wait) is not None if isinstance(lock, Candidate) else self.acquired(lock, wait)
            return str(done).lower()

        return self.send(actor, call)

    def start_release(self, actor, kind, path):
        return self.send(actor, lambda: str(self._locks[actor, kind, path].release()).lower())

    def close(self):
        for actor in self._actors.values():
            actor.shutdown(wait=False)

    def serve(self):
        _answer("0", "ok", "ready")
        for line in sys.stdin:
            number, actor, verb, kind, path, *more = line.split()
            if verb == "acquire":
                done = self.acquire(actor, kind, path, int(more[0]) / 1000, *more[1:])
            else:
                done = getattr(self, "start_release" if verb == "release" else verb)(actor, kind, path)
            done.add_done_callback(lambda outcome, number=number: _tell(number, outcome))
        os._exit(0)  # the process that started this is gone; the server ends the session


def _tell(number, outcome):
    error = outcome.exception()
    _answer(number, *(("ok", outcome.result()) if error is None else ("error", f"{type(error).__name__}: {error}")))


def _answer(number, how, what):
    os.write(1, "{} {} {}\n".format(number, how, what.replace("\n", " ")).encode())
