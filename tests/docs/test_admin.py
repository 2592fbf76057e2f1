"""The code in the how-to about the admin works."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.test import RequestFactory
from support.docs import BLOCK, DOCS
from support.zoo import Zoo

from django_zklock import conf
from django_zklock.admin import LockAdmin
from django_zklock.models import Lock


@pytest.fixture
def blocks() -> dict[str, str]:
    text = (DOCS / "how-to" / "admin.md").read_text()
    found = dict(BLOCK.findall(text))
    assert text.count("```python\n") == len(found), "a block does not name its file"
    return found


def test_the_settings_of_the_example_are_sound(blocks: dict[str, str]) -> None:
    """What a reader copies passes the checks."""
    names: dict[str, Any] = {}
    exec(blocks["settings.py"], names)
    assert conf.problems(names["ZKLOCK"]) == []


def test_the_admin_of_the_example_takes_the_place_of_ours(blocks: dict[str, str]) -> None:
    """It registers, and the system checks of the admin have nothing to say about it."""
    try:
        exec(blocks["admin.py"], {"__name__": "example"})
        model_admin: Any = admin.site.get_model_admin(Lock)
        assert type(model_admin).__name__ == "ThemedLockAdmin"
        assert model_admin.check() == []
    finally:
        admin.site.unregister(Lock)
        admin.site.register(Lock, LockAdmin)


def test_the_address_of_the_example_asks_for_the_permission(blocks: dict[str, str], rf: RequestFactory) -> None:
    """A stranger gets no JSON."""
    from django.contrib.auth.models import AnonymousUser
    from django.core.exceptions import PermissionDenied

    names: dict[str, Any] = {}
    exec(blocks["urls.py"], names)
    request = rf.get("/ops/locks.json")
    request.user = AnonymousUser()
    with pytest.raises(PermissionDenied):
        names["urlpatterns"][0].callback(request)


@pytest.mark.zookeeper
def test_the_probe_of_the_example_answers(blocks: dict[str, str], rf: RequestFactory, zoo: Zoo) -> None:
    """Without a user."""
    names: dict[str, Any] = {}
    exec(blocks["probes.py"], names)
    assert names["urlpatterns"][0].callback(rf.get("/health/locks.json")).status_code == 200
