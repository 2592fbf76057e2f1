"""The records of a schedule's runs: one znode for each entry, which only the leading beat can write."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import accumulate, groupby
from typing import Any, TypeAlias

from celery.utils.time import maybe_make_aware

from django_zklock.core import clock
from django_zklock.core.log import Logger
from django_zklock.core.protocol.story import Story, StoryRun
from django_zklock.core.queue.escaping import escape
from django_zklock.core.queue.nodes import unknown_fields, with_unknown
from django_zklock.core.queue.untrusted import digits, integer, iso_time, json_object, text
from django_zklock.core.zk import process
from django_zklock.core.zk.errors import NodeMissing, ZkError
from django_zklock.core.zk.gateway import DirectoryState, Node
from django_zklock.core.zk.multi import Check, Create, Delete, SetData
from django_zklock.exceptions import InvalidLockName, ZkLockError, ZooKeeperUnavailable
from django_zklock.locks.hold import Hold, held_of
from django_zklock.locks.requests import Commit, Done, FenceGone, OptimisticUpdate, Step, run_all

logger = Logger("django_zklock.beat")

Entry: TypeAlias = Any
"""A `celery.beat.ScheduleEntry`. Its stubs say that an entry may have no name, so it is not typed as that."""

FOLDER = "!beat"  # below the base. No key of a lock contains a "!"
PAUSE = 0.1  # seconds between two requests while ZooKeeper is away and the lease still lasts
BATCH = 200_000  # bytes of one transaction, about 350 records; ZooKeeper refuses a request of 1 MB
RENEW_EVERY = 30.0  # seconds between two signs of life; a sleeping leader gives the next one when it wakes up
FORGET_AFTER = timedelta(days=7)  # how long the record of a removed entry stays after its last run


class LeadershipLost(BaseException):
    """
    This process no longer leads the schedule.

    It is not an `Exception`, because schedulers continue after those.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The last run of an entry."""

    entry: str
    at: datetime  # in UTC, by the clock of the leader that recorded it
    count: int  # of the runs so far
    token: int = 0  # fencing token of that leader; 0: no run was recorded yet
    leader: str = ""
    version: int | None = None  # of the znode; None: there is none yet
    unknown: bytes = b""  # the fields of later releases, which each later record of the entry keeps

    def encode(self) -> bytes:
        """Return it as JSON."""
        known = {"version": 1, "entry": self.entry, "last_run_at": self.at.isoformat(), "total_run_count": self.count}
        # As a text: the token has 64 bits, and many readers of JSON have 53.
        data = json.dumps({**known, "token": str(self.token), "leader": self.leader}).encode()
        return with_unknown(data, self.unknown)

    def header(self) -> dict[str, str | int]:
        """Return the header of the run's message."""
        return {"entry": self.entry, "tick": self.count, "token": self.token}

    @classmethod
    def decode(cls, node: Node) -> RunRecord | None:
        """Return the run in a record; None if the record cannot be read."""
        try:
            fields = json_object(node.data)
            return cls(
                entry=text(str(fields["entry"]), surrogates=True),  # a project may name it by a number, too
                at=iso_time(fields["last_run_at"]),
                count=integer(fields["total_run_count"]),
                token=digits(fields["token"]),
                leader=text(fields["leader"]),
                version=node.version,
                unknown=unknown_fields(fields, _KNOWN),
            )
        except (ValueError, KeyError):
            return None


_KNOWN = frozenset(("version", "entry", "last_run_at", "total_run_count", "token", "leader"))


class ScheduleRecords:
    """
    The records of one schedule, as its leader reads and writes them.

    While ZooKeeper is not available, a method blocks, at most until the lease ends. It raises `LeadershipLost` as soon
    as this process no longer leads.
    """

    def __init__(self, hold: Hold, base: str, schedule: str) -> None:
        self.hold = hold
        self._session = process.current()
        self._folder = f"{base}/{FOLDER}/{escape(schedule, what='the name of the schedule')}"
        self._leader = f"{socket.gethostname()}:{os.getpid()}"
        self._runs: dict[str, RunRecord] = {}  # by the name of their node
        self._renew_at = 0.0  # on `clock.now()`

    def load(self) -> None:
        """Read what earlier leaders have recorded."""
        (nodes,) = self._ask(lambda: [StoryRun(self._session, self._read_all)])
        now = datetime.now(timezone.utc)
        for node in nodes.values():
            run = RunRecord.decode(node)
            if run is None:
                logger.warning("the record %r cannot be read and is ignored", node.path)
                run = RunRecord(entry="", at=now, count=0, version=node.version)
            # A clock that is ahead must not delay the entry until the others have caught up.
            self._runs[node.name] = replace(run, at=min(run.at, now))

    def adopt(self, entries: Iterable[Entry]) -> None:
        """Continue these entries from their records, and create a record for each that has none."""
        new = {}
        for entry in entries:
            name = _node_of(entry)
            run = self._runs.get(name)
            if run is None:
                new[name] = RunRecord(entry=entry.name, at=_utc(entry.last_run_at), count=entry.total_run_count)
            else:
                continue_from(entry, run)
        for batch in _batches(new):
            self._create(batch)

    def prune(self, entries: Iterable[Entry]) -> None:
        """Delete the records of entries that are not in the schedule and have not run for a week."""
        kept = {_node_of(entry) for entry in entries}
        before = datetime.now(timezone.utc) - FORGET_AFTER
        old = {name: run for name, run in self._runs.items() if name not in kept and run.at < before}
        for batch in _batches(old):  # the next leader deletes those of a batch that fails
            deletes = [Delete(path=f"{self._folder}/{name}", version=run.version or 0) for name, run in batch.items()]
            operations = (Check(path=self.hold.path), *deletes)
            self._session.post(self._session.gateway.commit, operations)
        self._runs = {name: run for name, run in self._runs.items() if name not in old}

    def record_run(self, entry: Entry) -> RunRecord:
        """Record the run of this entry that is due now. From then on no other process can send it."""
        name = _node_of(entry)
        last = self._runs.get(name)
        count = last.count if last is not None else entry.total_run_count
        run = RunRecord(
            entry=entry.name,
            at=_utc(entry._default_now()),  # the next `last_run_at`; `default_now` is another time for some rows
            count=count + 1,
            token=self.hold.token,
            leader=self._leader,
            version=last.version if last is not None else None,
            unknown=last.unknown if last is not None else b"",
        )
        self._write({name: run})
        return run

    def check(self) -> None:
        """Raise `LeadershipLost` unless this process leads now."""
        if self.hold.lost:
            raise LeadershipLost(held_of(self.hold).grant.why_invalid() or "the lock was released")

    def renew(self, pause: float) -> None:
        """
        Give a sign of life to those who look at the queue, if it is time: the next tick comes in `pause` seconds.

        It is one write of the leader's znode in `RENEW_EVERY` seconds at most. One that fails is not missed yet.
        """
        now, every = clock.now(), max(pause, RENEW_EVERY)
        if now + pause >= self._renew_at:
            self._renew_at = now + every
            within = round((2 * every + RENEW_EVERY) * 1000)
            contender: Any = held_of(self.hold).contender  # a leader never lingers
            self._session.post(contender.describe, {"renewed_within": within})

    # --- requests -----------------------------------------------------------------------------------------------

    def _read_all(self) -> Story[dict[str, Node]]:
        gateway = self._session.gateway
        try:
            names: list[str] = yield partial(gateway.children, self._folder)
        except NodeMissing:
            yield partial(gateway.ensure_path, self._folder)
            return {}
        nodes: dict[str, Node] = yield partial(gateway.read_all, [f"{self._folder}/{name}" for name in names])
        return nodes

    def _create(self, runs: dict[str, RunRecord]) -> None:
        """Create records in one transaction; one by one if that fails, or if its reply is lost."""
        (created,) = self._ask(lambda: [StoryRun(self._session, partial(self._create_all, runs))])
        if created:
            self._runs |= {name: replace(run, version=0) for name, run in runs.items()}
        else:
            self._write(runs)

    def _create_all(self, runs: dict[str, RunRecord]) -> Story[bool]:
        creates = [Create(path=f"{self._folder}/{name}", data=run.encode()) for name, run in runs.items()]
        try:
            yield partial(self._session.gateway.commit, (Check(path=self.hold.path), *creates))
        except ZkError:
            return False
        return True

    def _write(self, runs: dict[str, RunRecord]) -> None:
        versions = self._ask(lambda: [self._update(name, run) for name, run in runs.items()])
        if None in versions:
            raise LeadershipLost("another process has written the records of the schedule")
        for (name, run), version in zip(runs.items(), versions, strict=True):
            self._runs[name] = replace(run, version=version)

    def _update(self, name: str, run: RunRecord) -> OptimisticUpdate:
        """Return the update of a record. Its value is the new version, or None if another process has written it."""
        path = f"{self._folder}/{name}"
        data = run.encode()

        def decide(state: DirectoryState | None, session_id: int) -> Step:
            if state is None:
                return Commit((Create(path=path, data=data),), 0) if run.version is None else Done(None)
            if state.data == data:  # by a request whose reply was lost
                return Done(state.version)
            if state.version != run.version:
                return Done(None)
            return Commit((SetData(path=path, data=data, version=state.version),), state.version + 1)

        guess = None if run.version is None else DirectoryState(path=path, data=b"", version=run.version, children=())
        return OptimisticUpdate(self._session, path, decide, guess=guess, fence=self.hold.path)

    def _ask(self, new_stories: Callable[[], Sequence[StoryRun]]) -> list[Any]:
        """Run stories, and new ones while ZooKeeper is away and the lease lasts. Return their values."""
        while True:
            self.check()
            try:
                return run_all(new_stories(), clock.now() + max(PAUSE, self.hold.lease_remaining))
            except FenceGone as error:
                raise LeadershipLost("the znode of this leader is gone") from error
            except ZkLockError as error:
                if isinstance(error, ZkError) or not isinstance(error, ZooKeeperUnavailable):
                    raise LeadershipLost(str(error)) from error
                self.hold.wait_lost(PAUSE)


def continue_from(entry: Entry, run: RunRecord) -> None:
    """
    Continue an entry from its record, not from what the scheduler of this process believes.

    A row of django-celery-beat that was saved later keeps its count, and its last run if that is later than the
    record's: the entry may have been disabled for a while. Then django-celery-beat takes that of the change for it.
    """
    model: Any = getattr(entry, "model", None)
    saved_at = getattr(model, "date_changed", None)
    # Without a time zone it is a local time, as Django writes it. Celery reads a `last_run_at` without one as UTC.
    is_saved_later = saved_at is not None and run.count and saved_at.astimezone(timezone.utc) > run.at
    if not is_saved_later or (saved_at != entry.last_run_at and _utc(entry.last_run_at) < run.at):
        entry.last_run_at = _like(entry.last_run_at, run.at)
    if not is_saved_later:
        entry.total_run_count = run.count
        if model is not None:
            model.total_run_count = run.count  # a one-off entry counts its runs here


def _batches(runs: dict[str, RunRecord]) -> Iterator[dict[str, RunRecord]]:
    """Yield the records in parts that one transaction can write. Each has a path and an access list, too."""
    ends = accumulate(len(run.encode()) + 400 for run in runs.values())
    for _, part in groupby(zip(runs.items(), ends, strict=True), lambda pair: pair[1] // BATCH):
        yield dict(item for item, _ in part)


def _node_of(entry: Entry) -> str:
    try:
        return escape(str(entry.name))
    except InvalidLockName:  # too long once escaped: any text may be the name of an entry
        return f"{hashlib.sha256(str(entry.name).encode('utf-8', 'surrogatepass')).hexdigest()}.sha256"


def _utc(moment: datetime) -> datetime:
    return maybe_make_aware(moment).astimezone(timezone.utc)  # Celery treats a time without a zone as UTC


def _like(pattern: datetime, moment: datetime) -> datetime:
    return moment.astimezone(pattern.tzinfo) if pattern.tzinfo is not None else moment.replace(tzinfo=None)
