"""The requests that our client sends for locks, for the bare sockets of `raw_sessions.py`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from raw_sessions import RawSession
from support.jute import EPHEMERAL, EPHEMERAL_SEQUENTIAL, Request, check, children, container, create, delete, multi

from django_zklock.core.queue import nodes

_GUID = nodes.new_guid(nodes.Mark.OWN)
_PAYLOAD = nodes.Payload(
    guid=_GUID,
    host="web-17.example.com",
    pid=4711,
    thread="Thread-3",
    what="shop.views.checkout GET /checkout/",
    since="2026-11-21T12:00:00.000+00:00",
    template="sku/{sku}",
).encode()


def contender(directory: str) -> tuple[str, bytes]:
    """Return the path of a new contender, without its sequence number, and what it writes into its znode."""
    guid = nodes.new_guid(nodes.Mark.OWN)
    return f"{directory}/{nodes.prefix(guid)}", _PAYLOAD.replace(_GUID.encode(), guid.encode())


def create_contender(directory: str) -> Request:
    """Create a contender in a queue."""
    return create(*contender(directory), EPHEMERAL_SEQUENTIAL, op="create2")


def heartbeat(session: RawSession, paths: int = 1) -> Request:
    """Check a znode of the session, as the heartbeat of our client does."""
    return multi(*[check(session.holds)] * paths)


def pair(session: RawSession) -> list[Request]:
    """Create and delete an ephemeral znode."""
    path = f"{session.holds}-pair"
    return [create(path, _PAYLOAD, EPHEMERAL), delete(path)]


def use_once(directory: str) -> Iterator[Request]:
    """Acquire and release a lock of which the directory does not exist yet, with all requests of our client."""
    path, payload = contender(directory)
    yield create(path, payload, EPHEMERAL_SEQUENTIAL, op="create2")  # fails: there is no directory
    yield children(directory)  # fails, too
    yield container(directory)
    yield create(path, payload, EPHEMERAL_SEQUENTIAL, op="create2")
    yield children(directory)
    yield delete(f"{path}{0:010}")


async def make_directory(session: RawSession, path: str) -> None:
    """Create a znode, and all those above it. They stay: they are no containers."""
    parts = path.strip("/").split("/")
    for depth in range(1, len(parts) + 1):
        await session.ask(create("/" + "/".join(parts[:depth])))
