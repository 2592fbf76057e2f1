"""A project whose views have locks, transactions, fences and templates: its own tests neither hang nor leak."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.project import SETTINGS, Project

MORE_SETTINGS = """
ZKLOCK["DEFAULTS"] = {"timeout": 10}  # without it, no call gives the dev server more than 0.7 s to answer
DATABASES["default"]["ATOMIC_REQUESTS"] = True
INSTALLED_APPS = ["django.contrib.contenttypes", "django_zklock", "django_zklock.contrib.fences"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "views"
STATIC_URL = "/static/"
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates"}]
"""

VIEWS = """
from django.contrib.contenttypes.models import ContentType
from django.db import transaction
from django.http import HttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.urls import path
from django.views import View
from django_zklock import current_hold, zk_lock, zk_locked

def work(request):
    ContentType.objects.create(app_label="made", model=str(ContentType.objects.count()))
    with current_hold().fenced("ledger"):
        pass
    if "fail" in request.GET:
        raise ZeroDivisionError
    return HttpResponse("done")

@zk_locked("stock")
def plain(request):
    return work(request)

class Handler(View):
    @zk_locked("stock")
    def get(self, request):
        return work(request)

@zk_locked("stock")
def rendered(request):
    work(request)
    return TemplateResponse(request, engines["django"].from_string("done"))

def kept(request):
    with zk_lock("stock", release_on="commit"):
        return work(request)

views = {"plain": plain, "handler": Handler.as_view(), "rendered": rendered, "kept": kept}
urlpatterns = [path(f"{name}/", view) for name, view in views.items()]
"""

TESTS = """
from urllib.request import urlopen
import pytest
from django.contrib.contenttypes.models import ContentType
from django.db import transaction
from django.test import Client, LiveServerTestCase, TestCase, TransactionTestCase
from django_zklock import zk_lock
from django_zklock.exceptions import LockLost
from django_zklock.testing import ZkLockTestMixin
from views import views

def use(client, zklock):
    for name in [*views, *views]:
        assert client.get(f"/{name}/").getvalue() == b"done"
        zklock.assert_free("stock")
    made = ContentType.objects.filter(app_label="made").count()
    assert made == 2 * len(views)
    for name in views:
        answer = client.get(f"/{name}/?fail")
        assert answer.status_code == 500
        zklock.assert_free("stock")
        assert ContentType.objects.filter(app_label="made").count() == made

@pytest.fixture
def browser():
    return Client(raise_request_exception=False)

def test_with_locks_first(zklock, db, browser):
    use(browser, zklock)

def test_with_the_database_first(db, zklock, browser):
    use(browser, zklock)

def test_with_real_transactions(transactional_db, zklock, browser):
    use(browser, zklock)

def test_a_kept_lock(db, zklock):
    with transaction.atomic(), zk_lock("stock", release_on="commit"):
        zklock.assert_held("stock")
    zklock.assert_free("stock")

def test_a_kept_lock_that_is_lost(transactional_db, zklock):
    with pytest.raises(LockLost), transaction.atomic():
        ContentType.objects.create(app_label="made", model="")
        with zk_lock("stock", release_on="commit"):
            pass
        with zklock.lost():
            pass
    assert not ContentType.objects.filter(app_label="made").exists()

class InOneTransaction(ZkLockTestMixin, TestCase):
    def test_use(self):
        use(Client(raise_request_exception=False), self.zklock)

class InMany(ZkLockTestMixin, TransactionTestCase):
    def test_use(self):
        use(Client(raise_request_exception=False), self.zklock)

class InAThread(ZkLockTestMixin, LiveServerTestCase):
    def test_use(self):
        for name in [*views, *views]:
            with urlopen(f"{self.live_server_url}/{name}/", timeout=10) as answer:
                assert answer.read() == b"done"
            self.zklock.assert_free("stock")
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    project.write("project_settings.py", SETTINGS + MORE_SETTINGS)
    project.write("views.py", VIEWS)
    return project


def test_the_tests_of_a_project_neither_hang_nor_leak(project: Project) -> None:
    """With pytest's fixtures in any order and Django's test cases, whatever transaction they run each test in."""
    project.write("test_views.py", TESTS)
    result = project.run("-m", "pytest", "-p", "no:cacheprovider", "test_views.py")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "8 passed" in result.stdout
