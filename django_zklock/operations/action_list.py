"""The list of the last actions of operators, for all locks: one znode with JSON, below the base."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from django_zklock.queue.escaping import printable
from django_zklock.queue.names import MAX_KEY, path

NODE: Final = "!actions"
"""No segment of a key begins like this, as `!` is percent-encoded there."""

MOST_ACTIONS: Final = 200
MOST_BYTES: Final = 64 * 1024
_MAX_READ: Final = 1024 * 1024
_MAX_NUMBER: Final = 2**63

_to_json = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """An action of an operator."""

    what: str
    """"broken", "held", "hold ended", "limit set", "limit cleared" or "release requested"."""
    key: str
    by: str
    reason: str
    via: str
    """Where it came from: "admin", "command" or "code"."""
    at: float
    """In seconds since 1970, by the clock of the process that acted."""
    sure: bool = True
    """False if ZooKeeper's answer was lost, so that it may not have happened."""
    host: str = ""
    """Of the holder that lost the lock or was asked, as are `pid`, `work` and `token`."""
    pid: int = 0
    work: str = ""
    token: int = 0
    """Of that holder, or of the operator hold."""
    limit: int = 0
    """The new limit."""
    seconds: float = 0.0
    """For how long an operator hold is to last."""
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    """By it the writer finds its own action after a lost reply."""


_FIELDS: Final = Action.__dataclass_fields__
_NEEDED: Final = ("what", "key", "by", "reason", "via", "at")


def node_path(base: str) -> str:
    """Return the path of the znode."""
    return path(base, NODE)


def appended(data: bytes, action: Action) -> bytes:
    """
    Return the data with one more action, without the oldest ones that are too many. Damaged data are replaced.

    What another release has written is kept as it is, with fields that this one does not know.
    """
    texts = [_to_json(each) for each in (*_entries(data), asdict(action))][-MOST_ACTIONS:]
    size = 1 + sum(len(text) + 1 for text in texts)
    while size > MOST_BYTES and len(texts) > 1:
        size -= len(texts.pop(0)) + 1
    return f"[{','.join(texts)}]".encode()


def decode(data: bytes) -> tuple[Action, ...]:
    """Return the actions in `data`, oldest first, without those that cannot be read; never raises."""
    found = (_action(each) for each in _entries(data))
    return tuple(action for action in found if action is not None)


def _entries(data: bytes) -> list[Mapping[str, Any]]:
    try:
        found = json.loads(data) if len(data) <= _MAX_READ else None
    except (ValueError, RecursionError):
        return []
    return [each for each in found[-MOST_ACTIONS:] if isinstance(each, dict)] if isinstance(found, list) else []


def _action(entry: Mapping[str, Any]) -> Action | None:
    values = {name: _value(name, entry[name]) for name in _FIELDS if name in entry}
    if any(value is None for value in values.values()) or not values.keys() >= set(_NEEDED):
        return None
    return Action(**values)


def _value(name: str, value: object) -> Any:
    """Return the value of a field, or None if it is not valid."""
    kind = _FIELDS[name].type
    if kind == "str":
        return printable(value, MAX_KEY) if isinstance(value, str) else None
    if kind == "bool":
        return value if isinstance(value, bool) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if not 0 <= value < (1e10 if kind == "float" else _MAX_NUMBER):  # this is false for NaN, too
        return None
    return float(value) if kind == "float" else int(value)
