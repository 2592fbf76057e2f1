"""Drop the replies to outdated requests, and report callbacks that fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from django_zklock.execution import work
from django_zklock.log import Logger

logger = Logger("django_zklock.locks")

_Reply = TypeVar("_Reply")


class ReplyGuard:
    """
    Wraps callbacks so that replies to outdated requests are dropped.

    A contender starts a new generation when it leaves, reconnects or gets a new session. A reply to a request of an
    earlier generation says nothing about the present, so it is ignored. If a callback fails, the failure is logged and
    reported. Otherwise the contender would stay in the queue, do nothing more, and block all others behind it.
    """

    __slots__ = ("_about", "_generation", "_key", "_on_failure")

    def __init__(
        self, key: str, on_failure: Callable[[Exception], None], about: Mapping[str, str] | None = None
    ) -> None:
        self._key = key
        self._on_failure = on_failure
        self._about = about or {}  # the work that the lock is for
        self._generation = 0

    def new_generation(self) -> None:
        """Ignore all replies that are still outstanding."""
        self._generation += 1

    def wrap(self, callback: Callable[[_Reply], object]) -> Callable[[_Reply], None]:
        """Return a callback that calls `callback`, unless a new generation has begun."""
        generation = self._generation

        def guarded(reply: _Reply) -> None:
            if generation == self._generation:
                self.run(callback, reply)

        return guarded

    def run(self, callback: Callable[..., object], *args: Any) -> None:
        """Call `callback` now. If it fails, log the failure and report it to `on_failure`."""
        try:
            callback(*args)
        except Exception as error:
            logger.exception(
                "the protocol failed for lock %r%s",
                self._key,
                work.log_suffix(self._about),
                extra={"lock": self._key, **work.log_fields(self._about)},
            )
            self._on_failure(error)
