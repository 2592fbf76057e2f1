"""
Knows what a fencing token looks like on its way to another service, and when the receiver may trust it.

A signed token says which lock it is of, which grant of it, who holds it and until when. Anybody can read it, and who
has no key can make none. Who copies one may pass it on while its lease lasts and no newer holder has been seen, so
send it only where you would send a session cookie. What the receiver has seen is kept by a store (`token_stores`).
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

from asgiref.sync import sync_to_async
from django.core.signing import BadSignature, Signer

from django_zklock import conf
from django_zklock.exceptions import ExpiredToken, ForgedToken
from django_zklock.queue import nodes

if TYPE_CHECKING:
    from django_zklock.locks.hold import Hold

SALT: Final = "django_zklock.tokens"
"""Keeps a signature that the project made for another purpose, with the same key, from passing for one of these."""

LEEWAY: Final = 5.0
"""Seconds by which two clocks may differ where nothing else is said."""

MAX_LENGTH: Final = 4096
"""Characters that a signed token may have; a key of a thousand makes about 1700."""

_VERSION = 1
_LONGEST_HOST = 64  # characters
_LARGEST = 2**63 - 1  # ZooKeeper counts its transactions in 64 bits, and so do the databases


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenHolder:
    """Who had the lock when the token was signed."""

    host: str
    pid: int
    guid: str
    """By which the holder's znode is found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedToken:
    """What a signed token says. It has a key and a token, so it fences rows as a `Hold` does."""

    key: str
    token: int
    holder: TokenHolder
    issued: float
    """When it was signed: seconds since the epoch, by the clock of the holder's host."""
    lease_until: float
    """Until when the lease lasted at that time, if nothing was to extend it; by the same clock."""


class TokenStore(Protocol):
    """What remembers the highest token that has been seen of each key."""

    def advance(self, key: str, token: int) -> None:
        """Raise the highest token of the key to this one, in one step; raise `StaleToken` if it is higher already."""


class FenceVerifier:
    """
    The receiving side of `hold.signed_token()`: says which tokens may write.

    Args:
        store: remembers the highest token of each key, for all processes of the receiver: `DatabaseTokens`,
            `CacheTokens`, or one of your own with a method `advance(key, token)`.
        keys: the keys that a token may be signed with; default `ZKLOCK["TOKEN_KEYS"]`, else `SECRET_KEY` and its
            fallbacks.
        leeway: seconds by which the clocks of sender and receiver may differ. More of it does no harm to the order of
            writes, which is the store's to keep; it lets a holder write for so long after its lease, as long as nobody
            newer was seen.

    """

    def __init__(
        self, store: TokenStore, *, keys: Sequence[str] | None = None, leeway: float | timedelta = LEEWAY
    ) -> None:
        seconds = leeway.total_seconds() if isinstance(leeway, timedelta) else leeway
        if not 0 <= seconds < math.inf:
            raise ValueError(f"The leeway is a number of seconds from 0, not {leeway!r}.")
        self._store = store
        self._keys = None if keys is None else conf.token_keys(keys)
        self._leeway = seconds

    def verify(self, signed: str, *, key: str) -> VerifiedToken:
        """
        Return what the token says, if it may write to the resource of this key (as `hold.key` has it).

        From then on older tokens of the key are refused. Raises `ForgedToken` if it cannot be trusted or is of another
        key, `ExpiredToken` if its lease is over, `StaleToken` if a newer holder was here.
        """
        fence = self._trusted(signed, key)
        self._store.advance(fence.key, fence.token)
        self._check_time(fence)  # the store may have taken its time, or this process was paused
        return fence

    async def averify(self, signed: str, *, key: str) -> VerifiedToken:
        """Do the same from a coroutine; the store is asked in a thread."""
        fence = self._trusted(signed, key)
        await sync_to_async(self._store.advance)(fence.key, fence.token)
        self._check_time(fence)
        return fence

    def _trusted(self, signed: str, key: str) -> VerifiedToken:
        fence = unseal(signed, conf.token_keys() if self._keys is None else self._keys)
        if fence.key != key:
            raise ForgedToken(f"The fencing token is one of the lock {fence.key!r}, not of {key!r}.", lock=key)
        self._check_time(fence)
        return fence

    def _check_time(self, fence: VerifiedToken) -> None:
        now = time.time()
        if now > fence.lease_until + self._leeway:
            over = now - fence.lease_until
            raise ExpiredToken(f"The lease behind the fencing token has been over for {over:.1f} s.", lock=fence.key)
        if now < fence.issued - self._leeway:
            raise ExpiredToken(
                f"The fencing token was signed {fence.issued - now:.1f} s from now, so the clocks of sender and "
                "receiver differ, and nobody can tell when its lease ends.",
                lock=fence.key,
            )


def sign(hold: Hold) -> str:
    """Return the signed token of a hold, with its lease as it is now."""
    # In this order: time that passes between the two readings makes the lease look shorter, never longer.
    now = time.time()
    lease_until = now + hold.lease_remaining
    child = nodes.parse(hold.path.rpartition("/")[2])
    assert child is not None  # it is a node of our own
    fence = VerifiedToken(
        key=hold.key,
        token=hold.token,
        holder=TokenHolder(host=socket.gethostname()[:_LONGEST_HOST], pid=os.getpid(), guid=child.guid),
        issued=_floored(now),
        lease_until=_floored(lease_until),
    )
    return seal(fence, conf.token_keys())


def seal(fence: VerifiedToken, keys: Sequence[str | bytes]) -> str:
    """Return what a token says in ASCII that fits a header, signed with the first of the keys."""
    # The number is a text in JSON: many a reader has no integers above 2**53.
    return _signer(keys).sign_object({"v": _VERSION, **asdict(fence), "token": str(fence.token)})


def unseal(signed: object, keys: Sequence[str | bytes]) -> VerifiedToken:
    """Return what was sealed with one of the keys, whatever its age; raise `ForgedToken` if nothing was."""
    if not isinstance(signed, str) or len(signed) > MAX_LENGTH:
        raise ForgedToken("What came as a fencing token is none.")
    try:
        return _read(_signer(keys).unsign_object(signed))
    except BadSignature as error:
        raise ForgedToken("The fencing token was signed by nobody who has one of our keys.") from error
    except (TypeError, ValueError, LookupError) as error:
        raise ForgedToken("The fencing token is signed, but of a form that is not known here.") from error


def _signer(keys: Sequence[str | bytes]) -> Signer:
    return Signer(key=keys[0], fallback_keys=list(keys[1:]), salt=SALT)


def _read(content: Any) -> VerifiedToken:
    if content["v"] != _VERSION:
        raise ValueError(content["v"])
    holder = content["holder"]
    return VerifiedToken(
        key=_checked(content["key"], str),
        token=_token(_checked(content["token"], str)),
        holder=TokenHolder(
            host=_checked(holder["host"], str), pid=_checked(holder["pid"], int), guid=_checked(holder["guid"], str)
        ),
        issued=_moment(content["issued"]),
        lease_until=_moment(content["lease_until"]),
    )


def _checked(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(value)
    return value


def _token(text: str) -> int:
    token = int(text)
    if str(token) != text or not 0 < token <= _LARGEST:
        raise ValueError(text)
    return token


def _moment(value: Any) -> float:
    if not math.isfinite(_checked(value, float)):
        raise ValueError(value)
    return float(value)


def _floored(moment: float) -> float:
    return math.floor(moment * 1000) / 1000
