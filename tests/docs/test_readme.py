"""The README: its examples run, and its numbers are those of the code."""

from __future__ import annotations

import pytest
from django.conf import settings
from django.test import RequestFactory, override_settings
from support.docs import BLOCK, DOCS, run
from support.zoo import Zoo

from django_zklock.exceptions import LockBusy

README = (DOCS.parent / "README.md").read_text()


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
