"""Django's test runner, with locks for all tests."""

from __future__ import annotations

import functools
import sys
import types
import unittest
from collections.abc import Callable
from typing import Any

from django.test.runner import DiscoverRunner

from django_zklock.testing import suite
from django_zklock.testing.order import OrderOfRun, watch

_run = unittest.TestCase.run


def _start() -> None:
    watch()
    tester = suite.start()

    def run(test: unittest.TestCase, result: unittest.TestResult | None = None) -> unittest.TestResult | None:
        tester.start()
        test.addCleanup(tester.stop)  # added first, so it runs last
        return _run(test, result)

    # Runners, suites and results differ, and workers have their own. All of them run a test by this method.
    unittest.TestCase.run = run  # type: ignore[method-assign, assignment]


def _init_worker(init_worker: Callable[..., None], *args: Any) -> None:
    init_worker(*args)
    _start()


class ZkLockRunner(DiscoverRunner):
    """
    Give locks on a dev server to all tests, and to what is set up for their classes and modules.

    A test fails if it leaves a contender. Each process of `--parallel` has a server of its own. To give locks to
    another runner, list this one first: `class Runner(ZkLockRunner, MyRunner)`.
    """

    def setup_test_environment(self, **kwargs: Any) -> None:
        super().setup_test_environment(**kwargs)
        self._order = OrderOfRun()
        _start()

    def build_suite(self, *args: Any, **kwargs: Any) -> Any:
        tests: Any = super().build_suite(*args, **kwargs)
        if init_worker := getattr(tests, "init_worker", None):  # a method; Django takes its function, and pickles it
            tests.init_worker = types.MethodType(functools.partial(_init_worker, init_worker.__func__), tests)
        return tests

    def teardown_test_environment(self, **kwargs: Any) -> None:
        unittest.TestCase.run = _run  # type: ignore[method-assign]
        suite.stop()
        self._report = self._order.report()
        self._order.stop()
        super().teardown_test_environment(**kwargs)

    def suite_result(self, suite: Any, result: Any, **kwargs: Any) -> int:
        """Name the locks that the tests acquire in two orders. With `STRICT`, they count as a failure."""
        if self._report:
            print(self._report, file=sys.stderr)
        failed: int = super().suite_result(suite, result, **kwargs)
        return failed + bool(self._report and self._order.is_strict)
