"""The text of a field value in a key. Only types with a stable text are accepted."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import uuid
from collections.abc import Mapping

from django_zklock.exceptions import InvalidLockName
from django_zklock.queue.escaping import MAX_SEGMENT, quoted

_DEEPEST = 8  # lists and dicts within each other
_LITERALS = {None: "null", True: "true", False: "false"}

_to_json = json.JSONEncoder(ensure_ascii=False).encode


def text_of(value: object, what: str) -> str:
    """
    Return the text of `value`; raise `InvalidLockName`, with `what` as its subject, if its type is not accepted.

    The text survives JSON, which turns a tuple into a list, a dict's key into a string, an enum into its value, and a
    date, a Decimal or a UUID into a string. So a task has the same key in the process that sends it and in the worker.

    `str(value)` would accept any object, and give `Order object (None)` or an address in memory.
    """
    scalar = _scalar(value, what)
    if scalar is not None:
        return scalar
    if isinstance(value, (list, tuple, Mapping)):
        return _Container(what).text(value, 1)
    kind = quoted(type(value).__name__)
    if value is None or isinstance(value, bool):
        raise InvalidLockName(f"{what} is {value}. Use a text or a number.")
    if callable(value):
        raise InvalidLockName(f"{what} is a callable ({kind}). Name an attribute or a property instead.")
    hint = "Pass str() of the lazy text." if kind == "'__proxy__'" else "Name an attribute of it, such as {order.pk}."
    raise InvalidLockName(f"{what} is of type {kind}. {hint}")


def _scalar(value: object, what: str) -> str | None:
    if isinstance(value, enum.Enum):
        return text_of(value.value, what)
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        if value.bit_length() > 4 * MAX_SEGMENT:  # Python refuses to print a huge int, or takes quadratic time
            raise InvalidLockName(f"{what} is an int of {value.bit_length()} bits. Use a smaller one.")
        return str(int(value))
    if isinstance(value, (uuid.UUID, decimal.Decimal)):
        return str(value)
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    return _row(value, what)


def _row(value: object, what: str) -> str | None:
    """Return the text of an instance of a Django model, `app.model:pk`; None for anything else."""
    meta = getattr(type(value), "_meta", None)
    # A proxy model, or one with deferred fields, is the same row under another name.
    label = getattr(getattr(getattr(meta, "concrete_model", None), "_meta", meta), "label_lower", None)
    if not isinstance(label, str) or isinstance(value, type):
        return None
    pk = getattr(value, "pk", None)
    if pk is None:
        raise InvalidLockName(f"{what} is a {label} without a primary key. Save it first.")
    return f"{label}:{text_of(pk, what)}"


class _Container:
    """
    A list or a dict as JSON without spaces, sorted by key. Numbers and dates are strings there, too.

    It counts the items that it writes, so a huge value is refused before it is written.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._remaining = MAX_SEGMENT  # an item takes at least one character

    def text(self, value: object, depth: int) -> str:
        self._remaining -= 1
        if self._remaining < 0 or depth > _DEEPEST:
            raise InvalidLockName(f"{self._what} is too large for a name. Use an attribute of it, or a digest.")
        if isinstance(value, Mapping):
            return "{" + ",".join(f"{_to_json(key)}:{text}" for key, text in sorted(self._items(value, depth))) + "}"
        if isinstance(value, (list, tuple)) and _scalar(value, self._what) is None:
            return "[" + ",".join([self.text(item, depth + 1) for item in value]) + "]"
        if value is None or isinstance(value, bool):
            return _LITERALS[value]
        return _to_json(text_of(value, self._what))

    def _items(self, value: Mapping[object, object], depth: int) -> list[tuple[str, str]]:
        items: dict[str, str] = {}
        for key, item in value.items():
            if isinstance(key, bool) or not isinstance(key, (str, int)):
                raise InvalidLockName(
                    f"{self._what} has a key of type {quoted(type(key).__name__)}, which JSON changes. Use a text."
                )
            name = text_of(key, self._what)
            if name in items:
                raise InvalidLockName(f"{self._what} has two keys that are equal in JSON: {quoted(name)}.")
            items[name] = self.text(item, depth + 1)
        return list(items.items())
