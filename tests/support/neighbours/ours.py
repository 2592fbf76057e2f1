"""
Our own locks under the same commands as a neighbour's, so that a test can put either in the other's place.

As a program it is a process of its own, to be killed.
"""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from typing import Any

from support.neighbours.protocol import GLANCE, TIMEOUT, OtherClient
from support.zoo import Zoo

OPTIONS: dict[str, dict[str, Any]] = {"lock": {}, "read": {"kind": "read"}, "write": {"kind": "write"}, "leader": {}}
"""Of `zk_lock`, for each kind that a command may name; a value of `compat` may be joined to it by a plus."""


def options_of(kind: str) -> dict[str, Any]:
    """Return the options that `kind` stands for, such as `read` or `lock+kazoo`."""
    name, _, compat = kind.partition("+")
    return {**OPTIONS[name], **({"compat": compat} if compat else {})}


class Candidate:
    """`Leader.run` under the methods of a lock; it is for one lead, or one try."""

    def __init__(self, name: str, **options: Any) -> None:
        from django_zklock import zk_leader

        self._leader = zk_leader(name, **options)
        self._elected: Future[Any] = Future()  # the hold, or what came instead
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self._leader.run(self._lead)
        except BaseException as error:
            self._elected.set_exception(error)

    def _lead(self, hold: Any) -> None:
        self._elected.set_result(hold)
        self._over.wait()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> Any:
        """Wait for the lead, and return the hold; None if the candidate left the queue without it."""
        self._thread.start()
        try:
            return self._elected.result((None if timeout < 0 else timeout) if blocking else GLANCE)
        except (NotYet, TimeoutError):
            self._leader.stop()
            self._thread.join(TIMEOUT)
            return None

    def release(self) -> None:
        """Let the lead go, and return when it has."""
        self._over.set()
        self._thread.join(TIMEOUT)


class Ours:
    """Locks of this process. An actor is a thread, which owns what it takes."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._actors: dict[str, ThreadPoolExecutor] = {}
        self._locks: dict[tuple[str, str, str], Any] = {}

    def _object(self, kind: str, path: str) -> Any:
        from django_zklock import zk_lock

        name = path.removeprefix(f"{self._base}/")
        if kind.startswith("leader"):
            return Candidate(name, **options_of(kind))
        return zk_lock(name, **options_of(kind))

    def _lock(self, actor: str, kind: str, path: str) -> Any:
        lock_id = (actor, kind, path)
        if lock_id not in self._locks or isinstance(self._locks[lock_id], Candidate):
            self._locks[lock_id] = self._object(kind, path)
        return self._locks[lock_id]

    def _send(self, actor: str, call: Any) -> Future[str]:
        if actor not in self._actors:
            self._actors[actor] = ThreadPoolExecutor(1, thread_name_prefix=actor)
        return self._actors[actor].submit(call)

    def acquire(self, actor: str, kind: str, path: str, wait: float = -1, name: str = "") -> Future[str]:
        """Have an actor acquire a lock, as `OtherClient.acquire`."""

        def call() -> str:
            lock = self._lock(actor, kind, path)
            hold = lock.acquire(blocking=False) if wait == 0 else lock.acquire(timeout=wait if wait > 0 else -1)
            if hold is None:
                return "false"
            hold.check()
            return "true"

        return self._send(actor, call)

    def try_acquire(self, actor: str, kind: str, path: str, wait: float = 10, name: str = "") -> bool:
        """Have an actor acquire a lock, wait for the outcome, and tell whether it did."""
        return self.acquire(actor, kind, path, wait, name).result(TIMEOUT) == "true"

    def release(self, actor: str, kind: str, path: str) -> None:
        """Have an actor release it, and wait until it has."""
        self._send(actor, self._locks[actor, kind, path].release).result(TIMEOUT)

    def close(self) -> None:
        """End the actors."""
        for actor in self._actors.values():
            actor.shutdown(wait=False)


def our_process(zoo: Zoo) -> OtherClient:
    """Return a process with locks of ours in this namespace."""
    command = [sys.executable, "-u", "-m", "support.neighbours.ours", zoo.base]
    return OtherClient(command, **zoo.environment(session_timeout=2))


def main(base: str) -> None:
    """Do as told until there is nobody left to tell."""
    import django

    django.setup()
    ours = Ours(base)

    def answer(number: str, how: str, what: str) -> None:
        os.write(1, f"{number} {how} {what}\n".encode())

    def told(number: str) -> Any:
        def on_done(outcome: Future[str]) -> None:
            error = outcome.exception()
            answer(number, *(("ok", outcome.result()) if error is None else ("error", repr(error).replace("\n", " "))))

        return on_done

    answer("0", "ok", "ready")
    for line in sys.stdin:
        number, actor, verb, kind, path, *more = line.split()
        if verb == "acquire":
            ours.acquire(actor, kind, path, int(more[0]) / 1000, *more[1:]).add_done_callback(told(number))
        else:
            release = ours._locks[actor, kind, path].release
            ours._send(actor, lambda release=release: str(release())).add_done_callback(told(number))
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
