"""Knows which ticks of a schedule were taken: one record in ZooKeeper for each entry, written by the leader only."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any, TypeAlias

from celery.utils.time import maybe_make_aware

from django_zklock.exceptions import InvalidLockName, ZkLockError, ZooKeeperUnavailable
from django_zklock.locks.hold import Hold
from django_zklock.queue.segments import escape
from django_zklock.zk.errors import NodeMissing, ZkError
from django_zklock.zk.gateway import Callback, DirectoryState, Gateway, NamesReply, Node
from django_zklock.zk.multi import Check, Create, Delete, SetData
from django_zklock.zk.requests import Commit, Done, FenceGone, OptimisticUpdate, Step, call, run_all

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
    def decode(cls, node: Node) -> Tick | None:
        """Return the tick in a record, or None if it is none of ours."""
        try:
            found = json.loads(node.data)
            return cls(
                entry=str(found["entry"]),
                at=datetime.fromisoformat(found["last_run_at"]).astimezone(timezone.utc),
                count=int(found["total_run_count"]),
                token=int(found["token"]),
                leader=str(found["leader"]),
                version=node.version,
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
        self._folder = f"{base}/{FOLDER}/{escape(schedule, what='the name of the schedule')}"
        self._leader = f"{socket.gethostname()}:{os.getpid()}"
        self._ticks: dict[str, Tick] = {}  # by the name of their node

    def load(self) -> None:
        """Read what former leaders have recorded."""
        found = self._ask(lambda deadline: call(self._session, self._read_all, deadline))
        now = datetime.now(timezone.utc)
        for node in found.values():
            tick = Tick.decode(node)
            if tick is None:
                logger.warning("the record %r cannot be read and counts as none", node.path)
                tick = Tick(entry="", at=now, count=0, version=node.version)
            # A clock that goes ahead must not keep the entry waiting until the others have caught up.
            self._ticks[node.name] = replace(tick, at=min(tick.at, now))

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
                operations = (Check(path=self.hold.path), Delete(path=f"{self._folder}/{name}", version=tick.version))
                self._session.post(self._session.attached(Gateway).commit, operations, lambda reply: None)

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

    def _read_all(self, gateway: Gateway, done: Callback[dict[str, Node] | ZkError]) -> None:
        def on_listed(reply: NamesReply) -> None:
            if isinstance(reply, NodeMissing):
                done({})
            elif isinstance(reply, ZkError):
                done(reply)
            else:
                gateway.read_all([f"{self._folder}/{name}" for name in reply], done)

        gateway.children(self._folder, on_listed)

    def _write(self, ticks: dict[str, Tick]) -> None:
        versions = self._ask(
            lambda deadline: run_all([self._update(name, tick) for name, tick in ticks.items()], deadline)
        )
        if None in versions:
            raise Demoted("another process has written the records of the schedule")
        for (name, tick), version in zip(ticks.items(), versions, strict=True):
            self._ticks[name] = replace(tick, version=version)

    def _update(self, name: str, tick: Tick) -> OptimisticUpdate:
        """Return the update of a record. Its value is the new version, or None if another process has written it."""
        path = f"{self._folder}/{name}"
        data = tick.encode()

        def decide(found: DirectoryState | None, session_id: int) -> Step:
            if found is None:
                return Commit((Create(path=path, data=data),), 0) if tick.version is None else Done(None)
            if found.data == data:  # by a request whose reply was lost
                return Done(found.version)
            if found.version != tick.version:
                return Done(None)
            return Commit((SetData(path=path, data=data, version=found.version),), found.version + 1)

        guess = None
        if tick.version is not None:
            guess = DirectoryState(path=path, data=b"", version=tick.version, children=())
        return OptimisticUpdate(self._session, path, decide, guess=guess, fence=self.hold.path)

    def _ask(self, request: Callable[[float], Any]) -> Any:
        """Return the reply to a request with a deadline; repeat it while ZooKeeper is away and the lease lasts."""
        while True:
            self.check()
            try:
                reply = request(time.monotonic() + max(PAUSE, self.hold.lease_remaining))
            except ZooKeeperUnavailable:
                self.hold.wait_lost(PAUSE)
                continue
            except FenceGone as error:
                raise Demoted("the znode of this leader is gone") from error
            except ZkLockError as error:
                raise Demoted(str(error)) from error
            if isinstance(reply, ZkError):
                raise Demoted(str(reply)) from reply
            return reply


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
