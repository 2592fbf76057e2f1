"""
Cache snapshots, so that callers at the same time share one scan, and show the last one while ZooKeeper is away.

The cache belongs to the session and runs on its protocol's thread, so it needs no lock, and a forked child begins
without it. The locks are described on the callers' threads: with thousands of contenders that takes longer than a
heartbeat may be late.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from django_zklock import clock
from django_zklock.inspection.deadlocks import find_cycles, find_waits
from django_zklock.inspection.describe import describe
from django_zklock.inspection.held_since import HeldSince, HeldSinceTracker
from django_zklock.inspection.info import LockInfo, Wait
from django_zklock.inspection.scan import Scan, ScanLimits, ScanResult
from django_zklock.zk.session import Session

MAX_ENTRIES: Final = 8  # different limits for which scans are kept
LATE: Final = 0.1  # seconds beyond its reply timeout in which a scan still reports what it has read

Description: TypeAlias = tuple[tuple[LockInfo, ...], tuple[Wait, ...], tuple[tuple[Wait, ...], ...]]
"""The locks, the waits and the cycles."""


@dataclass(slots=True, eq=False)
class CachedScan:
    """The result of a scan. It is described when it is first needed; two threads at once may both do it."""

    result: ScanResult
    since: HeldSince
    _description: Description | None = field(default=None, repr=False)  # written by any thread, as a whole

    def describe(self) -> Description:
        """Return the locks, the waits and the cycles."""
        if self._description is None:
            locks = describe(self.result, self.since)
            waits = find_waits(locks)
            self._description = locks, waits, find_cycles(waits, locks)
        return self._description


@dataclass(frozen=True, slots=True)
class CacheReply:
    """The reply to a subscriber."""

    scan: CachedScan | None
    """None if there was never one."""
    problem: str


class _Subscriber:
    """A caller that waits for a reply. It gets one only."""

    def __init__(self, callback: Callable[[CacheReply], object]) -> None:
        self._callback: Callable[[CacheReply], object] | None = callback

    @property
    def waits(self) -> bool:
        return self._callback is not None

    def reply(self, reply: CacheReply) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback(reply)


class _CacheEntry:
    """The last reply for certain limits, the scan that is running, and the subscribers of this scan and the next."""

    def __init__(self) -> None:
        self.reply: CacheReply | None = None
        self.replied_at = 0.0  # on clock.now()
        self.reply_timeout = 0.0  # of the last scan
        self.listed: CachedScan | None = None  # the last that has listed all directories
        self.scan: Scan | None = None
        self.subscribers: list[_Subscriber] = []
        self.next: list[tuple[float, _Subscriber]] = []  # with their reply timeouts


class SnapshotCache:
    """The scans of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._held_since = HeldSinceTracker()
        self._entries: dict[ScanLimits, _CacheEntry] = {}  # the one used last is the last
        self._listed: CachedScan | None = None  # the last that has listed all directories, with any limits

    def get(
        self, limits: ScanLimits, reply_timeout: float, max_age: float, callback: Callable[[CacheReply], object]
    ) -> None:
        """
        Call `callback` once with a reply, in little more than `reply_timeout` seconds.

        The scan has ended, or if it is running has begun, at most `max_age` seconds ago.
        """
        entry = self._entry(limits)
        now = clock.now()
        last = entry.reply
        fresh = entry.scan is None and now - entry.replied_at < max_age
        if last is not None and fresh and (not last.problem or reply_timeout <= entry.reply_timeout):
            callback(last)  # a problem of a scan with a shorter reply timeout may only have been lack of time
            return
        subscriber = _Subscriber(callback)
        self._session.loop.call_later(reply_timeout + LATE, lambda: subscriber.reply(self._late_reply(entry)))
        if entry.scan is None:
            self._begin(entry, limits, reply_timeout, [subscriber])
        elif now - entry.scan.started < max_age and reply_timeout <= entry.reply_timeout:
            entry.subscribers.append(subscriber)
        else:
            entry.next.append((reply_timeout, subscriber))

    def read_one(
        self, key: str, reply_timeout: float, max_waiters: int, callback: Callable[[CacheReply], object]
    ) -> None:
        """Call `callback` with a new scan of one lock."""

        def done(result: ScanResult) -> None:
            since = self._held_since.update(result, complete=False)
            callback(CacheReply(CachedScan(result, since), result.problem))

        Scan(self._session, ScanLimits(None, max_waiters, key), reply_timeout, done).begin()

    def _entry(self, limits: ScanLimits) -> _CacheEntry:
        entry = self._entries.pop(limits, None) or _CacheEntry()
        self._entries[limits] = entry
        for old in [each for each, entry in self._entries.items() if entry.scan is None][:-MAX_ENTRIES]:
            del self._entries[old]
        return entry

    def _begin(
        self, entry: _CacheEntry, limits: ScanLimits, reply_timeout: float, subscribers: list[_Subscriber]
    ) -> None:
        def done(result: ScanResult) -> None:
            self._on_result(entry, limits, result)

        entry.subscribers = subscribers
        entry.reply_timeout = reply_timeout
        entry.scan = Scan(self._session, limits, reply_timeout, done)
        entry.scan.begin()

    def _on_result(self, entry: _CacheEntry, limits: ScanLimits, result: ScanResult) -> None:
        scan = CachedScan(result, self._held_since.update(result, complete=result.complete))
        if result.listed:
            entry.listed = self._listed = scan
        entry.reply = CacheReply(entry.listed or self._listed or scan, result.problem)
        entry.replied_at = clock.now()
        entry.scan = None
        subscribers, entry.subscribers = entry.subscribers, []
        for subscriber in subscribers:
            subscriber.reply(entry.reply)
        following, entry.next = [(reply_timeout, each) for reply_timeout, each in entry.next if each.waits], []
        if following:
            self._begin(
                entry, limits, max(reply_timeout for reply_timeout, _ in following), [each for _, each in following]
            )

    def _late_reply(self, entry: _CacheEntry) -> CacheReply:
        return CacheReply(entry.listed or self._listed, self._session.explain())
