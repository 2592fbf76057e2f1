"""A suite of 200 small tests that know nothing of locks: what a lock in each of them costs it."""

import re
import resource
import statistics

import pytest
from support.project import SETTINGS, Project

PAIRS = 5
MOST = 1.8

VIEWS = """
import os
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.urls import path
from django_zklock import zk_locked

def order(request, pk):
    return HttpResponse(f"{User.objects.filter(pk=pk).count()} ordered")

if os.environ["LOCKS"] == "1":
    order = zk_locked("order/{pk}")(order)

urlpatterns = [path("order/<int:pk>/", order)]
"""

TESTS = """
from django.contrib.auth.models import User
from django.test import TestCase

class Orders:
    @classmethod
    def setUpTestData(cls):
        cls.user = User.objects.create_user("nina", password="secret")

    def order(self):
        self.client.force_login(self.user)
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
LOCKS = {"Django": {"RUNNER": "django_zklock.testing.ZkLockRunner"}, "pytest": {"PYTEST_ADDOPTS": "-o zklock_all=true"}}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("runner", COMMANDS)
def test_a_suite_of_small_tests_stays_fast_with_a_lock_in_each(tmp_path, runner):
    """A request takes about 2 ms, its lock 1 to 2 ms. Processor time is compared: other programs may be busy."""
    project = Project(tmp_path)
    project.write("project_settings.py", SETTINGS + MORE_SETTINGS)
    project.write("views.py", VIEWS)
    project.write("test_orders.py", TESTS)

    def seconds(**env):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = project.succeed(*COMMANDS[runner], **env)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert re.search(r"\b200 (passed|tests in)", done.stdout + done.stderr), done.stdout + done.stderr
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    seconds(LOCKS="1", **LOCKS[runner])  # writes the bytecode
    pairs = [(seconds(LOCKS="0"), seconds(LOCKS="1", **LOCKS[runner])) for _ in range(PAIRS)]
    ratio = statistics.median(pair[1] / pair[0] for pair in pairs)
    assert ratio <= MOST, pairs
