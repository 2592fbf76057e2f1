"""The text by which a value stands in the name of a lock; knows which types have one that is sure to stay the same."""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid

from django_zklock.exceptions import InvalidLockName
from django_zklock.queue.segments import MAX_SEGMENT, shown


def text_of(value: object, what: str) -> str:
    """
    Return the text of `value`; raise `InvalidLockName`, with `what` as its subject, if its type has none.

    `str(value)` would take any object, and `Order object (None)` or an address in memory is no name for a lock.
    """
    if isinstance(value, enum.Enum):
        return text_of(value.value, what)
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        if value.bit_length() > 4 * MAX_SEGMENT:  # Python refuses, or takes quadratic time, to print a huge one
            raise InvalidLockName(f"{what} is an int of {value.bit_length()} bits; use a smaller one.")
        return str(int(value))
    if isinstance(value, (uuid.UUID, decimal.Decimal)):
        return str(value)
    if isinstance(value, datetime.date):
        return value.isoformat()
    kind = shown(type(value).__name__)
    if value is None or isinstance(value, bool):
        raise InvalidLockName(f"{what} is {value}, which names nothing; use a text or a number.")
    if callable(value):
        raise InvalidLockName(f"{what} is to be called ({kind}); name an attribute or a property instead.")
    raise InvalidLockName(f"{what} is of type {kind}; name an attribute of it, such as {{order.pk}}.")
