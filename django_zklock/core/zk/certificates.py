"""When certificates are valid. Only their dates are read: nothing here says whether they are trusted."""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

SOON = timedelta(days=14)
"""A certificate that ends before this time is over needs attention."""

_PEM = re.compile("-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)
_VERSION = 0xA0  # the tags of ASN.1
_UTC_TIME = 0x17


class Validity(NamedTuple):
    """When a certificate begins and ends, in UTC."""

    begins: datetime
    ends: datetime

    def needs_attention(self) -> bool:
        """Return whether it is not valid now, or only for some days."""
        now = datetime.now(timezone.utc)
        return not self.begins <= now <= self.ends - SOON


def validities(pem: str) -> list[Validity]:
    """Return those of all certificates in a file of the format PEM, as far as they can be read."""
    known = []
    for block in _PEM.findall(pem):
        with contextlib.suppress(ValueError):
            known.append(validity(base64.b64decode(block)))
    return [dates for dates in known if dates is not None]


def validity(der: bytes) -> Validity | None:
    """Return that of a certificate in the format DER (RFC 5280, 4.1); None if it cannot be read."""
    try:
        (_tag, certificate), *_ = _elements(der)
        (_tag, signed), *_ = _elements(certificate)
        fields = [content for tag, content in _elements(signed) if tag != _VERSION]
        begins, ends = (_time(*element) for element in _elements(fields[3]))
    except (IndexError, ValueError):
        return None
    return Validity(begins, ends)


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the tag and the content of each element."""
    while data:
        length, start = data[1], 2
        if length & 0x80:
            start += length & 0x7F
            length = int.from_bytes(data[2:start], "big")
        end = start + length
        if len(data) < end:
            raise ValueError("it is cut")
        yield data[0], data[start:end]
        data = data[end:]


def _time(tag: int, content: bytes) -> datetime:
    text = content.decode("ascii")
    if tag == _UTC_TIME:  # with two digits for the year
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=timezone.utc)
