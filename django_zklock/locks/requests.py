"""
Requests that survive a broken connection: a request with a deadline, and an update that reads, decides and writes.

`call` and `run` block the calling thread. An `OptimisticUpdate` works on the loop's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from django_zklock.core import clock
from django_zklock.core.execution.waiters import ThreadWaiter
from django_zklock.core.log import Logger
from django_zklock.core.zk.client import Watch
from django_zklock.core.zk.errors import INTERRUPTED, NodeExists, NodeMissing, NotEmpty, Outdated, SessionGone, ZkError
from django_zklock.core.zk.gateway import Callback, DirectoryReply, DirectoryState, Gateway, NodeReply, WriteReply
from django_zklock.core.zk.multi import Check, Operation
from django_zklock.core.zk.session import Session, SessionObserver
from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable

logger = Logger("django_zklock.zk")

PAUSE: Final = 0.05  # seconds before a request without a reply is sent again
WANTED: Final = 2.0  # seconds after a request, for which the session connects also to servers that have refused it
CLOSED: Final = "The ZooKeeper session of this process was closed."

_Reply = TypeVar("_Reply")


def call(session: Session, request: Callable[[Gateway, Callback[_Reply]], object], deadline: float) -> _Reply:
    """
    Send a request until ZooKeeper answers it; return the reply, which may be a `ZkError`.

    A request whose reply was lost may have been carried out, so it may be carried out twice. `deadline` is on
    `clock.now()`. Raises `ZooKeeperUnavailable` if no reply arrives before it.
    """
    while not session.closing:
        waiter: ThreadWaiter[tuple[_Reply]] = ThreadWaiter()
        session.post(_send, session, request, waiter)
        replies = waiter.wait(deadline - clock.now())
        if replies is None:
            raise ZooKeeperUnavailable(session.explain())
        (reply,) = replies
        if not isinstance(reply, INTERRUPTED):
            return reply
        if deadline - clock.now() < PAUSE:
            raise ZooKeeperUnavailable(session.explain())
        time.sleep(PAUSE)
    raise ZooKeeperUnavailable(CLOSED)


def _send(session: Session, request: Callable[[Gateway, Callback[Any]], object], waiter: ThreadWaiter[Any]) -> None:
    if session.closing:
        waiter.set((SessionGone(),))
        return
    session.wanted_until = max(session.wanted_until, clock.now() + WANTED)
    request(session.gateway, lambda reply: waiter.set((reply,)))


# --- updates ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Done:
    """There is nothing to write, or nothing more. `value` is the result of the update."""

    value: object


@dataclass(frozen=True, slots=True)
class Commit:
    """Carry out these operations in one transaction. If that succeeds, `value` is the result of the update."""

    operations: tuple[Operation, ...]
    value: object


@dataclass(frozen=True, slots=True)
class WaitUntilGone:
    """Read again when this child of the znode is gone."""

    child: str


Step: TypeAlias = Done | Commit | WaitUntilGone
Decide: TypeAlias = Callable[["DirectoryState | None", int], Step]
"""
Return the next step for the state of the znode (None: there is none) and the session id; on the loop's thread.

It is asked again after a write whose reply was lost, so it must recognize its own work.
"""

UNKNOWN: Final = object()
"""The state has to be read first."""
MAX_MISSING: Final = 20
"""Commits that fail because a znode is missing. Another process can cause a few of them, but not so many."""


class FenceGone(ZkError):
    """The znode that an update depends on is gone. Nothing was written."""


class StillThere(ZooKeeperUnavailable):
    """The update was waiting for a child to go when its time was over."""


class OptimisticUpdate(SessionObserver):
    """
    Read a znode, decide what to write, and write it in one transaction; again until it succeeds.

    It survives any number of broken connections and sessions. `done` is called once, with the value or with an error.
    After `abandon` it writes nothing more; `orphaned` then gets the value of a transaction that was already on its way.

    Args:
        session: of this process.
        path: of the znode.
        decide: returns the next step.
        done: gets the value or the error, on the loop's thread. `run` sets it.
        guess: the supposed state of the znode. A right guess saves the read; a wrong one makes the transaction fail.
        orphaned: gets the value if the update is abandoned and is carried out all the same.
        directory: created where a write finds it missing; the parent of `path` unless given.
        fence: path of an ephemeral znode. Each transaction checks that it exists, else the error is `FenceGone`. So no
            process writes after it has lost what that znode stands for, however long it was paused.

    """

    def __init__(
        self,
        session: Session,
        path: str,
        decide: Decide,
        done: Callable[[Any], object] | None = None,
        *,
        guess: object = UNKNOWN,
        orphaned: Callable[[Any], object] | None = None,
        directory: str = "",
        fence: str = "",
    ) -> None:
        self.session = session
        self.done = done
        self.waiting = False  # until a child is gone; read by any thread
        self._path = path
        self._decide = decide
        self._directory = directory or path.rpartition("/")[0]
        self._fence = fence
        self._guess = guess
        self._orphaned = orphaned
        self._outcome: Any = UNKNOWN
        self._abandoned = False
        self._missing = 0  # transactions that failed because a znode was missing
        self._idle = True  # no request is under way
        self._in_doubt = False  # a transaction has lost its reply, and the state was not read since
        self._watch: Watch | None = None
        self._gateway: Gateway  # set on the loop's thread

    def __repr__(self) -> str:
        return f"<update of {self._path!r}>"

    # --- from any thread ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin the update, once there is a connection."""
        self.session.post(self._guarded, self._start)

    def abandon(self) -> None:
        """Stop as soon as it is known whether a transaction under way was carried out."""
        self.session.post(self._guarded, self._abandon)

    # --- on the loop's thread -----------------------------------------------------------------------------------

    def _start(self) -> None:
        if self.session.closing:
            self.on_closed()
            return
        self._gateway = self.session.gateway
        self.session.observers[self] = None
        if not self.session.connected:
            return  # until on_connected
        if self._guess is UNKNOWN:
            self._read()
        else:
            self._step(self._guess)

    def _abandon(self) -> None:
        self._abandoned = True
        if self._outcome is not UNKNOWN:
            self._orphan()
        elif self._idle and not (self._in_doubt and self._orphaned):
            self._conclude(ZooKeeperUnavailable())

    def _read(self) -> None:
        self._idle = False
        self._gateway.read_directory(self._path, self._on_reply(self._on_state))

    def _on_state(self, reply: DirectoryReply) -> None:
        if isinstance(reply, ZkError):
            self._fail(reply)
        else:
            self._in_doubt = False
            self._step(reply)

    def _step(self, state: Any) -> None:
        step = self._decide(state, self.session.session_id or 0)
        if isinstance(step, Done):
            self._conclude(step.value)
        elif self._abandoned:
            self._conclude(ZooKeeperUnavailable())
        elif isinstance(step, Commit):
            self._commit(step)
        else:
            self._wait(step.child)

    def _commit(self, step: Commit) -> None:
        fence = (Check(path=self._fence),) if self._fence else ()
        self._idle = False
        self._gateway.commit((*fence, *step.operations), self._on_reply(partial(self._on_committed, step)))

    def _on_committed(self, step: Commit, reply: WriteReply) -> None:
        if reply is None:
            self._conclude(step.value)
        elif isinstance(reply, NodeMissing) and self._fence and reply.path == self._fence:
            self._conclude(FenceGone())
        elif isinstance(reply, NodeMissing):
            # Another process was faster, or the directory is missing. Creating the directory costs little.
            self._missing += 1
            if self._missing > MAX_MISSING:
                self._conclude(
                    ZkLockError(f"A part of {self._path} is missing, deleted by hand perhaps; delete the rest of it.")
                )
                return
            self._gateway.ensure_path(self._directory, self._on_reply(self._on_directory))
        elif isinstance(reply, (NodeExists, NotEmpty, Outdated)):
            self._read()
        else:
            self._in_doubt = True
            self._fail(reply)

    def _on_directory(self, reply: WriteReply) -> None:
        if reply is not None:
            self._fail(reply)
        else:
            self._read()

    def _wait(self, child: str) -> None:
        self.waiting = True

        def on_read(reply: NodeReply) -> None:
            if isinstance(reply, NodeMissing):
                again()
            elif isinstance(reply, ZkError):
                self._fail(reply)

        def again() -> None:
            if self.waiting:
                self._end_wait()
                self._read()

        self._watch = self._gateway.read(
            f"{self._path}/{child}", lambda reply: self._guarded(on_read, reply), lambda _: self._guarded(again)
        )

    def _end_wait(self) -> None:
        self.waiting = False
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()

    def _fail(self, error: ZkError) -> None:
        """Give up, unless the connection or the session is the cause: then `on_connected` goes on."""
        if not isinstance(error, INTERRUPTED):
            self._conclude(error)
        elif self._abandoned and not self._orphaned:
            self._conclude(ZooKeeperUnavailable())

    def _conclude(self, outcome: Any) -> None:
        if self._outcome is not UNKNOWN:
            return
        self._outcome = outcome
        self._end_wait()
        self.session.observers.pop(self, None)
        done, self.done = self.done, None
        if self._abandoned:
            self._orphan()
        elif done is not None:
            done(outcome)

    def _orphan(self) -> None:
        orphaned, self._orphaned = self._orphaned, None
        if orphaned is not None and not isinstance(self._outcome, BaseException):
            orphaned(self._outcome)

    def _on_reply(self, callback: Callable[[_Reply], object]) -> Callback[_Reply]:
        def on_reply(reply: _Reply) -> None:
            self._idle = True
            if self._outcome is UNKNOWN:
                self._guarded(callback, reply)

        return on_reply

    def _guarded(self, call: Callable[..., object], *args: Any) -> None:
        try:
            call(*args)
        except ZkLockError as error:
            self._conclude(error)
        except Exception as error:
            logger.exception("%r failed", self)
            self._conclude(ZkLockError(f"The protocol failed: {error!r}."))

    # --- events of the session ----------------------------------------------------------------------------------

    def on_connected(self, *, resumed: bool) -> None:
        """Read again: the state shows whether a transaction without a reply was carried out."""
        if self._idle:
            self._end_wait()
            self._guarded(self._read)

    def on_closed(self) -> None:
        self._conclude(ZooKeeperUnavailable(CLOSED))


def run(update: OptimisticUpdate, deadline: float) -> Any:
    """
    Run an update, wait for it, and return its value. Raises the error that it ended with.

    At `deadline`, on `clock.now()`, it is abandoned; a transaction on its way may still be carried out. Raises
    `ZooKeeperUnavailable` then, or `StillThere` if it was waiting for a child to go.
    """
    return run_all([update], deadline)[0]


def run_all(updates: Sequence[OptimisticUpdate], deadline: float) -> list[Any]:
    """Run updates of the same session at the same time, as `run` does; return their values."""
    waiter: ThreadWaiter[bool] = ThreadWaiter()
    outcomes: dict[int, Any] = {}
    complete = waiting = False

    def done(index: int, outcome: Any) -> None:
        outcomes[index] = outcome
        if len(outcomes) == len(updates):
            waiter.set(True)

    try:
        for index, update in enumerate(updates):
            update.done = partial(done, index)
            update.start()
        complete = waiter.wait(deadline - clock.now()) is not None
        waiting = any(update.waiting for update in updates)
    finally:
        if not complete:  # the time is over, or an exception hit this thread
            for update in updates:
                update.abandon()
    if not complete:
        raise (StillThere if waiting else ZooKeeperUnavailable)(updates[0].session.explain())
    for outcome in outcomes.values():
        if isinstance(outcome, ZkLockError):
            raise outcome
    return [outcomes[index] for index in range(len(updates))]
