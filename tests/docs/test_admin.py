"""The code in the how-to about the admin works."""

import inspect
import re
import runpy
from pathlib import Path

import pytest
from django.contrib import admin
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from support.docs import files_of, run, text_of

from django_zklock import inspection
from django_zklock.admin import LockAdmin, LockAdminMixin
from django_zklock.dashboard.acts import MAX_TARGETS
from django_zklock.dashboard.views import MAX_TIME
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


NUMBERS = {
    f"reads {inspect.signature(inspection.snapshot).parameters['max_locks'].default:,} locks": 1,
    f"A form has {MAX_TARGETS} holders": 1,
    f"nothing more after {MAX_TIME:g} seconds": 1,
    f"every {LockAdmin.refresh} seconds": 1,
    f"Within {LockAdmin.reply_timeout:g} s, a banner": 1,
}
"""How often the page says this, from the constants of the code."""


@pytest.mark.parametrize("text", NUMBERS)
def test_the_thresholds_of_the_page_are_those_of_the_code(text):
    assert " ".join(text_of("how-to/admin.md").split()).count(text) == NUMBERS[text]


def test_an_alert_leads_to_the_heading_of_its_cause():
    page = runpy.run_path(str(ROOT / "docs" / "from_code.py"))["replaced"](text_of("reference/incidents.md"))
    assert [name for name in CAUSES if f"\n## {name}\n" not in page] == []


PAGE = text_of("how-to/admin.md")


def test_the_page_has_every_permission():
    names = [f"{name}_lock" for name in Lock._meta.default_permissions] + [name for name, _ in Lock._meta.permissions]
    assert re.findall(r"^\| `zklock\.(\w+)` \|", PAGE, re.MULTILINE) == names


def test_the_page_has_every_url_with_its_address():
    shown = {}
    for names, addresses in re.findall(r"^\| (`zklock_lock_[^|]*)\|([^|]*)\|", PAGE, re.MULTILINE):
        pairs = zip(re.findall(r"`(\w+)`", names), re.findall(r"`([^`]+)`", addresses) or [""], strict=True)
        shown.update(pairs)
    made = {
        str(pattern.name): str(pattern.pattern).replace("<path:object_id>", "<key>").replace("<slug:name>", "<name>")
        for pattern in reversed(admin.site.get_model_admin(Lock).get_urls())
        if pattern.name and not pattern.name.endswith(("_add", "_delete")) and "?P" not in str(pattern.pattern)
    }
    assert shown == made


def test_the_page_has_the_attributes_of_the_mixin():
    shown = dict(re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", PAGE, re.MULTILINE))
    assert shown == {name: str(getattr(LockAdminMixin, name)) for name in ("reply_timeout", "refresh")}
