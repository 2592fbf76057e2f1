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
Guard: TypeAlias = Callable[[Callback[Any]], Callback[Any]]


def drive(
    story: Story[Any], done: Callback[Any] = lambda outcome: None, guard: Guard = lambda callback: callback
) -> None:
    """
    Run a story to its end. `done` gets its value, or the `ZkLockError` that it raised or that has interrupted it.

    `guard` wraps the callback of each request, to drop replies that nobody needs any more.
    """

    def proceed(reply: Any) -> None:
        if isinstance(reply, INTERRUPTED):
            done(reply)
            return
        try:
            request = story.throw(reply) if isinstance(reply, ZkError) else story.send(reply)
        except StopIteration as end:
            outcome = end.value
        except ZkLockError as error:
            outcome = error
        else:
            request(guard(proceed))
            return
        done(outcome)

    proceed(None)


class StoryRun(SessionObserver):
    """
    Runs a story until it has ended: from its beginning again after each loss of the connection.

    Some of its requests may be carried out twice, or after its end. `done` is called once, with the value or the error
    of the story, on the protocol's thread.
    """

    def __init__(
        self, session: Session, new_story: Callable[[], Story[Any]], done: Callback[Any] = lambda outcome: None
    ) -> None:
        self.session = session
        self._new_story = new_story
        self.done = done
        self._story: Story[Any] | None = None  # that runs now; replies to requests of another one are dropped

    def start(self) -> None:
        """Begin as soon as there is a connection; from any thread."""
        self.session.post(self.begin)

    def stop(self) -> None:
        """Send nothing more; from any thread."""
        self.session.post(self.end)

    # --- on the protocol's thread -------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin as soon as there is a connection."""
        if self.session.closing:
            self.on_closed()
            return
        self.session.observers[self] = None
        if self.session.connected:
            self.restart()

    def restart(self) -> None:
        """Run the story from its beginning."""
        self.run(self._new_story())

    def run(self, story: Story[Any]) -> None:
        """Run this story, until the next connection; it takes the place of the one that runs now."""
        self._story = story
        guard = partial(partial, self._call, story)
        self._call(story, drive, story, self._on_end, guard)

    def _call(self, story: Story[Any], call: Callable[..., object], *args: Any) -> None:
        """Make a call for this story, unless it has ended."""
        if story is not self._story:
            return
        try:
            call(*args)
        except Exception as error:
            logger.exception("%r failed", self._new_story)
            self.conclude(ZkLockError(f"The protocol failed: {error!r}."))

    def _on_end(self, outcome: Any) -> None:
        self._story = None
        if not isinstance(outcome, INTERRUPTED):  # else it begins again when it is connected
            self.conclude(outcome)

    def conclude(self, outcome: Any) -> None:
        """End with this value or error."""
        self.end()
        self.done(outcome)

    def end(self) -> None:
        """End without an outcome. The call is idempotent."""
        self._story = None
        self.session.observers.pop(self, None)

    def on_connected(self, *, resumed: bool) -> None:
        self.restart()

    def on_closed(self) -> None:
        self.conclude(ZooKeeperUnavailable(CLOSED))
