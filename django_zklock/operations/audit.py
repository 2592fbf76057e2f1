"""Record each operation on a lock in the log `zklock.audit`, with the operator and the reason."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Final, Literal

from django_zklock.core.log import Logger
from django_zklock.core.protocol.contender_info import ContenderInfo
from django_zklock.core.queue.escaping import printable
from django_zklock.locks.arguments import check_text
from django_zklock.locks.events import events

audit = Logger("zklock.audit")
logger = Logger("django_zklock.operations")

_acting: ContextVar[tuple[str, list[Action] | None]] = ContextVar("zklock_acting", default=("code", None))
"""The origin of the operations of the present block, and its list of them."""

MAX_TEXT: Final = 500
"""Characters of a reason, a name or an action that are logged."""
UNSURE: Final = "Perhaps, as the reply was lost: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """
    An operation on a lock that was done, or may have been.

    Its text is what the log, the admin, the table of events and the commands say.
    """

    text: str
    key: str
    by: str
    reason: str
    holder: ContenderInfo | None = None
    """The holder that lost the lock, or was asked to release it."""
    token: int | None = None
    """The token of that holder, or of the operator hold."""
    via: str = ""
    """Its origin: "admin", "command" or "code". `record` sets this and what follows."""
    at: float = 0.0
    """In seconds since 1970, by the clock of the process that acted."""
    sure: bool = True
    """False if ZooKeeper's reply was lost, so that it may not have happened."""

    def __str__(self) -> str:
        holder = self.holder
        who = "" if holder is None else f" {holder} (guid {holder.guid}, token {holder.token})"
        return printable(f"{'' if self.sure else UNSURE}{self.text}{who}", MAX_TEXT)

    def attributes(self) -> dict[str, object]:
        """Return the attributes of its log record, for handlers that write more than the message."""
        own = {"lock": self.key, "user": self.by, "reason": self.reason, "via": self.via, "token": self.token}
        return {**own, "host": socket.gethostname()}


def check_by(by: str) -> str:
    """Return the name of the operator, as it is logged. Raises `ValueError` if it is empty."""
    check_text("by", by, "a text that says who does it")
    name = printable(by.strip(), MAX_TEXT)
    if not name:
        raise ValueError("by is empty; say who does it.")
    return name


def check_reason(reason: str, *, needed: bool = True) -> str:
    """Return the reason, as it is logged. Raises `ValueError` if it is needed and empty."""
    check_text("reason", reason, "a text that says why")
    text = printable(reason.strip(), MAX_TEXT)
    if needed and not text:
        raise ValueError("reason is empty; say why, as others will ask.")
    return text


@contextmanager
def acting_via(origin: Literal["admin", "command"]) -> Iterator[list[Action]]:
    """
    Record that the operations of a block come from the admin or from a command, and not from code.

    Yields a list to which each action is added.
    """
    actions: list[Action] = []
    before = _acting.set((origin, actions))
    try:
        yield actions
    finally:
        _acting.reset(before)


def record(action: Action, *, sure: bool = True) -> Action:
    """Record an action that was done, or may have been, in the log and by the hook of `contrib.events`; return it."""
    via, actions = _acting.get()
    action = replace(action, via=via, at=time.time(), sure=sure)
    why = f": {action.reason}" if action.reason else ""
    audit.warning("lock %r: %s; by %s%s", action.key, action, action.by, why, extra=action.attributes())
    if actions is not None:
        actions.append(action)
    if events.recorder is not None:
        try:
            events.recorder.acted(action)
        except Exception:
            logger.exception("the action %r on lock %r was not recorded", str(action), action.key)
    return action
