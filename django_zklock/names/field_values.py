"""The text of a field value in a key. Only types with a stable text are accepted."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import uuid
from collections.abc import Mapping
from typing import Any

from django_zklock.core.queue.escaping import MAX_SEGMENT, quoted
from django_zklock.exceptions import InvalidLockName

NO_VALUES = frozenset({"None", "[object Object]"})
"""Texts that Python and JavaScript give for a value that is missing, or has no text of its own."""
NO_IDS = NO_VALUES | {"undefined", "null", "NaN", "nan"}
"""These have no meaning as the id of a row. As another value, "nan" is a language, and "undefined" may be a choice."""


class NoneArgument:
    """An optional argument that is None. Unlike a None by mistake, it has a text."""


def text_of(value: object, what: str) -> str:
    """
    Return the text of `value`; raise `InvalidLockName`, with `what` as its subject, if its type is not accepted.

    Values of one type that are equal have one text. The text survives JSON, which turns an enum into its value.
    Celery's JSON keeps all other types. So a task has the same key in the process that sends it and in the worker.

    `str(value)` would accept any object, and give `Order object (None)` or an address in memory.
    """
    value = _behind_proxy(value)
    if isinstance(value, enum.Enum):
        return text_of(value.value, what)
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "[true]" if value else "[false]"  # without brackets, it would be the key of a text, too
    if isinstance(value, NoneArgument):
        return "[null]"
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, (int, float, decimal.Decimal)):
        return _number(value, what)
    if isinstance(value, (datetime.date, datetime.time)):
        return _moment(value, what)
    text = _row(value, what)
    if text is None:
        raise InvalidLockName(f"{what} is {_refusal(value)}")
    return text


def _refusal(value: object) -> str:
    """Return why a value has no text, and what to pass instead."""
    kind = quoted(type(value).__name__)
    if value is None:
        return "None. Pass a value. A parameter of a decorated function may be None if None is its default."
    if callable(value):
        return f"a callable ({kind}). Name an attribute or a property instead."
    if kind == "'__proxy__'":
        return f"of type {kind}. Pass str() of the lazy text, or an id if the text depends on the language."
    if isinstance(value, (list, tuple, set, frozenset, Mapping)):
        return (
            f"of type {kind}. Make one text of its items, always in the same order, or lock each item: @zk_locked and "
            "zk_locks take several names. In @zk_locked, the name may be a callable that returns the key."
        )
    return f"of type {kind}. Name an attribute of it, such as {{order.pk}}."


def _behind_proxy(value: object) -> object:
    """Return the object behind a proxy, such as `request.user`. The `__class__` of a proxy is not its type."""
    while value.__class__ is not type(value):  # Django's proxies load their object here
        wrapped = getattr(value, "_wrapped", getattr(value, "__wrapped__", value))
        if wrapped is value:
            break
        value = wrapped
    return value


def _number(value: float | decimal.Decimal, what: str) -> str:
    """Return the shortest text: that of an int if it is equal to one. A database adds zeros, as in 9.90."""
    if isinstance(value, int):
        if value.bit_length() > 4 * MAX_SEGMENT:  # Python refuses to print a huge int, or takes quadratic time
            raise InvalidLockName(f"{what} is an int of {value.bit_length()} bits. Use a smaller one.")
        return str(int(value))
    if isinstance(value, float):
        value = decimal.Decimal(repr(value))  # the shortest text that gives this float, as in JSON
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
    return f"{meta.label_lower}:{_key_text(pk, what)}"


def _key_text(pk: object, what: str) -> str:
    """Return the text of a primary key; of a composite one as JSON without spaces."""
    if not isinstance(pk, tuple):
        return text_of(pk, what)
    return json.dumps([text_of(part, what) for part in pk], ensure_ascii=False, separators=(",", ":"))
