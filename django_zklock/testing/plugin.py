"""
The pytest plugin: a dev server for the run, and for each test that asks a namespace of its own on it.

It is loaded by every run of pytest where this package is installed, so it imports nothing before a test asks for a
lock. `-p no:django_zklock` leaves it out.

A test that contacts ZooKeeper without the fixture `zklock` fails, as the server would be the one in the project's
settings. The marker `zklock_real` allows it for a test, and the ini option `zklock_real` for a run.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from django_zklock.zk import permission

if TYPE_CHECKING:
    from django_zklock.testing.server import DevServer
    from django_zklock.testing.tester import LockTester


FORBIDDEN = (
    "This test takes a lock, or looks at one, without the fixture `zklock`, so it would contact the ZooKeeper in "
    "settings.ZKLOCK. Ask for the fixture `zklock`, or derive the test case from ZkLockTestMixin, to have a server for "
    "tests. To use the ZooKeeper in the settings, mark the test with @pytest.mark.zklock_real, or set "
    "zklock_real = true in the configuration of pytest."
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the ini option."""
    parser.addini("zklock_real", "let all tests contact the ZooKeeper in settings.ZKLOCK", "bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Forbid contact with ZooKeeper until the end of the run."""
    config.addinivalue_line("markers", "zklock_real: let the test contact the ZooKeeper in settings.ZKLOCK.")
    if not config.getini("zklock_real"):
        permission.forbid(FORBIDDEN)
        config.add_cleanup(lambda: permission.forbid(""))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, None]:
    """Allow it to a marked test, and to its fixtures."""
    marked = item.get_closest_marker("zklock_real") is not None
    if marked:
        permission.allow()
    try:
        yield
    finally:
        if marked:
            permission.disallow()


@pytest.fixture(scope="session")
def zk_server() -> Iterator[DevServer]:
    """A ZooKeeper for the run, in this process and on a port of its own; under pytest-xdist each worker has one."""
    from django_zklock.testing.server import DevServer  # noqa: PLC0415 - costs nothing where it is not used

    with DevServer() as server:
        yield server


@pytest.fixture
def zklock_settings() -> dict[str, Any]:
    """Further keys of `settings.ZKLOCK` for a test; override this fixture to give some, as `{"SESSION_TIMEOUT": 2}`."""
    return {}


@pytest.fixture
def zklock(zk_server: DevServer, zklock_settings: dict[str, Any]) -> Iterator[LockTester]:
    """
    Locks for a test: `settings.ZKLOCK` points to an empty namespace on the dev server, with the project's own locks.

    At the end no contender may be left in any queue, and the session of this process is closed.
    """
    import django  # noqa: PLC0415
    from django.apps import apps  # noqa: PLC0415

    from django_zklock import conf  # noqa: PLC0415

    if not conf.are_settings_known():
        raise pytest.UsageError(
            "The fixture `zklock` needs the settings of a Django project: set DJANGO_SETTINGS_MODULE, in the "
            "environment, or with pytest-django in the configuration of pytest."
        )
    if not apps.ready:
        django.setup()  # there is no pytest-django that did it
    from django_zklock.testing.tester import LockTester  # noqa: PLC0415

    with LockTester(zk_server, settings=zklock_settings) as tester:
        yield tester


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    """Show who is in line for which lock when a test has failed."""
    outcome = yield
    tester: LockTester | None = getattr(item, "funcargs", {}).get("zklock")
    if tester is not None and call.when == "call" and call.excinfo is not None:
        report = outcome.get_result()
        if report.failed:
            report.sections.append(("Queues of the locks", tester.describe()))
