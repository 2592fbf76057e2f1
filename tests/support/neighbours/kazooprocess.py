"""kazoo's recipes in a process that reads commands from standard input; see `protocol`. Nothing of ours is in it."""

import logging
import sys
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from support.neighbours.actors import Candidate, Locks

KINDS = {"lock": "Lock", "read": "ReadLock", "write": "WriteLock"}
PATTERNS = {
    "election+": ["-lock-"],
    "lock+": ["-lock-"],
    "read+": ["-lock-", "__WRIT__"],
    "write+": ["-lock-", "__WRIT__", "__READ__"],
}
"""Patterns that make kazoo's recipes see contenders in Curator's grammar."""


class Kazoos(Locks):
    def __init__(self, client):
        super().__init__()
        self._client = client

    def make(self, kind, path, name):
        if kind.startswith("election"):
            election = self._election(kind, path, name)
            return Candidate(election.run, election.cancel)
        make = getattr(self._client, KINDS[kind.rstrip("+")])
        return make(path, "a neighbour", extra_lock_patterns=PATTERNS.get(kind, ()))

    def _election(self, kind, path, name):
        election = self._client.Election(path, name)
        if kind in PATTERNS:
            election.lock = self._client.Lock(path, name, extra_lock_patterns=PATTERNS[kind])
        return election

    def acquired(self, lock, wait):
        try:
            return bool(lock.acquire(blocking=wait != 0, timeout=wait if wait > 0 else None))
        except LockTimeout:
            return False

    def contenders(self, actor, kind, path):
        return self.send(actor, lambda: "\t".join(self._election(kind, path, "").contenders()))


if __name__ == "__main__":
    hosts, milliseconds = sys.argv[1:]
    logging.basicConfig(level=logging.ERROR)
    client = KazooClient(hosts=hosts, timeout=int(milliseconds) / 1000)
    client.start(timeout=20)
    Kazoos(client).serve()
