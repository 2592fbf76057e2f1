"""Knows which ticks of a schedule were taken: one record in ZooKeeper for each entry, written by the leader only."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any, TypeAlias

from celery.utils.time import maybe_make_aware

from django_zklock.exceptions import InvalidLockName
from django_zklock.execution.waiters import ThreadWaiter
from django_zklock.locks.hold import Hold
from django_zklock.locks.protocol.registry import Registry
from django_zklock.queue.segments import escape
from django_zklock.zk.errors import OutcomeUnknown, ZkError
from django_zklock.zk.records import FenceGone, Record, RecordChanged, Records, Write

logger = logging.getLogger("django_zklock.beat")

Entry: TypeAlias = Any
"""A `celery.beat.ScheduleEntry`; typed as anything, because to its stubs an entry in a schedule may lack a name."""

FOLDER = "!beat"  # below the base; no key of a lock has this character, as it would be escaped
PAUSE = 0.1  # seconds between two requests while ZooKeeper is away and the lease still lasts
FORGET_AFTER = timedelta(days=7)  # for how long the record of an entry that is in the schedule no more is kept


class Demoted(BaseException):
    """
    This process leads the schedule no more.

    It is no `Exception`, as schedulers go on after any of those.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """The last tick of an entry that was taken."""

    entry: str
    at: datetime  # in UTC, by the clock of the one that took it
    count: int  # of the ticks so far
    token: int = 0  # of the leader that took it; 0: none was taken yet
    leader: str = ""
    version: int | None = None  # of the record; None: there is none yet

    def encode(self) -> bytes:
        """Return it as JSON."""
        known = {"version": 1, "entry": self.entry, "last_run_at": self.at.isoformat(), "total_run_count": self.count}
        # As a text: the token has 64 bits, and many readers of JSON have 53.
        return json.dumps({**known, "token": str(self.token), "leader": self.leader}).encode()

    @classmethod
    def decode(cls, record: Record) -> Tick | None:
        """Return the tick in a record, or None if it is none of ours."""
        try:
            found = json.loads(record.data)
            return cls(
                entry=str(found["entry"]),
                at=datetime.fromisoformat(found["last_run_at"]).astimezone(timezone.utc),
                count=int(found["total_run_count"]),
                token=int(found["token"]),
                leader=str(found["leader"]),
                version=record.version,
            )
        except (ValueError, KeyError, TypeError, RecursionError):
            return None


class Ledger:
    """
    The ticks of one schedule, in the hands of its leader.

    Each method may take as long as ZooKeeper is away, but no longer than the lease lasts, and raises `Demoted` as soon
    as this process leads no more.
    """

    def __init__(self, hold: Hold, base: str, schedule: str) -> None:
        self.hold = hold
        self._session = hold._grant.session
        self._records = Records(self._session.attached(Registry).gateway)
        self._folder = f"{base}/{FOLDER}/{escape(schedule, what='the name of the schedule')}"
        self._leader = f"{socket.gethostname()}:{os.getpid()}"
        self._ticks: dict[str, Tick] = {}  # by the name of their node

    def load(self) -> None:
        """Read what former leaders have recorded."""
        found = self._ask(self._records.read_below, self._folder)
        now = datetime.now(timezone.utc)
        for name, record in found.items():
            tick = Tick.decode(record)
            if tick is None:
                logger.warning("the record %s/%s cannot be read and counts as none", self._folder, name)
                tick = Tick(entry="", at=now, count=0, version=record.version)
            # A clock that goes ahead must not keep the entry waiting until the others have caught up.
            self._ticks[name] = replace(tick, at=min(tick.at, now))

    def adopt(self, entries: Iterable[Entry]) -> None:
        """Have these entries go on where their records say, and begin a record for each that has none."""
        new = {}
        for entry in entries:
            name = _node_of(entry)
            tick = self._ticks.get(name)
            if tick is None:
                new[name] = Tick(entry=entry.name, at=_utc(entry.last_run_at), count=entry.total_run_count)
            else:
                go_on(entry, tick)
        if new:
            self._write(new)

    def prune(self, entries: Iterable[Entry]) -> None:
        """Forget entries that have not been in the schedule for a week."""
        kept = {_node_of(entry) for entry in entries}
        before = datetime.now(timezone.utc) - FORGET_AFTER
        for name, tick in list(self._ticks.items()):
            if name not in kept and tick.at < before and tick.version is not None:
                del self._ticks[name]
                path = f"{self._folder}/{name}"
                self._session.post(self._records.delete, self.hold.path, path, tick.version, lambda answer: None)

    def take(self, entry: Entry) -> Tick:
        """Record that the tick of this entry that is due now is about to be sent; no other process can send it then."""
        name = _node_of(entry)
        last = self._ticks.get(name)
        count = last.count if last is not None else entry.total_run_count
        tick = Tick(
            entry=entry.name,
            at=_utc(entry.default_now()),
            count=count + 1,
            token=self.hold.token,
            leader=self._leader,
            version=last.version if last is not None else None,
        )
        self._write({name: tick})
        return tick

    def check(self) -> None:
        """Raise `Demoted` unless this process leads now."""
        if self.hold.lost:
            raise Demoted(self.hold._grant.why_invalid() or "the lock was released")

    # --- small parts --------------------------------------------------------------------------------------------

    def _write(self, ticks: dict[str, Tick]) -> None:
        writes = [Write(f"{self._folder}/{name}", tick.encode(), tick.version) for name, tick in ticks.items()]
        try:
            self._ask(self._records.write, self.hold.path, writes)
        except RecordChanged:
            # Perhaps by an earlier request of our own, whose answer was lost.
            found = self._ask(self._records.read, [write.path for write in writes])
            if any(found.get(write.path, _NOTHING).data != write.data for write in writes):
                raise Demoted("somebody else has written the records of the schedule") from None
            for name in ticks:
                self._ticks[name] = replace(ticks[name], version=found[f"{self._folder}/{name}"].version)
            return
        for name, tick in ticks.items():
            self._ticks[name] = replace(tick, version=0 if tick.version is None else tick.version + 1)

    def _ask(self, call: Callable[..., None], *args: Any) -> Any:
        """Return the answer to a request, sent again for as long as its outcome is unknown and the lease lasts."""
        while True:
            self.check()
            waiter: ThreadWaiter[tuple[Any]] = ThreadWaiter()
            self._session.post(call, *args, lambda answer, waiter=waiter: waiter.set((answer,)))
            answered = waiter.wait(self._session.timeout)
            answer = OutcomeUnknown() if answered is None else answered[0]
            if isinstance(answer, FenceGone):
                raise Demoted("the own node in the queue is gone") from answer
            if not isinstance(answer, ZkError):
                return answer
            if isinstance(answer, RecordChanged):
                raise answer
            if not isinstance(answer, OutcomeUnknown):
                raise Demoted(str(answer)) from answer
            self.hold.wait_lost(PAUSE)


_NOTHING = Record(b"", 0)


def go_on(entry: Entry, tick: Tick) -> None:
    """
    Have an entry go on where its record says, not where the scheduler of this process believes it to be.

    A row of django-celery-beat that was saved since may know better: it was switched off for a while, say.
    """
    model: Any = getattr(entry, "model", None)
    saved_at = getattr(model, "date_changed", None)
    if saved_at is None or not tick.count or _utc(saved_at) <= tick.at:
        entry.last_run_at = _like(entry.last_run_at, tick.at)
        entry.total_run_count = tick.count
        if model is not None:
            model.total_run_count = tick.count  # by which a one-off entry knows that it had its turn
    elif _utc(entry.last_run_at) < tick.at:
        entry.last_run_at = _like(entry.last_run_at, tick.at)


def _node_of(entry: Entry) -> str:
    try:
        return escape(entry.name)
    except InvalidLockName:  # too long once escaped, say: any text may name an entry
        return f"{hashlib.sha256(entry.name.encode('utf-8', 'surrogatepass')).hexdigest()}.sha256"


def _utc(moment: datetime) -> datetime:
    return maybe_make_aware(moment).astimezone(timezone.utc)  # one without a zone is in UTC, to Celery


def _like(pattern: datetime, moment: datetime) -> datetime:
    return moment.astimezone(pattern.tzinfo) if pattern.tzinfo is not None else moment.replace(tzinfo=None)
