"""Record each operation on a lock in the log `zklock.audit`, with the operator and the reason."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Literal

from django_zklock.core.log import Logger
from django_zklock.core.protocol.contender_info import ContenderInfo
from django_zklock.core.queue.escaping import printable
from django_zklock.core.queue.operator_hold import OperatorHold
from django_zklock.locks.arguments import check_text
from django_zklock.locks.events import events

audit = Logger("zklock.audit")
logger = Logger("django_zklock.operations")

_acting: ContextVar[tuple[str, list[Action] | None]] = ContextVar("zklock_acting", default=("code", None))
"""The origin of the operations of the present block, and its list of them."""

MAX_TEXT: Final = 500
"""Characters of a reason or a name that are logged."""
_MESSAGES: Final = {
    "broken": "lock %(key)r %(was)s broken by %(by)s%(why)s; its holder was %(holder)s",
    "held": "lock %(key)r is held by %(hold)s",
    "hold ended": "the hold of lock %(key)r by %(hold)s was ended by %(by)s%(why)s",
    "limit set": "the limit of lock %(key)r %(was)s set to %(limit)d by %(by)s%(why)s",
    "limit cleared": "the limit of lock %(key)r %(was)s cleared by %(by)s%(why)s",
    "release requested": "the holder of lock %(key)r %(was)s asked to release by %(by)s%(why)s; it is %(holder)s",
}
_TEXTS: Final = {
    "broken": "Broken; it was held by %(who)s",
    "held": "Held by an operator for %(time)s",
    "hold ended": "Operator hold ended",
    "limit set": "Limit set to %(limit)d",
    "limit cleared": "Limit cleared",
    "release requested": "Release requested of %(who)s",
}
_HOLDER_FIELDS: Final = ("name", "guid", "token", "session_id", "host", "pid", "thread", "what", "about")


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """An action of an operator."""

    what: str
    """A key of `_MESSAGES`."""
    key: str
    """The lock."""
    by: str
    reason: str
    via: str
    """Its origin: "admin", "command" or "code"."""
    at: float
    """In seconds since 1970, by the clock of the process that acted."""
    sure: bool = True
    """False if ZooKeeper's reply was lost, so that it may not have happened."""
    holder: str = ""
    """Host, process and work of the holder that lost the lock or was asked; or the task."""
    token: int | None = None
    """The token of that holder, or of the operator hold."""
    limit: int | None = None
    """The new limit."""
    seconds: float | None = None
    """How long the operator hold lasts."""

    def __str__(self) -> str:
        time_held = f"{self.seconds or 0.0:.0f} s"
        text = _TEXTS[self.what] % {"who": self.holder, "limit": self.limit or 0, "time": time_held}
        return text if self.sure else f"{text} (perhaps: the answer was lost)"


def check_by(by: str) -> str:
    """Return the name of the operator, as it is logged. Raises `ValueError` if it is empty."""
    check_text("by", by, "a text that says who does it")
    name = printable(by.strip(), MAX_TEXT)
    if not name:
        raise ValueError("by is empty; say who does it.")
    return name


def check_reason(reason: str) -> str:
    """Return the reason, as it is logged. Raises `ValueError` if it is empty."""
    text = check_optional_reason(reason)
    if not text:
        raise ValueError("reason is empty; say why, as others will ask.")
    return text


def check_optional_reason(reason: str) -> str:
    """Return the reason, as it is logged; it may be empty."""
    check_text("reason", reason, "a text that says why")
    return printable(reason.strip(), MAX_TEXT)


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


def record_action(
    what: str,
    key: str,
    by: str,
    reason: str,
    *,
    holder: ContenderInfo | None = None,
    hold: OperatorHold | None = None,
    limit: int | None = None,
    sure: bool = True,
) -> None:
    """
    Record what an operator did to a lock, or may have done: in the log, then by the hook of `contrib.events`.

    The record of the log has attributes for handlers that write more than the message.
    """
    contender = holder or hold
    via, actions = _acting.get()
    action = Action(
        what=what,
        key=key,
        by=by,
        reason=reason,
        via=via,
        at=time.time(),
        sure=sure,
        holder=printable(str(holder or ""), MAX_TEXT),
        token=contender.token if contender is not None else None,
        limit=limit,
        seconds=hold.seconds if hold is not None else None,
    )
    host = socket.gethostname()
    extra: dict[str, object] = {"lock": key, "user": by, "reason": reason, "via": via, "host": host}
    if contender is not None:
        extra["token"] = contender.token
    values = {
        "key": key,
        "by": by,
        "why": f": {reason}" if reason else "",
        "hold": hold,
        "limit": limit,
        "holder": action.holder,
        "was": "was" if sure else "may have been",
    }
    if holder is not None:
        extra["holder"] = {name: getattr(holder, name) for name in _HOLDER_FIELDS}
        values["holder"] = f"{holder} (guid {holder.guid}, token {holder.token})"
    audit.warning(_MESSAGES[what], values, extra=extra)
    if actions is not None:
        actions.append(action)
    if events.recorder is not None:
        try:
            events.recorder.acted(action)
        except Exception:
            logger.exception("the action %r on lock %r was not recorded", what, key)
