"""The release request: a message in the znode of a holder, in our form or in that of Apache Curator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from django_zklock.core.queue.escaping import MAX_BY, MAX_REASON
from django_zklock.core.queue.nodes import Payload
from django_zklock.core.queue.record import Record, line

CURATOR: Final = b"__REVOKE__"
"""The data that Curator's `Revoker` writes into a znode. It names neither the operator nor the reason."""
BY_CURATOR: Final = "a client of Curator"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRequest(Record):
    """A message that asks a holder to release."""

    by: str = line(MAX_BY)
    reason: str = line(MAX_REASON)
    at: str = line(MAX_BY)
    """The time of the request: ISO 8601 in UTC, by the clock of the process that asked."""

    def __str__(self) -> str:
        """Return the operator and the reason, in one line."""
        return f"{self.by}: {self.reason}" if self.reason else self.by

    def same(self, other: ReleaseRequest | None) -> bool:
        """Return whether the other request has the same author and reason. The times may differ."""
        return other is not None and (self.by, self.reason) == (other.by, other.reason)


def release_request(*, by: str, reason: str, at: str = "") -> ReleaseRequest:
    """Return a request. Its texts are cut to the length that is stored."""
    return ReleaseRequest.of({"by": by, "reason": reason, "at": at})


def requested(data: bytes) -> ReleaseRequest | None:
    """Return the request in the data of a znode, or None. Never raises."""
    if data == CURATOR:
        return ReleaseRequest(by=BY_CURATOR)
    fields = Payload.read(data).release_request if b"release_request" in data else {}
    return ReleaseRequest.of(fields) if {"by", "reason"} <= fields.keys() else None


def with_request(data: bytes, request: ReleaseRequest) -> bytes:
    """Return a holder's data with a request in it. Data that are no payload of ours are treated as Curator's."""
    payload = Payload.decode(data)
    if payload is None:
        return CURATOR
    return replace(payload, release_request={"by": request.by, "reason": request.reason, "at": request.at}).encode()
