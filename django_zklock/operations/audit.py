"""The log `zklock.audit`: each operation on a lock, with the operator and the reason."""

from __future__ import annotations

import logging
import socket
from typing import Final

from django_zklock.locks.queue_reader import ContenderInfo
from django_zklock.locks.validation import check_text
from django_zklock.queue.escaping import printable

audit = logging.getLogger("zklock.audit")

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


def log_fields(key: str, by: str, reason: str) -> dict[str, object]:
    """Return the attributes of a record, for handlers that write more than the message."""
    return {"lock": key, "user": by, "host": socket.gethostname(), "reason": reason}


def log_break(key: str, holder: ContenderInfo, what: str, by: str, reason: str) -> None:
    """Log that a lock was broken, or may have been; `what` says which."""
    audit.warning(
        "lock %r %s by %s: %s; its holder was %s",
        key,
        what,
        by,
        reason,
        _description(holder),
        extra={**log_fields(key, by, reason), **_holder_fields(holder)},
    )


def log_limit(key: str, what: str, by: str, reason: str) -> None:
    """Log a change of the limit of a semaphore; `what` says which."""
    audit.warning("the limit of lock %r %s by %s: %s", key, what, by, reason, extra=log_fields(key, by, reason))


def log_release_request(key: str, holder: ContenderInfo, by: str, reason: str, *, sure: bool) -> None:
    """Log that a holder was asked to release a lock, or may have been."""
    audit.warning(
        "the holder of lock %r %s asked to release by %s: %s; it is %s",
        key,
        "was" if sure else "may have been",
        by,
        reason,
        _description(holder),
        extra={**log_fields(key, by, reason), **_holder_fields(holder)},
    )


def _holder_fields(holder: ContenderInfo) -> dict[str, object]:
    return {"holder": {name: getattr(holder, name) for name in _LOGGED}, "token": holder.token}


def _description(holder: ContenderInfo) -> str:
    return (
        f"{holder.what or 'unknown work'} on {holder.host or 'an unknown host'}, process {holder.pid}, "
        f"thread {holder.thread or 'unknown'} (guid {holder.guid}, token {holder.token})"
    )
