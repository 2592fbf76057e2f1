"""The refusals of the coordinator: each has a code, a sentence, and a status in gRPC and in HTTP."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from django_zklock.exceptions import TooManyLocks, ZkLockError, ZooKeeperUnavailable


class Code(enum.Enum):
    """Why a request is refused: the code, the status in gRPC and in HTTP, a title, and headers of the answer."""

    INVALID = ("invalid-request", "INVALID_ARGUMENT", 400, "The request is invalid")
    UNAUTHENTICATED = ("unauthenticated", "UNAUTHENTICATED", 401, "The client is unknown")
    FORBIDDEN = ("forbidden", "PERMISSION_DENIED", 403, "The client may not do this")
    OVER = ("lease-over", "NOT_FOUND", 404, "There is no such lease")
    BUSY = ("busy", "ABORTED", 409, "The lock is not free")
    ELSEWHERE = ("lease-elsewhere", "FAILED_PRECONDITION", 421, "Another coordinator gave this lease")
    TOO_MANY = ("too-many", "RESOURCE_EXHAUSTED", 429, "The client has reached a limit")
    UNAVAILABLE = ("unavailable", "UNAVAILABLE", 503, "No lock can be given now")

    def __init__(self, slug: str, grpc: str, http: int, title: str) -> None:
        self.slug = slug
        self.grpc = grpc
        self.http = http
        self.title = title
        self.headers: Mapping[str, str] = {}
        if http in (409, 429, 503):
            self.headers = {"retry-after": "1"}  # seconds
        elif http == 401:
            self.headers = {"www-authenticate": "Bearer"}


class Addresses(NamedTuple):
    """Where clients reach a coordinator; an address is empty if it does not serve this protocol, or is not known."""

    grpc: str = ""
    """It is written as `host:port`."""
    http: str = ""
    """It is written as `https://host:port`."""


class Refusal(Exception):
    """A request is refused; the text is a sentence for the client."""

    def __init__(self, code: Code, detail: str, elsewhere: Addresses | None = None) -> None:
        super().__init__(detail)
        self.code = code
        self.elsewhere = elsewhere or Addresses()  # of the coordinator that gave the lease


def over(reason: str) -> Refusal:
    """Return the refusal for a lease that is over for this reason."""
    return Refusal(Code.OVER, f"The lease is over: {reason.rstrip('.')}.")


def for_client(error: ZkLockError) -> str:
    """Return the text of an error for a client. Where ZooKeeper is, and what to do about it, is for operators."""
    if isinstance(error, ZooKeeperUnavailable) and not isinstance(error, TooManyLocks):
        return "The coordinator does not reach ZooKeeper now. Its log says why. Try again, or ask another one."
    return str(error)
