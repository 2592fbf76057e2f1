"""The order of locks over a whole test run: in pytest, its workers, other processes, and Django's runner."""

import multiprocessing

import django
import pytest
from support.project import SETTINGS, Project

LOCKS = 'ZKLOCK |= {"DEFAULTS": {}, "LOCKS": {"a": {"path": "a"}, "b": {"path": "b"}}}\n'
STRICT = f'{SETTINGS}{LOCKS}ZKLOCK["STRICT"] = True\n'
ADVICE = "Always lock 'a' before 'b'"
NESTED = """
from django_zklock import zk_lock

def nested(outer, inner):
    with zk_lock(outer), zk_lock(inner):
        pass
"""
FIRST = f"""
import pytest
{NESTED}
def test_one(zklock):
    nested("a", "b")
"""
SECOND = """
def test_other(zklock):
    nested("b", "a")
"""
SUITE = f"""
from django.test import SimpleTestCase
{NESTED}
class First(SimpleTestCase):
    def test(self):
        nested("a", "b")

class Second(SimpleTestCase):
    def test(self):
        nested("b", "a")
"""
# A process that a test starts, with the server of the test.
CHILD = """
import sys
import django
from django.conf import settings
settings.configure(INSTALLED_APPS=["django_zklock"], ZKLOCK={"URL": sys.argv[1]})
django.setup()
from django_zklock import zk_lock
with zk_lock("b"), zk_lock("a"):
    pass
"""
STARTS_CHILD = """
import subprocess, sys
from django.conf import settings

def test_child(zklock):
    subprocess.run([sys.executable, "child.py", settings.ZKLOCK["URL"]], check=True)
"""


@pytest.fixture
def project(tmp_path):
    project = Project(tmp_path)
    project.write("project_settings.py", STRICT)
    project.write("test_shop.py", FIRST + SECOND)
    return project


def test_two_orders_of_two_tests_fail_a_strict_run(project):
    done = project.run("-m", "pytest")
    assert "2 passed" in done.stdout, done.stdout
    assert (done.stdout.count(ADVICE), done.returncode) == (1, 1)


def test_without_strict_a_summary_tells_them(project):
    project.write("project_settings.py", SETTINGS + LOCKS)
    done = project.run("-m", "pytest")
    assert (done.stdout.count(ADVICE), done.returncode) == (1, 0), done.stdout
    assert WHY not in done.stdout


def test_a_marked_test_means_its_order(project):
    project.write("test_shop.py", f"{FIRST}\n@pytest.mark.zklock_order_meant{SECOND}")
    done = project.run("-m", "pytest", "--strict-markers")
    assert (ADVICE in done.stdout, done.returncode) == (False, 0), done.stdout


def test_workers_and_other_processes_belong_to_the_run(project):
    pytest.importorskip("xdist")
    project.write("child.py", CHILD)
    project.write("test_shop.py", FIRST)
    project.write("test_child.py", STARTS_CHILD)
    done = project.run("-m", "pytest", "-n", "2", "--dist", "loadfile")
    assert "2 passed" in done.stdout, done.stdout
    assert ("wait for each other" in done.stdout, done.returncode) == (True, 1), done.stdout


AWAY = """
import os
import pytest

@pytest.fixture(autouse=True)
def away(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
"""


WHY = 'The run fails, because ZKLOCK["STRICT"] is True.'


@pytest.mark.parametrize("options", ["-v1", "-v0", "--parallel=2"])
def test_the_runner_of_django_collects_them(project, options):
    if "parallel" in options and django.VERSION < (6,) and multiprocessing.get_start_method() == "forkserver":
        pytest.skip("Django 5.2 does not set up the processes of a forkserver")
    project.write("project_settings.py", STRICT + 'TEST_RUNNER = "django_zklock.testing.ZkLockRunner"\n')
    project.write("test_shop.py", SUITE)
    done = project.run("manage.py", "test", options)
    assert "Traceback" not in done.stderr, done.stderr
    assert ("wait for each other" in done.stderr, done.returncode) == (True, 1), done.stdout + done.stderr
    assert done.stderr.rstrip().endswith(WHY)


@pytest.mark.parametrize("options", [[], ["-qq"], ["--no-summary"], ["-p", "no:terminal"]], ids=" ".join)
def test_a_strict_run_of_pytest_says_at_its_end_why_it_fails(project, options):
    done = project.run("-m", "pytest", *options)
    assert (done.returncode, done.stdout.rstrip().endswith(WHY)) == (1, True), done.stdout
