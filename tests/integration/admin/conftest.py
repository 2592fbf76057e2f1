"""The settings of the admin, for all tests of its pages."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from django.test import Client, override_settings
from support import adminsite
from support.reply_timeout import ADDED

from django_zklock.admin import LockAdmin


@pytest.fixture(scope="package", autouse=True)
def site() -> Iterator[None]:
    """Set what the admin needs: URLs, middleware and templates, which are compiled once for all tests."""
    with override_settings(**adminsite.SETTINGS):
        yield


@pytest.fixture(autouse=True)
def patient_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ZooKeeper be late on a busy machine: a page that waits no longer shows that it does not answer."""
    monkeypatch.setattr(LockAdmin, "reply_timeout", LockAdmin.reply_timeout + float(os.environ[ADDED]))


@pytest.fixture
def viewer() -> Client:
    return adminsite.user_with("view_lock")


@pytest.fixture
def operator() -> Client:
    return adminsite.user_with(*adminsite.ALL)
