"""Which locks of two clients exclude each other on one path, and how a test uses either side."""

from __future__ import annotations

from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass

from support.neighbours.actors import GLANCE
from support.neighbours.ours import Ours
from support.neighbours.protocol import OtherClient


@dataclass(frozen=True)
class Side:
    client: OtherClient | Ours
    kind: str
    path: str

    def begin(self, actor="a"):
        """Have an actor take the lock, waiting for ever; return what will tell."""
        return self.client.acquire(actor, self.kind, self.path, -1)

    def try_acquire(self, actor="a", wait=10):
        return self.client.try_acquire(actor, self.kind, self.path, wait)

    def release(self, actor="a"):
        self.client.release(actor, self.kind, self.path)


def waits(answer):
    try:
        answer.result(GLANCE)
    except (NotYet, TimeoutError):
        return True
    return False


def granted(answer, timeout=15.0):
    return answer.result(timeout) == "true"
