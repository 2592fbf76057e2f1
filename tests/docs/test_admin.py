"""The code in the how-to about the admin works."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.test import RequestFactory
from support.docs import assert_settings, files_of, run
from support.zoo import Zoo

from django_zklock.admin import LockAdmin
from django_zklock.models import Lock


@pytest.fixture
def blocks() -> dict[str, str]:
    return files_of("how-to/admin.md")


def test_the_settings_of_the_example_are_sound(blocks: dict[str, str]) -> None:
    assert_settings(blocks["settings.py"])


def test_the_admin_of_the_example_replaces_the_default_one(blocks: dict[str, str]) -> None:
    """It registers, and the system checks of the admin have nothing to say about it."""
    try:
        run(blocks["admin.py"])
        model_admin: Any = admin.site.get_model_admin(Lock)
        assert type(model_admin).__name__ == "ThemedLockAdmin"
        assert model_admin.check() == []
    finally:
        admin.site.unregister(Lock)
        admin.site.register(Lock, LockAdmin)


def test_the_json_view_of_the_example_needs_the_permission(blocks: dict[str, str], rf: RequestFactory) -> None:
    """A stranger gets no JSON."""
    from django.contrib.auth.models import AnonymousUser
    from django.core.exceptions import PermissionDenied

    names = run(blocks["urls.py"])
    request = rf.get("/ops/locks.json")
    request.user = AnonymousUser()
    with pytest.raises(PermissionDenied):
        names["urlpatterns"][0].callback(request)


@pytest.mark.zookeeper
def test_the_probe_of_the_example_answers(blocks: dict[str, str], rf: RequestFactory, zoo: Zoo) -> None:
    """Without a user."""
    names = run(blocks["probes.py"])
    assert names["urlpatterns"][0].callback(rf.get("/health/locks.json")).status_code == 200
