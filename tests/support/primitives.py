"""The kinds of locks, for tests that run for each of them; takers of a lock, and foreign contenders."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django_zklock import zk_lock
from django_zklock.core.locks.lingering import LingeringLocks
from django_zklock.core.queue.nodes import Kind, Mark, new_guid
from django_zklock.core.zk import process
from django_zklock.testing.server import DevServer
from support.chaos import session_killer
from support.ensemble import four_letter
from support.faults import BackgroundCall
from support.zoo import eventually, settle

KEY = "warm/a"
MANY = 5  # stands for any number


@dataclass(frozen=True, slots=True)
class Primitive:
    name: str
    kind: str  # the `kind` of its holds
    options: Mapping[str, Any] = field(default_factory=dict)
    room: int = 1  # how many of its kind have it at a time
    blocker: Kind = Kind.LOCK  # the kind of contender that blocks it, if there are as many as `blockers`
    blockers: int = 1
    compat: str | None = None

    def __repr__(self):
        return self.name

    def lock(self, key=KEY, **more):
        return zk_lock(key, **{**self.options, **more})

    @contextlib.contextmanager
    def full(self, zoo, key=KEY):
        """Have others hold it, so that new owners have to wait; yields the paths of their nodes."""
        with contextlib.ExitStack() as stack:
            yield [
                stack.enter_context(foreign(zoo, self.blocker, key, compat=self.compat)) for _ in range(self.blockers)
            ]

    def wait_queued(self, zoo, count, *, others=0):
        """Wait until exactly so many of this process have it or wait for it, and so many others."""
        if self.lingers:
            eventually(lambda: len(lingering_waiters(self.lock())) == count)
            count = min(count, 1)
        zoo.wait_contenders(KEY, count + others)

    def wait_released(self, zoo):
        """Wait until one that lingers has left the queue, and the release of any other is confirmed."""
        if self.lingers:
            zoo.wait_contenders(KEY, 0)
        settle()

    @property
    def lingers(self):
        """Whether this process keeps it for its own next owners."""
        return "linger" in self.options

    @property
    def is_semaphore(self):
        return "limit" in self.options


LOCK = Primitive("lock", "lock")
WRITE = Primitive("write", "write", {"kind": "write"}, blocker=Kind.WRITE)
READ = Primitive("read", "read", {"kind": "read"}, room=MANY, blocker=Kind.WRITE)
SEMAPHORE = Primitive("semaphore of 3", "semaphore", {"limit": 3}, room=3, blocker=Kind.PERMIT, blockers=3)
SEMAPHORE_OF_1 = Primitive("semaphore of 1", "semaphore", {"limit": 1}, blocker=Kind.PERMIT)
KAZOO = Primitive("kazoo lock", "lock", {"compat": "kazoo"}, compat="kazoo")
KAZOO_READ = Primitive(
    "kazoo read", "read", {"kind": "read", "compat": "kazoo"}, room=MANY, blocker=Kind.WRITE, compat="kazoo"
)
LINGERING = Primitive("lingering lock", "lock", {"linger": 0.05})
PRIMITIVES = (LOCK, WRITE, READ, SEMAPHORE, SEMAPHORE_OF_1, KAZOO, KAZOO_READ, LINGERING)


def foreign(zoo, kind=Kind.LOCK, key=KEY, *, compat=None):
    """Have another process with this package in the queue. The context yields the path of its node."""
    return zoo.hold_elsewhere(key, kind, guid=new_guid(Mark.OWN), compat=compat)


class Taker:
    def __init__(self, lock):
        self.granted = threading.Event()
        self.hold = None
        self._lock = lock
        self._may_release = threading.Event()
        self._thread = BackgroundCall(self._hold)

    def _hold(self):
        with self._lock as hold:
            self.hold = hold
            self.granted.set()
            assert self._may_release.wait(30)

    def wait_granted(self, timeout=10.0):
        if not self.granted.wait(timeout):
            self.go(wait=False)
            raise AssertionError("not granted in time")
        assert self.hold is not None
        return self.hold

    def go(self, *, wait=True):
        """Have it release, and wait until it has; raise what it raises."""
        self._may_release.set()
        if wait:
            self._thread.result()

    def finish(self):
        """Wait until it has the lock, and have it release."""
        self.wait_granted()
        self.go()


def lingering_lock(lock):
    return process.current().attached(LingeringLocks).find(lock.spec) if lock.spec.linger else None


def lingering_waiters(lock):
    shared = lingering_lock(lock)
    return set() if shared is None else set(shared.queue)


@contextlib.contextmanager
def queued(zoo, *locks, key=KEY):
    """Have threads take locks of one key, one after the other, each once the one before is in the queue."""
    takers = []
    before = len(zoo.children(key))
    is_there = any(map(lingering_lock, locks))  # with one node for all
    try:
        for count, lock in enumerate(locks, 1):
            turns = lingering_waiters(lock)
            takers.append(Taker(lock))
            if lock.spec.linger:
                eventually(lambda lock=lock, turns=turns: lingering_waiters(lock) - turns)
            zoo.wait_contenders(key, before + (not is_there if lock.spec.linger else count))
        yield takers
    finally:
        for taker in takers:
            taker.go(wait=False)
    for taker in takers:
        taker.go()


def end_session(zoo, session_id):
    """End a session of anybody's, as its time would."""
    if isinstance(zoo.ensemble, DevServer):
        assert zoo.ensemble.expire(session_id)
    else:
        session_killer.expire(zoo.all_hosts, session_id)


def watched(zoo):
    server = zoo.ensemble
    if isinstance(server, DevServer):
        paths = set(server._loop.call(lambda: list(server._service.db.watches.data)))
    else:
        host, _, port = zoo.address.rpartition(":")
        paths = {line for line in four_letter(host, int(port), "wchp").splitlines() if line.startswith("/")}
    return {path for path in paths if path.startswith(zoo.chroot)}
