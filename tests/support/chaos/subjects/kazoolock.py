"""kazoo's own `Lock`, as its documentation and good practice say: a new one each time, the client's state minded."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import KazooException, LockTimeout
from kazoo.recipe.lock import Lock

from support.chaos.kinds import LOCK
from support.chaos.subjects import Held, Lost, Refused, Subject


class KazooHeld(Held):
    """A lock that was acquired; suspect from the first break of the connection on."""

    def __init__(self, subject: KazooSubject, lock: Lock, token: int) -> None:
        self._subject = subject
        self._lock = lock
        self._breaks = subject.breaks
        self.token = token

    @property
    def kind(self) -> str:
        return LOCK

    def until(self) -> float | None:
        return None

    def check(self) -> None:
        if not self._lock.is_acquired or not self._subject.client.connected or self._subject.breaks != self._breaks:
            raise Lost("the connection was suspended or lost")

    def release(self) -> None:
        suspect = self._subject.breaks != self._breaks  # before: a break under the delete takes nothing back
        self._lock.release()
        if suspect:
            raise Lost("the connection was suspended or lost")


class KazooSubject(Subject):
    """One client, which every lock of the process uses."""

    def __init__(self, hosts: str, base: str, session_timeout: float) -> None:
        self.client = KazooClient(hosts=hosts, timeout=session_timeout)
        self.breaks = 0
        self._base = base
        self._nodes: dict[Lock, str] = {}

    def _listen(self, state: str) -> None:
        if state != KazooState.CONNECTED:
            self.breaks += 1

    def connect(self) -> None:
        self.client.start(timeout=20)
        self.client.add_listener(self._listen)

    def acquire(self, key: str, timeout: float | None, options: dict[str, Any]) -> KazooHeld:
        lock = self.client.Lock(f"{self._base}/{key}", "chaos")
        try:
            acquired = lock.acquire(blocking=timeout != 0, timeout=timeout or None)
        except LockTimeout as error:
            raise Refused("LockTimeout") from error
        except KazooException as error:
            raise Refused(type(error).__name__) from error
        if not acquired:
            raise Refused("False")
        self._nodes[lock] = lock.node
        stat = self.client.exists(f"{self._base}/{key}/{lock.node}")
        return KazooHeld(self, lock, stat.czxid if stat is not None else 0)

    @contextlib.contextmanager
    def block(self, key: str, timeout: float | None, options: dict[str, Any]) -> Iterator[KazooHeld]:
        held = self.acquire(key, timeout, options)
        try:
            yield held
        finally:
            held.release()

    def session(self) -> tuple[int, str, float]:
        session_id, password = self.client.client_id
        return session_id, password.hex(), self.client._session_timeout / 1000

    def connected(self) -> bool:
        return bool(self.client.connected)

    def chatter(self) -> None:
        self.client.exists_async(self._base)

    def known(self) -> list[str]:
        return [node for lock, node in self._nodes.items() if lock.is_acquired]

    def gauge(self) -> dict[str, int]:
        return {
            "threads": threading.active_count(),
            "fds": len(os.listdir("/proc/self/fd")),
            "watches": sum(map(len, self.client._data_watchers.values())),
            "listeners": len(self.client.state_listeners),
        }

    def close(self) -> None:
        self.client.stop()
        self.client.close()
