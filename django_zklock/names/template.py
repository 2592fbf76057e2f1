"""Lock names, which are templates; the keys that they are rendered to; and the paths of the keys."""

from __future__ import annotations

import hashlib
import itertools
import re
import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from django_zklock.core.queue.escaping import (
    AS_FIELD,
    SAFE,
    check_characters,
    check_segment,
    escape,
    finish_segment,
    hide_tails,
    key_of,
    path,
    percent_encode,
    quoted,
    show_tails,
    unescape,
)
from django_zklock.exceptions import InvalidLockName
from django_zklock.names.field_values import text_of

__all__ = ["MAX_KEY", "Template", "check_key", "escape", "is_key", "key_of", "path", "show_tails", "unescape"]

MAX_KEY = 1000
"""Characters the key of a lock may have."""

MAX_DIGESTED = 10_000
"""Characters a value may have of which a field takes the digest. NFC takes 50 ms for a hostile text of this length."""

_DIGEST_LENGTH = 32  # hexadecimal characters: 128 bits
_PIECE = re.compile(r"\{\{|\}\}|\{(?P<field>[^{}]*)\}|[^{}/]+|[{}/]")
_NAME_OF_FIELD = re.compile(r"\{[^{}:]*")
_ONE_BRACE = {"{{": "{", "}}": "}"}


def _encoded(safe: Collection[str]) -> str:
    """Return the pattern of a text in which all but these characters are percent-encoded."""
    return rf"(?:[{re.escape(''.join(sorted(safe)))}]|%[0-9A-F]{{2}})+"


_ESCAPED = re.compile(_encoded(SAFE | {"/"}))


@dataclass(frozen=True, slots=True)
class Template:
    """
    The name of a lock, with fields that each call fills in: `inventory/{sku}`, `order/{order.pk}`.

    A field is a plain name, and public attributes may follow it. Indexes, formats and conversions are not allowed, so
    rendering runs no code but attribute access. `{{` and `}}` are literal braces. `{url:digest}` is the digest of a
    value, for any text: the first 32 hexadecimal characters of the SHA-256 of its text (NFC, in UTF-8).
    """

    text: str
    fields: tuple[str, ...]
    """The names that a call must provide, without their attributes; distinct, in the order of the text."""
    _segments: tuple[str | _Segment, ...] = field(repr=False)  # a text where there is no field

    @classmethod
    def parse(cls, text: str) -> Template:
        """Return the template of `text` (cached). Raises `InvalidLockName` if it is not valid."""
        check_type(text)
        return _parse(text)

    def render(self, values: Mapping[str, object]) -> str:
        """
        Return the key for these values. Two keys of one template are equal only if all values are.

        Values are equal here if their texts are. So `7`, `"7"` and `Decimal("7.00")` give one key, and so does one
        moment in two time zones.

        Accepts str, int, UUID, Decimal, date, datetime, enums of these, and instances of Django models. Raises
        `InvalidLockName` for any other value, and for a text that `escape` refuses. An exception of a property passes
        through, except `AttributeError`.
        """
        key = "/".join([segment if isinstance(segment, str) else segment.render(values) for segment in self._segments])
        if len(key) > MAX_KEY:
            raise _too_long(f"the key of lock name {quoted(self.text)}")
        return key

    def may_render(self, key: str) -> bool:
        """Return whether the template can render this key."""
        segments = key.split("/")
        return len(segments) == len(self._segments) and all(
            text == segment if isinstance(segment, str) else segment.may_render(text)
            for segment, text in zip(self._segments, segments, strict=True)
        )

    @property
    def example(self) -> str:
        """A key that the template can render to."""
        return Template.parse(_PIECE.sub(_example, self.text)).render({})

    def check_fields(self, available: Collection[str]) -> None:
        """Raise `InvalidLockName` if a field needs a name that is not `available`. For use before the first call."""
        for name in self.fields:
            if name not in available:
                names = ", ".join(available) or "nothing"
                raise InvalidLockName(f"lock name {quoted(self.text)} uses {{{name}}}, but the call has {names}.")


def check_used(fields: Collection[str], lock: str, templates: Collection[str]) -> None:
    """Raise `InvalidLockName` for a value that no field takes: calls with other values would share one lock."""
    used = {root for text in templates for root in Template.parse(text).fields}
    for name in fields:
        if name not in used:
            paths = " and ".join(map(quoted, templates))
            raise InvalidLockName(
                f"lock name {quoted(lock)} (path {paths}) has no field {quoted(str(name))}; put it into the name, or "
                "leave it out."
            )


def shape(text: str) -> str:
    """Return a template without the names of its fields. A digest stays, as it makes other keys."""
    return _NAME_OF_FIELD.sub("{", text)


def check_type(name: object) -> None:
    """Raise `InvalidLockName` if a lock name is not a string, or is empty."""
    if not issubclass(type(name), str) or not name:  # not `isinstance`, which believes a lazy object
        raise InvalidLockName(
            "a lock name is a text, not empty, that says what the lock guards; this one is of type "
            f"{quoted(type(name).__name__)}. For several locks, use zk_locks(*names), or a list of names in @zk_locked."
        )


def check_key(key: str) -> None:
    """Raise `InvalidLockName` unless this can be the key of a lock, of this package or of another client."""
    check_type(key)
    what = f"the key {quoted(key)}"
    check_characters(key, "key")
    if len(key) > MAX_KEY:
        raise _too_long(what)
    if not key.isprintable():
        raise InvalidLockName(f"{what} is not the key of a lock: it has characters that do not print.")
    for segment in key.split("/"):
        if segment in ("", ".", "..") or segment.startswith("!"):
            raise InvalidLockName(f"{what} is not the key of a lock: {quoted(segment)} cannot be a part of one.")


def is_key(text: str) -> bool:
    """Return True if this can be the key of a lock."""
    try:
        check_key(text)
    except InvalidLockName:
        return False
    return True


def check_own_key(key: str) -> None:
    """Raise `InvalidLockName` unless this can be the key of a lock of this package, whose segments are escaped."""
    check_key(key)
    if not _ESCAPED.fullmatch(key):
        meant = show_tails("/".join(map(escape, key.split("/"))))
        raise InvalidLockName(f"{quoted(key)} is not a key, because it is not escaped. Its key is {meant!r}.")


def is_escaped(text: str) -> bool:
    """Return True for an escaped key: it has an escape such as %20, and no character that has to be escaped."""
    return "%" in text and _ESCAPED.fullmatch(text) is not None


def own_key(text: str) -> str:
    """
    Return the key of the lock that this text names: its segments are escaped, unless it is an escaped key already.

    Raises `InvalidLockName`. A brace does not begin a field here.
    """
    check_type(text)
    key = text if is_escaped(text) else Template.parse(text.replace("{", "{{").replace("}", "}}")).render({})
    check_own_key(key)
    return show_tails(key)


def _example(piece: re.Match[str]) -> str:
    if piece["field"] is None:
        return piece[0]
    return digest("4711", "") if piece["field"].endswith(":digest") else "4711"


def digest(text: str, what: str) -> str:
    """Return the digest of a value's text; raise `InvalidLockName`, with `what` as its subject, if it is unfit."""
    if not 0 < len(text) <= MAX_DIGESTED:
        raise InvalidLockName(f"{what} has {len(text)} characters; pass 1 to {MAX_DIGESTED} to a digest.")
    # A name of a file may have lone surrogates.
    data = unicodedata.normalize("NFC", text).encode("utf-8", "surrogatepass")
    return hashlib.sha256(data).hexdigest()[:_DIGEST_LENGTH]


@dataclass(frozen=True, slots=True)
class _Field:
    root: str
    attributes: tuple[str, ...]
    is_digest: bool
    what: str  # the subject of an error about it

    def pattern(self, reserved: str) -> str:
        """Return the pattern of its text in a key, in which these characters are percent-encoded."""
        return f"[0-9a-f]{{{_DIGEST_LENGTH}}}" if self.is_digest else _encoded(SAFE.difference(reserved))

    def text(self, values: Mapping[str, object]) -> str:
        if self.root not in values:
            raise InvalidLockName(
                f"{self.what} has no value. Pass one in fields={{...}}. For braces in a value, {AS_FIELD}."
            )
        value = values[self.root]
        for attribute in self.attributes:
            try:
                value = getattr(value, attribute)
            except AttributeError as error:
                owner = quoted(type(value).__name__)
                raise InvalidLockName(f"{self.what} has no value: {owner} has no {quoted(attribute)}.") from error
        text = text_of(value, self.what)
        if self.is_digest:
            return digest(text, self.what)
        check_segment(text, self.what)
        return text


@dataclass(frozen=True, slots=True)
class _Segment:
    """
    The (encoded) literals and the fields between two slashes.

    `reserved` has one safe character of each literal between two fields. These characters are percent-encoded in
    values, so a key shows where each value begins and ends. For example, `{a}:{b}` gives different keys for `x:y`, `z`
    and for `x`, `y:z`.
    """

    parts: tuple[str | _Field, ...]
    reserved: str
    what: str

    def may_render(self, text: str) -> bool:
        """
        Return whether the segment can be rendered to this text, which anybody may have chosen.

        A value ends before a reserved character, so there is one way to match at most. The time is linear.
        """
        pattern = "".join(
            re.escape(part) if isinstance(part, str) else part.pattern(self.reserved) for part in self.parts
        )
        # A key shows the last digit of a tail, even if it is reserved.
        return any(re.fullmatch(pattern, shape) for shape in (text, hide_tails(text)))

    def render(self, values: Mapping[str, object]) -> str:
        texts = [
            part
            if isinstance(part, str)
            else percent_encode(part.text(values), "" if part.is_digest else self.reserved)
            for part in self.parts
        ]
        return finish_segment("".join(texts), self.what)


@lru_cache(maxsize=1024)
def _parse(text: str) -> Template:
    what = f"lock name {quoted(text)}"
    if len(text) > MAX_KEY:
        raise _too_long(what)
    check_characters(text, "lock name")
    split: list[list[str | _Field]] = [[]]  # by slashes
    for piece in _PIECE.finditer(text):
        if piece["field"] is not None:
            split[-1].append(_field(piece["field"], what))
        elif piece[0] == "/":
            split.append([])
        elif piece[0] in ("{", "}"):
            raise InvalidLockName(f"{what} has a single {piece[0]} at {piece.start()}; double it, or {AS_FIELD}.")
        else:
            split[-1].append(_ONE_BRACE.get(piece[0], piece[0]))
    segments = tuple(_segment(parts, what) for parts in split)
    fields = dict.fromkeys(part.root for parts in split for part in parts if isinstance(part, _Field))
    return Template(text, tuple(fields), segments)


def _field(text: str, what: str) -> _Field:
    value, colon, spec = text.partition(":")
    root, *attributes = value.split(".")
    if colon + spec not in ("", ":digest") or not all(name.isidentifier() for name in (root, *attributes)):
        raise InvalidLockName(
            f"{what} has the field {quoted(text)}; only a name and its attributes are allowed between braces, as in "
            f"{{order.pk}} or {{url:digest}}: no index, call, format or conversion. For braces in a value, {AS_FIELD}."
        )
    if any(name.startswith("_") for name in attributes):
        raise InvalidLockName(f"{what} has the field {quoted(text)}, a private attribute; use a public one.")
    return _Field(root, tuple(attributes), bool(colon), f"field {quoted(text)} of {what}")


def _segment(split: list[Any], what: str) -> str | _Segment:
    parts: list[str | _Field] = []
    for is_literal, group in itertools.groupby(split, lambda part: isinstance(part, str)):
        pieces = list(group)
        parts += ["".join(pieces)] if is_literal else pieces
    if not parts:
        raise InvalidLockName(
            f"{what} has an empty segment; remove the leading, trailing or doubled slash, or {AS_FIELD}."
        )
    if len(parts) == 1 and isinstance(parts[0], str):
        # This refuses an invalid literal, such as `..`, before the first call.
        return finish_segment(percent_encode(parts[0]), what)
    encoded = tuple(percent_encode(part) if isinstance(part, str) else part for part in parts)
    return _Segment(encoded, _reserved(parts, what), what)


def _reserved(parts: list[str | _Field], what: str) -> str:
    separator = ""
    for index, part in enumerate(parts[1:], start=1):
        if isinstance(part, _Field):
            if isinstance(parts[index - 1], _Field):
                raise InvalidLockName(f"{what} has two fields side by side; put a separator such as : between them.")
        elif index + 1 < len(parts):  # literals are merged, so there is a field on either side
            separators = [char for char in unicodedata.normalize("NFC", part) if char in SAFE]
            if not separators:
                raise InvalidLockName(f"{what} has {quoted(part)} between two fields; put a separator such as : there.")
            separator += min(separators, key=str.isalnum)  # punctuation first, so that keys stay readable
    return separator


def _too_long(what: str) -> InvalidLockName:
    return InvalidLockName(f"{what} is longer than {MAX_KEY} characters; use a shorter one, or {AS_FIELD}.")
