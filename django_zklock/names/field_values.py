"""The text of a field value in a key. Only types with a stable text are accepted."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import unicodedata
import uuid
from collections.abc import Mapping
from typing import Any

from django_zklock.core.queue.escaping import MAX_SEGMENT, quoted
from django_zklock.exceptions import InvalidLockName

_DEEPEST = 8  # lists and dicts within each other
_LITERALS = {None: "null", True: "true", False: "false"}  # in lists and dicts

NO_VALUES = frozenset({"None", "[object Object]"})
"""Texts that Python and JavaScript give for a value that is missing, or has no text of its own."""
NO_IDS = NO_VALUES | {"undefined", "null", "NaN", "nan"}
"""These have no meaning as the id of a row. As another value, "nan" is a language, and "undefined" may be a choice."""


class NoneArgument:
    """An optional argument that is None. Unlike a None by mistake, it has a text."""


_to_json = json.JSONEncoder(ensure_ascii=False).encode


def text_of(value: object, what: str, most: int = MAX_SEGMENT) -> str:
    """
    Return the text of `value`; raise `InvalidLockName`, with `what` as its subject, if its type is not accepted.

    A list or a dict has at most so many items, all levels counted.

    Values of one type that are equal have one text. The text survives JSON, which turns a tuple into a list, a dict's
    key into a string, and an enum into its value. Celery's JSON keeps all other types. So a task has the same key in
    the process that sends it and in the worker.

    `str(value)` would accept any object, and give `Order object (None)` or an address in memory.
    """
    value = _behind_proxy(value)
    scalar = _scalar(value, what)
    if scalar is not None:
        return scalar
    if isinstance(value, (list, tuple, Mapping)):
        return _Container(what, most).text(value, 1)
    if isinstance(value, bool):
        return f"[{_LITERALS[value]}]"  # as in a list of one item: without brackets, it would be the key of a text, too
    if isinstance(value, NoneArgument):
        return f"[{_LITERALS[None]}]"
    if value is None:
        raise InvalidLockName(
            f"{what} is None. Pass a value. A parameter of a decorated function may be None if None is its default."
        )
    kind = quoted(type(value).__name__)
    if callable(value):
        raise InvalidLockName(f"{what} is a callable ({kind}). Name an attribute or a property instead.")
    lazy = "Pass str() of the lazy text, or an id if the text depends on the language."
    hint = lazy if kind == "'__proxy__'" else "Name an attribute of it, such as {order.pk}."
    raise InvalidLockName(f"{what} is of type {kind}. {hint}")


def _behind_proxy(value: object) -> object:
    """Return the object behind a proxy, such as `request.user`. The `__class__` of a proxy is not its type."""
    while value.__class__ is not type(value):  # Django's proxies load their object here
        wrapped = getattr(value, "_wrapped", getattr(value, "__wrapped__", value))
        if wrapped is value:
            break
        value = wrapped
    return value


def _scalar(value: object, what: str) -> str | None:
    if isinstance(value, enum.Enum):
        return text_of(value.value, what)
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        if value.bit_length() > 4 * MAX_SEGMENT:  # Python refuses to print a huge int, or takes quadratic time
            raise InvalidLockName(f"{what} is an int of {value.bit_length()} bits. Use a smaller one.")
        return str(int(value))
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, float):
        value = decimal.Decimal(repr(value))  # the shortest text that gives this float, as in JSON
    if isinstance(value, decimal.Decimal):
        return _decimal(value, what)
    if isinstance(value, (datetime.date, datetime.time)):
        return _moment(value, what)
    return _row(value, what)


def _decimal(value: decimal.Decimal, what: str) -> str:
    """Return the shortest text: that of an int if it is equal to one. A database adds zeros, as in 9.90."""
    if not value.is_finite():
        raise InvalidLockName(f"{what} is {value}, which is no number. Use a finite one.")
    value = value or decimal.Decimal(0)  # also for -0 and 0E+500
    if abs(value.adjusted()) > MAX_SEGMENT:
        raise InvalidLockName(f"{what} is a Decimal with too many digits. Use a shorter one.")
    text = format(value, "f")  # `normalize` would round
    return text.rstrip("0").rstrip(".") if "." in text else text


def _moment(value: datetime.date | datetime.time, what: str) -> str:
    """Return the text of a date or time; of a datetime with a time zone in UTC, as a database returns it."""
    if isinstance(value, datetime.datetime) and value.utcoffset():
        try:
            value = value.astimezone(datetime.UTC)
        except OverflowError as error:
            raise InvalidLockName(f"{what} is a datetime that UTC does not have. Use another one.") from error
    elif isinstance(value, datetime.time) and value.utcoffset():
        raise InvalidLockName(f"{what} is a time of day in a time zone. Use a datetime, or remove the time zone.")
    return value.isoformat()


def _row(value: object, what: str) -> str | None:
    """Return the text of an instance of a Django model, `app.model:pk`; None for anything else."""
    meta: Any = getattr(type(value), "_meta", None)
    # A proxy model, or one with deferred fields, is the same row under another name.
    meta = getattr(getattr(meta, "concrete_model", None), "_meta", meta)
    label = getattr(meta, "label_lower", None)
    if not isinstance(label, str) or isinstance(value, type):
        return None
    pk, key = getattr(value, "pk", None), "a primary key"
    while parents := list(getattr(meta, "parents", {}).items()):
        # With multi-table inheritance, it is a row of its parent, too. Nothing here may load a deferred field.
        if len(parents) > 1:
            links = " or ".join(quoted(link.name) for _, link in parents)
            raise InvalidLockName(f"{what} is a {label}, which has several parents. Use its attribute {links} instead.")
        [(parent, link)] = parents
        meta = parent._meta
        if not link.primary_key:
            pk, key = vars(value).get(link.attname), f"a value of {quoted(link.attname)}, or with that deferred"
    if pk is None:
        raise InvalidLockName(f"{what} is a {label} without {key}. Save it first.")
    return f"{meta.label_lower}:{text_of(pk, what)}"


class _Container:
    """
    A list or a dict as JSON without spaces, sorted by key. Numbers and dates are strings there, too.

    It counts the items that it writes, so a huge value is refused before it is written.
    """

    def __init__(self, what: str, most: int) -> None:
        self._what = what
        self._remaining = most  # an item takes at least one character

    def text(self, value: object, depth: int) -> str:
        value = _behind_proxy(value)
        self._remaining -= 1
        if self._remaining < 0 or depth > _DEEPEST:
            raise InvalidLockName(f"{self._what} is too large for a name. Use an attribute of it, or {{name:digest}}.")
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
            name = unicodedata.normalize("NFC", text_of(key, self._what))  # `escape` does so, but only after the sort
            if name in items:
                raise InvalidLockName(f"{self._what} has two keys that are equal in JSON: {quoted(name)}.")
            items[name] = self.text(item, depth + 1)
        return list(items.items())
