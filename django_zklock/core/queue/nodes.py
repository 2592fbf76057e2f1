"""The znodes of contenders: the grammar of their names with their guids, and the payload in their data."""

from __future__ import annotations

import enum
import functools
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from django_zklock.core.errors import UnreadableQueue
from django_zklock.core.queue.escaping import MAX_REASON, SEQUENCE_TAIL, quoted
from django_zklock.core.queue.record import Record, line, lines, whole

MAX_PAYLOAD = 16 * 1024
"""Bytes that a payload of this release has at most: a character that prints has four."""

_SHORT = 40  # characters of a guid or a time; they have at most 36, and are useless when they are cut
_LONG = 200  # characters of the description of a work

_SEQUENCE = r"(?P<sequence>[0-9]{10}|-[0-9]{9}|-[1-9][0-9]{9})"
_CURATOR = re.compile(
    r"_c_(?P<guid>[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})-(?P<recipe>lock-|__READ__|__WRIT__|lease-)"
    + _SEQUENCE
)
_LATCH = re.compile(r"_c_[0-9a-fA-F-]{36}-latch-" + _SEQUENCE)
_KAZOO = re.compile(r"(?P<guid>[0-9a-f]{32})(?P<recipe>__lock__|__rlock__)" + _SEQUENCE)

_GUID_VERSION: Final = "8"  # of the UUID: "custom" by RFC 9562, which no client generates by chance
_GUID_VERSION_INDEX: Final = 12  # among the hexadecimal digits


class Mark(enum.Enum):
    """The first characters of a guid. The version alone is not enough: another program may use it, too."""

    OWN = "0c1a"
    """A contender of this package."""
    REPLACEABLE = "0e57"
    """A contender of this package. At its release, an operator hold with its sequence number may replace its znode."""
    OPERATOR = "0be7"
    """An operator hold."""


_MARKS: Final = {mark.value: mark for mark in Mark}


class Kind(enum.Enum):
    """The request of a contender: the exclusive lock, one side of a read-write lock, or a permit of a semaphore."""

    LOCK = "lock-"
    READ = "__READ__"
    WRITE = "__WRIT__"
    PERMIT = "lease-"

    __hash__ = object.__hash__  # that of `Enum` runs Python code, and a scan asks thousands of times

    @property
    def word(self) -> str:
        """The name of the kind in views and messages."""
        return _WORDS[self]


_WORDS = {Kind.LOCK: "lock", Kind.READ: "read", Kind.WRITE: "write", Kind.PERMIT: "semaphore"}
# kazoo gives the same name to an exclusive lock and to the write side of a read-write lock. Both exclude all others.
_KINDS = {**{kind.value: kind for kind in Kind}, "__lock__": Kind.LOCK, "__rlock__": Kind.READ}
_KAZOO_NAMES = {Kind.LOCK: "__lock__", Kind.WRITE: "__lock__", Kind.READ: "__rlock__"}
_CURATOR_START = "_c_"


class Child(NamedTuple):
    """A contender, as described by the name of its znode."""

    name: str
    kind: Kind
    guid: str
    sequence: int

    @property
    def replaceable(self) -> bool:
        """True if the next contender must list again after its delete: an operator hold may have replaced it."""
        return mark_of(self.guid) is Mark.REPLACEABLE

    @property
    def by_us(self) -> bool:
        """Whether a process with this package created it, in any grammar."""
        return mark_of(self.guid) is not None

    @property
    def in_grammar_of_curator(self) -> bool:
        """Whether its name is in the grammar of Apache Curator."""
        return self.name.startswith(_CURATOR_START)

    @property
    def by_curator(self) -> bool:
        """Whether Apache Curator created it."""
        return self.in_grammar_of_curator and not self.by_us


def new_guid(mark: Mark, digits: str = "") -> str:
    """Return a guid with this mark, as a UUID of 36 characters. It is new, or made of 32 hexadecimal digits."""
    digits = digits or uuid.uuid4().hex
    return f"{mark.value}{digits[4:8]}-{digits[8:12]}-{_GUID_VERSION}{digits[13:16]}-{digits[16:20]}-{digits[20:]}"


def mark_of(guid: str) -> Mark | None:
    """Return the mark of a guid, with or without dashes; None if it is a guid of another client."""
    index = _GUID_VERSION_INDEX + 2 if len(guid) > 32 else _GUID_VERSION_INDEX
    return _MARKS.get(guid[:4]) if guid[index : index + 1] == _GUID_VERSION else None


def prefix(guid: str, kind: Kind = Kind.LOCK, compat: str | None = None) -> str:
    """
    Return the name to create a contender with; the server appends the sequence number.

    This is Apache Curator's grammar (its protected mode), so that its `InterProcessMutex` and
    `InterProcessReadWriteLock` share the queue. With compat="kazoo" it is that of kazoo, which cannot see Curator's.
    `guid` is a UUID of 36 characters. By it, the znode is found if the reply to the create was lost.
    """
    if compat == "kazoo":
        return f"{guid.replace('-', '')}{_KAZOO_NAMES[kind]}"
    return f"{_CURATOR_START}{guid}-{kind.value}"


def has_guid(name: str, guid: str) -> bool:
    """Return whether a znode's name has this guid, for a contender of any kind and in any grammar."""
    return name.startswith((f"{_CURATOR_START}{guid}-", f"{guid.replace('-', '')}__"))


@functools.lru_cache(maxsize=4096)
def parse(name: str) -> Child | None:
    """
    Return the contender with this name, or None for a name without a sequence number.

    Such a name is the directory of a nested key, or a marker. The names of Curator and kazoo are known. Raises
    `UnreadableQueue` for any other name with a sequence number. If a contender were ignored, the lock might be granted
    twice.

    Results are cached, because a waiter sees the same names again and again.
    """
    match = _CURATOR.fullmatch(name) or _KAZOO.fullmatch(name)
    if match is None:
        if SEQUENCE_TAIL.search(name):
            raise _unreadable(name)
        return None
    # The sequence is matched, never split off at a dash: `-lock-0000000005` is 5, `-lock--000000005` is -5.
    kind, guid, sequence = match.group("recipe", "guid", "sequence")
    child = Child(name, _KINDS[kind], guid, int(sequence))
    if child.kind is Kind.PERMIT and not child.by_us:
        raise UnreadableQueue(
            f"The queue of the lock holds {quoted(name)}, a lease of a semaphore of Apache Curator. Semaphores cannot "
            "share a queue with other clients. Give one of the programs another path."
        )
    return child


def _unreadable(name: str) -> UnreadableQueue:
    if _LATCH.fullmatch(name):
        return UnreadableQueue(
            f"The queue of the lock holds {quoted(name)}, of a LeaderLatch of Apache Curator. It waits for no other "
            "znodes, so both might lead. Give that program another path, or let it use Curator's LeaderSelector, which "
            "shares a queue with zk_leader."
        )
    return UnreadableQueue(
        f"The queue of the lock holds {quoted(name)}, which no known client writes. So the order of the queue "
        "is unknown. Find out which program created it, and delete it or give that program another path."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload(Record):
    """The description of a contender, for people who look at the queue. It never has the arguments of a call."""

    guid: str = line(_SHORT)
    host: str = line(100)
    pid: int = whole()
    thread: str = line(100)
    what: str = line(_LONG)
    """The work: the name of a view, or the name and id of a task."""
    since: str = line(_SHORT)
    """When the contender entered the queue: ISO 8601 in UTC, by the clock of its host."""
    template: str = line(_LONG)
    limit: int = whole()
    """The limit in the code of this contender; 0 if it wants no permit."""
    owner: int = whole()
    """The number of its thread, greenlet or asyncio task, unique in its session; 0 if unknown."""
    max_hold: int = whole()
    """Milliseconds after which a holder loses the lock by itself; 0 if it does not."""
    warn_after: int = whole()
    """Milliseconds after which a hold is long; 0 if its options do not say so."""
    session_timeout: int = whole()
    """The timeout of its session, in milliseconds: ZooKeeper ends the session when it has heard nothing for so long."""
    idle: str = line(_SHORT)
    """Since when a lock that lingers is idle, in the form of `since`; empty if it is in use."""
    waited: int = whole()
    """Milliseconds from the creation of the znode to the grant. A holder writes it after a second; 0 before that."""
    lasts: str = line(_SHORT)
    """ "leader", "run" or "lease" if it is meant to hold the lock for as long as its program runs; else empty."""
    renewed_within: int = whole()
    """Milliseconds from the last write of the payload, within which its work writes it again; 0 if it does not."""
    about: Mapping[str, str] = lines(8, 255)
    """The work of `what`, item by item, for programs. A task has "task", "id", "queue" and "retries". A view has
    "request": its method and route. With traces, there are "trace" and "span", see `locks.trace`. By the id, a task
    finds its own run before: ids have at most 255 characters."""
    release_request: Mapping[str, str] = lines(4, MAX_REASON)
    """The release request to this holder, if there is one; see `queue.release_request`."""
    waits_for: Mapping[str, str] = lines(8, 1000)
    """The wait of the owner of this lock for another one, see `queue.deadlock`. A key has at most 1000 characters."""

    @classmethod
    def decode(cls, data: bytes | None) -> Payload | None:
        """
        Return the payload in `data`, or None if it is not one of ours. Never raises.

        Curator writes an IP address, kazoo a line of text, and other clients may write anything.
        """
        payload = cls.read(data)
        return payload if payload.guid else None


def own_limit(data: bytes) -> int:
    """Return the limit in the code of the contender with this data; 1 if it has none."""
    payload = Payload.decode(data)
    return max(1, payload.limit) if payload is not None else 1
