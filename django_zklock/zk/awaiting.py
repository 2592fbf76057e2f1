"""Knows who waits for a connection to ask something on, and asks once it is there."""

from __future__ import annotations

from collections.abc import Callable

from django_zklock.zk.session import Observer, Session


class Awaiting(Observer):
    """The calls that are to be made once a session is connected; attached to it, and for the loop's thread alone."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._calls: dict[Callable[[], object], None] = {}
        session.observers[self] = None

    def call(self, call: Callable[[], object]) -> None:
        """Make a call: now, if there is a connection; else with the next one, unless it is called off."""
        if self._session.usable:
            call()
        else:
            self._calls[call] = None

    def call_off(self, call: Callable[[], object]) -> None:
        """Do not make the call."""
        self._calls.pop(call, None)

    def on_connected(self, *, resumed: bool) -> None:
        """Make the calls, each on a turn of its own, so that what goes wrong with one is nobody else's."""
        for call in self._calls:
            self._session.post(self._make, call)

    def _make(self, call: Callable[[], object]) -> None:
        if call in self._calls and self._session.usable:
            del self._calls[call]
            call()
