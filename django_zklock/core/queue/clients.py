"""The client library of a contender, and what another client wrote into its znode. Neither can be trusted."""

from __future__ import annotations

import ipaddress
from typing import Final

from django_zklock.core.queue import release_request
from django_zklock.core.queue.escaping import printable
from django_zklock.core.queue.nodes import Child, Payload

OURS: Final = "zklock"
CURATOR: Final = "Curator"
KAZOO: Final = "kazoo"
UNKNOWN: Final = "unknown"

_SHORT: Final = 120  # characters that are kept of what another client wrote


def client_of(child: Child, payload: Payload | None) -> str:
    """
    Return the client of a contender: "zklock", "kazoo", "Curator" or "unknown".

    `payload` is the payload in its znode, if that is one of ours. If only the name or only the payload is ours, the
    client is unknown.
    """
    if payload is not None and payload.is_of(child):
        return OURS
    if not child.in_grammar_of_curator:
        return KAZOO
    return CURATOR if payload is None and child.by_curator else UNKNOWN


def foreign_payload(data: bytes) -> Payload:
    """
    Return what another client than ours wrote into its znode.

    Curator writes its address by default: the host. Any other text is what it runs, such as kazoo's identifier or the
    id of a Curator `LeaderSelector`.
    """
    host = what = ""
    if data != release_request.CURATOR:  # else Curator's release request has replaced the text
        text = data[: 4 * (_SHORT + 1)].decode(errors="replace")
        try:
            host = printable(str(ipaddress.ip_address(text)), _SHORT)
        except ValueError:
            what = printable(text, _SHORT)
    return Payload(version=0, guid="", host=host, pid=0, thread="", what=what, since="", template="")
