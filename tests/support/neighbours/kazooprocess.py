"""kazoo's recipes in a process that reads commands from standard input; see `protocol`."""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
from collections.abc import Sequence
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout

KINDS = {"lock": "Lock", "read": "ReadLock", "write": "WriteLock"}
PATTERNS = {
    "election+": ["-lock-"],
    "lock+": ["-lock-"],
    "read+": ["-lock-", "__WRIT__"],
    "write+": ["-lock-", "__WRIT__", "__READ__"],
}
"""Patterns that make kazoo's recipes see contenders in Curator's grammar."""
GLANCE = 0.15  # seconds after which a candidate that does not lead counts as standing by


class Candidate:
    """An election under the verbs of a lock; it is for one lead, or one try."""

    def __init__(self, client: KazooClient, path: str, patterns: Sequence[str], name: str) -> None:
        self._election = client.Election(path, name)
        if patterns:
            self._election.lock = client.Lock(path, name, extra_lock_patterns=patterns)
        self._elected = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._election.run, args=(self._lead,), daemon=True)

    def _lead(self) -> None:
        self._elected.set()
        self._over.wait()

    def acquire(self, blocking: bool, timeout: float | None) -> bool:
        """Wait for the lead; return False if the candidate left the queue without it."""
        self._thread.start()
        if self._elected.wait(timeout if blocking else GLANCE):
            return True
        self._election.cancel()
        self._thread.join()
        return False

    def release(self) -> bool:
        """Let the lead go, and return when it has."""
        self._over.set()
        self._thread.join()
        return True

    def contenders(self) -> list[str]:
        """Return the names of the contenders, as kazoo lists them."""
        names: list[str] = self._election.contenders()
        return names


class Actor(threading.Thread):
    """A thread with locks of its own, one object for each path."""

    def __init__(self, client: KazooClient) -> None:
        super().__init__(daemon=True)
        self.commands: queue.Queue[list[str]] = queue.Queue()
        self._client = client
        self._objects: dict[tuple[str, str], Any] = {}
        self.start()

    def run(self) -> None:
        while True:
            number, _, verb, kind, path, *more = self.commands.get()
            try:
                answer(number, "ok", self._act(verb, kind, path, *more))
            except Exception as error:
                answer(number, "error", f"{type(error).__name__}: {error}")

    def _act(self, verb: str, kind: str, path: str, wait: str = "-1", name: str = "") -> str:
        if verb == "contenders":
            return "\t".join(self._candidate(kind, path, "").contenders())
        if verb == "acquire" and kind.startswith("election"):  # one candidate for each time
            self._objects[kind, path] = self._candidate(kind, path, name)
        lock = self._object(kind, path)
        if verb == "release":
            return str(lock.release()).lower()
        seconds = int(wait) / 1000
        try:
            acquired = lock.acquire(blocking=seconds != 0, timeout=seconds if seconds > 0 else None)
        except LockTimeout:
            acquired = False
        return str(acquired).lower()

    def _candidate(self, kind: str, path: str, name: str) -> Candidate:
        return Candidate(self._client, path, PATTERNS.get(kind, ()), name)

    def _object(self, kind: str, path: str) -> Any:
        if (kind, path) not in self._objects:
            patterns = PATTERNS.get(kind, ())
            make = getattr(self._client, KINDS[kind.rstrip("+")])
            self._objects[kind, path] = make(path, "a neighbour", extra_lock_patterns=patterns)
        return self._objects[kind, path]


def answer(number: str, how: str, what: str) -> None:
    """Write one line, in one go."""
    os.write(1, f"{number} {how} {what}\n".replace("\n ", " ").encode())


def main(hosts: str, milliseconds: str) -> None:
    """Do as told until there is nobody left to tell."""
    logging.basicConfig(level=logging.ERROR)
    client = KazooClient(hosts=hosts, timeout=int(milliseconds) / 1000)
    client.start(timeout=20)
    actors: dict[str, Actor] = {}
    answer("0", "ok", "ready")
    for line in sys.stdin:
        words = line.split()
        if words[1] not in actors:
            actors[words[1]] = Actor(client)
        actors[words[1]].commands.put(words)
    os._exit(0)  # the process that started this is gone; the server ends the session


if __name__ == "__main__":
    main(*sys.argv[1:])
