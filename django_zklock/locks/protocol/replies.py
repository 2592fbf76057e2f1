"""Knows which of ZooKeeper's answers still concern the one who asked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from django_zklock.execution import work

logger = logging.getLogger("django_zklock.locks")

_Reply = TypeVar("_Reply")


class Turns:
    """
    Drops answers to questions that have been overtaken, by a new session, say.

    What makes its receiver fail is logged and reported, as nobody else would ever hear of it.
    """

    __slots__ = ("_about", "_key", "_on_failure", "_turn")

    def __init__(
        self, key: str, on_failure: Callable[[Exception], None], about: Mapping[str, str] | None = None
    ) -> None:
        self._key = key
        self._on_failure = on_failure
        self._about = about or {}  # the work that the lock is for
        self._turn = 0

    def next(self) -> None:
        """Have all answers that are still to come dropped."""
        self._turn += 1

    def pass_on(self, call: Callable[[_Reply], object]) -> Callable[[_Reply], None]:
        """Return `call`, to be called with an answer, if that comes in the present turn."""
        turn = self._turn

        def guarded(answer: _Reply) -> None:
            if turn == self._turn:
                self.run(call, answer)

        return guarded

    def run(self, call: Callable[..., object], *args: Any) -> None:
        """Call it now, and report if it fails; for what is no answer."""
        try:
            call(*args)
        except Exception as error:
            logger.exception(
                "the protocol failed for lock %s%s",
                self._key,
                work.noted(self._about),
                extra={"lock": self._key, **work.logged(self._about)},
            )
            self._on_failure(error)
