"""kazoo's recipes, as they are, for whoever writes commands to the standard input: see `protocol`."""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout

KINDS = {"lock": "Lock", "read": "ReadLock", "write": "WriteLock"}
PATTERNS = {"lock+": ["-lock-"], "read+": ["-lock-", "__WRIT__"], "write+": ["-lock-", "__WRIT__", "__READ__"]}
"""What makes kazoo's recipes see contenders in Curator's grammar."""


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

    def _act(self, verb: str, kind: str, path: str, wait: str = "-1", limit: str = "") -> str:
        lock = self._object(kind, path, limit)
        if verb == "release":
            return str(lock.release()).lower()
        seconds = int(wait) / 1000
        try:
            taken = lock.acquire(blocking=seconds != 0, timeout=seconds if seconds > 0 else None)
        except LockTimeout:
            taken = False
        return str(taken).lower()

    def _object(self, kind: str, path: str, limit: str) -> Any:
        if (kind, path) not in self._objects:
            if kind == "semaphore":
                made = self._client.Semaphore(path, "a neighbour", max_leases=int(limit))
            else:
                patterns = PATTERNS.get(kind, ())
                made = getattr(self._client, KINDS[kind.rstrip("+")])(path, "a neighbour", extra_lock_patterns=patterns)
            self._objects[kind, path] = made
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
    os._exit(0)  # whoever started this is gone; the server ends the session


if __name__ == "__main__":
    main(*sys.argv[1:])
