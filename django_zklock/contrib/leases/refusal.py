"""The refusals of the coordinator: each has a code, a sentence, and a status in gRPC."""

from __future__ import annotations

import enum

from django_zklock.exceptions import TooManyLocks, ZkLockError, ZooKeeperUnavailable


class Code(enum.Enum):
    """Why a request is refused: the code, and the status in gRPC."""

    INVALID = ("invalid-request", "INVALID_ARGUMENT")
    UNAUTHENTICATED = ("unauthenticated", "UNAUTHENTICATED")
    FORBIDDEN = ("forbidden", "PERMISSION_DENIED")
    OVER = ("lease-over", "NOT_FOUND")
    BUSY = ("busy", "ABORTED")
    ELSEWHERE = ("lease-elsewhere", "FAILED_PRECONDITION")
    TOO_MANY = ("too-many", "RESOURCE_EXHAUSTED")
    UNAVAILABLE = ("unavailable", "UNAVAILABLE")

    def __init__(self, slug: str, grpc: str) -> None:
        self.slug = slug
        self.grpc = grpc


class Refusal(Exception):
    """A request is refused; the text is a sentence for the client."""

    def __init__(self, code: Code, detail: str, elsewhere: str = "") -> None:
        super().__init__(detail)
        self.code = code
        self.elsewhere = elsewhere  # the host:port of the coordinator that gave the lease


def over(reason: str) -> Refusal:
    """Return the refusal for a lease that is over for this reason."""
    return Refusal(Code.OVER, f"The lease is over: {reason.rstrip('.')}.")


def for_client(error: ZkLockError) -> str:
    """Return the text of an error for a client. Where ZooKeeper is, and what to do about it, is for operators."""
    if isinstance(error, ZooKeeperUnavailable) and not isinstance(error, TooManyLocks):
        return "The coordinator does not reach ZooKeeper now. Its log says why. Try again, or ask another one."
    return str(error)
