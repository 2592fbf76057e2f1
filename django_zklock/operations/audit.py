"""The log `zklock.audit`: each operation on a lock, with the operator and the reason."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from django_zklock.locks.validation import check_text
from django_zklock.queue.escaping import printable
from django_zklock.queue.nodes import Child, Payload
from django_zklock.zk.gateway import Node

audit = logging.getLogger("zklock.audit")

MAX_TEXT: Final = 500
"""Characters of a reason or a name that are logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The holder of a lock, as its znode describes it. Texts from ZooKeeper are cut and have no control characters."""

    name: str
    guid: str
    token: int
    session_id: int
    host: str
    pid: int
    thread: str
    what: str
    about: Mapping[str, str]


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


def holder_of(child: Child, node: Node) -> Holder:
    """Return the holder that a znode describes."""
    payload = Payload.decode(node.data)
    found = {"token": node.czxid, "session_id": node.owner, "name": child.name, "guid": child.guid}
    if payload is None:
        what = printable(node.data[:MAX_TEXT].decode(errors="replace"), MAX_TEXT)
        return Holder(**found, host="", pid=0, thread="", what=what, about={})  # type: ignore[arg-type]
    about = {printable(name): printable(value) for name, value in payload.about.items()}
    texts = {name: printable(getattr(payload, name)) for name in ("host", "thread", "what")}
    return Holder(**found, **texts, pid=payload.pid, about=about)  # type: ignore[arg-type]


def log_fields(key: str, by: str, reason: str) -> dict[str, object]:
    """Return the attributes of a record, for handlers that write more than the message."""
    return {"lock": key, "user": by, "host": socket.gethostname(), "reason": reason}


def log_break(key: str, holder: Holder, what: str, by: str, reason: str) -> None:
    """Log that a lock was broken, or may have been; `what` says which."""
    audit.warning(
        "lock %r %s by %s: %s; its holder was %s",
        key,
        what,
        by,
        reason,
        _description(holder),
        extra={**log_fields(key, by, reason), "holder": asdict(holder), "token": holder.token},
    )


def log_limit(key: str, what: str, by: str, reason: str) -> None:
    """Log a change of the limit of a semaphore; `what` says which."""
    audit.warning("the limit of lock %r %s by %s: %s", key, what, by, reason, extra=log_fields(key, by, reason))


def log_release_request(key: str, holder: Holder, by: str, reason: str, *, sure: bool) -> None:
    """Log that a holder was asked to release a lock, or may have been."""
    audit.warning(
        "the holder of lock %r %s asked to release by %s: %s; it is %s",
        key,
        "was" if sure else "may have been",
        by,
        reason,
        _description(holder),
        extra={**log_fields(key, by, reason), "holder": asdict(holder), "token": holder.token},
    )


def _description(holder: Holder) -> str:
    return (
        f"{holder.what or 'unknown work'} on {holder.host or 'an unknown host'}, process {holder.pid}, "
        f"thread {holder.thread or 'unknown'} (guid {holder.guid}, token {holder.token})"
    )
