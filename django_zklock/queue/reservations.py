"""The node by which a task is the only one of its key: where it is, what it says, and when it counts no more."""

from __future__ import annotations

import enum
import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from django_zklock.exceptions import UnreadableQueue
from django_zklock.queue.escaping import shown
from django_zklock.queue.names import path

DIRECTORY = "!unique"
"""Below the base of all locks. No key leads there: in a key, the exclamation mark is written `%21`."""

_SLASH = "!"  # in the name of a reservation, for the slashes of its key; no key holds one
_PUBLISHER = "-publisher"
_WORKER = "-worker"
_READABLE = 64 * 1024

_to_json = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), sort_keys=True).encode


class State(str, enum.Enum):
    """How far the task of a reservation has come."""

    PUBLISHING = "publishing"  # its message may have been sent, or not
    QUEUED = "queued"  # its message is with the broker
    STARTED = "started"  # a worker has begun with it


class Verdict(enum.Enum):
    """What a reservation means to the next publisher."""

    LIVE = "live"  # the task waits or runs
    SENDING = "sending"  # somebody is publishing it, and may yet fail
    DEAD = "dead"  # nothing will come of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """
    What the node says.

    Its children say who is behind it: ephemeral nodes of the publisher while it publishes, and of each worker that
    has begun with the task; and one that lasts, named after the token, by which two reservations that follow each
    other at one path are told apart. A version could not do that, as it begins anew with each node.
    """

    task_id: str
    token: str
    """A UUID in its 36 characters; another one for each reservation."""
    state: State
    late: bool = False
    """Whether the broker delivers the task again if its worker dies (`acks_late`)."""
    until: float | None = None
    """When it counts no more if nobody is behind it, in seconds since 1970; None: never."""

    def encode(self) -> bytes:
        """Return JSON."""
        return _to_json({"version": 1, **asdict(self), "state": self.state.value}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Reservation:
        """Return the reservation in `data`; raise `UnreadableQueue` if there is none, so that nobody takes it over."""
        try:
            found: Any = json.loads(data) if len(data) <= _READABLE else None
            until = found["until"]
            return cls(
                task_id=_text(found["task_id"]),
                token=_text(found["token"]),
                state=State(found["state"]),
                late=bool(found["late"]),
                until=None if until is None else float(until),
            )
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise UnreadableQueue(
                f"A reservation holds {shown(data[:80].decode(errors='replace'))}, which this release can't read; find "
                "out who wrote it."
            ) from error

    @property
    def mark(self) -> str:
        """The name of the child that lasts."""
        return f"{self.token}-token"


def directory(base: str) -> str:
    """Return the path of the directory of all reservations."""
    return path(base, DIRECTORY)


def place(base: str, key: str) -> str:
    """Return the path of a key's reservation; no two keys have one path, and none is below another's."""
    return path(directory(base), key.replace("/", _SLASH))


def key_at(name: str) -> str:
    """Return the key whose reservation has this name, the reverse of `place`."""
    return name.replace(_SLASH, "/")


def publisher(token: str, session_id: int) -> str:
    """Return the name of the child that a publisher has; another one in each session, as the old one may linger."""
    return f"{token}-{session_id & 0xFFFFFFFFFFFFFFFF:016x}{_PUBLISHER}"


def worker(attachment: str, session_id: int) -> str:
    """Return the name of the child that a worker has."""
    return f"{attachment}-{session_id & 0xFFFFFFFFFFFFFFFF:016x}{_WORKER}"


def publishers(children: Collection[str]) -> list[str]:
    """Return those children that are publishers'."""
    return [name for name in children if name.endswith(_PUBLISHER)]


def workers(children: Collection[str]) -> list[str]:
    """Return those children that are workers'."""
    return [name for name in children if name.endswith(_WORKER)]


def judge(found: Reservation, children: Collection[str], now: float) -> Verdict:
    """
    Tell what a reservation means to another task that wants its place, at `now`, in seconds since 1970.

    Only a publisher that wants the place asks. No clock runs for it otherwise, and nobody sweeps.
    """
    if workers(children):
        return Verdict.LIVE
    if found.state is State.PUBLISHING:
        return Verdict.SENDING if publishers(children) else Verdict.DEAD
    if found.until is not None and now > found.until:
        return Verdict.DEAD
    if found.state is State.STARTED and not found.late:
        return Verdict.DEAD  # its worker died, and the broker has no message that would bring it back
    return Verdict.LIVE


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(value)
    return value
