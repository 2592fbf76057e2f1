"""Record each operation on a lock, with the operator and the reason: in the log `zklock.audit` and in ZooKeeper."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Literal

from django_zklock.locks.queue_reader import ContenderInfo
from django_zklock.locks.validation import check_text
from django_zklock.operations.action_list import Action
from django_zklock.operations.actions import add_action
from django_zklock.operations.client import QueueClient
from django_zklock.queue.escaping import printable
from django_zklock.queue.operator_hold import OperatorHold

audit = logging.getLogger("zklock.audit")

_via: ContextVar[str] = ContextVar("zklock_via", default="code")

MAX_TEXT: Final = 500
"""Characters of a reason or a name that are logged."""
_LOGGED: Final = ("name", "guid", "token", "session_id", "host", "pid", "thread", "what", "about")  # of a holder


def check_by(by: str) -> str:
    """Return the name of the operator, as it is logged. Raises `ValueError` if it is empty."""
    check_text("by", by, "a text that says who does it")
    found = printable(by.strip(), MAX_TEXT)
    if not found:
        raise ValueError("by is empty; say who does it.")
    return found


def check_reason(reason: str) -> str:
    """Return the reason, as it is logged. Raises `ValueError` if it is empty."""
    found = check_optional_reason(reason)
    if not found:
        raise ValueError("reason is empty; say why, as others will ask.")
    return found


def check_optional_reason(reason: str) -> str:
    """Return the reason, as it is logged; it may be empty."""
    check_text("reason", reason, "a text that says why")
    return printable(reason.strip(), MAX_TEXT)


@contextmanager
def acting_via(origin: Literal["admin", "command"]) -> Iterator[None]:
    """Record that the operations of a block come from the admin or from a command, and not from code."""
    before = _via.set(origin)
    try:
        yield
    finally:
        _via.reset(before)


def record_break(client: QueueClient, holder: ContenderInfo, by: str, reason: str, *, sure: bool = True) -> None:
    """Record that a lock was broken, or may have been."""
    what = "was broken" if sure else "may be broken, as the answer was lost,"
    _record(
        client,
        ("lock %r %s by %s: %s; its holder was %s", client.key, what, by, reason, _description(holder)),
        _action(client, "broken", by, reason, holder, sure=sure),
        **_holder_fields(holder),
    )


def record_limit(client: QueueClient, limit: int, by: str, reason: str, *, sure: bool = True) -> None:
    """Record that the limit of a semaphore was set, or cleared (0), or may have been."""
    change = f"set to {limit}" if limit else "cleared"
    what = f"was {change}" if sure else f"may have been {change}, as the answer was lost,"
    _record(
        client,
        ("the limit of lock %r %s by %s: %s", client.key, what, by, reason),
        _action(client, "limit set" if limit else "limit cleared", by, reason, limit=limit, sure=sure),
    )


def record_release_request(client: QueueClient, holder: ContenderInfo, by: str, reason: str, *, sure: bool) -> None:
    """Record that a holder was asked to release a lock, or may have been."""
    what, description = "was" if sure else "may have been", _description(holder)
    text = "the holder of lock %r %s asked to release by %s: %s; it is %s"
    _record(
        client,
        (text, client.key, what, by, reason, description),
        _action(client, "release requested", by, reason, holder, sure=sure),
        **_holder_fields(holder),
    )


def record_hold(client: QueueClient, hold: OperatorHold, by: str, reason: str) -> None:
    """Record that an operator holds a lock."""
    action = _action(client, "held", by, reason, token=hold.token, seconds=hold.seconds)
    _record(client, ("lock %r is held by %s", client.key, hold), action, token=hold.token)


def record_end(client: QueueClient, hold: OperatorHold, by: str, reason: str) -> None:
    """Record that an operator hold was ended before its time."""
    why = f": {reason}" if reason else ""
    _record(
        client,
        ("the hold of lock %r by %s was ended by %s%s", client.key, hold, by, why),
        _action(client, "hold ended", by, reason, token=hold.token),
        token=hold.token,
    )


def _action(
    client: QueueClient, what: str, by: str, reason: str, holder: ContenderInfo | None = None, **more: Any
) -> Action:
    if holder is not None:
        work = printable(holder.what, MAX_TEXT)
        more |= {"host": printable(holder.host, MAX_TEXT), "pid": holder.pid, "work": work, "token": holder.token}
    return Action(what=what, key=client.key, by=by, reason=reason, via=_via.get(), at=round(time.time(), 3), **more)


def _record(client: QueueClient, message: tuple[Any, ...], action: Action, **more: object) -> None:
    """Write to the log, with attributes for handlers that write more than the message; then to the list of actions."""
    fields = {"lock": action.key, "user": action.by, "host": socket.gethostname(), "reason": action.reason}
    audit.warning(*message, extra={**fields, "via": action.via, **more})
    add_action(client.session, client.base, action)


def _holder_fields(holder: ContenderInfo) -> dict[str, object]:
    return {"holder": {name: getattr(holder, name) for name in _LOGGED}, "token": holder.token}


def _description(holder: ContenderInfo) -> str:
    return (
        f"{holder.what or 'unknown work'} on {holder.host or 'an unknown host'}, process {holder.pid}, "
        f"thread {holder.thread or 'unknown'} (guid {holder.guid}, token {holder.token})"
    )
