"""Locks for all tests of this process: one dev server, and one namespace, which each test leaves as it found it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.test import override_settings

from django_zklock import conf
from django_zklock.core.zk import process
from django_zklock.testing import tester
from django_zklock.testing.server import DevServer

_current: SuiteTester | None = None  # written by the thread that runs the tests


class SuiteTester(tester.LockTester):
    """
    The locks of all tests, and of what is set up for several of them: a class, a module, the run.

    The settings of the project stay. Whatever a test overrides in them, the ZooKeeper of the project is replaced.
    """

    project: Mapping[str, Any]
    """The settings before any test."""
    _zxid = -1  # of the server when `_before` was read

    def pause(self) -> None:
        """Use the ZooKeeper of the project, until `resume`."""
        conf.replace_by(None)
        process.reset()

    def resume(self) -> None:
        """Use the namespace. Raises `ImproperlyConfigured` if the settings are invalid."""
        conf.replace_by(self._replaced)
        process.reset()
        self._base = conf.current().base

    def begin_test(self) -> None:
        """Remember the locks that outlive the test."""
        if self.server.zxid != self._zxid:
            self._zxid = self.server.zxid
            self._before = frozenset(self.server.paths(below=self.chroot))

    def end_test(self) -> None:
        """End all faults, and delete what the test has left. Raise `AssertionError` if that is a contender."""
        self.server.heal()
        if self.server.zxid == self._zxid:
            return  # the test used no locks
        remaining = self._remaining_queues()
        self._release_all()
        self._close_other_clients()
        if remaining and not tester.wait_for(lambda: not self._has_contenders_left(), tester.TIMEOUT):
            process.reset()  # ends a waiter that nobody can interrupt, and all other locks of this process
        self.server.delete(self.chroot, except_for={self._base, *self._before})
        if remaining:
            raise AssertionError(f"The test has ended, and these contenders are left:\n{remaining}")

    def _replaced(self, value: object) -> object:
        """Return the settings with this namespace. A test may name another ZooKeeper than the project's."""
        given = {} if value is None else value
        if not isinstance(given, Mapping) or given.get("REAL_IN_TESTS"):
            return value
        if "URL" in given and _address(given) != _address(self.project):
            return value
        replaced = [key for key in tester.CONNECTION if given.get(key) == self.project.get(key)]
        return {**{key: given[key] for key in given if key not in replaced}, "URL": self.url}


def current() -> SuiteTester | None:
    """Return the locks of all tests, if this process runs a suite that has them."""
    return _current


@contextmanager
def locks(server: DevServer, settings: Mapping[str, Any]) -> Iterator[tester.LockTester]:
    """The locks of one test, with more settings: those of all tests, else an empty namespace on the server."""
    if _current is None:
        with tester.LockTester(server, settings=settings) as own:
            yield own
    else:
        with override_settings(ZKLOCK={**_mapping(conf.raw()), **settings}):
            yield _current


def start() -> None:
    """Start the locks of this process, unless the project says REAL_IN_TESTS. A forked child needs its own."""
    global _current
    stop()
    project = _mapping(conf.setting("ZKLOCK"))
    if not project.get("REAL_IN_TESTS"):
        _current = SuiteTester(DevServer())
        _current.project = project
        _current.server.start()
        process.allow()
        _current.resume()


def stop() -> None:
    """Stop the locks of this process, if there are some."""
    global _current
    suite, _current = _current, None
    if suite is not None:
        suite.pause()
        process.disallow()
        suite.server.stop()


def _mapping(settings: object) -> Mapping[str, Any]:
    return settings if isinstance(settings, Mapping) else {}


def _address(settings: Mapping[str, Any]) -> str:
    """Return the hosts in the URL, without credentials."""
    return str(settings.get("URL")).partition("//")[2].partition("/")[0].rpartition("@")[2]
