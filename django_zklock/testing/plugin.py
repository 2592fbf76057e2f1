"""
The pytest plugin: a dev server for the run, and for each test that asks a namespace of its own on it.

It is loaded by every run of pytest where this package is installed, so it imports nothing before a test asks for a
lock. `-p no:django_zklock` leaves it out.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from django_zklock.testing.server import DevServer
    from django_zklock.testing.tester import LockTester


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
