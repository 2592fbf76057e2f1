"""
Stories: what to ask ZooKeeper, step by step, as generators that run on the protocol's thread.

A story yields a request: a function that gets a callback, such as `partial(gateway.read, path)`. The driver sends the
request, and goes on with the story when the reply is there. An error of ZooKeeper is raised at that place. Stories call
each other by `yield from`.

If the connection breaks, the story ends where it is. So a story must not clean up in a `finally`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, TypeAlias, TypeVar

from django_zklock.core.errors import ZkLockError, ZooKeeperUnavailable
from django_zklock.core.log import Logger
from django_zklock.core.zk.errors import INTERRUPTED, ZkError
from django_zklock.core.zk.gateway import Callback
from django_zklock.core.zk.session import Session, SessionObserver

logger = Logger("django_zklock.zk")

CLOSED = "The ZooKeeper session of this process was closed."

_Value = TypeVar("_Value")

Request: TypeAlias = Callable[[Callback[Any]], object]
Story: TypeAlias = Generator[Request, Any, _Value]


class StoryObserver(SessionObserver):
    """
    Runs its story until that has ended: from its beginning again after each loss of the connection.

    Some of its requests may be carried out twice, or after its end. All runs on the protocol's thread.
    """

    __slots__ = ("_story", "session")

    session: Session
    _story: Story[Any] | None  # that runs now; replies to requests of another one are dropped

    def new_story(self) -> Story[Any]:
        """Return the story."""
        raise NotImplementedError

    def restart(self) -> None:
        """Run the story from its beginning."""
        self.run(self.new_story())

    def run(self, story: Story[Any]) -> None:
        """Run this story, until the next connection; it takes the place of the one that runs now."""
        self._story = story
        self.attempt(self._go_on, story, None)

    def _go_on(self, story: Story[Any], reply: Any) -> None:
        """Go on with this story, unless it has ended; with the reply to its last request."""
        if story is not self._story:
            return
        if isinstance(reply, INTERRUPTED):
            self._on_end(reply)
            return
        try:
            request = story.throw(reply) if isinstance(reply, ZkError) else story.send(reply)
        except StopIteration as end:
            outcome = end.value
        except ZkLockError as error:
            outcome = error
        else:
            request(partial(self.attempt, self._go_on, story))
            return
        self._on_end(outcome)

    def _on_end(self, outcome: Any) -> None:
        self._story = None
        if isinstance(outcome, INTERRUPTED):
            self.on_interrupted()
        else:
            self.conclude(outcome)

    def attempt(self, call: Callable[..., object], *args: Any) -> None:
        """Make a call. If it fails, so does the story."""
        try:
            call(*args)
        except Exception as error:
            logger.exception("%r failed", self)
            self.on_failure(error)

    def on_interrupted(self) -> None:
        """The connection was lost. The story begins again when there is one."""

    def on_failure(self, error: Exception) -> None:
        self.conclude(ZkLockError(f"The protocol failed: {error!r}."))

    def conclude(self, outcome: Any) -> None:
        """Take the value or the error of the story."""
        raise NotImplementedError

    def end(self) -> None:
        """End without an outcome. The call is idempotent."""
        self._story = None
        self.session.observers.pop(self, None)

    def on_connected(self, *, resumed: bool) -> None:
        self.restart()

    def on_closed(self) -> None:
        self.conclude(ZooKeeperUnavailable(CLOSED))


class StoryRun(StoryObserver):
    """Runs a story of a caller. `done` is called once, with its value or its error, on the protocol's thread."""

    def __init__(
        self, session: Session, new_story: Callable[[], Story[Any]], done: Callback[Any] = lambda outcome: None
    ) -> None:
        self.session = session
        self._new_story = new_story
        self.done = done
        self._story = None

    def __repr__(self) -> str:
        return f"<run of {self._new_story!r}>"

    def new_story(self) -> Story[Any]:
        return self._new_story()

    def start(self) -> None:
        """Begin as soon as there is a connection; from any thread."""
        self.session.post(self.begin)

    def stop(self) -> None:
        """Send nothing more; from any thread."""
        self.session.post(self.end)

    def begin(self) -> None:
        """Begin as soon as there is a connection; on the protocol's thread."""
        if self.session.closing:
            self.on_closed()
            return
        self.session.observers[self] = None
        if self.session.connected:
            self.restart()

    def conclude(self, outcome: Any) -> None:
        """End with this value or error."""
        self.end()
        self.done(outcome)
