"""
Sign the fencing token of a hold for another service, and verify it there.

A signed token names the lock, the grant, the holder and the end of the lease. Anyone can read it, but only a process
with the key can make one. A copy of it is valid, too, until the lease is over or a newer token was seen: send it only
where you would send a session cookie. A store (`stores`) has the highest token that the receiver has seen.
"""

from __future__ import annotations

import base64
import json
import math
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

from asgiref.sync import sync_to_async

from django_zklock.contrib.tokens.keys import Keys, checked, hidden, token_keys
from django_zklock.core.queue import nodes
from django_zklock.core.queue.untrusted import LATEST, digits, integer, json_object, number, text, unpadded
from django_zklock.exceptions import InvalidToken, StaleToken

if TYPE_CHECKING:
    from django_zklock.locks.hold import Hold

SALT: Final = "django_zklock.tokens"
"""Separates these signatures from others that the project makes with the same key."""

LEEWAY: Final = 5.0
"""Seconds by which the clocks of sender and receiver may differ, by default."""

MAX_LENGTH: Final = 4096
"""Characters of a signed token, at most; a key of 1000 characters makes about 1700."""

_VERSION = 1
_LONGEST_HOST = 64  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenHolder:
    """The process that held the lock when the token was signed."""

    host: str
    pid: int
    guid: str
    """The id in the name of the holder's znode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedToken:
    """The content of a signed token. It has a key and a token, so it fences rows as a `Hold` does."""

    key: str
    token: int
    holder: TokenHolder
    issued: float
    """The time of signing: seconds since the epoch, by the clock of the holder's host."""
    lease_until: float
    """The end of the lease as it was then, by the same clock. Later extensions are not in it."""


class TokenStore(Protocol):
    """Stores the highest token seen of each key."""

    def advance(self, key: str, token: int) -> None:
        """Raise the highest token of the key to this one, atomically. Raises `StaleToken` if it is higher already."""


class FenceVerifier:
    """
    Verifies signed tokens: the receiving side of `hold.signed_token()`.

    Args:
        store: stores the highest token of each key, for all processes of the receiver: `DatabaseTokens`, or your own
            object with a method `advance(key, token)`.
        keys: the keys that a token may be signed with; default `ZKLOCK["TOKEN_KEYS"]`, else `SECRET_KEY` and its
            fallbacks.
        leeway: seconds by which the clocks of sender and receiver may differ. A larger value does not change the order
            of writes, which the store enforces. It lets a holder write for that long after its lease, while no newer
            holder was seen.

    """

    def __init__(
        self, store: TokenStore, *, keys: Sequence[str] | Keys | None = None, leeway: float | timedelta = LEEWAY
    ) -> None:
        given = hidden(keys)
        del keys  # an error of this call shows its locals
        seconds = leeway.total_seconds() if isinstance(leeway, timedelta) else leeway
        if not 0 <= seconds < math.inf:
            raise ValueError(f"leeway must be a number of seconds from 0, not {leeway!r}.")
        self._store = store
        self._keys = checked(given)
        self._leeway = seconds

    def verify(self, signed: str, *, key: str) -> VerifiedToken:
        """
        Return the content of a token that may write to the resource of `key`, the `hold.key` of the sender.

        From then on, older tokens of the key are refused. Raises `InvalidToken` if the token is not trusted or is
        for another key, and `StaleToken` if its lease is over or a newer token was seen.
        """
        fence = self._trusted(signed, key)
        self._store.advance(fence.key, fence.token)
        self._check_time(fence)  # again: the store may have been slow, or this process paused
        return fence

    async def averify(self, signed: str, *, key: str) -> VerifiedToken:
        """Verify in a coroutine, as `verify` does; the store runs in a thread."""
        fence = self._trusted(signed, key)
        await sync_to_async(self._store.advance)(fence.key, fence.token)
        self._check_time(fence)
        return fence

    def _trusted(self, signed: str, key: str) -> VerifiedToken:
        fence = unseal(signed, token_keys() if self._keys is None else self._keys)
        if fence.key != key:
            raise InvalidToken(f"The fencing token is for the lock {fence.key!r}, not for {key!r}.", lock=key)
        self._check_time(fence)
        return fence

    def _check_time(self, fence: VerifiedToken) -> None:
        now = time.time()
        if now > fence.lease_until + self._leeway:
            late = now - fence.lease_until
            raise StaleToken(f"The lease behind the fencing token has been over for {late:.1f} s.", lock=fence.key)
        if now < fence.issued - self._leeway:
            raise StaleToken(
                f"The fencing token was signed {fence.issued - now:.1f} s in the future: the clocks of sender and "
                "receiver differ, so the end of its lease is unknown.",
                lock=fence.key,
            )


def sign(hold: Hold, until: float) -> str:
    """Return the signed token of a hold, with the current end of its lease, or `until` if that is earlier."""
    # In this order: time that passes between the two lines makes the lease look shorter, never longer.
    now = time.time()
    lease_until = min(until, now + hold.lease_remaining)
    child = nodes.parse(hold.path.rpartition("/")[2])
    assert child is not None  # it is our own znode
    fence = VerifiedToken(
        key=hold.key,
        token=hold.token,
        holder=TokenHolder(host=socket.gethostname()[:_LONGEST_HOST], pid=os.getpid(), guid=child.guid),
        issued=_floored(now),
        lease_until=_floored(lease_until),
    )
    return seal(fence, token_keys())


def seal(fence: VerifiedToken, keys: Keys) -> str:
    """Return a token as ASCII text that fits into a header, signed with the first of the keys."""
    # The number is a string in JSON: many JSON parsers have no integers above 2**53.
    content = {"v": _VERSION, **asdict(fence), "token": str(fence.token)}
    body = base64.urlsafe_b64encode(json.dumps(content, separators=(",", ":")).encode())
    return keys.sign(body.decode().rstrip("="), salt=SALT)


def unseal(signed: object, keys: Keys) -> VerifiedToken:
    """Return the content of a token that was signed with one of the keys, of any age. Raises `InvalidToken`."""
    if not isinstance(signed, str) or not 0 < len(signed) <= MAX_LENGTH:
        raise InvalidToken("Not a fencing token.")
    body = keys.unsign(signed, salt=SALT)
    if body is None:
        raise InvalidToken("The fencing token was not signed with one of our keys.")
    try:
        return _read(json_object(unpadded(body), MAX_LENGTH))
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidToken("The fencing token is signed, but its format is unknown.") from error


def _read(content: Any) -> VerifiedToken:
    """Return the content of a token. Raises `ValueError`, `TypeError` or `KeyError` if it is of another format."""
    if content["v"] != _VERSION:
        raise ValueError("another version")
    holder = content["holder"]
    return VerifiedToken(
        key=text(content["key"], MAX_LENGTH),
        token=digits(content["token"]),
        holder=TokenHolder(
            host=text(holder["host"], MAX_LENGTH), pid=integer(holder["pid"]), guid=text(holder["guid"], MAX_LENGTH)
        ),
        issued=number(content["issued"], 0, LATEST),
        lease_until=number(content["lease_until"], 0, LATEST),
    )


def _floored(moment: float) -> float:
    return math.floor(moment * 1000) / 1000
