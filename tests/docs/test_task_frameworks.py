"""The examples for tasks of Django 6.0 run, and do in a conflict what the page about task frameworks says."""

import django
import pytest
from django.db import transaction
from django.test import override_settings
from support.docs import run_all

from django_zklock import zk_lock, zk_locked

pytestmark = pytest.mark.skipif(django.VERSION < (6, 0), reason="Django has tasks since 6.0")


@pytest.fixture
def tasks(zoo):
    names = run_all("how-to/other-task-frameworks.md", __name__="tasks")
    with override_settings(TASKS={"default": {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend"}}):
        yield names


def result(task, *arguments):
    done = task.enqueue(*arguments)
    return done.errors[0].exception_class_path.rpartition(".")[2] if done.errors else done.return_value


def test_the_examples_run(tasks, zoo):
    assert result(tasks["settle"], 7) == "account 7 is settled"
    assert result(tasks["report"], "monday") == "report of monday, attempt 1"
    with zoo.hold_elsewhere("report/monday"):
        assert result(tasks["report"], "monday") is None


def test_a_task_in_its_caller_is_the_same_owner_unless_it_is_async(tasks):
    with zk_lock("account/7"), zk_lock("report/monday"):
        assert result(tasks["settle"], 7) == "account 7 is settled"
        assert result(tasks["report"], "monday") is None


@pytest.mark.django_db
def test_a_task_in_a_transaction_fails(tasks):
    with transaction.atomic():
        assert result(tasks["settle"], 7) == "LockInTransaction"


def test_the_lock_above_the_task_decorator_is_refused(tasks):
    with pytest.raises(TypeError, match=r"put @zk_locked below the decorator that makes the task:\n    @task\n"):
        zk_locked("account/{number}")(tasks["settle"])
