"""
The one door for values from outside: each has a known type and bounds, or it is refused.

Any program may write znodes, messages and requests. What a function here returns can be stored, compared and shown.
The functions raise `ValueError` for other values, unless the caller gives a `default`.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any, Final

from django_zklock.core.queue.escaping import check_characters

LATEST: Final = 4e9
"""Seconds since 1970: a time that every platform can show."""

LARGEST: Final = 2**63 - 1
"""The largest number that ZooKeeper, databases and other languages have."""


MAX_READ: Final = 64 * 1024
"""Bytes of a record that are read, and characters of a text in it."""


def json_object(data: bytes | None, most: int = MAX_READ) -> dict[str, Any]:
    """Return the JSON object in at most `most` bytes of data; an empty one for any other data. Never raises."""
    try:
        fields = json.loads(data) if data is not None and len(data) <= most else None
    except (ValueError, RecursionError):  # a ValueError also for an integer of more than 4300 digits
        return {}
    return fields if isinstance(fields, dict) else {}


def number(value: object, least: float, most: float) -> float:
    """Return a finite number within these bounds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:  # also for NaN
        raise ValueError(f"not a number from {least} to {most}")
    return float(value)


def integer(value: object, least: int = 0, most: int = LARGEST, *, default: int | None = None) -> int:
    """Return an integer within these bounds. A bool is none."""
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    if default is None:
        raise ValueError(f"not an integer from {least} to {most}")
    return default


def digits(value: object, most: int = LARGEST, *, default: int | None = None) -> int:
    """Return the integer from 0 in a text of ASCII digits."""
    is_short = isinstance(value, str) and len(value) <= len(str(most)) and value.isascii() and value.isdigit()
    return integer(int(value) if isinstance(value, str) and is_short else None, 0, most, default=default)


def text(
    value: object, most: int = MAX_READ, *, least: int = 0, default: str | None = None, surrogates: bool = False
) -> str:
    """Return a text of at most `most` characters that UTF-8 can encode, unless `surrogates` are allowed."""
    if isinstance(value, str) and least <= len(value) <= most and (surrogates or is_encodable(value)):
        return value
    if default is None:
        raise ValueError(f"not a text of {least} to {most} characters")
    return default


def line(value: object, most: int, *, least: int = 0) -> str:
    """Return a text that can be a part of a name: one without control characters, such as a line break."""
    given = text(value, most, least=least)
    check_characters(given, "the text")
    return given


def unpadded(body: str) -> bytes:
    """Return the bytes in a text of base64 for URLs, without the "=" at its end."""
    return base64.b64decode(body + "=" * (-len(body) % 4), b"-_", validate=True)


def is_encodable(value: str) -> bool:
    """Return whether UTF-8 can encode a text, so that it has no lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def moment(seconds: float) -> datetime:
    """Return the time at these seconds since 1970."""
    return datetime.fromtimestamp(number(seconds, 0, LATEST), UTC)


def iso_time(value: object) -> datetime:
    """Return the time in a text of ISO 8601, in UTC."""
    try:
        return moment(datetime.fromisoformat(text(value, 40)).timestamp())
    except OverflowError as error:  # a time of year 1 or 9999 without an offset, where time_t has 32 bits
        raise ValueError("not a time from 1970") from error
