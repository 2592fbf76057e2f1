"""The release request: a message in the znode of a holder, in our form or in that of Apache Curator."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Final

from django_zklock.core.queue.escaping import MAX_BY, MAX_REASON, printable
from django_zklock.core.queue.nodes import Payload

CURATOR: Final = b"__REVOKE__"
"""The data that Curator's `Revoker` writes into a znode. It names neither the operator nor the reason."""
BY_CURATOR: Final = "a client of Curator"
_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRequest:
    """A message that asks a holder to release."""

    by: str
    reason: str
    at: str = ""
    """The time of the request: ISO 8601 in UTC, by the clock of the process that asked."""

    def __str__(self) -> str:
        """Return the operator and the reason, in one line."""
        return f"{self.by}: {self.reason}" if self.reason else self.by

    def same(self, other: ReleaseRequest | None) -> bool:
        """Return whether the other request has the same author and reason. The times may differ."""
        return other is not None and (self.by, self.reason) == (other.by, other.reason)


def release_request(*, by: str, reason: str, at: str = "") -> ReleaseRequest:
    """Return a request. Its texts are cut to the length that is stored."""
    return ReleaseRequest(by=_kept(by, MAX_BY), reason=_kept(reason, MAX_REASON), at=_kept(at, MAX_BY))


def requested(data: bytes) -> ReleaseRequest | None:
    """Return the request in the data of a znode, or None. Never raises."""
    if data == CURATOR:
        return ReleaseRequest(by=BY_CURATOR, reason="")
    payload = Payload.decode(data) if b"release_request" in data else None
    fields = {} if payload is None else payload.release_request
    if not {"by", "reason"} <= fields.keys():
        return None
    return release_request(by=fields["by"], reason=fields["reason"], at=fields.get("at", ""))


def with_request(data: bytes, request: ReleaseRequest) -> bytes:
    """
    Return a holder's data with a request in it. Other texts of a payload are cut if necessary.

    Data that are no payload of ours are treated as Curator's.
    """
    payload = Payload.decode(data)
    if payload is None:
        return CURATOR
    return replace(payload, release_request={"by": request.by, "reason": request.reason, "at": request.at}).encode()


def _kept(text: str, most: int) -> str:
    """Return a text in at most `most` characters, and twice as many bytes."""
    text = printable(text, most)
    while len(_to_json(text).encode()) > 2 * most + 2:
        text = printable(text, len(text) * 3 // 4)
    return text
