"""Which program made a contender, and what that says of itself; whoever can write to the node can say anything."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

from django_zklock.queue import revocations
from django_zklock.queue.nodes import Child, Payload
from django_zklock.queue.printable import printable

OURS: Final = "zklock"
CURATOR: Final = "Curator"
KAZOO: Final = "kazoo"
UNKNOWN: Final = "unknown"

_SHORT: Final = 120  # characters that are kept of what another client wrote


@dataclass(frozen=True, slots=True)
class Said:
    """What another client wrote into its node."""

    host: str = ""
    """Its address: Curator writes it unless its program gives it something else."""
    what: str = ""
    """Any other text: kazoo's identifier, the id of Curator's `LeaderSelector`."""


def client_of(child: Child, payload: Payload | None) -> str:
    """
    Return which client a contender is of: "zklock", "kazoo", "Curator", or "unknown".

    `payload` is that of ours in its node. A name of ours without such a payload, and a payload of ours under a name of
    another's, are of a program that nobody knows.
    """
    if payload is not None and payload.is_of(child):
        return OURS
    if not child.in_grammar_of_curator:
        return KAZOO
    return CURATOR if payload is None and child.by_curator else UNKNOWN


def said(data: bytes) -> Said:
    """Return what another client than ours wrote into its node."""
    if data == revocations.CURATOR:
        return Said()  # a release request of Curator's has replaced it
    text = data[: 4 * (_SHORT + 1)].decode(errors="replace")
    try:
        return Said(host=printable(str(ipaddress.ip_address(text)), _SHORT))
    except ValueError:
        return Said(what=printable(text, _SHORT))
