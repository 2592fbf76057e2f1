"""The settings of the admin, for all tests of its pages."""

import os

import pytest
from django.test import override_settings
from support import adminsite
from support.reply_timeout import ADDED

from django_zklock.admin import LockAdmin


@pytest.fixture(scope="package", autouse=True)
def site():
    """Set what the admin needs: URLs, middleware and templates, which are compiled once for all tests."""
    with override_settings(**adminsite.SETTINGS):
        yield


@pytest.fixture(autouse=True)
def patient_pages(monkeypatch):
    """Let ZooKeeper be late on a busy machine: a page that waits no longer shows that it does not answer."""
    monkeypatch.setattr(LockAdmin, "reply_timeout", LockAdmin.reply_timeout + float(os.environ[ADDED]))


@pytest.fixture
def viewer():
    return adminsite.user_with("view_lock")


@pytest.fixture
def operator():
    return adminsite.user_with(*adminsite.ALL)
