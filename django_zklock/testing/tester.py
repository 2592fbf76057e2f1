"""Knows what a test of code with locks asks and breaks: who is in line for what, and a session, suspended or lost."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from django.test import override_settings

from django_zklock import conf
from django_zklock.conf.arguments import KindOfLock
from django_zklock.execution import abort
from django_zklock.locks import table
from django_zklock.locks.lock import Lock
from django_zklock.queue import names, operator_hold
from django_zklock.queue.escaping import session_hex
from django_zklock.queue.nodes import Payload
from django_zklock.testing import lines
from django_zklock.testing.bystander import Bystander
from django_zklock.testing.lines import InLine
from django_zklock.zk import permission, process
from django_zklock.zk.session import Session

if TYPE_CHECKING:
    from typing_extensions import Self

    from django_zklock.testing.server import DevServer

_T = TypeVar("_T")

SESSION_TIMEOUT: Final = 6.0
"""Seconds; a lease is 0.4 of it, so a machine that is busy with tests may pause for 2.4 s."""
CONNECT_TIMEOUT: Final = 2.0
"""Seconds until code under test is told that ZooKeeper is away."""
PATIENCE: Final = 2.0
"""Seconds that an assertion gives to what happens in other threads, and a test's last contenders to be gone."""
RECONNECT_PATIENCE: Final = 10.0

_KEPT: Final = ("DEFAULTS", "LOCKS", "STRICT")  # of the project's own settings: all else says where ZooKeeper is


class LockTester:
    """
    The locks of one test: an empty namespace on a dev server that `settings.ZKLOCK` points to, faults, and questions.

        with DevServer() as server, LockTester(server) as zklock:
            ...

    `settings` are further keys for `settings.ZKLOCK`; `DEFAULTS` and `LOCKS` are the project's own unless given. At the
    end nobody may be left in any queue of the namespace, or `AssertionError` shows who it is; the session of this
    process is closed either way, and every fault is healed.

    Django has to be set up. All methods may be called from any thread, but block: from a coroutine, use a thread.
    """

    def __init__(self, server: DevServer, *, settings: Mapping[str, Any] | None = None) -> None:
        self.server = server
        """The server, with more faults than there are here."""
        self.chroot = f"/test-{uuid.uuid4().hex[:12]}"
        self._settings = dict(settings or {})
        self._override: override_settings | None = None
        self._bystander = Bystander(server.hosts)
        self._base = ""  # of all queues; known once the settings are read

    @property
    def url(self) -> str:
        """The namespace as `settings.ZKLOCK["URL"]`, for other processes of a test."""
        query = f"session_timeout={SESSION_TIMEOUT:g}&connect_timeout={CONNECT_TIMEOUT:g}"
        return f"{self.server.url(self.chroot)}?{query}"

    # --- life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Point `settings.ZKLOCK` to the namespace. Raises `ImproperlyConfigured` if it makes no sense."""
        own = conf.raw()
        kept = {key: own[key] for key in _KEPT if key in own} if isinstance(own, Mapping) else {}
        override = override_settings(ZKLOCK={**kept, "URL": self.url, **self._settings})
        override.enable()
        try:
            self._base = conf.current().base
        except BaseException:
            override.disable()
            raise
        self._override = override
        permission.allow()

    def stop(self) -> None:
        """Heal all faults, close the session and restore the settings; raise `AssertionError` if anybody is left."""
        left = ""
        try:
            self.server.heal()
            left = self._left_behind()
        finally:
            self._let_go_of_all()
            override, self._override = self._override, None
            if override is not None:
                permission.disallow()
                override.disable()  # closes the session
            self._bystander.close()
        if left:
            raise AssertionError(f"The test is over, and these are still in line for a lock:\n{left}")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except AssertionError:
            if error is None:  # else that is what the test has to tell
                raise

    def _left_behind(self) -> str:
        """
        Return who is left in the queues when those on their way out had the time to go, "" if nobody is.

        What stays of a hold with `min_hold` is meant to, and in nobody's way, as the next test has its own root.
        """
        if not self._leavers():
            return ""
        session = process.peek()
        if session is not None:
            _wait_for(lambda: session.connected, RECONNECT_PATIENCE)  # a test may have ended under a fault
        return "" if _wait_for(lambda: not self._leavers(), PATIENCE) else self.describe()

    def _leavers(self) -> list[str]:
        """Return the paths of those who have to go before the end of the test."""
        paths = self._contenders()
        lasting = [path for path in paths if operator_hold.is_operator(path.rpartition("/")[2])]
        resting = {
            path
            for path, payload in zip(lasting, self._payloads(lasting), strict=True)
            if payload is not None and operator_hold.MINIMUM in payload.about
        }
        return [path for path in paths if path not in resting]

    def _let_go_of_all(self) -> None:
        """Let go of what was acquired and never released, or its owner would still have it in the next test."""
        session = process.peek()
        for held in table.held_locks.kept():
            if held.grant.session is session:
                held.release_to(0)

    # --- faults -------------------------------------------------------------------------------------------------

    def expire_session(self) -> None:
        """
        Have the server end the session of this process now, as if its time were over: its locks are free at once.

        The process learns of it a moment later, by itself. See `lost()`, which waits for that.
        """
        self._expire(self._connected().session_id)

    @contextmanager
    def lost(self) -> Iterator[None]:
        """
        Have the session of this process expire, and run the block when the process has learnt of it.

        Its holds are lost then, for good. At the end of the block, a new session stands.
        """
        session = self._connected()
        before = session.session_id
        self._expire(before)
        self.eventually(lambda: session.session_id != before, RECONNECT_PATIENCE, "the process did not notice")
        yield
        self._connected()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """
        Cut all connections, and refuse new ones while the block runs; the sessions live on.

        The block runs when the process has noticed. If it takes longer than a lease (0.4 session timeouts), the locks
        are lost, as they are in life. At the end of the block, the connection stands again.
        """
        session = process.peek()
        try:
            self._refuse(True)
            self.eventually(lambda: session is None or not session.connected, message="the process did not notice")
            yield
        finally:
            self._refuse(False)
        if session is not None:
            self._connected()

    # Shielded: the fault may stop the very work that causes it, and must not leave the server half way.

    @abort.shielded
    def _expire(self, session_id: int | None) -> None:
        assert session_id is not None
        if not self.server.expire(session_id):
            raise AssertionError(f"the server knows no session {session_hex(session_id)} of this process")

    @abort.shielded
    def _refuse(self, refuse: bool) -> None:
        self.server.refuse = refuse

    @contextmanager
    def busy_by(
        self,
        name: str,
        fields: Mapping[str, object] | None = None,
        *,
        what: str = "somebody else",
        kind: KindOfLock = "lock",
        limit: int | None = None,
    ) -> Iterator[None]:
        """
        Have another client hold a lock while the block runs; it is a contender like any other, with its own session.

        It holds it alone, also where the lock is a semaphore or one side of a read-write lock; else say how, as to
        `zk_lock`: with `kind="read"`, other readers may have it meanwhile, and with `limit=n` it has one of n permits.

        Raises `AssertionError` if the lock is not free for that, and `TimeoutError` if a fault keeps the other client
        away, too.
        """
        lock = Lock(name, fields=fields, kind=kind, limit=limit, compat=None, min_hold=0)
        wanted = lock.terms.kind  # before anything is done: refuses what makes no sense
        directory = self._directory(name, fields)
        node = self._bystander.enter(directory, what, wanted, limit or 0)
        try:
            if not lines.kinds(self.server, directory).get(node, (False, ""))[0]:
                raise AssertionError(f"The lock {name!r} is not free.\n{self.describe()}")
            yield
        finally:
            self._bystander.leave(node)

    # --- questions ----------------------------------------------------------------------------------------------

    def queue(self, name: str, fields: Mapping[str, object] | None = None) -> list[InLine]:
        """Return who is in line for a lock, those who hold it first."""
        return self._read([lines.kinds(self.server, self._directory(name, fields))])

    def assert_held(
        self,
        name: str,
        fields: Mapping[str, object] | None = None,
        *,
        holders: int | None = None,
        timeout: float = PATIENCE,
    ) -> None:
        """Fail unless somebody has the lock within `timeout` seconds; with `holders`, exactly so many share it."""
        if holders is None:
            self._assert(any, name, fields, timeout, "is held by nobody")
        else:
            self._assert(lambda found: sum(found) == holders, name, fields, timeout, f"is not held by {holders}")

    def assert_free(self, name: str, fields: Mapping[str, object] | None = None, *, timeout: float = PATIENCE) -> None:
        """Fail unless nobody has the lock, or waits for it, within `timeout` seconds."""
        self._assert(lambda found: not found, name, fields, timeout, "is not free")

    def assert_waiting(
        self,
        name: str,
        count: int = 1,
        fields: Mapping[str, object] | None = None,
        *,
        timeout: float = PATIENCE,
    ) -> None:
        """Fail unless exactly `count` contenders wait for the lock, behind all who hold it, within `timeout` s."""
        self._assert(lambda found: found.count(False) == count, name, fields, timeout, f"is not awaited by {count}")

    def eventually(self, condition: Callable[[], _T], timeout: float = 5.0, message: str = "") -> _T:
        """Return the first true value of `condition()`; fail when there is none within `timeout` seconds."""
        value = _wait_for(condition, timeout)
        if not value:
            raise AssertionError(f"{message or condition}: not within {timeout:g} s\n{self.describe()}")
        return value

    def describe(self) -> str:
        """Return the queues of all locks in the namespace, as text for people."""
        directories = dict.fromkeys(path.rpartition("/")[0] for path in self._contenders())
        queues: dict[str, list[InLine]] = {}
        for each in self._read([lines.kinds(self.server, directory) for directory in directories]):
            queues.setdefault(each.path.rpartition("/")[0], []).append(each)
        text = []
        for directory, queue in queues.items():
            text.append(names.key_of(self._base, directory))
            text += [f"  {'holds' if each.holds else 'waits'}  {each}" for each in queue]
        return "\n".join(text) or "Nobody is in line for any lock."

    # --- small parts --------------------------------------------------------------------------------------------

    def _assert(
        self,
        condition: Callable[[list[bool]], bool],
        name: str,
        fields: Mapping[str, object] | None,
        timeout: float,
        problem: str,
    ) -> None:
        directory = self._directory(name, fields)
        if not _wait_for(
            lambda: condition([holds for holds, _ in lines.kinds(self.server, directory).values()]), timeout
        ):
            key = names.key_of(self._base, directory)
            raise AssertionError(f"The lock {key!r} {problem}.\n{self.describe()}")

    def _directory(self, name: str, fields: Mapping[str, object] | None) -> str:
        return Lock(name, fields=fields).terms.parent

    def _contenders(self) -> list[str]:
        """Return the paths of all contenders, first come first; asks no network."""
        return lines.contenders(self.server, self._base)

    def _read(self, queues: list[dict[str, tuple[bool, str]]]) -> list[InLine]:
        """Return the contenders of some queues, with what they say of themselves, all of which is asked for at once."""
        found = {path: each for queue in queues for path, each in queue.items()}
        return [
            InLine(path=path, payload=payload, holds=holds, kind=kind)
            for (path, (holds, kind)), payload in zip(found.items(), self._payloads([*found]), strict=True)
        ]

    def _payloads(self, paths: list[str]) -> list[Payload | None]:
        return self._bystander.read(paths) if paths else []

    def _connected(self) -> Session:
        """Return the session of this process when its connection stands; it is started if there is none."""
        session = process.current()
        self.eventually(
            lambda: session.connected and session.session_id is not None, RECONNECT_PATIENCE, "there is no connection"
        )
        return session


def _wait_for(condition: Callable[[], _T], timeout: float) -> _T:
    """Return the first true value of `condition()`, or the last false one when `timeout` seconds are over."""
    deadline = time.monotonic() + timeout
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return value


__all__ = ["InLine", "LockTester"]
