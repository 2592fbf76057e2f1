"""The hold of an operator, as everybody in the queue can read it from the payload of its node."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

from django_zklock.queue.nodes import Payload

OPERATOR = "operator"
UNTIL = "until"
REASON = "reason"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorHold:
    """A lock that a person keeps for a time, such as to drain a deploy."""

    key: str
    path: str
    """Of its node."""
    token: int
    """The node's czxid."""
    by: str
    """Who took it."""
    reason: str
    until: datetime
    """When it ends by itself."""


def operator_hold(payload: Payload, *, key: str, path: str, token: int) -> OperatorHold | None:
    """Return the operator's hold that a payload tells of, or None if it tells of none; never raises."""
    about = payload.about
    if OPERATOR not in about:
        return None
    try:
        until = datetime.fromisoformat(about.get(UNTIL, ""))
    except ValueError:
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=timezone.utc)
    return OperatorHold(key=key, path=path, token=token, by=about[OPERATOR], reason=about.get(REASON, ""), until=until)
