"""The text of a field value in a key. Only types with a stable text are accepted."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import uuid
from typing import TYPE_CHECKING, cast

from django_zklock.core.queue.escaping import MAX_SEGMENT, quoted
from django_zklock.exceptions import InvalidLockName

if TYPE_CHECKING:
    from django.db.models import Model


class NoneArgument:
    """An optional argument that is None. Unlike a None by mistake, it has a text."""


def text_of(value: object, what: str) -> str:
    """
    Return the text of `value`; raise `InvalidLockName`, with `what` as its subject, if its type is not accepted.

    Values of one type that are equal have one text. The text survives JSON, which turns an enum into its value.
    Celery's JSON keeps all other types. So a task has the same key in the process that sends it and in the worker.

    `str(value)` would accept any object, and give `Order object (None)` or an address in memory.
    """
    from django.db.models import Model  # noqa: PLC0415 - the plugin for pytest imports no Django

    value = _behind_proxy(value)
    if isinstance(value, enum.Enum):
        return text_of(value.value, what)
    if isinstance(value, (str, uuid.UUID)):
        return str(value)
    if isinstance(value, NoneArgument):
        return "[null]"
    if isinstance(value, (int, decimal.Decimal)):
        return _number(value, what)
    if isinstance(value, datetime.date):
        return _moment(value)
    if issubclass(type(value), Model):
        return _row(cast("Model", value), what)
    kind = quoted(type(value).__name__)
    raise InvalidLockName(
        f"{what} is of type {kind}, which has no sure text. Name an attribute of it, such as {{order.pk}}, or pass a "
        "text. The name in @zk_locked may be a callable that returns the key. None must be the default of its argument."
    )


def _behind_proxy(value: object) -> object:
    """Return the object behind a proxy, such as `request.user`. The `__class__` of a proxy is not its type."""
    while value.__class__ is not type(value):  # Django's proxies load their object here
        wrapped = getattr(value, "_wrapped", getattr(value, "__wrapped__", value))
        if wrapped is value:
            break
        value = wrapped
    return value


def _number(value: int | decimal.Decimal, what: str) -> str:
    """Return the shortest text: that of an int if it is equal to one. A database adds zeros, as in 9.90."""
    if isinstance(value, decimal.Decimal):
        value = value or decimal.Decimal(0)  # also for -0 and 0E+500
        if not value.is_finite() or abs(value.adjusted()) > MAX_SEGMENT:
            raise InvalidLockName(f"{what} is a number with too many digits, or none. Use a shorter one.")
    text = format(value, "d" if isinstance(value, int) else "f")  # `normalize` would round
    return text.rstrip("0").rstrip(".") if "." in text else text


def _moment(value: datetime.date) -> str:
    """Return the text of a date; of a datetime with a time zone in UTC, as a database returns it."""
    if isinstance(value, datetime.datetime) and value.utcoffset():
        value = value.astimezone(datetime.UTC)
    return value.isoformat()


def _row(row: Model, what: str) -> str:
    """Return the text of a row, `app.model:pk`. A proxy model is the same row under another name."""
    meta = row._meta.concrete_model._meta  # type: ignore[union-attr]
    pk = row.pk
    while meta.parents:
        # With multi-table inheritance, it is a row of its first parent, too. Nothing here may load a deferred field.
        parent, link = next(iter(meta.parents.items()))
        meta = parent._meta
        pk = pk if link.primary_key else vars(row).get(link.attname)  # type: ignore[union-attr]
    if pk is None:
        raise InvalidLockName(f"{what} is a {row._meta.label_lower} without a primary key. Save it first.")
    # A composite key is written as JSON without spaces.
    parts = [text_of(part, what) for part in pk] if isinstance(pk, tuple) else None
    key = json.dumps(parts, ensure_ascii=False, separators=(",", ":")) if parts else text_of(pk, what)
    return f"{meta.label_lower}:{key}"
