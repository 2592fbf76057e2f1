"""The release request: a message in the znode of a holder, in our form or in that of Apache Curator."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from django_zklock.queue.escaping import MAX_BY, MAX_REASON, printable
from django_zklock.queue.nodes import MAX_PAYLOAD, Payload

CURATOR: Final = b"__REVOKE__"
"""The data that Curator's `Revoker` writes into a znode. It names neither the operator nor the reason."""
BY_CURATOR: Final = "a client of Curator"


_FIELD: Final = "release_request"
_UNCUT: Final = frozenset({"guid", "since", "idle", _FIELD})  # useless when cut
_IDENTITY: Final = frozenset({"version", "guid", "host", "pid", "thread", "what", "since", "template"})
_LIMITS: Final = (512, 256, 128, 64, 32, 16)  # characters of each text; the last one fits, at least for `_IDENTITY`

_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRequest:
    """A message that asks a holder to release."""

    by: str
    reason: str
    at: str = ""
    """When: ISO 8601 in UTC, by the clock of the process that asked."""

    def __str__(self) -> str:
        """Return the operator and the reason, in one line."""
        return f"{self.by}: {self.reason}" if self.reason else self.by

    def same(self, other: ReleaseRequest | None) -> bool:
        """Return whether the other request says the same, at any time."""
        return other is not None and (self.by, self.reason) == (other.by, other.reason)


def release_request(*, by: str, reason: str, at: str = "") -> ReleaseRequest:
    """Return a request with its texts cut to what is stored."""
    return ReleaseRequest(by=_kept(by, MAX_BY), reason=_kept(reason, MAX_REASON), at=_kept(at, MAX_BY))


def requested(data: bytes) -> ReleaseRequest | None:
    """Return the request in the data of a znode, or None. Never raises."""
    if data == CURATOR:
        return ReleaseRequest(by=BY_CURATOR, reason="")
    request = _payload(data).get(_FIELD)
    if not isinstance(request, dict):
        return None
    by, reason, at = (request.get(name, "") for name in ("by", "reason", "at"))
    if not (isinstance(by, str) and isinstance(reason, str) and isinstance(at, str)):
        return None
    return release_request(by=by, reason=reason, at=at)


def with_request(data: bytes, request: ReleaseRequest) -> bytes:
    """
    Return a holder's data with a request in it, in at most `MAX_PAYLOAD` bytes. Texts are cut if necessary.

    A payload of ours keeps the fields that identify the holder. Other data are treated as Curator's.
    """
    fields = _payload(data)
    if not fields:
        return CURATOR
    fields[_FIELD] = {"by": request.by, "reason": request.reason, "at": request.at}
    attempts = (_to_json(_cut(fields, limit)).encode() for limit in _LIMITS)
    least = {name: value for name, value in fields.items() if name in _IDENTITY or name == _FIELD}
    return next((data for data in attempts if len(data) <= MAX_PAYLOAD), None) or _to_json(_cut(least, 16)).encode()


def _payload(data: bytes) -> dict[str, Any]:
    """Return all fields of a payload, also those of later versions; none if it is not one of ours."""
    return json.loads(data) if Payload.decode(data) is not None else {}


def _cut(fields: dict[str, Any], limit: int) -> dict[str, Any]:
    """Return the fields with texts cut to this limit. At the last limit the items of `about` are dropped."""
    cut = {name: value if name in _UNCUT else _short(value, limit) for name, value in fields.items()}
    return {**cut, "about": {}} if limit == _LIMITS[-1] else cut


def _short(value: Any, limit: int) -> Any:
    if isinstance(value, dict):
        return {name: _short(item, max(limit // 2, _LIMITS[-1])) for name, item in value.items()}
    if not isinstance(value, str):
        return value
    return printable(value, limit)


def _kept(text: str, most: int) -> str:
    """Return a text in at most `most` characters, and twice as many bytes."""
    text = printable(text, most)
    while len(_to_json(text).encode()) > 2 * most + 2:
        text = printable(text, len(text) * 3 // 4)
    return text
