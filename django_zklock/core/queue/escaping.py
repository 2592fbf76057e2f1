"""Escape text: as a segment of a znode path, in an error message, and for display."""

from __future__ import annotations

import hashlib
import re
import string
import unicodedata
from urllib.parse import unquote

from django_zklock.core.errors import InvalidLockName

MAX_SEGMENT = 200
"""Characters a segment may have once it is escaped."""

SEQUENCE = re.compile(r"[0-9]{10}|-[0-9]{9,10}")
"""The number at the end of the name of a sequential znode (`%010d`), which is negative after an overflow."""

SEQUENCE_TAIL = re.compile(r"[0-9-][0-9]{9}\Z")
"""
The last ten characters of such a number.

`nodes.parse` recognizes contenders by it, and `hide_tails` keeps it out of the names of directories.
"""

SEQUENCE_DIGITS = 10
"""Digits of a sequence number in a name."""

SAFE = frozenset(string.ascii_letters + string.digits + "_.~:@=+,-")
"""Characters that are not escaped. All others are written as the `%XX` of their UTF-8 bytes."""

_TAIL = re.compile(r"([0-9-][0-9]{8})([0-9])(?![^/])")
_HIDDEN_TAIL = re.compile(r"([0-9-][0-9]{8})%3([0-9])(?![^/])")
_ESCAPES = re.compile(r"(?:%[0-9A-F]{2})+")
_LOOSE_SPACE = re.compile(r"(?<![^/ ]) | (?![^/ ])")  # at an end of a segment, or next to another space
_ALL_SAFE = re.compile(r"[A-Za-z0-9_.~:@=+,-]*")
# Control characters (Cc), lone surrogates (Cs; none of them can be sent) and bidirectional controls, which make two
# different names look the same in a log or a browser.
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
AS_FIELD = 'pass the value as a field: zk_lock("feed/{url:digest}", fields={"url": url})'
"""The way to make a key of any value, for the errors of those that are pasted into a name."""
_QUOTED = 60  # characters of a text that an error message quotes
MAX_SHOWN = 512
"""Characters of a text that are shown, unless the caller sets another limit."""
MAX_BY = 40
"""Characters of a person's name that are stored in a znode."""
MAX_REASON = 160
"""Characters of a person's reason that are stored in a znode."""


def gettext_noop(text: str) -> str:
    """Mark a text for translation. Django's own function needs settings, and locks are imported without them, too."""
    return text


def escape(value: str, *, what: str = "lock name") -> str:
    """
    Return `value` as a path segment, in ASCII. `unescape` reverses it.

    Texts that are canonically equivalent (NFC) give the same segment, because they look the same. Raises
    `InvalidLockName`, with `what` as its subject, for a text that is empty, `.`, `..`, or longer than 200 characters
    after escaping, and for control characters, bidirectional controls and lone surrogates.
    """
    check_segment(value, what)
    return hide_tails(finish_segment(percent_encode(value), f"{what} {quoted(value)}"))


def unescape(segment: str) -> str:
    """Return the text of an escaped segment. Never raises, so znodes of other clients can be shown, too."""
    return unquote(segment, errors="replace")


def shown_key(key: str) -> str:
    """
    Return a key as people write it, for display: `J%C3%BCrgen%20Gro%C3%9F` becomes `Jürgen Groß`.

    Two keys of this package are never shown alike. What could be misread stays escaped: `%2F`, `%25`, braces, what does
    not print, and a space at an end of a segment or next to another one.
    """
    if "%" not in key:
        return key
    text = _LOOSE_SPACE.sub("%20", _ESCAPES.sub(_decoded, key))
    return text if unicodedata.is_normalized("NFC", text) else key


def _decoded(escapes: re.Match[str]) -> str:
    try:
        text = unquote(escapes[0], errors="strict")
    except UnicodeDecodeError:
        return escapes[0]
    if percent_encode(text) != escapes[0]:  # another client has escaped more than it must
        return escapes[0]
    return "".join(char if char.isprintable() and char not in "%/{}" else _percent(char) for char in text)


def check_segment(text: str, what: str) -> None:
    """Raise `InvalidLockName`, with `what` as its subject, for a text that cannot be a segment."""
    if not text:
        raise InvalidLockName(f"{what} is empty; use a text that says what the lock guards.")
    # Escaping never shortens a text: NFC composes a few characters into one, which takes six or more when escaped. So
    # this refuses no text that would fit. It comes before NFC, which takes quadratic time for a hostile text.
    if len(text) > MAX_SEGMENT:
        raise _too_long(f"{what} {quoted(text)}")
    check_characters(text, what)
    if text in (".", ".."):
        raise _dots(f"{what} {quoted(text)}")


def check_characters(text: str, what: str) -> None:
    """Raise `InvalidLockName`, with `what` as its subject, if `text` has a character that no name may have."""
    match = _FORBIDDEN.search(text)
    if match:
        kind = "lone surrogate" if "\ud800" <= match[0] <= "\udfff" else "control character"
        raise InvalidLockName(
            f"{what} {quoted(text)} has the {kind} U+{ord(match[0]):04X}. Remove it before the text names a lock."
        )


def percent_encode(text: str, reserved: str = "") -> str:
    """Percent-encode the characters of `text` that are unsafe or in `reserved`, without any checks."""
    if not reserved and _ALL_SAFE.fullmatch(text):
        return text
    safe = SAFE.difference(reserved)
    return "".join(char if char in safe else _percent(char) for char in unicodedata.normalize("NFC", text))


def finish_segment(segment: str, what: str) -> str:
    """Return the encoded `segment` as it is used in a key; raise `InvalidLockName` if it cannot be used."""
    if segment in (".", ".."):
        raise _dots(what)
    if len(segment) > MAX_SEGMENT - 2 and len(hide_tails(segment)) > MAX_SEGMENT:
        raise _too_long(what)
    return show_tails(segment) if "%3" in segment else segment


def hide_tails(key: str) -> str:
    """
    Return a key as it is used in a path: no segment ends in ten digits.

    A child of a lock's directory that ends in ten digits is a contender. But both `a` and `a/1234567890` may be locks,
    and the directory of the second is a child of the first. So the last digit of such a segment is percent-encoded.
    """
    return _TAIL.sub(r"\1%3\2", key) if _TAIL.search(key) else key  # `search` is much faster


def show_tails(path: str) -> str:
    """Return the key of a path: the reverse of `hide_tails`. A key stays as it is."""
    return _HIDDEN_TAIL.sub(r"\1\2", path)


def path(base: str, key: str) -> str:
    """Return the path of the directory that holds the queue of `key`."""
    return f"{base.rstrip('/')}/{hide_tails(key)}"


def key_of(base: str, path: str) -> str:
    """Return the key of the directory `path`: the reverse of `path()`. Raises `InvalidLockName` if there is none."""
    root = base.rstrip("/") + "/"
    if not path.startswith(root) or path == root:
        raise InvalidLockName(f"the path {quoted(path)} belongs to no lock, because it is not below {quoted(root)}.")
    return show_tails(path[len(root) :])


def quoted(text: str) -> str:
    """Return `text` with quotes for an error message: in ASCII, and cut to 60 characters."""
    shown = ascii(text[:_QUOTED])
    return shown if len(shown) <= _QUOTED else shown[: _QUOTED - 3] + "..."


def printable(text: str, limit: int = MAX_SHOWN) -> str:
    r"""
    Return `text` in at most `limit` characters that all print, in one line. It is plain text: a page must escape it.

    Control characters, line breaks, lone surrogates, bidirectional and zero-width characters become `\x1b` or `\u202e`.
    A text that is cut ends in an ellipsis.
    """
    shown = text[: limit + 1]
    if not shown.isprintable():
        shown = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in shown)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def shortened(text: str, limit: int) -> str:
    """Return a text with at most `limit` characters, for a table: the text, or its beginning and a digest of all."""
    if len(text) <= limit:
        return text
    digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()
    return f"{text[: limit - len(digest) - 1]}#{digest}"


def session_hex(session_id: int | None) -> str:
    """Return a session id as ZooKeeper prints it, in unsigned hexadecimal; empty for none."""
    return f"{session_id & 0xFFFFFFFFFFFFFFFF:#x}" if session_id else ""


def _percent(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode())


def _dots(what: str) -> InvalidLockName:
    return InvalidLockName(f"{what} would be read as a relative path by ZooKeeper; use another text.")


def _too_long(what: str) -> InvalidLockName:
    return InvalidLockName(
        f"{what} is longer than {MAX_SEGMENT} characters once escaped; use a shorter text, or {AS_FIELD}."
    )
