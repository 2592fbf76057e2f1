"""A suite of 200 tests that know nothing of locks: what the locks of its views cost it."""

from __future__ import annotations

import re
import resource
import statistics
from pathlib import Path

import pytest
from support.chaos.report import Figures
from support.project import SETTINGS, Project

ROUNDS = 3
MOST = 1.10

VIEWS = """
import os
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.urls import path
from django_zklock import zk_locked

def order(request, pk):
    return HttpResponse(f"{User.objects.filter(pk=pk).count()} ordered")

def stock(request, pk):
    return HttpResponse(f"{User.objects.filter(pk__gte=pk).count()} in stock")

if os.environ["LOCKS"] == "1":
    order = zk_locked("order/{pk}")(order)

urlpatterns = [path("order/<int:pk>/", order), path("stock/<int:pk>/", stock)]
"""

TESTS = """
from django.contrib.auth.models import User
from django.test import TestCase

class Orders:
    @classmethod
    def setUpTestData(cls):
        cls.user = User.objects.create_user("nina", password="secret")

    def order(self):
        for number in range(10):
            User.objects.create_user(f"customer{number}", password="secret")
            self.assertEqual(self.client.get(f"/stock/{number}/").status_code, 200)
        self.assertTrue(self.client.login(username="nina", password="secret"))
        answer = self.client.get(f"/order/{self.user.pk}/")
        self.assertEqual((answer.status_code, answer.content), (200, b"1 ordered"))

for number in range(20):
    tests = {f"test_{letter}": lambda self: self.order() for letter in "abcdefghij"}
    globals()[f"Orders{number}"] = type(f"Orders{number}", (Orders, TestCase), tests)
"""

MORE_SETTINGS = """
INSTALLED_APPS += ["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"]
MIDDLEWARE += [
    "django.contrib.sessions.middleware.SessionMiddleware", "django.contrib.auth.middleware.AuthenticationMiddleware",
]
ROOT_URLCONF = "views"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TEST_RUNNER = os.environ.get("RUNNER", "django.test.runner.DiscoverRunner")
"""

COMMANDS = {
    "Django": ("manage.py", "test"),
    "pytest": ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"),
}
LOCKS = {
    "Django": {"RUNNER": "django_zklock.testing.ZkLockRunner"},
    "pytest": {"PYTEST_ADDOPTS": "-o zklock_all=true"},
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("runner", COMMANDS)
def test_locks_make_a_suite_hardly_slower(tmp_path: Path, figure: Figures, runner: str) -> None:
    """
    A test takes about 10 ms, as in a small project; an order with its lock, less than 1 ms of it.

    The runs with and without locks take turns. Their processor time is compared: other programs may be busy.
    """
    project = Project(tmp_path)
    project.write("project_settings.py", SETTINGS + MORE_SETTINGS)
    project.write("views.py", VIEWS)
    project.write("test_orders.py", TESTS)

    def seconds(**env: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = project.succeed(*COMMANDS[runner], **env)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert re.search(r"\b200 (passed|tests in)", done.stdout + done.stderr), done.stdout + done.stderr
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    without, with_locks = [], []
    for _ in range(ROUNDS):
        without.append(seconds(LOCKS="0"))
        with_locks.append(seconds(LOCKS="1", **LOCKS[runner]))
    medians = statistics.median(without), statistics.median(with_locks)
    figure(f"200 tests, {runner}: without locks", medians[0], "s")
    figure(f"200 tests, {runner}: with locks", medians[1], "s")
    assert medians[1] <= MOST * medians[0], (without, with_locks)
