"""Locks of one client under the commands of `protocol`. An actor is a thread, which owns what it takes."""

from __future__ import annotations

import abc
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from typing import Any

GLANCE = 0.15  # seconds after which a call without an answer counts as waiting


class Candidate:
    """An election under the methods of a lock; it is for one lead, or one try."""

    def __init__(self, run: Callable[[Callable[..., None]], object], cancel: Callable[[], object]) -> None:
        self._stand, self._cancel = run, cancel
        self._elected: Future[Any] = Future()  # the hold, or what came instead
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self._stand(self._lead)
        except BaseException as error:
            self._elected.set_exception(error)

    def _lead(self, hold: Any = True) -> None:
        self._elected.set_result(hold)
        self._over.wait()

    def acquire(self, wait: float) -> Any:
        self._thread.start()
        try:
            return self._elected.result(None if wait < 0 else wait or GLANCE)
        except (NotYet, TimeoutError):
            self._cancel()
            self._thread.join()
            return None

    def release(self) -> None:
        self._over.set()
        self._thread.join()


class Locks(abc.ABC):
    """Locks of this process: each actor has an object of its own for each path."""

    def __init__(self) -> None:
        self._actors: dict[str, ThreadPoolExecutor] = {}
        self._locks: dict[tuple[str, str, str], Any] = {}

    @abc.abstractmethod
    def make(self, kind: str, path: str, name: str) -> Any: ...

    @abc.abstractmethod
    def acquired(self, lock: Any, wait: float) -> bool: ...

    def send(self, actor: str, call: Callable[[], str]) -> Future[str]:
        if actor not in self._actors:
            self._actors[actor] = ThreadPoolExecutor(1, thread_name_prefix=actor)
        return self._actors[actor].submit(call)

    def acquire(self, actor: str, kind: str, path: str, wait: float = -1, name: str = "") -> Future[str]:
        def call() -> str:
            lock = self._locks.get((actor, kind, path))
            if lock is None or isinstance(lock, Candidate):
                lock = self._locks[actor, kind, path] = self.make(kind, path, name)
            done = lock.acquire(wait) is not None if isinstance(lock, Candidate) else self.acquired(lock, wait)
            return str(done).lower()

        return self.send(actor, call)

    def start_release(self, actor: str, kind: str, path: str) -> Future[str]:
        return self.send(actor, lambda: str(self._locks[actor, kind, path].release()).lower())

    def close(self) -> None:
        for actor in self._actors.values():
            actor.shutdown(wait=False)

    def serve(self) -> None:
        _answer("0", "ok", "ready")
        for line in sys.stdin:
            number, actor, verb, kind, path, *more = line.split()
            if verb == "acquire":
                done = self.acquire(actor, kind, path, int(more[0]) / 1000, *more[1:])
            else:
                done = getattr(self, "start_release" if verb == "release" else verb)(actor, kind, path)
            done.add_done_callback(lambda outcome, number=number: _tell(number, outcome))  # type: ignore[misc]
        os._exit(0)  # the process that started this is gone; the server ends the session


def _tell(number: str, outcome: Future[str]) -> None:
    error = outcome.exception()
    _answer(number, *(("ok", outcome.result()) if error is None else ("error", f"{type(error).__name__}: {error}")))


def _answer(number: str, how: str, what: str) -> None:
    os.write(1, "{} {} {}\n".format(number, how, what.replace("\n", " ")).encode())
