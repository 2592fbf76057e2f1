"""The clients: each is known by a bearer token or a certificate, and may send a bounded number of requests."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from django_zklock.contrib.leases.options import LeaseClient, LeaseOptions
from django_zklock.contrib.leases.refusal import Code, Refusal
from django_zklock.core import clock
from django_zklock.core.log import Logger

ANYBODY: Final = LeaseClient(name="anybody", max_rate=math.inf)
"""The client of a coordinator that has no clients in the settings."""
DELAY: Final = 1.0
"""Seconds until a client that is not known gets its refusal. One that guesses tokens, one after the other, is slow."""
MOST_DELAYED: Final = 1000
"""Refusals that are delayed at a time; further ones are sent at once, as each that waits needs memory."""
LONGEST_DELAY: Final = 20.0
"""Seconds that a request of a client waits, at most, because of those that it has sent before."""
LOG_PERIOD: Final = 10.0
"""Seconds for which an event is counted, and not logged again."""
MOST_LOGGED: Final = 1000
"""Events that are counted at a time, by their texts; others are logged under one text."""

audit = Logger("zklock.audit")


def hash_of(token: str) -> str:
    """Return the hash of a bearer token, as the settings have it."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class Denials:
    """Logs each event once in `LOG_PERIOD`, and then how often it happened, so that nobody can fill the log."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def report(self, event: str, **fields: str) -> None:
        """Log an event with these fields, unless it was logged lately."""
        if event not in self._counts and len(self._counts) >= MOST_LOGGED:
            event = "the lock coordinator refused requests of many others"
        if event not in self._counts:
            audit.warning("%s", event, extra=fields)
            asyncio.get_running_loop().call_later(LOG_PERIOD, self._sum_up, event)
        self._counts[event] += 1

    def _sum_up(self, event: str) -> None:
        if more := self._counts.pop(event) - 1:
            audit.warning("%s (%d more times in %g s)", event, more, LOG_PERIOD)


class Pace:
    """Bounds how many requests each client sends."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}  # by client: when its next request may be served, on clock.now()

    async def wait(self, client: LeaseClient, cost: float = 1.0) -> None:
        """Count a request, and wait as long as `delay` says; not at all if it costs nothing. Raises `Refusal`."""
        delay = self.delay(client, cost) if cost else 0.0
        if delay:
            await asyncio.sleep(delay)

    def delay(self, client: LeaseClient, cost: float = 1.0) -> float:
        """
        Count a request; return for how many seconds it must wait, so that the client keeps its rate.

        Those of one second, or one, may come at once. Raises `Refusal` if the request would wait for too long.
        """
        now, interval = clock.now(), 1 / max(client.max_rate, 1e-9)
        due = max(self._due.get(client.name, -math.inf), now - max(1.0, interval)) + cost * interval
        if due > now + LONGEST_DELAY or not client.max_rate:
            raise Refusal(
                Code.TOO_MANY,
                f"The client {client.name!r} sends more than {client.max_rate:g} requests a second. Slow down.",
            )
        self._due[client.name] = due
        return max(0.0, due - now)


@contextlib.contextmanager
def counted(counts: Counter[str], client: LeaseClient, what: str) -> Iterator[None]:
    """Count what a client does at a time, while the block runs. Raises `Refusal` if that is too much."""
    if counts[client.name] >= client.max_waiting:
        raise Refusal(Code.TOO_MANY, f"The client {client.name!r} has {client.max_waiting} {what}, its limit.")
    counts[client.name] += 1
    try:
        yield
    finally:
        counts[client.name] -= 1


class Access:
    """
    Decides which client a request comes from, and bounds its requests.

    Tokens are random and long, so a plain hash is enough, and a look-up by the hash tells an attacker nothing.
    """

    def __init__(self, options: LeaseOptions) -> None:
        self._anybody = not options.clients  # this machine is served, and no client is asked who it is
        self._by_token = {token: client for client in options.clients.values() for token in client.tokens}
        self._by_certificate = {name: client for client in options.clients.values() for name in client.certificates}
        self.asking = Pace()
        """For requests for a lock, or about one."""
        self.keeping = Pace()
        """For the rest: what keeps or ends a lease is never delayed behind what asks for one."""
        self._denials = Denials()
        self._delayed = asyncio.Semaphore(MOST_DELAYED)

    async def client(self, address: str, authorization: str, certificate_names: Iterable[str] = ()) -> LeaseClient:
        """
        Return the client of a request. `authorization` is the header of this name, perhaps empty.

        Raises `Refusal` if it is unknown, after a second.
        """
        client = self._known(authorization, certificate_names)
        del authorization  # an error shows the locals of its frames
        if client is None:
            self._denials.report(f"the lock coordinator does not know a client at {address}")
            if not self._delayed.locked():
                async with self._delayed:
                    await asyncio.sleep(DELAY)
            raise Refusal(
                Code.UNAUTHENTICATED,
                "Send the header Authorization: Bearer TOKEN with a token of the coordinator, or use a certificate "
                "that it knows.",
            )
        return client

    def _known(self, authorization: str, certificate_names: Iterable[str]) -> LeaseClient | None:
        if self._anybody:
            return ANYBODY
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() == "bearer":
            return self._by_token.get(hash_of(token.strip()))
        return next((self._by_certificate[name] for name in certificate_names if name in self._by_certificate), None)
