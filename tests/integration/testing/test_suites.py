"""Locks for all tests of a suite, by Django's runner and pytest, and for a test case, by the mixin."""

import multiprocessing
import re

import django
import pytest
from support.project import PLAIN_PYTEST, SETTINGS, Project

MORE_SETTINGS = """
INSTALLED_APPS += ["django.contrib.auth", "django.contrib.contenttypes"]
ROOT_URLCONF = "views"
STATIC_URL = "static/"
ZKLOCK["TLS"] = {"CA": "/etc/missing.pem"}
TEST_RUNNER = os.environ.get("RUNNER", "django_zklock.testing.ZkLockRunner")
"""

MANAGE = """
import multiprocessing
import os
import sys
from django.core.management import execute_from_command_line
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project_settings")
if __name__ == "__main__":
    multiprocessing.set_start_method(os.environ.get("METHOD", "fork"))
    execute_from_command_line(sys.argv)
"""

VIEWS = """
from django.http import HttpResponse
from django.urls import path
from django_zklock import zk_locked

@zk_locked("order/{pk}")
def order(request, pk):
    return HttpResponse("ordered")

@zk_locked("order/{pk}")
async def order_async(request, pk):
    return HttpResponse("ordered")

urlpatterns = [path("order/<int:pk>/", order), path("async/<int:pk>/", order_async)]
"""

BUSY = '''
from concurrent.futures import ThreadPoolExecutor
from django_zklock import zk_lock
from django_zklock.exceptions import LockBusy

def is_busy(name):
    """Return whether another thread cannot have this lock."""
    def look():
        try:
            with zk_lock(name, timeout=0):
                return False
        except LockBusy:
            return True

    with ThreadPoolExecutor(1) as other:
        return other.submit(look).result()

class LockOfClass:
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        lock = zk_lock("class")
        lock.acquire()
        cls.addClassCleanup(lock.release)
'''

# Each test below has a lock, and the test cases are those of a project that knows nothing of locks in tests.
TESTS = """
import unittest
import urllib.request
import celery
from busy import LockOfClass, is_busy
from django.conf import settings
from django.contrib.auth.models import User
from django.test import LiveServerTestCase, SimpleTestCase, TestCase, TransactionTestCase, override_settings
from django_zklock import zk_lock, zk_locked
import shop

app = celery.Celery("shop", broker="memory://")
app.conf.task_always_eager = app.conf.task_eager_propagates = True
module_lock = zk_lock("module")

@app.task
@zk_locked("report/{day}")
def report(day):
    return day

def setUpModule():
    module_lock.acquire()

def tearDownModule():
    module_lock.release()

class WithData(TestCase):
    @classmethod
    def setUpTestData(cls):
        with zk_lock("seed"):
            cls.user = User.objects.create_user("nina")

    def test_view(self):
        for pk in (1, 2):
            with self.subTest(pk=pk):
                self.assertEqual(self.client.get(f"/order/{pk}/").content, b"ordered")

    async def test_async_view(self):
        self.assertEqual((await self.async_client.get("/async/1/")).content, b"ordered")

class WithLockOfClass(LockOfClass, SimpleTestCase):
    def test_first(self):
        self.assertTrue(is_busy("class"))
        self.assertTrue(is_busy("module"))

    test_second = test_first

class Transaction(TransactionTestCase):
    def test_view(self):
        self.assertEqual(self.client.get("/order/1/").content, b"ordered")

class Live(LiveServerTestCase):
    def test_view(self):
        with urllib.request.urlopen(f"{self.live_server_url}/order/1/") as answer:
            self.assertEqual(answer.read(), b"ordered")

class Simple(SimpleTestCase):
    def test_task(self):
        self.assertEqual(report.delay("monday").get(), "monday")

    @override_settings(ZKLOCK={"URL": "zk://127.0.0.1:1/other", "LOCKS": {"b": {"path": "stock/{sku}"}}})
    def test_other_locks(self):
        with zk_lock("b", fields={"sku": 1}):
            self.assertTrue(is_busy("stock/1"))

    @override_settings(ZKLOCK={**settings.ZKLOCK, "DEFAULTS": {"timeout": 7}})
    def test_other_defaults(self):
        with zk_lock("a"):
            self.assertTrue(is_busy("module"))

class Leaving(SimpleTestCase):
    def test_first(self):
        with zk_lock("shortest", min_hold=300, timeout=0), zk_lock("idle", linger=300, timeout=0):
            pass

    test_second = test_first

class Plain(unittest.TestCase):
    def test_function(self):
        self.assertEqual(shop.sell("lamp"), "lamp")
"""
COUNT = 12


@pytest.fixture
def project(tmp_path):
    """A project whose ZooKeeper is not there, with TLS, and with this package's runner."""
    project = Project(tmp_path)
    files = {"project_settings": SETTINGS + MORE_SETTINGS, "manage": MANAGE, "views": VIEWS, "busy": BUSY}
    for name, text in files.items():
        project.write(f"{name}.py", text)
    return project


def test_the_runner_gives_locks_to_all_tests(project):
    project.write("test_shop.py", TESTS)
    options = ("--reverse", "--shuffle", "--keepdb", "--debug-mode", "--pdb")
    done = project.run("-W", "error::ResourceWarning", "manage.py", "test", "--failfast", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Ran {COUNT} tests" in done.stderr


PARALLEL = """
import os, pathlib, time
from django.test import SimpleTestCase
from django_zklock import zk_lock

class Both:
    def test_lock(self):
        with zk_lock("same", timeout=0):
            pathlib.Path(f"{os.getpid()}.pid").touch()
            deadline = time.monotonic() + 30
            while len(list(pathlib.Path().glob("*.pid"))) < 2 and time.monotonic() < deadline:
                time.sleep(0.01)

class First(Both, SimpleTestCase): ...
class Second(Both, SimpleTestCase): ...
"""


FORK_SERVER = pytest.param(
    "forkserver", marks=[pytest.mark.chaos, pytest.mark.skipif(django.VERSION < (6,), reason="unknown to this Django")]
)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.chaos), FORK_SERVER])
def test_parallel_processes_do_not_see_each_others_locks(project, method):
    project.write("test_parallel.py", PARALLEL)
    project.write("test_shop.py", TESTS)
    fresh = () if method == "fork" else ("-W", "default")  # with an option, it is no fork, which could not spawn others
    done = project.succeed(*fresh, "manage.py", "test", "--parallel=2", METHOD=method)
    assert f"Ran {COUNT + 2} tests" in done.stderr
    assert len(list(project.directory.glob("*.pid"))) == 2


def test_a_lock_that_is_left_fails_its_test_and_no_other(project):
    tests = """
from busy import LockOfClass, is_busy
from django.test import SimpleTestCase
from django_zklock import zk_lock

class Forgetful(LockOfClass, SimpleTestCase):
    def test_a(self):
        zk_lock("left").acquire()

    def test_b(self):
        self.assertFalse(is_busy("left"))
        self.assertTrue(is_busy("class"))
"""
    project.write("test_shop.py", tests)
    done = project.run("manage.py", "test")
    assert "FAILED (failures=1)" in done.stderr, done.stderr
    assert "FAIL: test_a" in done.stderr
    assert re.search(r"\nclass\n  holds  .* since before the test\n", done.stderr), done.stderr
    assert re.search(r"\nleft\n  holds  .*\)\n", done.stderr), done.stderr


def test_the_mixin_uses_the_locks_of_all_tests(project):
    tests = """
from busy import LockOfClass
from django.test import SimpleTestCase
from django_zklock import zk_lock
from django_zklock.exceptions import LockBusy
from django_zklock.testing import ZkLockTestMixin

class Both(ZkLockTestMixin, LockOfClass, SimpleTestCase):
    zklock_settings = {"LOCKS": {"b": {"path": "stock", "timeout": 0}}}

    def test_class(self):
        self.zklock.assert_held("class")
        with self.zklock.busy_by("b"), self.assertRaises(LockBusy), zk_lock("b"):
            pass

class Other(SimpleTestCase):
    def test_settings(self):
        with zk_lock("stock", timeout=0):
            pass
"""
    project.write("test_shop.py", tests)
    project.succeed("manage.py", "test")


FIRST_CONTACT = """
from django.test import SimpleTestCase
from django_zklock.exceptions import ZooKeeperUnavailable
import shop

class Contact(SimpleTestCase):
    def test_contact(self):
        with self.assertRaises(ZooKeeperUnavailable):
            shop.sell("lamp")
"""


def test_contact_in_djangos_test_environment_needs_a_word(project):
    project.write("test_shop.py", FIRST_CONTACT)
    refused = project.run("manage.py", "test", RUNNER="django.test.runner.DiscoverRunner")
    assert 'set TEST_RUNNER = "django_zklock.testing.ZkLockRunner"' in refused.stderr, refused.stderr
    assert "FAILED (errors=1)" in refused.stderr
    settings = "\ndel ZKLOCK['TLS']\nZKLOCK.update(REAL_IN_TESTS=True, CONNECT_TIMEOUT=0.3)\n"
    project.write("project_settings.py", SETTINGS + MORE_SETTINGS + settings)
    for runner in ("django.test.runner.DiscoverRunner", "django_zklock.testing.ZkLockRunner"):
        project.succeed("manage.py", "test", RUNNER=runner)


PYTEST_TESTS = """
import pytest
from busy import is_busy
from django_zklock import zk_lock
from django_zklock.exceptions import LockBusy

def held(name):
    with zk_lock(name):
        yield

of_session = pytest.fixture(scope="session", autouse=True)(lambda: (yield from held("session")))
of_module = pytest.fixture(scope="module", autouse=True)(lambda: (yield from held("module")))
of_class = pytest.fixture(scope="class")(lambda: (yield from held("class")))
of_test = pytest.fixture(lambda: (yield from held("test")))

class TestLocks:
    def test_first(self, of_class, of_test):
        assert all(map(is_busy, ("session", "module", "class", "test")))

    def test_second(self, of_class):
        assert all(map(is_busy, ("session", "module", "class")))
        assert not is_busy("test")

    def test_fixture(self, of_class, zklock, zk_server):
        zklock.assert_held("class")
        assert zk_server is zklock.server

class TestSettings:
    @pytest.fixture
    def zklock_settings(self):
        return {"LOCKS": {"b": {"path": "stock", "timeout": 0}}}

    def test_settings(self, zklock):
        zklock.assert_held("session")
        with zklock.busy_by("b"), pytest.raises(LockBusy), zk_lock("b"):
            pass

def test_view(client):
    assert client.get("/order/1/").content == b"ordered"

def test_leaves():
    zk_lock("left").acquire()

def test_finds_it_free():
    assert not is_busy("left")
"""


PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "zklock_all=true")


@pytest.mark.parametrize("options", [[], pytest.param(["-n", "2"], marks=pytest.mark.chaos)], ids=str)
def test_an_option_of_pytest_gives_locks_to_all_tests_and_fixtures(project, options):
    project.write("test_fixtures.py", PYTEST_TESTS)
    project.write("test_shop.py", TESTS)
    done = project.run(*PYTEST, *options)
    assert f"{COUNT + 7} passed, 1 error" in done.stdout, done.stdout
    assert "ERROR test_fixtures.py::test_leaves - AssertionError" in done.stdout, done.stdout


def test_a_marked_test_or_a_tester_leaves_the_locks_of_all_tests(project):
    project.write("project_settings.py", SETTINGS + 'ZKLOCK["CONNECT_TIMEOUT"] = 0.3\n')
    tests = """
import pytest
import shop
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.testing import DevServer, LockTester

@pytest.mark.zklock_real
def test_real():
    with pytest.raises(ZooKeeperUnavailable):
        shop.sell("lamp")

def test_tester():
    with DevServer() as server, LockTester(server) as zklock, zklock.busy_by("inventory", {"sku": "lamp"}):
        with pytest.raises(TimeoutError):
            shop.sell("lamp")

def test_other():
    assert shop.sell("lamp") == "lamp"
"""
    project.write("test_shop.py", tests)
    project.write("pytest.ini", PLAIN_PYTEST)
    done = project.run(*PYTEST, "-p", "no:django", DJANGO_SETTINGS_MODULE="project_settings")
    assert "3 passed" in done.stdout, done.stdout


MIXED_IN = """
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
def test_each_test_case_class_has_its_own_server(project, options):
    if options and django.VERSION < (6,) and multiprocessing.get_start_method() == "forkserver":
        pytest.skip("this Django cannot clone a database for processes that a fork server starts")
    project.write("test_shop.py", MIXED_IN)
    forks = "ignore:This process:DeprecationWarning"  # of a process with threads; from Python 3.15 on, that can raise
    result = project.run("-W", "error", "-W", forks, "manage.py", "test", *options)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Ran 3 tests" in result.stderr
    pids = {path.read_text() for path in project.directory.glob("*.pid")}
    assert len(pids) == (2 if options else 1)


def test_a_lock_that_is_not_released_fails_the_test(project):
    project.write("test_shop.py", FAILING)
    result = project.run("manage.py", "test")
    assert result.returncode == 1
    assert "FAILED (failures=1)" in result.stderr, result.stderr
    assert "FAIL: test_a_forgets_to_release" in result.stderr
    assert re.search(r"^  holds  \S+ \(", result.stderr, re.MULTILINE), result.stderr
