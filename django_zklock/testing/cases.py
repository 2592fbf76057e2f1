"""A mixin for Django's test cases, with one dev server for each class."""

from __future__ import annotations

import unittest
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from django_zklock.testing import suite
from django_zklock.testing.server import DevServer
from django_zklock.testing.tester import LockTester

if TYPE_CHECKING:
    _TestCase = unittest.TestCase
else:
    _TestCase = object


class ZkLockTestMixin(_TestCase):
    """
    Give each test of a `TestCase` locks in an empty namespace, and `self.zklock`, a `LockTester`.

        class CheckoutTests(ZkLockTestMixin, TestCase): ...

    List it before the test case among the bases. If you override `setUp`, call `super().setUp()` first. The server
    starts and stops with the class, in the process that runs it, so `manage.py test --parallel` works, too.
    """

    zklock_settings: ClassVar[Mapping[str, Any]] = {}
    """More keys for `settings.ZKLOCK` for the tests of this class."""

    zk_server: ClassVar[DevServer]
    zklock: LockTester

    @classmethod
    def setUpClass(cls) -> None:
        """Start the server, if the run has none for all tests."""
        server = suite.server()
        cls.zk_server = server.__enter__()
        cls.addClassCleanup(server.__exit__, None, None, None)
        super().setUpClass()

    def setUp(self) -> None:
        """Point `settings.ZKLOCK` to an empty namespace."""
        super().setUp()
        self.zklock = suite.locks(self.zk_server, self.zklock_settings)
        self.zklock.start()
        self.addCleanup(self.zklock.stop)
