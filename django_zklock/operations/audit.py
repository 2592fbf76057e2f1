"""Record each operation on a lock in the log `zklock.audit`, with the operator and the reason."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Literal

from django_zklock.locks import notify
from django_zklock.locks.queue_reader import ContenderInfo
from django_zklock.locks.refusals import check_text
from django_zklock.operations.client import QueueClient
from django_zklock.queue.escaping import printable
from django_zklock.queue.operator_hold import OperatorHold

audit = logging.getLogger("zklock.audit")
logger = logging.getLogger("django_zklock.operations")

_via: ContextVar[str] = ContextVar("zklock_via", default="code")
_actions: ContextVar[list[Action] | None] = ContextVar("zklock_actions", default=None)  # those of the present block

MAX_TEXT: Final = 500
"""Characters of a reason or a name that are logged."""
_HOLDER_FIELDS: Final = ("name", "guid", "token", "session_id", "host", "pid", "thread", "what", "about")


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """An action of an operator."""

    what: str
    """"broken", "held", "hold ended", "limit set", "limit cleared" or "release requested"."""
    key: str
    by: str
    reason: str
    via: str
    """Its origin: "admin", "command" or "code"."""
    at: float
    """In seconds since 1970, by the clock of the process that acted."""
    sure: bool = True
    """False if ZooKeeper's answer was lost, so that it may not have happened."""
    holder: str = ""
    """Host, process and work of the holder that lost the lock or was asked."""
    token: int | None = None
    """The token of that holder, or of the operator hold."""
    limit: int | None = None
    """The new limit."""
    seconds: float | None = None
    """How long the operator hold lasts."""


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
    via_before, actions_before = _via.set(origin), _actions.set(actions)
    try:
        yield actions
    finally:
        _via.reset(via_before)
        _actions.reset(actions_before)


def record_break(client: QueueClient, holder: ContenderInfo, by: str, reason: str, *, sure: bool = True) -> None:
    """Record that a lock was broken, or may have been."""
    happened = "was broken" if sure else "may be broken, as the answer was lost,"
    message = f"lock %r {happened} by %s: %s; its holder was %s"
    values = (client.key, by, reason, _description(holder))
    _record(_action(client, "broken", by, reason, holder, sure=sure), message, *values, holder=holder)


def record_limit(client: QueueClient, limit: int, by: str, reason: str, *, sure: bool = True) -> None:
    """Record that the limit of a semaphore was set, or cleared (0), or may have been."""
    change = f"set to {limit}" if limit else "cleared"
    happened = f"was {change}" if sure else f"may have been {change}, as the answer was lost,"
    action = _action(client, "limit set" if limit else "limit cleared", by, reason, limit=limit or None, sure=sure)
    _record(action, f"the limit of lock %r {happened} by %s: %s", client.key, by, reason)


def record_release_request(client: QueueClient, holder: ContenderInfo, by: str, reason: str, *, sure: bool) -> None:
    """Record that a holder was asked to release a lock, or may have been."""
    happened = "was" if sure else "may have been"
    message = f"the holder of lock %r {happened} asked to release by %s: %s; it is %s"
    values = (client.key, by, reason, _description(holder))
    _record(_action(client, "release requested", by, reason, holder, sure=sure), message, *values, holder=holder)


def record_hold(client: QueueClient, hold: OperatorHold, by: str, reason: str) -> None:
    """Record that an operator holds a lock."""
    action = _action(client, "held", by, reason, token=hold.token, seconds=hold.seconds)
    _record(action, "lock %r is held by %s", client.key, hold)


def record_end(client: QueueClient, hold: OperatorHold, by: str, reason: str) -> None:
    """Record that an operator hold was ended before its time."""
    why = f": {reason}" if reason else ""
    action = _action(client, "hold ended", by, reason, token=hold.token)
    _record(action, "the hold of lock %r by %s was ended by %s%s", client.key, hold, by, why)


def _action(
    client: QueueClient, what: str, by: str, reason: str, holder: ContenderInfo | None = None, **fields: Any
) -> Action:
    if holder is not None:
        process = f"{holder.host or '?'} · pid {holder.pid}"
        fields["holder"] = printable(f"{process} · {holder.what}" if holder.what else process, MAX_TEXT)
        fields["token"] = holder.token
    return Action(what=what, key=client.key, by=by, reason=reason, via=_via.get(), at=time.time(), **fields)


def _record(action: Action, message: str, *values: object, holder: ContenderInfo | None = None) -> None:
    """Write to the log, with attributes for handlers that write more than the message; then pass the action on."""
    extra: dict[str, object] = {"lock": action.key, "user": action.by, "reason": action.reason, "via": action.via}
    extra["host"] = socket.gethostname()
    if action.token is not None:
        extra["token"] = action.token
    if holder is not None:
        extra["holder"] = {name: getattr(holder, name) for name in _HOLDER_FIELDS}
    audit.warning(message, *values, extra=extra)
    actions = _actions.get()
    if actions is not None:
        actions.append(action)
    if notify.action_hook is not None:
        try:
            notify.action_hook(action)
        except Exception:
            logger.exception("the action %r on lock %r was not recorded", action.what, action.key)


def _description(holder: ContenderInfo) -> str:
    return (
        f"{holder.what or 'unknown work'} on {holder.host or 'an unknown host'}, process {holder.pid}, "
        f"thread {holder.thread or 'unknown'} (guid {holder.guid}, token {holder.token})"
    )
