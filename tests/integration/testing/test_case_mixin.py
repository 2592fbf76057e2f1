"""The mixin for test cases, under Django's own test runner."""

from __future__ import annotations

import multiprocessing
import re

import django
import pytest
from support.project import Project

TESTS = """
import os, pathlib
from django.test import SimpleTestCase, TestCase
from django_zklock import zk_lock
from django_zklock.testing import ZkLockTestMixin
import shop

class First(ZkLockTestMixin, TestCase):
    def test_sells(self):
        self.assertEqual(shop.sell("lamp"), "lamp")
        pathlib.Path(f"first.pid").write_text(str(os.getpid()))

    def test_is_refused_while_somebody_else_has_it(self):
        with self.zklock.busy_by("inventory", {"sku": "lamp"}), self.assertRaises(TimeoutError):
            shop.sell("lamp")

class Second(ZkLockTestMixin, SimpleTestCase):
    zklock_settings = {"SESSION_TIMEOUT": 2}

    def setUp(self):
        super().setUp()
        self.held = zk_lock("b", abort_on="never")

    def test_is_lost(self):
        with self.held as hold:
            with self.zklock.lost():
                self.assertTrue(hold.lost)
        pathlib.Path(f"second.pid").write_text(str(os.getpid()))

"""

FAILING = """
from django.test import SimpleTestCase
from django_zklock import zk_lock
from django_zklock.testing import ZkLockTestMixin

class Forgetful(ZkLockTestMixin, SimpleTestCase):
    def test_a_forgets_to_release(self):
        zk_lock("a").acquire()

    def test_b_is_not_harmed(self):
        self.zklock.assert_free("a", timeout=0)
        with zk_lock("a", timeout=0, reentrant=False):
            pass
"""


@pytest.mark.parametrize("options", [[], ["--parallel=2"]], ids=["serial", "parallel"])
def test_each_test_case_class_has_its_own_server(project: Project, options: list[str]) -> None:
    if options and django.VERSION < (6,) and multiprocessing.get_start_method() == "forkserver":
        pytest.skip("this Django cannot clone a database for processes that a fork server starts")
    project.write("test_shop.py", TESTS)
    result = project.run("-W", "error", "manage.py", "test", *options)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Ran 3 tests" in result.stderr
    pids = {path.read_text() for path in project.directory.glob("*.pid")}
    assert len(pids) == (2 if options else 1)


def test_a_lock_that_is_not_released_fails_the_test(project: Project) -> None:
    project.write("test_shop.py", FAILING)
    result = project.run("manage.py", "test")
    assert result.returncode == 1
    assert "FAILED (failures=1)" in result.stderr, result.stderr
    assert "FAIL: test_a_forgets_to_release" in result.stderr
    assert re.search(r"^  holds  \S+ \(", result.stderr, re.MULTILINE), result.stderr
