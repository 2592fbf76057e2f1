"""Knows who did what to a lock and why, as the log `zklock.audit` is told; nothing is done here."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from django_zklock.locks.validation import refuse_no_text
from django_zklock.queue.nodes import Child, Payload
from django_zklock.queue.printable import printable
from django_zklock.zk.gateway import Node

audit = logging.getLogger("zklock.audit")

MOST: Final = 500
"""Characters of a reason or a name that are audited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who held a lock that was broken; what ZooKeeper said of it is cut, and has no control characters."""

    name: str
    guid: str
    token: int
    session_id: int
    host: str
    pid: int
    thread: str
    what: str
    about: Mapping[str, str]


def named(by: str) -> str:
    """Return who does it, as it is written. Raises `ValueError` if that is nobody."""
    refuse_no_text("by", by, "a text that says who does it")
    found = printable(by.strip(), MOST)
    if not found:
        raise ValueError("by is empty; say who does it.")
    return found


def reasoned(reason: str) -> str:
    """Return why, as it is written. Raises `ValueError` if there is no reason."""
    found = said(reason)
    if not found:
        raise ValueError("reason is empty; say why, as others will ask.")
    return found


def said(reason: str) -> str:
    """Return why, as it is written, if anybody has said so."""
    refuse_no_text("reason", reason, "a text that says why")
    return printable(reason.strip(), MOST)


def holder_of(child: Child, node: Node) -> Holder:
    """Return what a node says of who holds the lock."""
    payload = Payload.decode(node.data)
    found = {"token": node.czxid, "session_id": node.owner, "name": child.name, "guid": child.guid}
    if payload is None:
        what = printable(node.data[:MOST].decode(errors="replace"), MOST)
        return Holder(**found, host="", pid=0, thread="", what=what, about={})  # type: ignore[arg-type]
    about = {printable(name): printable(value) for name, value in payload.about.items()}
    texts = {name: printable(getattr(payload, name)) for name in ("host", "thread", "what")}
    return Holder(**found, **texts, pid=payload.pid, about=about)  # type: ignore[arg-type]


def logged(key: str, by: str, reason: str) -> dict[str, object]:
    """Return the fields of a record, for handlers that write more than the message."""
    return {"lock": key, "user": by, "host": socket.gethostname(), "reason": reason}


def log_break(key: str, holder: Holder, what: str, by: str, reason: str) -> None:
    """Write that a lock was broken, or what else became of it."""
    audit.warning(
        "lock %s %s by %s: %s; its holder was %s",
        printable(key),
        what,
        by,
        reason,
        _in_words(holder),
        extra={**logged(key, by, reason), "holder": asdict(holder), "token": holder.token},
    )


def log_limit(key: str, what: str, by: str, reason: str) -> None:
    """Write what became of the limit of a semaphore."""
    audit.warning("the limit of lock %s %s by %s: %s", printable(key), what, by, reason, extra=logged(key, by, reason))


def log_asked(key: str, holder: Holder, by: str, reason: str, *, sure: bool) -> None:
    """Write that a holder was asked to let go, or may have been."""
    audit.warning(
        "the holder of lock %s %s asked to let go by %s: %s; it is %s",
        printable(key),
        "was" if sure else "may have been",
        by,
        reason,
        _in_words(holder),
        extra={**logged(key, by, reason), "holder": asdict(holder), "token": holder.token},
    )


def _in_words(holder: Holder) -> str:
    return (
        f"{holder.what or 'unknown work'} on {holder.host or 'an unknown host'}, process {holder.pid}, "
        f"thread {holder.thread or 'unknown'} (guid {holder.guid}, token {holder.token})"
    )
