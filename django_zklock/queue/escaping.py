"""One segment of a znode path: which text may be one, and how it is escaped; knows nothing of templates or queues."""

from __future__ import annotations

import re
import string
import unicodedata
from urllib.parse import unquote

from django_zklock.exceptions import InvalidLockName

MAX_SEGMENT = 200
"""Characters a segment may have once it is escaped."""

SEQUENCE_TAIL = re.compile(r"[0-9-][0-9]{9}\Z")
SEQUENCE_DIGITS = 10
"""
The end of every name ZooKeeper numbers: `%010d`, so ten digits, or a minus and nine or more digits after an overflow.

`nodes.parse` tells contenders by it and `finish` keeps it out of directories; one rule, or a directory could contend.
"""

SAFE = frozenset(string.ascii_letters + string.digits + "_.~:@=+,-")
"""Characters that stand for themselves; every other one is written as the `%XX` of its UTF-8 bytes."""

_ALL_SAFE = re.compile(r"[A-Za-z0-9_.~:@=+,-]*")
# Control characters (Cc), lone surrogates (Cs; one of them ends kazoo's connection thread for good), and the
# bidirectional controls, which make two different names look the same in a log or a browser.
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
_SHOWN = 60


def escape(value: str, *, what: str = "lock name") -> str:
    """
    Return the one path segment that stands for `value`, in ASCII.

    Texts that are canonically equivalent (NFC) are one name, as they look the same. `unescape` reverses it. Raises
    `InvalidLockName`, with `what` as its subject, for a text that is empty, `.`, `..`, or longer than 200 characters
    once escaped, and for control characters, bidirectional controls and lone surrogates.
    """
    check(value, what)
    return finish(encode(value), f"{what} {shown(value)}")


def unescape(segment: str) -> str:
    """Return the text that `escape` made `segment` from; never raises, so that foreign nodes can be shown too."""
    return unquote(segment, errors="replace")


def check(text: str, what: str) -> None:
    """Raise `InvalidLockName`, with `what` as its subject, for a text that can stand for no segment."""
    if not text:
        raise InvalidLockName(f"{what} is empty; use a text that says what the lock guards.")
    # No character gets shorter by escaping, not even by NFC (what it composes takes six characters or more). So this
    # refuses nothing that would fit, and spares a hostile text the normalisation, whose time is quadratic.
    if len(text) > MAX_SEGMENT:
        raise _too_long(f"{what} {shown(text)}")
    check_characters(text, what)
    if text in (".", ".."):
        raise _dots(f"{what} {shown(text)}")


def check_characters(text: str, what: str) -> None:
    """Raise `InvalidLockName`, with `what` as its subject, if `text` holds a character no name may hold."""
    found = _FORBIDDEN.search(text)
    if found:
        kind = "lone surrogate" if "\ud800" <= found[0] <= "\udfff" else "control character"
        raise InvalidLockName(
            f"{what} {shown(text)} holds the {kind} U+{ord(found[0]):04X}; clean the text before it names a lock."
        )


def encode(text: str, reserved: str = "") -> str:
    """Percent-encode the characters of `text` that are unsafe, or in `reserved`; checks nothing."""
    if not reserved and _ALL_SAFE.fullmatch(text):
        return text
    safe = SAFE.difference(reserved)
    return "".join(char if char in safe else _percent(char) for char in unicodedata.normalize("NFC", text))


def finish(segment: str, what: str) -> str:
    """
    Return the encoded `segment` as it may stand in a path; raise `InvalidLockName` for one that may not.

    A child of a lock's directory that ends in ten digits is a contender, the digits its sequence number. But `a` and
    `a/1234567890` may both be locks, and the directory of the second is a child of the first; so the last digit of
    such a segment is percent-encoded too.
    """
    if segment in (".", ".."):
        raise _dots(what)
    if SEQUENCE_TAIL.search(segment):
        segment = segment[:-1] + _percent(segment[-1])
    if len(segment) > MAX_SEGMENT:
        raise _too_long(what)
    return segment


def shown(text: str) -> str:
    """Return `text` as an error message may quote it: ASCII only, and 60 characters at most."""
    quoted = ascii(text[:_SHOWN])
    return quoted if len(quoted) <= _SHOWN and len(text) <= _SHOWN else quoted[: _SHOWN - 3] + "..."


def _percent(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode())


def _dots(what: str) -> InvalidLockName:
    return InvalidLockName(f"{what} would be read as a relative path by ZooKeeper; use another text.")


def _too_long(what: str) -> InvalidLockName:
    return InvalidLockName(
        f"{what} is longer than {MAX_SEGMENT} characters once escaped; use a shorter text, or a digest of it."
    )
