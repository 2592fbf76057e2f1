"""The clients: each is known by a bearer token or a certificate, and may send a bounded number of requests."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from typing import Final

from django_zklock import clock
from django_zklock.conf.leases import LeaseClient, LeaseOptions
from django_zklock.contrib.leases.refusal import Code, Refusal

ANYBODY: Final = LeaseClient(name="anybody", max_rate=100_000.0)
"""The client of a coordinator that has no clients in the settings."""

audit = logging.getLogger("zklock.audit")


def hash_of(token: str) -> str:
    """Return the hash of a bearer token, as the settings have it."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class Access:
    """
    Decides which client a request comes from, and bounds its requests.

    Tokens are random and long, so a plain hash is enough, and a look-up by the hash tells an attacker nothing.
    """

    def __init__(self, options: LeaseOptions, *, anybody: bool) -> None:
        self._anybody = anybody and not options.clients
        self._by_token = {token: client for client in options.clients.values() for token in client.tokens}
        self._by_certificate = {name: client for client in options.clients.values() for name in client.certificates}
        self._spent: dict[str, float] = {}  # by client: until when its requests are used up, on clock.now()

    def client(self, peer: str, authorization: str, certificate_names: Iterable[str] = ()) -> LeaseClient:
        """
        Return the client of a request. `authorization` is the header of this name, perhaps empty; `peer` an address.

        Raises `Refusal` if it is unknown, or has sent too many requests.
        """
        client = self._known(authorization, certificate_names)
        if client is None:
            audit.warning("the lock coordinator does not know the client at %s", peer)
            raise Refusal(Code.UNAUTHENTICATED, self._how_to_be_known())
        if self.delay(client):
            raise Refusal(
                Code.TOO_MANY,
                f"The client {client.name!r} has sent more than {client.max_rate:g} requests a second. Slow down.",
            )
        return client

    def _known(self, authorization: str, certificate_names: Iterable[str]) -> LeaseClient | None:
        if self._anybody:
            return ANYBODY
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() == "bearer":
            return self._by_token.get(hash_of(token.strip()))
        for name in certificate_names:
            if name in self._by_certificate:
                return self._by_certificate[name]
        return None

    def _how_to_be_known(self) -> str:
        if not self._by_token and not self._by_certificate:
            return 'The coordinator has no clients. Add one to ZKLOCK["LEASES"]["CLIENTS"] in its settings.'
        return (
            "Send the header Authorization: Bearer TOKEN with a token of the coordinator, or use a known certificate."
        )

    def delay(self, client: LeaseClient) -> float:
        """
        Count a request; return by how many seconds it comes too early.

        A client may send as many at once as in one second.
        """
        now, interval = clock.now(), 1 / max(client.max_rate, 1e-9)
        spent = max(self._spent.get(client.name, now), now) + interval
        early = spent - (now + max(1.0, interval))
        if early <= 0 and client.max_rate:
            self._spent[client.name] = spent
            return 0.0
        return max(early, interval)
