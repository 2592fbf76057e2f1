"""How `contrib.celery` registers with the decorator, whichever of Django and Celery a process imports first."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

SETUP = """
import sys
from django.conf import settings
settings.configure(INSTALLED_APPS=["django_zklock"], ZKLOCK={"URL": "zk://h"})
import django, django.core.exceptions
"""


def run(code: str) -> str:
    """Run code in a process of its own; return what it prints."""
    command = [sys.executable, "-c", SETUP + textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_project_without_celery_does_not_import_it() -> None:
    """Decorated functions do not need it."""
    assert (
        run("""
        django.setup()
        from django_zklock import zk_locked
        from django_zklock.decorators import context
        function = zk_locked("a")(lambda: None)
        print(context.library.context_of(function), "celery" in sys.modules)
    """)
        == "None False"
    )


def test_a_function_may_be_decorated_before_celery_is_imported() -> None:
    """A call by a worker still has the context of its task."""
    assert (
        run("""
        django.setup()
        from django_zklock import zk_locked
        from django_zklock.decorators import context

        @zk_locked("a")
        def function(): ...

        from celery import Celery
        from celery._state import _task_stack
        _task_stack.push(Celery(set_as_current=False).task(name="task")(function))
        print(type(context.library.context_of(function)).__name__)
    """)
        == "TaskContext"
    )


def test_the_sending_of_tasks_is_replaced_for_unique_tasks_only() -> None:
    """A task may be defined before Django is set up."""
    assert (
        run("""
        from celery import Celery
        from django_zklock import zk_locked
        for options in ({}, {"unique": "until_done"}):
            Celery(set_as_current=False).task(name="task")(zk_locked("a", **options)(lambda: None))
            print(hasattr(Celery.send_task, "__zk_locked__"))
    """)
        == "False\nTrue"
    )


@pytest.mark.parametrize("module", ["django_zklock", "django_zklock.decorators.locked"])
def test_a_unique_task_is_not_sent_without_django(module: str) -> None:
    """As with a lock, the error asks for `django.setup()`. Otherwise all duplicates would be sent."""
    assert "django.setup()" in run(f"""
        from celery import Celery
        from {module} import zk_locked

        @Celery(broker="memory://").task
        @zk_locked("a", unique="until_done")
        def task(): ...

        try:
            task.delay()
        except django.core.exceptions.ImproperlyConfigured as error:
            print(error)
    """)


def test_unique_needs_celery() -> None:
    """The error says what to install."""
    assert "pip install" in run("""
        class NoCelery:
            def find_spec(self, name, path=None, target=None):
                if name == "celery":
                    raise ModuleNotFoundError(name)
        sys.meta_path.insert(0, NoCelery())
        django.setup()
        from django.core.exceptions import ImproperlyConfigured
        from django_zklock import zk_locked
        try:
            zk_locked("a", unique="until_done")(lambda: None)
        except ImproperlyConfigured as error:
            print(error)
    """)
