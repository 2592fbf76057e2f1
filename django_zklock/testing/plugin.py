"""
The pytest plugin: one dev server for the run, and an empty namespace on it for each test that requests `zklock`.

pytest loads it in every run where this package is installed, so it imports little before a test needs more.
`-p no:django_zklock` turns it off.

Without the fixture `zklock`, a test that contacts ZooKeeper fails: it would reach the server in the project's settings.
The marker `zklock_real` allows this for a test, and the ini option `zklock_real` for all tests. With the ini option
`zklock_all`, all tests and fixtures have locks on one dev server.

At the end, the run names the locks that its tests acquire in two orders. With `STRICT`, it fails. The marker
`zklock_order_meant` leaves a test out.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from django_zklock.core.zk import process
from django_zklock.testing import FORBIDDEN
from django_zklock.testing.order import OrderOfRun, meant, watch

if TYPE_CHECKING:
    from django_zklock.testing.server import DevServer
    from django_zklock.testing.tester import LockTester


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the ini options."""
    parser.addini("zklock_all", "give all tests and fixtures locks on a server for tests", "bool", default=False)
    parser.addini("zklock_real", "let all tests contact the ZooKeeper in settings.ZKLOCK", "bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Forbid connections to the ZooKeeper in the settings until the end of the run."""
    config.addinivalue_line("markers", "zklock_real: let the test contact the ZooKeeper in settings.ZKLOCK.")
    config.addinivalue_line("markers", "zklock_order_meant: the order in which the test acquires locks is meant.")
    if not hasattr(config, "workerinput"):  # else a worker of pytest-xdist, and this is of the run
        config.pluginmanager.register(_Order(config))
    watch()
    process.forbid(FORBIDDEN)
    config.add_cleanup(lambda: process.forbid(""))
    if config.getini("zklock_real"):
        process.allow()
        config.add_cleanup(process.disallow)
    elif config.getini("zklock_all"):
        config.pluginmanager.register(AllTests())


class _Order:
    """Names the locks that the tests of the whole run acquire in two orders. With `STRICT`, the run fails."""

    def __init__(self, config: pytest.Config) -> None:
        self._order = OrderOfRun()
        self._report = ""
        config.add_cleanup(self._order.stop)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Read what all processes have seen."""
        self._report = self._order.report()
        if self._report and session.exitstatus == pytest.ExitCode.OK and self._order.is_strict:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_unconfigure(self) -> None:
        """Show it last, also where the summary is not shown."""
        if self._report:
            print(f"\nOrder of the locks\n{self._report}")


class AllTests:
    """Locks for all tests, and for fixtures of all scopes."""

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Start them before any fixture."""
        _set_up_django("The option `zklock_all`")
        from django.test import override_settings  # noqa: PLC0415

        from django_zklock import conf  # noqa: PLC0415
        from django_zklock.testing import suite  # noqa: PLC0415

        project = conf.setting("ZKLOCK")
        is_valid = isinstance(project, Mapping)  # else each test with a lock says what is wrong
        self._real = override_settings(ZKLOCK={**project, "REAL_IN_TESTS": True} if is_valid else project)
        self._tester = suite.start()
        session.config.add_cleanup(suite.stop)

    @pytest.fixture(autouse=True)
    def _zklock_of_each_test(self) -> Iterator[None]:
        # Fixtures of higher scopes are set up before this one. It is the first of the test's own, and ends last.
        with self._tester:
            yield

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, None]:
        """Let a marked test and its fixtures use the ZooKeeper in the settings."""
        with self._real if item.get_closest_marker("zklock_real") else nullcontext():
            yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, None]:
    """Allow connections to a marked test and to its fixtures."""
    marked = item.get_closest_marker("zklock_real") is not None
    if marked:
        process.allow()
    try:
        with meant() if item.get_closest_marker("zklock_order_meant") else nullcontext():
            yield
    finally:
        if marked:
            process.disallow()


@pytest.fixture(scope="session")
def zk_server() -> Iterator[DevServer]:
    """A ZooKeeper server for the run, in this process. With pytest-xdist each worker process has its own."""
    from django_zklock.testing import suite  # noqa: PLC0415 - not imported in runs that do not use it

    with suite.server() as server:
        yield server


@pytest.fixture
def zklock_settings() -> dict[str, Any]:
    """More keys for `settings.ZKLOCK`. Override this fixture to set some, for example `{"SESSION_TIMEOUT": 2}`."""
    return {}


@pytest.fixture
def zklock(zk_server: DevServer, zklock_settings: dict[str, Any]) -> Iterator[LockTester]:
    """
    Locks for a test: `settings.ZKLOCK` points to an empty namespace on the dev server. The project's `LOCKS` apply.

    At the end the session of this process is closed. The test fails if a contender is left in a queue.
    """
    _set_up_django("The fixture `zklock`")
    from django_zklock.testing import suite  # noqa: PLC0415

    with suite.locks(zk_server, zklock_settings) as tester:
        yield tester


def _set_up_django(what: str) -> None:
    import django  # noqa: PLC0415
    from django.apps import apps  # noqa: PLC0415

    from django_zklock import conf  # noqa: PLC0415

    if not conf.are_settings_known():
        raise pytest.UsageError(
            f"{what} needs the settings of a Django project. Set DJANGO_SETTINGS_MODULE in the "
            "environment or, with pytest-django, in the configuration of pytest."
        )
    if not apps.ready:
        django.setup()  # pytest-django is not installed


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    """Add the queues of all locks to the report of a failed test."""
    outcome = yield
    tester: LockTester | None = getattr(item, "funcargs", {}).get("zklock")
    if tester is not None and call.when == "call" and call.excinfo is not None:
        report = outcome.get_result()
        if report.failed:
            report.sections.append(("Queues of the locks", tester.describe()))
