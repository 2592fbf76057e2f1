"""Locks for all tests of this process: one dev server, and one namespace, which each test leaves as it found it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from django_zklock import conf
from django_zklock.core.zk import process
from django_zklock.testing.server import DevServer
from django_zklock.testing.tester import NO_CONNECTION, LockTester

_current: SuiteTester | None = None  # written by the thread that runs the tests


class SuiteTester(LockTester):
    """The locks of all tests. Each test is a block of it. What was set up for its class, module or run stays."""

    def start(self) -> None:
        """Remember the locks that outlive the test."""
        self._before = frozenset(self.server.paths(below=self.chroot))

    def stop(self) -> None:
        """End all faults, and delete what the test has left. Raise `AssertionError` if that is a contender."""
        try:
            super().stop()
        finally:
            if self._remaining_queues():
                process.reset()  # ends a waiter that nobody can interrupt, and all other locks of this process
            self.server.delete({*self.server.paths(below=self.chroot)} - {self._base, *self._before})


def start() -> SuiteTester:
    """Replace the ZooKeeper of the project by a dev server. A forked child needs its own."""
    global _current
    _current = SuiteTester(DevServer())
    _current.server.start()
    conf.for_tests.update(NO_CONNECTION, URL=_current.url)
    conf.forget()
    process.reset()
    process.allow()
    return _current


def stop() -> None:
    """Use the ZooKeeper of the project again."""
    global _current
    if _current is not None:
        conf.for_tests.clear()
        conf.forget()
        process.reset()
        process.disallow()
        _current.server.stop()
        _current = None


def server() -> AbstractContextManager[DevServer]:
    """Return a block in which a server runs: that of all tests, or a new one."""
    return DevServer() if _current is None else nullcontext(_current.server)


def locks(server: DevServer, settings: Mapping[str, Any]) -> LockTester:
    """Return the locks of one test, with more settings: in the namespace of all tests, or in an empty one."""
    tester = LockTester(server, settings=settings)
    if _current is not None:
        tester.chroot = _current.chroot
    return tester
