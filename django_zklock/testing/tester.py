"""`LockTester`: a namespace for one test, faults to inject, and assertions about the queues of locks."""

from __future__ import annotations

import gc
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from django.test import override_settings

from django_zklock import conf
from django_zklock.conf.arguments import KindOfLock
from django_zklock.conf.options import given_options
from django_zklock.core import clock, log
from django_zklock.core.execution import abort
from django_zklock.core.locks import held
from django_zklock.core.locks.lingering import LingeringLocks
from django_zklock.core.protocol.registry import Registry
from django_zklock.core.queue import operator_hold
from django_zklock.core.queue.escaping import SEQUENCE_TAIL, key_of, path, session_hex
from django_zklock.core.queue.nodes import Mark, Payload, new_guid, prefix
from django_zklock.core.zk import process
from django_zklock.core.zk.session import Session
from django_zklock.locks.lock import kind_of, template_of
from django_zklock.names.template import check_used
from django_zklock.testing import queues
from django_zklock.testing.queues import QueueEntry

if TYPE_CHECKING:
    from typing import Self

    from django_zklock.testing.server import DevServer

_T = TypeVar("_T")

SESSION_TIMEOUT: Final = 6.0
"""Seconds. The lease is 0.4 of it, so a busy machine may pause for 2.4 s."""
CONNECT_TIMEOUT: Final = 2.0
"""Seconds until code under test gets an error because ZooKeeper is unreachable."""
TIMEOUT: Final = 2.0
"""Seconds that an assertion waits for other threads, and that the last contenders of a test have to leave."""
RECONNECT_TIMEOUT: Final = 10.0

NO_CONNECTION: Final = dict.fromkeys(
    ("URL", "ROOT", "AUTH", "ACL", "TLS", "SESSION_TIMEOUT", "CONNECT_TIMEOUT", "JUTE_MAXBUFFER")
)
"""The keys that describe the project's ZooKeeper, as if they were not given. A test keeps the others."""


def flush_logs(timeout: float = 10.0) -> None:
    """
    Wait until the handlers have the records of all threads. Call it inside `assertLogs`, and before `caplog` is read.

    Raises `AssertionError` if they need more than `timeout` seconds.
    """
    if not log.flush(timeout):
        raise AssertionError(f"The log handlers did not handle all records within {timeout:g} s.")


def _key_of(name: str, fields: Mapping[str, object] | None) -> str:
    template = template_of(conf.current(), name)
    check_used(fields or {}, name, (template.text,))
    return template.render(fields or {})


class LockTester:
    """
    The locks of one test: an empty namespace on a dev server, faults to inject, and assertions about queues.

        with DevServer() as server, LockTester(server) as zklock:
            ...

    `settings.ZKLOCK` points to the namespace. `settings` are more keys for it. Those that do not describe a ZooKeeper,
    such as `LOCKS`, are the project's unless given. At the end all faults are ended and the session of this process is
    closed. If a contender is left in a queue, `AssertionError` shows the queues.

    Django must be set up. All methods are thread-safe and block. In a coroutine, call them in a thread.
    """

    def __init__(self, server: DevServer, *, settings: Mapping[str, Any] | None = None) -> None:
        self.server = server
        """The server. It has more faults than this class."""
        self.chroot = f"/test-{uuid.uuid4().hex[:12]}"
        self._settings = dict(settings or {})
        self._override: override_settings | None = None
        self._base = f"{self.chroot}{conf.DEFAULT_ROOT}"  # the path of all queues; the settings may change it
        self._before: frozenset[str] = frozenset()  # znodes that were there before the test, so that it may leave them

    @property
    def url(self) -> str:
        """The namespace as `settings.ZKLOCK["URL"]`, for other processes of the test."""
        query = f"session_timeout={SESSION_TIMEOUT:g}&connect_timeout={CONNECT_TIMEOUT:g}"
        return f"{self.server.url(self.chroot)}?{query}"

    # --- start and stop -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Point `settings.ZKLOCK` to the namespace. Raises `ImproperlyConfigured` if the settings are invalid."""
        self._before = frozenset(self.server.paths(below=self.chroot))
        project = conf.raw()
        kept = {**(project if isinstance(project, Mapping) else {}), **NO_CONNECTION}
        override = override_settings(ZKLOCK={**kept, "URL": self.url, "REAL_IN_TESTS": True, **self._settings})
        override.enable()
        try:
            self._base = conf.current().base
        except BaseException:
            override.disable()
            raise
        self._override = override
        process.allow()

    def stop(self) -> None:
        """End all faults, close the session, restore the settings. Raise `AssertionError` if a contender is left."""
        remaining = ""
        try:
            self.server.heal()
            remaining = self._remaining_queues()
        finally:
            self._release_all()
            override, self._override = self._override, None
            if override is not None:
                process.disallow()
                override.disable()  # closes the session
        if remaining:
            raise AssertionError(f"The test has ended, and these contenders are left:\n{remaining}")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        try:
            self.stop()
        except AssertionError:
            if error is None:  # otherwise the test's own error is more useful
                raise

    def _remaining_queues(self) -> str:
        """
        Return the queues if contenders are left after `TIMEOUT` seconds, else "".

        Minimum holds may outlast the test.
        """
        if not self._has_contenders_left():
            return ""
        gc.collect()  # which releases blocks that were opened and dropped
        session = process.peek()
        if session is not None:
            _wait_for(lambda: session.connected, RECONNECT_TIMEOUT)  # the test may have ended during a fault
        return "" if _wait_for(lambda: not self._has_contenders_left(), TIMEOUT) else self.describe()

    def _has_contenders_left(self) -> bool:
        """Release idle locks. Return whether a contender is left that must be gone at the end of the test."""
        session = process.peek()
        if session is not None:
            session.post(session.attached(LingeringLocks).end_idle)
        entries = [entry for queue in self._queues().values() for entry in queue]
        return not all(entry.path in self._before or _may_outlast_test(entry) for entry in entries)

    def _release_all(self) -> None:
        """Release all locks that the test did not release. Otherwise their owners would hold them in the next test."""
        session = process.peek()
        for kept in held.held_locks.kept():
            if kept.grant.session is session and kept.grant.path not in self._before:
                kept.release_uses()

    # --- faults -------------------------------------------------------------------------------------------------

    def expire_session(self) -> None:
        """
        Let the server end the session of this process, as if it had timed out. Its locks are free at once.

        The process notices a moment later. `lost()` waits for that.
        """
        self._expire(self._connected().session_id)

    @contextmanager
    def lost(self) -> Iterator[None]:
        """
        Let the session of this process expire, and run the block when the process has noticed.

        Its holds are lost then. After the block there is a new session.
        """
        session = self._connected()
        before = session.session_id
        self._expire(before)
        self.eventually(
            lambda: session.session_id != before,
            RECONNECT_TIMEOUT,
            "the process did not notice that its session expired",
        )
        yield
        self._connected()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """
        Cut all connections, and refuse new ones while the block runs. The sessions continue.

        The block runs when the process has noticed. If it takes longer than a lease (0.4 of the session timeout), the
        holds are lost, as in production. After the block this process is connected again.
        """
        session = process.peek()
        try:
            self._refuse(True)
            self.eventually(
                lambda: session is None or not session.connected,
                message="the process did not notice that it is disconnected",
            )
            yield
        finally:
            self._refuse(False)
        if session is not None:
            self._connected()

    # Shielded: the fault may abort the work that injects it, and must still be injected completely.

    @abort.shielded
    def _expire(self, session_id: int | None) -> None:
        assert session_id is not None
        if not self.server.expire(session_id):
            raise AssertionError(f"the server has no session {session_hex(session_id)} of this process")

    @abort.shielded
    def _refuse(self, refuse: bool) -> None:
        self.server.refuse = refuse

    @contextmanager
    def busy_by(
        self,
        name: str,
        fields: Mapping[str, object] | None = None,
        *,
        what: str = "another client",
        kind: KindOfLock = "lock",
        limit: int | None = None,
    ) -> Iterator[None]:
        """
        Let another client, with its own session, hold a lock while the block runs.

        It holds the lock alone, even if that is a semaphore or a read-write lock. With `kind="read"` it is a reader,
        and with `limit=n` it holds one of n permits, as with `zk_lock`.

        Raises `AssertionError` if it does not get the lock at once. No fault reaches this client.
        """
        options = given_options({"kind": kind, "limit": limit})  # raises an error if they contradict each other
        guid = new_guid(Mark.OWN)  # other guids are Curator's, which does not have all kinds
        payload = Payload(
            guid=guid,
            host=socket.gethostname(),
            pid=os.getpid(),
            what=what,
            since=datetime.now(UTC).isoformat(timespec="milliseconds"),
            limit=limit or 0,
        )
        parent = path(conf.current().base, _key_of(name, fields))
        wait_released()
        session_id, node = self.server.join(f"{parent}/{prefix(guid, kind_of(options))}", payload.encode())
        try:
            if not any(entry.path == node and entry.holds for entry in self.queue(name, fields)):
                raise AssertionError(f"The lock {name!r} is not free.\n{self.describe()}")
            yield
        finally:
            self.server.expire(session_id)

    # --- assertions ----------------------------------------------------------------------------------------------

    def queue(self, name: str, fields: Mapping[str, object] | None = None) -> list[QueueEntry]:
        """Return the contenders of a lock, in order of arrival; none of a block of this process that has ended."""
        wait_released()
        return queues.entries(self.server, path(conf.current().base, _key_of(name, fields)))

    def assert_held(
        self,
        name: str,
        fields: Mapping[str, object] | None = None,
        *,
        holders: int | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        """Fail unless the lock has a holder within `timeout` seconds; with `holders`, exactly that number."""
        if holders is None:
            self._assert(any, name, fields, timeout, "has no holder")
        else:
            self._assert(
                lambda holds: sum(holds) == holders, name, fields, timeout, f"does not have {holders} holder(s)"
            )

    def assert_free(self, name: str, fields: Mapping[str, object] | None = None, *, timeout: float = TIMEOUT) -> None:
        """Fail unless the lock has no holder and no waiter within `timeout` seconds."""
        self._assert(lambda holds: not holds, name, fields, timeout, "is not free")

    def assert_waiting(
        self, name: str, count: int = 1, fields: Mapping[str, object] | None = None, *, timeout: float = TIMEOUT
    ) -> None:
        """Fail unless the lock has exactly `count` waiters within `timeout` seconds."""
        self._assert(
            lambda holds: holds.count(False) == count, name, fields, timeout, f"does not have {count} waiter(s)"
        )

    def eventually(self, condition: Callable[[], _T], timeout: float = 5.0, message: str = "") -> _T:
        """Return the first true value of `condition()`. Fail if there is none within `timeout` seconds."""
        value = _wait_for(condition, timeout)
        if not value:
            raise AssertionError(f"{message or condition}: not within {timeout:g} s\n{self.describe()}")
        return value

    def describe(self) -> str:
        """Return the queues of all locks in the namespace, as text."""
        text = []
        for directory, queue in self._queues().items():
            text.append(key_of(self._base, directory))
            for entry in queue:
                since = " since before the test" if entry.path in self._before else ""
                text.append(f"  {'holds' if entry.holds else 'waits'}  {entry}{since}")
        return "\n".join(text) or "No lock has a contender."

    # --- internals --------------------------------------------------------------------------------------------

    def _assert(
        self,
        condition: Callable[[list[bool]], bool],
        name: str,
        fields: Mapping[str, object] | None,
        timeout: float,
        problem: str,
    ) -> None:
        if not _wait_for(lambda: condition([entry.holds for entry in self.queue(name, fields)]), timeout):
            raise AssertionError(f"The lock {_key_of(name, fields)!r} {problem}.\n{self.describe()}")

    def _queues(self) -> dict[str, list[QueueEntry]]:
        """Return the queues of all locks that have contenders, by directory."""
        wait_released()
        nodes = [path.rpartition("/") for path in self.server.paths(below=self._base)]
        directories = dict.fromkeys(directory for directory, _, name in nodes if SEQUENCE_TAIL.search(name))
        return {directory: queues.entries(self.server, directory) for directory in directories}

    def _connected(self) -> Session:
        """Return the session of this process when it is connected. Start one if there is none."""
        session = process.current()
        self.eventually(
            lambda: session.connected and session.session_id is not None,
            RECONNECT_TIMEOUT,
            "the process is not connected",
        )
        return session


def wait_released() -> None:
    """Wait until ZooKeeper has confirmed the releases of this process, which the end of a block does not wait for."""
    session = process.peek()
    if session is not None:
        _wait_for(lambda: not (session.connected and session.attached(Registry).deleting), held.RELEASE_TIMEOUT)


def _may_outlast_test(entry: QueueEntry) -> bool:
    by_operator = operator_hold.is_operator(entry.path.rpartition("/")[2])
    about = entry.payload.about if entry.payload is not None else {}
    return by_operator and not {operator_hold.MINIMUM, operator_hold.TASK_ID}.isdisjoint(about)


def _wait_for(condition: Callable[[], _T], timeout: float) -> _T:
    """Return the first true value of `condition()`, or the last false one after `timeout` seconds."""
    deadline = clock.now() + timeout
    while not (value := condition()) and clock.now() < deadline:
        time.sleep(0.005)
    return value


__all__ = ["LockTester", "QueueEntry"]
