"""
Requests that survive a broken connection: a request with a deadline, and an update that reads, decides and writes.

`call` and `run` block the calling thread. An `OptimisticUpdate` works on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar, cast

from django_zklock.core import clock
from django_zklock.core.execution.waiters import ThreadWaiter
from django_zklock.core.protocol.story import Story, StoryRun
from django_zklock.core.zk.client import Watch
from django_zklock.core.zk.errors import NodeExists, NodeMissing, NotEmpty, Outdated, ZkError
from django_zklock.core.zk.gateway import Callback, DirectoryState, Gateway, NodeReply
from django_zklock.core.zk.multi import Check, Operation
from django_zklock.core.zk.session import Session
from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable

WANTED: Final = 2.0  # seconds after a request, for which the session connects also to servers that have refused it

_Reply = TypeVar("_Reply")


def call(session: Session, request: Callable[[Gateway, Callback[_Reply]], object], deadline: float) -> _Reply:
    """
    Send a request until ZooKeeper answers it; return the reply, which may be a `ZkError`.

    A request whose reply was lost may have been carried out, so it may be carried out twice. `deadline` is on
    `clock.now()`. Raises `ZooKeeperUnavailable` if no reply arrives before it.
    """
    session.wanted_until = max(session.wanted_until, clock.now() + WANTED)
    try:
        return cast("_Reply", run(StoryRun(session, partial(_ask, session.gateway, request)), deadline))
    except ZkError as reply:
        return cast("_Reply", reply)


def _ask(gateway: Gateway, request: Callable[[Gateway, Callback[_Reply]], object]) -> Story[_Reply]:
    reply: _Reply = yield partial(request, gateway)
    return reply


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
    on_refused: Callable[[], object] = bool
    """Called if ZooKeeper has refused it, so that it has written nothing."""


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


class OptimisticUpdate(StoryRun):
    """
    Read a znode, decide what to write, and write it in one transaction; again until it succeeds.

    It survives any number of broken connections and sessions. `done` is called once, with the value or with an error.
    After `stop`, a transaction on its way may still be carried out.

    Args:
        session: of this process.
        path: of the znode.
        decide: returns the next step.
        done: gets the value or the error, on the loop's thread. `run` sets it.
        guess: the supposed state of the znode. A right guess saves the read; a wrong one makes the transaction fail.
        directory: created where a write finds it missing; the parent of `path` unless given.
        fence: path of an ephemeral znode. Each transaction checks that it exists, else the error is `FenceGone`. So no
            process writes after it has lost what that znode stands for, however long it was paused.

    """

    def __init__(
        self,
        session: Session,
        path: str,
        decide: Decide,
        done: Callable[[Any], object] = lambda outcome: None,
        *,
        guess: object = UNKNOWN,
        directory: str = "",
        fence: str = "",
    ) -> None:
        super().__init__(session, self._update, done)
        self._path = path
        self._decide = decide
        self._directory = directory or path.rpartition("/")[0]
        self._fence = fence
        self._guess = guess
        self._missing = 0  # transactions that failed because a znode was missing
        self._watch: Watch | None = None

    def __repr__(self) -> str:
        return f"<update of {self._path!r}>"

    def _update(self) -> Story[Any]:
        """Read again after each connection: the state shows whether a transaction without a reply was carried out."""
        gateway = self.session.gateway
        state: Any = self._guess
        self._guess = UNKNOWN
        while True:
            if state is UNKNOWN:
                state = yield partial(gateway.read_directory, self._path)
            step = self._decide(state, self.session.session_id or 0)
            state = UNKNOWN
            if isinstance(step, Done):
                return step.value
            if isinstance(step, WaitUntilGone):
                yield from self._wait(f"{self._path}/{step.child}")
            elif (yield from self._commit(step.operations)):
                return step.value
            else:
                step.on_refused()

    def _commit(self, operations: tuple[Operation, ...]) -> Story[bool]:
        """Return whether it was carried out, or has to be decided again."""
        gateway = self.session.gateway
        fence = (Check(path=self._fence),) if self._fence else ()
        try:
            yield partial(gateway.commit, (*fence, *operations))
        except (NodeExists, NotEmpty, Outdated):
            return False
        except NodeMissing as error:
            if self._fence and error.path == self._fence:
                raise FenceGone from error
            # Another process was faster, or the directory is missing. Creating the directory costs little.
            self._missing += 1
            if self._missing > MAX_MISSING:
                why = f"A part of {self._path} is missing, deleted by hand perhaps; delete the rest of it."
                raise ZkLockError(why) from error
            yield partial(gateway.ensure_path, self._directory)
            return False
        return True

    def _wait(self, child: str) -> Story[None]:
        with suppress(NodeMissing):
            yield partial(self._until_gone, child)

    def _until_gone(self, child: str, done: Callback[Any]) -> None:
        def on_read(reply: NodeReply) -> None:
            if isinstance(reply, ZkError):
                done(reply)

        self._watch = self.session.gateway.read(child, on_read, lambda deleted: done(None))

    def end(self) -> None:
        super().end()
        if self._watch is not None:
            self._watch.cancel()


def run(story: StoryRun, deadline: float) -> Any:
    """
    Run an update or another story, wait for it, and return its value. Raises the error that it ended with.

    At `deadline`, on `clock.now()`, it is stopped; a transaction on its way may still be carried out. Raises
    `ZooKeeperUnavailable` then.
    """
    waiter: ThreadWaiter[tuple[Any]] = ThreadWaiter()
    story.done = lambda outcome: waiter.set((outcome,))
    outcomes = None
    try:
        story.start()
        outcomes = waiter.wait(deadline - clock.now())
    finally:
        if outcomes is None:  # the time is over, or an exception hit this thread
            story.stop()
    if outcomes is None:
        raise ZooKeeperUnavailable(story.session.explain())
    if isinstance(outcomes[0], ZkLockError):
        raise outcomes[0]
    return outcomes[0]
