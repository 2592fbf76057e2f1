"""Locks for all tests of this process: one dev server, and one namespace, which each test leaves as it found it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django_zklock import conf
from django_zklock.core.zk import process
from django_zklock.testing.server import DevServer
from django_zklock.testing.tester import NO_CONNECTION, TIMEOUT, LockTester, wait_for

_current: SuiteTester | None = None  # written by the thread that runs the tests


class SuiteTester(LockTester):
    """The locks of all tests. Each test is a block of it. What was set up for its class, module or run stays."""

    def start(self) -> None:
        """Remember the locks that outlive the test."""
        self._before = frozenset(self.server.paths(below=self.chroot))

    def _end(self) -> None:
        if not wait_for(lambda: not self._has_contenders_left(), TIMEOUT):
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


@contextmanager
def server() -> Iterator[DevServer]:
    """The server of all tests, or a new one."""
    if _current is not None:
        yield _current.server
    else:
        with DevServer() as own:
            yield own


def locks(server: DevServer, settings: Mapping[str, Any]) -> LockTester:
    """Return the locks of one test, with more settings: in the namespace of all tests, or in an empty one."""
    tester = LockTester(server, settings=settings)
    if _current is not None:
        tester.chroot = _current.chroot
    return tester
