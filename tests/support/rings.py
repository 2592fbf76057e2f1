"""Owners of a ring, as threads of one process: each holds a lock, and wants that of its neighbour."""

import contextlib
import random
import threading
import time

from django_zklock import zk_lock
from django_zklock.exceptions import LockDeadlock, ZkLockError


class OpenRing:
    """A ring that never closes: another thread releases the first lock of each owner, whatever the owner waits for."""

    def __init__(self, size, seconds):
        self._size = size
        self._until = time.monotonic() + seconds
        self.steps = self.deadlocks = 0

    def run(self, *indexes):
        threads = [threading.Thread(target=self._run, args=(index,)) for index in indexes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _run(self, index):
        chance = random.Random(index)
        while time.monotonic() < self._until:
            try:
                self._step(index, chance)
            except LockDeadlock:
                self.deadlocks += 1
            except ZkLockError:
                pass  # by a fault

    def _step(self, index, chance):
        hold = zk_lock(f"open/{index}").acquire(timeout=60)
        if hold is None:
            return

        def release():
            with contextlib.suppress(ZkLockError):
                hold.release()

        worker = threading.Timer(chance.uniform(0.1, 1.5), release)
        worker.start()
        try:
            with zk_lock(f"open/{(index + 1) % self._size}", timeout=60, abort_on="lost"):
                self.steps += 1
        finally:
            worker.join()


class ClosedRing:
    """A ring that closes when all owners have their first lock, and `go` is called."""

    def __init__(self, size):
        self._size = size
        self._go = threading.Event()
        self._failures = []
        self.acquired = self.victims = 0

    def run(self, *indexes, go):
        met = threading.Barrier(len(indexes) + 1)
        threads = [threading.Thread(target=self._run, args=(index, met)) for index in indexes]
        for thread in threads:
            thread.start()
        met.wait(60)
        go()
        self._go.set()
        for thread in threads:
            thread.join()
        if self._failures:  # such as a loss on a busy machine; the tracebacks of all threads would fill a pipe
            raise self._failures[0]

    def _run(self, index, met):
        try:
            self._acquire_both(index, met)
        except (ZkLockError, threading.BrokenBarrierError) as error:
            self._failures.append(error)

    def _acquire_both(self, index, met):
        with zk_lock(f"closed/{index}"):
            met.wait(60)
            self._go.wait()
            try:
                with zk_lock(f"closed/{(index + 1) % self._size}", timeout=120):
                    self.acquired += 1
            except LockDeadlock:
                self.victims += 1
