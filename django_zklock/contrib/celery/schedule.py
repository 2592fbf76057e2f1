"""The last run of each entry of a schedule: one znode, which only the leading beat can write."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeAlias

from celery.utils.time import maybe_make_aware
from django.core.exceptions import ImproperlyConfigured

from django_zklock.core import clock
from django_zklock.core.log import Logger
from django_zklock.core.queue.escaping import escape
from django_zklock.core.queue.record import unknown_fields
from django_zklock.core.queue.untrusted import integer, iso_time, json_object
from django_zklock.core.zk import process
from django_zklock.core.zk.errors import ZkError
from django_zklock.core.zk.gateway import DirectoryState
from django_zklock.core.zk.multi import Create, SetData
from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable
from django_zklock.locks.hold import Hold, held_of
from django_zklock.locks.requests import UNKNOWN, Commit, Decide, Done, FenceGone, OptimisticUpdate, Step, run

logger = Logger("django_zklock.beat")

Entry: TypeAlias = Any
"""A `celery.beat.ScheduleEntry`. Its stubs say that an entry may have no name, so it is not typed as that."""

FOLDER = "!beat"  # below the base. No key of a lock contains a "!"
PAUSE = 0.1  # seconds between two requests while ZooKeeper is away and the lease still lasts
LARGEST = 900_000  # bytes, about 10,000 entries; ZooKeeper refuses a request of 1 MB
RENEW_EVERY = 30.0  # seconds between two signs of life; a sleeping leader gives the next one when it wakes up
FORGET_AFTER = timedelta(days=7)  # how long an entry that was removed is remembered after its last run


_KNOWN = frozenset(("version", "token", "runs"))


class LeadershipLost(BaseException):
    """
    This process no longer leads the schedule.

    It is not an `Exception`, because schedulers continue after those.
    """


@dataclass(frozen=True, slots=True)
class Run:
    """The last run of an entry."""

    at: datetime  # in UTC, by the clock of the leader that recorded it
    count: int  # of the runs so far


class ScheduleRecords:
    """
    The runs of one schedule, as its leader reads and writes them.

    While ZooKeeper is not available, a method blocks, at most until the lease ends. It raises `LeadershipLost` as soon
    as this process no longer leads.
    """

    def __init__(self, hold: Hold, base: str, schedule: str) -> None:
        self.hold = hold
        self._session = process.current()
        self._path = f"{base}/{FOLDER}/{escape(schedule, what='the name of the schedule')}"
        self._runs: dict[str, Run] = {}  # by the name of the entry
        self._version: int | None = None  # of the znode; None: there is none yet
        self._unknown: dict[str, Any] = {}  # the fields of later releases, which each later record keeps
        self._renew_at = 0.0  # on `clock.now()`

    def load(self) -> None:
        """Read what earlier leaders have recorded."""
        state = self._ask(lambda state, session_id: Done(state))
        if state is not None:
            self._version = state.version
            self._runs = self._decode(state.data)

    def adopt(self, entries: Iterable[Entry]) -> None:
        """Continue these entries from their runs. Runs of other entries are forgotten after a week."""
        before = datetime.now(UTC) - FORGET_AFTER
        runs = {name: run for name, run in self._runs.items() if run.at > before}
        for entry in entries:
            name = str(entry.name)
            if name in self._runs:
                runs[name] = self._runs[name]
                continue_from(entry, runs[name])
            else:
                runs[name] = Run(_utc(entry.last_run_at), entry.total_run_count)
        if runs != self._runs:
            self._write(runs)

    def record_run(self, entry: Entry) -> Run:
        """Record the run of this entry that is due now. From then on no other process can send it."""
        last = self._runs.get(str(entry.name))
        count = entry.total_run_count if last is None else last.count
        # The next `last_run_at`; `default_now` is another time for some rows.
        run = Run(_utc(entry._default_now()), count + 1)
        self._write({**self._runs, str(entry.name): run})
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

    def _decode(self, data: bytes) -> dict[str, Run]:
        now = datetime.now(UTC)
        fields = json_object(data, LARGEST)
        self._unknown = unknown_fields(fields, _KNOWN)
        try:
            # A clock that is ahead must not delay an entry until the others have caught up.
            return {name: Run(min(iso_time(at), now), integer(count)) for name, (at, count) in fields["runs"].items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            logger.warning("the record %r cannot be read and is ignored", self._path)
            return {}

    def _write(self, runs: dict[str, Run]) -> None:
        """Write all runs in one transaction, which needs the znode of this leader."""
        texts = {name: (run.at.isoformat(), run.count) for name, run in runs.items()}
        # The token as a text: it has 64 bits, and many readers of JSON have 53.
        known = {"version": 1, "token": str(self.hold.token), "runs": texts}
        data = json.dumps(known | self._unknown).encode()
        if len(data) > LARGEST:
            raise ImproperlyConfigured(f"The schedule has {len(runs)} entries, too many for one znode.")
        version = self._version
        guess = None if version is None else DirectoryState(path=self._path, data=b"", version=version, children=())
        self._version = self._ask(partial(self._step, data), guess)
        if self._version is None:
            raise LeadershipLost("another process has written the records of the schedule")
        self._runs = runs

    def _step(self, data: bytes, state: DirectoryState | None, session_id: int) -> Step:
        if state is None and self._version is None:
            return Commit((Create(path=self._path, data=data),), 0)
        if state is not None and state.data == data:  # by a request whose reply was lost
            return Done(state.version)
        if state is None or state.version != self._version:
            return Done(None)  # by another process
        return Commit((SetData(path=self._path, data=data, version=state.version),), state.version + 1)

    def _ask(self, decide: Decide, guess: object = UNKNOWN) -> Any:
        """Return what `decide` ends with; ask again while ZooKeeper is away and the lease lasts."""
        while True:
            self.check()
            update = OptimisticUpdate(self._session, self._path, decide, guess=guess, fence=self.hold.path)
            try:
                return run(update, clock.now() + max(PAUSE, self.hold.lease_remaining))
            except FenceGone as error:
                raise LeadershipLost("the znode of this leader is gone") from error
            except ZkLockError as error:
                if isinstance(error, ZkError) or not isinstance(error, ZooKeeperUnavailable):
                    raise LeadershipLost(str(error)) from error
                self.hold.wait_lost(PAUSE)


def continue_from(entry: Entry, run: Run) -> None:
    """
    Continue an entry from its record, not from what the scheduler of this process believes.

    A row of django-celery-beat that was saved later keeps its count, and its last run if that is later than the
    record's: the entry may have been disabled for a while. Then django-celery-beat takes that of the change for it.
    """
    model: Any = getattr(entry, "model", None)
    saved_at = getattr(model, "date_changed", None)
    # Without a time zone it is a local time, as Django writes it. Celery reads a `last_run_at` without one as UTC.
    is_saved_later = saved_at is not None and run.count and saved_at.astimezone(UTC) > run.at
    if not is_saved_later or (saved_at != entry.last_run_at and _utc(entry.last_run_at) < run.at):
        entry.last_run_at = _like(entry.last_run_at, run.at)
    if not is_saved_later:
        entry.total_run_count = run.count
        if model is not None:
            model.total_run_count = run.count  # a one-off entry counts its runs here


def _utc(moment: datetime) -> datetime:
    return maybe_make_aware(moment).astimezone(UTC)  # Celery treats a time without a zone as UTC


def _like(pattern: datetime, moment: datetime) -> datetime:
    return moment.astimezone(pattern.tzinfo) if pattern.tzinfo is not None else moment.replace(tzinfo=None)
