"""The pytest plugin, in runs of pytest of their own, as a user has them."""

import re
import subprocess
import sys

import pytest
from support.project import PLAIN_PYTEST, SETTINGS, Project

Result = subprocess.CompletedProcess[str]


class Runs(Project):
    def pytest(self, tests, *arguments, **env):
        self.write("test_shop.py", "import pytest\nfrom django_zklock import zk_lock\nimport shop\n" + tests)
        return self.run("-m", "pytest", "-p", "no:cacheprovider", *arguments, **env)


@pytest.fixture
def runs(tmp_path):
    return Runs(tmp_path)


def outcomes(result):
    last = result.stdout.strip().splitlines()[-1]
    counted = re.findall(r"(\d+) (passed|failed|error|skipped|warning)", last)
    assert counted, result.stdout + result.stderr
    return {what: int(count) for count, what in counted}


TESTS = """
from django.conf import settings
from django.test import SimpleTestCase
from django_zklock import inspection
from django_zklock.exceptions import LockBusy
from django_zklock.testing import DevServer, LockTester, ZkLockTestMixin

def test_sells(zklock, zk_server):
    assert shop.sell("lamp") == "lamp"
    assert zk_server.address in settings.ZKLOCK["URL"]
    with zklock.busy_by("inventory", {"sku": "lamp"}), pytest.raises(TimeoutError):
        shop.sell("lamp")

def test_points_back():
    assert "nobody-is-here" in settings.ZKLOCK["URL"]

class TestSettings:
    @pytest.fixture
    def zklock_settings(self):
        return {"LOCKS": {"stock": {"path": "stock/{sku}"}}}

    def test_settings(self, zklock):
        assert list(settings.ZKLOCK["LOCKS"]) == ["stock"]
        with zklock.busy_by("stock", {"sku": 1}), pytest.raises(LockBusy):  # as the project's DEFAULTS do not wait
            with zk_lock("stock", fields={"sku": 1}):
                pass

def test_forgets_to_release(zklock):
    zk_lock("a").acquire()

def test_is_not_harmed(zklock):
    zklock.assert_free("a", timeout=0)
    with zk_lock("a", timeout=0, reentrant=False):
        assert len(zklock.queue("a")) == 1

@pytest.fixture
def busy(zklock):
    with zklock.busy_by("a/b", what="nightly report"):
        yield

def test_fails(zklock, busy):
    assert not "a lock"

def test_refused_lock():
    with zk_lock("a", timeout=0):
        pass

def test_refused_function():
    shop.sell("lamp")

def test_refused_look():
    inspection.snapshot()

class Forgetful(SimpleTestCase):
    def test_refused_case(self):
        with zk_lock("a", timeout=0):
            pass

def test_fixture(zklock):
    shop.sell("lamp")

def test_refused_after_the_fixture():
    shop.sell("lamp")

class Careful(ZkLockTestMixin, SimpleTestCase):
    def test_case(self):
        shop.sell("lamp")

def test_context_managers():
    with DevServer() as server, LockTester(server):
        shop.sell("lamp")

def test_refused_at_last():
    shop.sell("lamp")
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("runs")).pytest(TESTS, "-v").stdout


def of(said, name):
    return re.findall(rf"::{name}\S* (PASSED|FAILED|ERROR)", said.partition("= ERRORS =")[0])


def test_a_test_has_locks_without_a_zookeeper(said):
    for name in ("sells", "points_back", "settings"):
        assert of(said, f"test_{name}") == ["PASSED"], said


def test_django_is_set_up_where_nobody_did_it(runs):
    runs.write("pytest.ini", PLAIN_PYTEST)
    tests = "def test_sells(zklock):\n    assert shop.sell('lamp') == 'lamp'\n"
    result = runs.pytest(tests, "-p", "no:django", DJANGO_SETTINGS_MODULE="project_settings")
    assert outcomes(result) == {"passed": 1}, result.stdout


def test_each_test_has_an_empty_namespace(said):
    assert of(said, "test_forgets_to_release") == ["PASSED", "ERROR"]
    assert of(said, "test_is_not_harmed") == ["PASSED"]
    assert "ERROR at teardown of test_forgets_to_release" in said
    assert "these contenders are left" in said
    assert re.search(r"^E +holds  \S+.* \(\S+, pid \d+ MainThread", said, re.MULTILINE), said


def test_a_failing_test_shows_the_queues(said):
    assert of(said, "test_fails") == ["FAILED"]
    (shown,) = re.findall(r"Queues of the locks -+\n(.*?)\n_", said, re.DOTALL)
    assert re.search(r"^a/b\n  holds  nightly report \(", shown, re.MULTILINE), shown


def test_contact_without_the_fixture_is_an_error(said):
    """As pytest-django forbids the database. A `LockTester` allows it for its own test."""
    assert of(said, "test_refused") == ["FAILED"] * 6
    assert of(said, "test_fixture") + of(said, "test_case") + of(said, "test_context") == ["PASSED"] * 3
    assert said.count("RuntimeError: This test acquires or inspects a lock, so") >= 6
    assert "test with @pytest.mark.zklock_real" in said


@pytest.mark.chaos
def test_each_worker_of_xdist_has_its_own_server(runs):
    pytest.importorskip("xdist")
    tests = """
import pathlib, time

@pytest.mark.parametrize("number", range(6))
def test_sells(zklock, zk_server, number, worker_id):
    assert shop.sell("lamp") == "lamp"
    pathlib.Path(f"{worker_id}.port").write_text(str(zk_server.port))
    deadline = time.monotonic() + 20
    while len(list(pathlib.Path().glob("*.port"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
"""
    result = runs.pytest(tests, "-n", "2")
    assert outcomes(result) == {"passed": 6}, result.stdout
    ports = {path.name: path.read_text() for path in runs.directory.glob("*.port")}
    assert (sorted(ports), len(set(ports.values()))) == (["gw0.port", "gw1.port"], 2)


def test_a_marker_and_a_setting_allow_contact(runs):
    tests = """
from django_zklock.exceptions import ZooKeeperUnavailable

MARK
def test_real():
    with pytest.raises(ZooKeeperUnavailable):
        shop.sell("lamp")

def test_other():
    shop.sell("lamp")
"""
    runs.write("project_settings.py", SETTINGS + 'ZKLOCK["CONNECT_TIMEOUT"] = 0.3\n')
    marked = runs.pytest(tests.replace("MARK", "@pytest.mark.zklock_real"), "--strict-markers")
    assert outcomes(marked) == {"failed": 1, "passed": 1}, marked.stdout
    assert "RuntimeError: This test acquires or inspects a lock" in marked.stdout
    allowed = runs.pytest(tests.replace("MARK", ""), "-o", "zklock_real=true")
    assert outcomes(allowed) == {"failed": 1, "passed": 1}, allowed.stdout
    assert "ZooKeeperUnavailable" in allowed.stdout
    assert "RuntimeError" not in allowed.stdout


@pytest.mark.parametrize(
    ("settings", "module", "message"),
    [
        ("", "", "Set DJANGO_SETTINGS_MODULE"),
        ("ZKLOCK={'LOCKS': {'a': {}}}\n", "project_settings", 'ZKLOCK["LOCKS"]["a"] has no path'),
    ],
    ids=["no settings", "invalid settings"],
)
def test_a_project_without_valid_settings_gets_an_error(runs, settings, module, message):
    runs.write("pytest.ini", PLAIN_PYTEST)
    runs.write("shop.py", "")
    runs.write("project_settings.py", f"SECRET_KEY='x'\nINSTALLED_APPS=['django_zklock']\n{settings}")
    result = runs.pytest("def test_any(zklock): pass\n", "-p", "no:django", DJANGO_SETTINGS_MODULE=module)
    assert outcomes(result) == {"error": 1}, result.stdout
    assert message in result.stdout


def test_the_plugin_imports_nothing_before_a_test_uses_it():
    code = "import sys, django_zklock.testing.plugin; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"django", "kazoo", "django_zklock.testing.tester", "django_zklock.testing.server"} & set(loaded)
