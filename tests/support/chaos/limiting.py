"""Set the limit of a semaphore for all processes, by a marker in its directory, and record it in the history."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

from django_zklock.core.queue import markers

if TYPE_CHECKING:
    from support.chaos.worker_pool import WorkerPool

TIMEOUT = 60.0  # seconds, while servers are killed and paused
EVERY = 2.0  # seconds between two changes, on average


def set_limit(client: KazooClient, directory: str, limit: int | None) -> None:
    """Set or clear (None) the limit, however often that has to be tried; nobody else may do so meanwhile."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            if _done(client, directory, limit):
                return
        except KazooException:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def _done(client: KazooClient, directory: str, limit: int | None) -> bool:
    client.ensure_path(directory)
    transaction = client.transaction()
    transaction.set_data(directory, b"")
    for name in client.get_children(directory):
        if markers.is_limit_marker(name):
            transaction.delete(f"{directory}/{name}")
    transaction.create(f"{directory}/{markers.limit_marker(limit or 0)}", b"")
    return not any(isinstance(result, Exception) for result in transaction.commit())


class Operator(threading.Thread):
    """Somebody who sets and clears limits at random; `with` it, until the end of the block."""

    def __init__(self, pool: WorkerPool, keys: Sequence[str], own: int, *, chance: random.Random) -> None:
        super().__init__(name="operator", daemon=True)
        self.changes = 0
        self._pool = pool
        self._keys = keys
        self._own = own
        self._chance = chance
        self._over = threading.Event()
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            while not self._over.wait(self._chance.uniform(0, 2 * EVERY)):
                limit = self._chance.choice([None, *range(1, self._own + 3)])
                self._pool.set_limit(self._chance.choice(self._keys), limit)
                self.changes += 1
        except Exception as error:
            self._error = error  # told by the thread of the test

    def __enter__(self) -> Operator:
        self.start()
        return self

    def __exit__(self, *about: object) -> None:
        self._over.set()
        self.join(TIMEOUT + 10)
        if self._error is not None:
            raise self._error
        assert not self.is_alive(), "the limit of a semaphore cannot be set"
