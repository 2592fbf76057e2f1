"""The code in the how-to about the admin works."""

import re
import runpy
from pathlib import Path

import pytest
from django.contrib import admin
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from support.docs import files_of, run, text_of

from django_zklock.admin import LockAdmin
from django_zklock.models import Lock
from django_zklock.report.verdict import CAUSES

ROOT = Path(__file__).parents[2]


@pytest.fixture
def blocks():
    return files_of("how-to/admin.md")


def test_the_admin_of_the_example_replaces_the_default_one(blocks):
    try:
        run(blocks["admin.py"])
        model_admin = admin.site.get_model_admin(Lock)
        assert type(model_admin).__name__ == "ThemedLockAdmin"
        assert model_admin.check() == []
    finally:
        admin.site.unregister(Lock)
        admin.site.register(Lock, LockAdmin)


def test_the_json_view_of_the_example_needs_the_permission(blocks, rf):
    names = run(blocks["urls.py"])
    request = rf.get("/ops/locks.json")
    request.user = AnonymousUser()
    with pytest.raises(PermissionDenied):
        names["urlpatterns"][0].callback(request)


def test_the_probe_of_the_example_answers(blocks, rf, zoo):
    names = run(blocks["probes.py"])
    assert names["urlpatterns"][0].callback(rf.get("/health/locks.json")).status_code == 200


def test_the_page_of_incidents_is_that_of_the_report():
    """Write it with `python scripts/causes.py`."""
    page = text_of("reference/incidents.md")
    assert page == runpy.run_path(str(ROOT / "scripts" / "causes.py"))["written"](page)
    assert [name for name in CAUSES if f"\n## {name}\n" not in page] == [], "an alert leads to the heading of its cause"


REFERENCE = text_of("reference/admin.md")


def test_the_reference_has_every_permission():
    names = [f"{name}_lock" for name in Lock._meta.default_permissions] + [name for name, _ in Lock._meta.permissions]
    assert re.findall(r"^\| `zklock\.(\w+)` \|", REFERENCE, re.MULTILINE) == names
