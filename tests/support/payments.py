"""Tasks that book payments under a lock, once each however often they are delivered. Their journal is in HOME."""

import contextlib
import functools
import itertools
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from pathlib import Path

from billiard.pool import soft_timeout_sighandler
from celery.exceptions import SoftTimeLimitExceeded
from celery.worker.request import Request

from django_zklock import current_hold, zk_locked
from django_zklock.core.execution import abort
from django_zklock.exceptions import LockLost, StaleToken
from support.celeryapp import app
from support.celeryfolder import HOME
from support.chaos.history import Recorder

JOURNAL = "journal.sqlite3"
HISTORY = "history"
WORK = 0.01, 0.12  # seconds, the least and the most, before and after the booking
CHECK_EVERY = 0.01  # seconds

_numbers = itertools.count(1)

SCHEMA = """
CREATE TABLE fenced (key TEXT PRIMARY KEY, token INTEGER NOT NULL, value INTEGER NOT NULL);
CREATE TABLE effects (key TEXT NOT NULL, ref TEXT NOT NULL, value INTEGER NOT NULL);
"""
FENCE = "UPDATE fenced SET token = ? WHERE key = ? AND token <= ?"
WRITE = "UPDATE fenced SET value = ? WHERE key = ? AND token = ?"
TIMEOUT = 60.0  # seconds; a process that is paused within a transaction holds the others up, as with any database


class Journal:
    """The payments that were booked, and a fenced counter for each key. No abort strikes inside a transaction."""

    def __init__(self, path, keys=()):
        self._db = sqlite3.connect(path, timeout=TIMEOUT, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=OFF")  # the machine does not crash in these tests
        if keys:
            self._db.executescript(SCHEMA)
            self._db.executemany("INSERT INTO fenced VALUES (?, 0, 0)", [(key,) for key in keys])

    @abort.shielded
    def claim(self, key, token):
        """Raise the fence to this token and return the counter. Raises StaleToken."""
        if not self._db.execute(FENCE, (token, key, token)).rowcount:
            raise StaleToken
        return int(self._db.execute("SELECT value FROM fenced WHERE key = ?", (key,)).fetchone()[0])

    @abort.shielded
    def is_done(self, ref):
        return self._db.execute("SELECT 1 FROM effects WHERE ref = ?", (ref,)).fetchone() is not None

    @abort.shielded
    def book(self, key, ref, token, value):
        """Write the counter and the payment. Raises StaleToken."""
        self._db.execute("BEGIN IMMEDIATE")
        done = self._db.execute(WRITE, (value, key, token)).rowcount
        if done:
            self._db.execute("INSERT INTO effects VALUES (?, ?, ?)", (key, ref, value))
        self._db.execute("COMMIT")
        if not done:
            raise StaleToken

    def times(self):
        return Counter(str(ref) for (ref,) in self._db.execute("SELECT ref FROM effects"))

    def values(self, key):
        """Return what the counter of a key was set to, in the order in which it was."""
        rows = self._db.execute("SELECT value FROM effects WHERE key = ? ORDER BY rowid", (key,))
        return [int(value) for (value,) in rows]

    def close(self):
        self._db.close()


@functools.cache
def _recorder(pid):
    return Recorder(Path(os.environ[HOME], HISTORY), process_name(pid))


def process_name(pid):
    return f"pool-{pid}"


def limited(locked):
    """Let a soft time limit strike only inside: Celery does not survive one while it stores a result on Redis."""

    @functools.wraps(locked)
    def run(key, ref):
        try:
            signal.signal(signal.SIGUSR1, soft_timeout_sighandler)
            return locked(key, ref)
        finally:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    return run


class Execution:
    def __init__(self, key, ref):
        hold = current_hold()
        assert hold is not None
        self._hold = hold
        self._key = key
        self._ref = ref
        self._op = next(_numbers)
        self._is_granted = False

    @abort.shielded
    def _write(self, kind, *, t=None, **fields):
        _recorder(os.getpid()).write(kind, t=t, o="main", op=self._op, key=self._key, **fields)

    @abort.shielded
    def _begin(self):
        self._write("invoke", timeout=None)
        before = time.monotonic()  # first: a pause in between makes the claim too modest, never too bold
        self._write("granted", token=self._hold.token, until=before + self._hold.lease_remaining)
        self._is_granted = True

    def book(self):
        """Book a payment unless it is booked, with time for others between reading and writing; tell which it was."""
        try:
            self._begin()
            with contextlib.closing(Journal(Path(os.environ[HOME], JOURNAL))) as journal:
                value = journal.claim(self._key, self._hold.token)
                if journal.is_done(self._ref):
                    return "was booked"
                self._work()
                journal.book(self._key, self._ref, self._hold.token, value + 1)
                self._work()  # for a kill that finds the work done, and the message not acknowledged
            return "booked"
        finally:
            if self._is_granted:
                self._write("release")

    def _work(self):
        until = time.monotonic() + random.uniform(*WORK)
        while time.monotonic() < until:
            before = time.monotonic()
            self._hold.check()
            self._write("valid", t=before, until=before + self._hold.lease_remaining)
            time.sleep(CHECK_EVERY)


SPAWN = "PAYMENTS_SPAWN"
"""Environment variable: the processes of the pool are spawned, so that none of its tasks waits in the main process."""

if SPAWN in os.environ:
    app.conf.worker_pool_start_method = "spawn"


class NotedRequest(Request):
    def on_timeout(self, soft, timeout):
        """Note that the hard time limit kills a process, just before it does."""
        if not soft and self.worker_pid:
            target = process_name(int(self.worker_pid))
            _recorder(os.getpid()).write("nemesis", what="kill", target=target, given_back=True)
        return super().on_timeout(soft, timeout)


# Delivered again when its process is killed; done again, without end, when it lost its lock.
SURE = {
    "acks_late": True,
    "reject_on_worker_lost": True,
    "autoretry_for": (LockLost, StaleToken, SoftTimeLimitExceeded),
    "max_retries": None,
    "Request": NotedRequest,
    "default_retry_delay": 0,
}


@app.task(name="pay", **SURE)
@limited
@zk_locked("{key}")
def pay(key, ref):
    return Execution(key, ref).book()


@app.task(name="pay_again", **SURE)
@limited
@zk_locked("{key}", on_conflict="retry")
def pay_again(key, ref):
    return Execution(key, ref).book()
