"""Our lock, as a program uses it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import django

from django_zklock import Hold, Lock, zk_adopt, zk_lock, zk_locks
from django_zklock.core.protocol.contender import Contender
from django_zklock.core.protocol.registry import Registry
from django_zklock.core.zk import process
from django_zklock.exceptions import LockLost, LockNotHeld, ZkLockError
from support.chaos import faultpoints
from support.chaos.faultpoints import Faultpoint
from support.chaos.subjects import Held, Lost, Refused, Subject

ADOPTED_WITHIN = 1.0  # seconds


class ZkLockHeld(Held):
    """A hold, and the object it was acquired with."""

    def __init__(self, lock: Lock, hold: Hold) -> None:
        self._lock = lock
        self._hold = hold
        self.token = hold.token

    @property
    def kind(self) -> str:
        return self._hold.kind

    def until(self) -> float | None:
        before = time.monotonic()  # first: a pause in between makes the claim too modest, never too bold
        return before + self._hold.lease_remaining

    def check(self) -> None:
        try:
            self._hold.check()
        except (LockLost, LockNotHeld) as error:
            raise Lost(str(error)) from error

    def downgrade(self) -> None:
        try:
            self._hold.downgrade()
        except (LockLost, LockNotHeld) as error:
            raise Lost(str(error)) from error

    def release(self) -> None:
        try:
            self._lock.release()
        except LockLost as error:
            raise Lost(str(error)) from error


class ZkLockSubject(Subject):
    """`zk_lock`, `acquire` and `release`."""

    def __init__(self, url: str) -> None:
        os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
        os.environ["ZKLOCK_URL"] = url
        django.setup()
        self._strikes: list[tuple[str, str, float]] = []  # the moment, the fault and its seconds; the last one is next
        faultpoints.install(self._reach)
        self._texts: defaultdict[str, list[str]] = defaultdict(list)  # of the locks that were handed over, by key

    def connect(self) -> None:
        session = process.current()
        deadline = time.monotonic() + 20
        while not (session.connected and session.session_id) and time.monotonic() < deadline:
            time.sleep(0.01)

    def acquire(self, key: str, timeout: float | None, options: dict[str, Any]) -> ZkLockHeld:
        try:
            lock = zk_lock(key, timeout=timeout, **options)
            hold = lock.acquire(timeout=-1 if timeout is None else timeout) if timeout != 0 else lock.acquire(False)
        except ZkLockError as error:
            raise Refused(type(error).__name__) from error
        if hold is None:
            raise Refused("None")
        return ZkLockHeld(lock, hold)

    @contextlib.contextmanager
    def block(self, key: str, timeout: float | None, options: dict[str, Any]) -> Iterator[ZkLockHeld]:
        try:
            lock = zk_lock(key, timeout=timeout, **options)
            with lock as hold:
                yield ZkLockHeld(lock, hold)
        except LockLost as error:
            raise Lost(str(error)) from error
        except ZkLockError as error:
            raise Refused(type(error).__name__) from error

    @contextlib.contextmanager
    def handed_over(self, key: str, timeout: float | None) -> Iterator[ZkLockHeld]:
        texts = self._texts[key]
        try:
            text = texts.pop()
        except IndexError:
            lock = zk_lock(key, timeout=timeout)
        else:
            lock = zk_adopt(text, timeout=timeout)
        try:
            with lock as hold:
                yield ZkLockHeld(lock, hold)
                texts.append(hold.hand_over(within=ADOPTED_WITHIN))
        except LockLost as error:
            raise Lost(str(error)) from error
        except ZkLockError as error:
            raise Refused(type(error).__name__) from error

    @contextlib.contextmanager
    def block_all(self, keys: Sequence[str]) -> Iterator[Mapping[str, ZkLockHeld]]:
        try:
            with zk_locks(*keys, timeout=None) as holds:
                yield {hold.key: ZkLockHeld(zk_lock(hold.key), hold) for hold in holds}
        except LockLost as error:
            raise Lost(str(error)) from error
        except ZkLockError as error:
            raise Refused(type(error).__name__) from error

    def session(self) -> tuple[int, str, float]:
        session = process.current()
        client = session._client
        return session.session_id or 0, client._session_passwd.hex() if client is not None else "", session.timeout

    def connected(self) -> bool:
        return process.current().connected

    def chatter(self) -> None:
        session = process.current()

        def ask() -> None:
            session.gateway.children(session.options.base, lambda answer: None)

        session.post(ask)

    def known(self) -> list[str]:
        session = process.current()
        return [] if session.session_id is None else sorted(session.attached(Registry).guids)

    def gauge(self) -> dict[str, int]:
        session = process.current()
        registry = session.attached(Registry)
        client = session._client
        watchers = (client._data_watchers, client._child_watchers) if client is not None else ()
        return {
            # The first record of the log starts the thread that handles them all.
            "threads": sum(thread.name != "zklock-log" for thread in threading.enumerate()),
            "fds": len(os.listdir("/proc/self/fd")),
            "watches": sum(len(watchers_of_path) for table in watchers for watchers_of_path in table.values()),
            "listeners": len(client.state_listeners) if client is not None else 0,
            "members": sum(isinstance(observer, Contender) for observer in session.observers),
            "guids": len(registry.guids),
            "departures": len(registry.deleting),
            "kept": len(registry.heartbeat._nodes),
            "unanswered": session.requests.unanswered,
        }

    def strike(self, point: str, action: str, seconds: float) -> None:
        self._strikes.append((point, action, seconds))

    def _reach(self, point: Faultpoint) -> None:
        if self._strikes and self._strikes[-1][0] == point:
            _, action, seconds = self._strikes.pop()
            act(action, seconds)

    def struck(self) -> bool:
        return not self._strikes

    def close(self) -> None:
        process.reset(5)


def act(action: str, seconds: float) -> None:
    """Raise, wait, fork, stop or die, as told."""
    if action == "raise":
        raise RuntimeError("struck by the test")
    if action == "sleep":
        time.sleep(seconds)
    elif action == "fork":
        _fork(seconds)
    else:
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "pause": signal.SIGSTOP}[action])


def _fork(seconds: float) -> None:
    """Leave a child behind that does nothing for so long, as a program's that was started at a bad moment."""
    child = os.fork()
    if child == 0:
        time.sleep(seconds)
        os._exit(0)
    threading.Thread(target=os.waitpid, args=(child, 0), daemon=True).start()
