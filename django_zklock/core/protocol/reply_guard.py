"""Drop replies that arrive after a contender has moved on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from django_zklock.core.log import Logger

logger = Logger("django_zklock.locks")

_Reply = TypeVar("_Reply")


@dataclass(slots=True, eq=False)
class ReplyGuard:
    """
    Wraps callbacks so that replies to outdated requests are dropped.

    Each request gets one reply or one error, normally before the next connection is reported. But a request that was
    sent just when the connection broke may be answered on the next one. So a contender starts a new generation with
    each create, search and listing that it repeats, and when it leaves or gets a new session. A reply to a request of
    an earlier generation says nothing about the present, so it is ignored.

    If a callback fails, the failure is logged and reported. Otherwise the contender would stay in the queue, do nothing
    more, and block all others behind it.
    """

    _key: str
    _on_failure: Callable[[Exception], None]
    _about: Mapping[str, str] = field(default_factory=dict)  # the work that the lock is for
    _generation: int = 0

    def new_generation(self) -> None:
        """Ignore all replies that are still outstanding."""
        self._generation += 1

    def wrap(self, callback: Callable[[_Reply], object]) -> Callable[[_Reply], None]:
        """Return a callback that calls `callback`, unless a new generation has begun."""
        return partial(self.run, callback, generation=self._generation)

    def run(self, callback: Callable[..., object], *args: Any, generation: int | None = None) -> None:
        """
        Call `callback`, unless it belongs to an earlier `generation`.

        If it fails, log the failure and report it to `on_failure`.
        """
        if generation is not None and generation != self._generation:
            return
        try:
            callback(*args)
        except Exception as error:
            extra = {"lock": self._key}
            logger.exception("the protocol failed for lock %r", self._key, about=self._about, extra=extra)
            self._on_failure(error)
