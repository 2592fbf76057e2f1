"""The README: its examples run, and its numbers are those of the code."""

from __future__ import annotations

import re

import pytest
from django.conf import settings
from django.test import RequestFactory, override_settings
from support.docs import BLOCK, DOCS, run
from support.zoo import Zoo

from django_zklock import conf
from django_zklock.core.locks.spec import DEFAULT_TIMEOUT
from django_zklock.core.zk.lease import LEASE_SHARE
from django_zklock.exceptions import LockBusy

README = (DOCS.parent / "README.md").read_text()
TICK = 2  # seconds: the default of ZooKeeper


@pytest.mark.zookeeper
def test_the_examples_of_the_readme_run(zoo: Zoo, rf: RequestFactory) -> None:
    """The view answers, the task returns its result, and both are under their locks."""
    files = dict(BLOCK.findall(README))
    pay, report = run(files["views.py"], "views.py")["pay"], run(files["tasks.py"], "tasks.py")["report"]
    assert pay(rf.get("/"), pk=7).content == b"order 7 is paid"
    assert report.apply(("monday",)).get() == "report of monday"
    with zoo.hold_elsewhere("report/monday"), pytest.raises(LockBusy):
        report.apply(("monday",), throw=True)
    at_once = override_settings(ZKLOCK={**settings.ZKLOCK, "DEFAULTS": {"timeout": 0}})
    with zoo.hold_elsewhere("order/7"), at_once, pytest.raises(LockBusy):
        pay(rf.get("/"), pk=7)


def test_the_tutorial_installs_what_the_readme_says() -> None:
    (command,) = re.findall(r"^\$ pip install .*$", README, flags=re.MULTILINE)
    assert command in (DOCS / "tutorial.md").read_text().splitlines()


def test_the_seconds_of_the_readme_are_the_defaults() -> None:
    timeout = conf.Config(hosts=(), base="").session_timeout
    assert f"session timeout of {timeout:g} s" in README
    assert f"trusts its lock for {LEASE_SHARE * timeout:g} s at most" in README
    assert f"A crash costs {timeout + 2 * TICK:g} s at most" in README
    assert f"waits {DEFAULT_TIMEOUT:g} s for the lock, then answers 409" in README


def test_as_many_tests_convict_kazoo_as_the_readme_says() -> None:
    """One test with several cases is one."""
    modules = [path.read_text() for path in (DOCS.parent / "tests" / "chaos").rglob("test_*.py")]
    convicting = sum(len(re.findall(r"mark\.convicts_kazoo\b", module)) for module in modules)
    numbers = ["No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten"]
    assert f"{numbers[convicting]} of its tests also run with kazoo's own `Lock`" in " ".join(README.split())
