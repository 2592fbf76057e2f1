"""The reservation of a task: the path of its znode, its data, and when it no longer counts."""

from __future__ import annotations

import enum
import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Final, TypeGuard

from django_zklock.core.queue.escaping import quoted, show_tails
from django_zklock.core.queue.nodes import unknown_fields, with_unknown
from django_zklock.core.queue.untrusted import LATEST, integer, json_object, number, text
from django_zklock.exceptions import UnreadableQueue
from django_zklock.names.template import MAX_KEY, path

DIRECTORY: Final = "!unique"
"""Below the base of all locks. It is no key: keys have `%21` instead of `!`."""

_SLASH: Final = "!"  # replaces the slashes of the key in the name of a reservation; no key has one
_PUBLISHER: Final = "-publisher"
_WORKER: Final = "-worker"
_LONGEST_TOKEN: Final = 64  # characters


class State(str, enum.Enum):
    """The progress of the task of a reservation."""

    PUBLISHING = "publishing"  # it is unknown whether its message was sent
    QUEUED = "queued"  # its message is with the broker
    STARTED = "started"  # a worker has begun with it


class Verdict(enum.Enum):
    """The meaning of a reservation for the next publisher of its key."""

    LIVE = "live"  # the task waits or runs
    SENDING = "sending"  # a publisher is sending it, and may fail
    DEAD = "dead"  # the task will never run


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """
    The data of the znode.

    Its children show the processes that work for it: an ephemeral znode of the publisher while it publishes, and one of
    each worker that has started the task. One more child is persistent and named after the token. It distinguishes two
    reservations that follow each other at one path. A version cannot, because it starts at 0 with each znode.
    """

    task_id: str
    token: str
    """A UUID of 36 characters, different for each reservation."""
    state: State
    late: bool = False
    """Whether the broker delivers the task again if its worker dies (`acks_late`)."""
    until: float | None = None
    """When it no longer counts if no worker runs the task, in seconds since 1970; None: never."""
    host: str = ""
    """The host of the process that has sent the task; empty if an older release has written the reservation."""
    pid: int = 0
    what: str = ""
    """The work of that process: a view, a task or a command."""
    unknown: bytes = b""
    """The fields of later releases. They survive a change by this one."""

    def encode(self) -> bytes:
        """Return JSON."""
        known = {"version": 1, **asdict(self), "state": self.state.value}
        del known["unknown"]
        return with_unknown(json.dumps(known, sort_keys=True).encode(), self.unknown)

    @classmethod
    def decode(cls, data: bytes) -> Reservation:
        """Return the reservation in `data`. Raises `UnreadableQueue` if there is none, so it is not taken over."""
        fields = json_object(data)
        try:
            token, until = text(fields["token"], _LONGEST_TOKEN, least=1), fields["until"]
            return cls(
                task_id=text(fields["task_id"], least=1),
                token=token,
                state=State(fields["state"]),
                late=bool(fields["late"]),
                until=None if until is None else number(until, 0, LATEST),
                host=text(fields.get("host"), default=""),
                pid=integer(fields.get("pid"), default=0),
                what=text(fields.get("what"), default=""),
                unknown=unknown_fields(fields, _KNOWN),
            )
        except (ValueError, KeyError) as error:
            raise UnreadableQueue(
                f"A reservation holds {quoted(data[:80].decode(errors='replace'))}, which this release cannot read. "
                "Find out which program wrote it."
            ) from error

    @property
    def mark(self) -> str:
        """The name of the persistent child."""
        return f"{self.token}-token"

    def judge(self, children: Collection[str], now: float) -> Verdict:
        """
        Return what the reservation means for another task of its key, at `now`, in seconds since 1970.

        Only a publisher of that key asks. There is no timer and no cleanup job.
        """
        if workers(children):
            return Verdict.LIVE
        if self.state is State.PUBLISHING:
            return Verdict.SENDING if publishers(children) else Verdict.DEAD
        if self.until is not None and now > self.until:
            return Verdict.DEAD
        if self.state is State.STARTED and not self.late:
            return Verdict.DEAD  # its worker died, and the broker will not deliver it again
        return Verdict.LIVE


_KNOWN: Final = frozenset(("version", *Reservation.__dataclass_fields__)) - {"unknown"}


def directory(base: str) -> str:
    """Return the path of the directory of all reservations."""
    return path(base, DIRECTORY)


def path_of(base: str, key: str) -> str:
    """Return the path of the reservation of a key. All keys have different paths, none below another."""
    return path(directory(base), key.replace("/", _SLASH))


def is_key(text: object) -> TypeGuard[str]:
    """Return whether this can be the key of a reservation. A header of a message may have anything instead of one."""
    return isinstance(text, str) and 0 < len(text) <= 2 * MAX_KEY and text.isascii() and text.isprintable()


def key_of(name: str) -> str:
    """Return the key whose reservation has this name, the reverse of `path_of`."""
    return show_tails(name.replace(_SLASH, "/"))


def publisher(token: str, session_id: int) -> str:
    """Return the name of a publisher's child. It differs in each session, because the old child may still be there."""
    return f"{token}-{session_id & 0xFFFFFFFFFFFFFFFF:016x}{_PUBLISHER}"


def worker(attachment: str, session_id: int) -> str:
    """Return the name of a worker's child."""
    return f"{attachment}-{session_id & 0xFFFFFFFFFFFFFFFF:016x}{_WORKER}"


def publishers(children: Collection[str]) -> list[str]:
    """Return the children of publishers."""
    return [name for name in children if name.endswith(_PUBLISHER)]


def workers(children: Collection[str], attachment: str = "") -> list[str]:
    """Return the children of workers, or those of one attachment."""
    return [name for name in children if name.endswith(_WORKER) and name.startswith(attachment)]
