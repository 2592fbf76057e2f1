"""How `contrib.celery` registers with the decorator, whichever of Django and Celery a process imports first."""

from __future__ import annotations

import subprocess
import sys

SETUP = """
import sys
from django.conf import settings
settings.configure(INSTALLED_APPS=["django_zklock"], ZKLOCK={"URL": "zk://h"})
import django, django.core.exceptions
"""


def run(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", SETUP + code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


DJANGO_FIRST = """
class NoCelery:
    def find_spec(self, name, path=None, target=None):
        if name == "celery":
            raise ModuleNotFoundError(name)

django.setup()
from django_zklock import zk_locked
from django_zklock.decorators import context

@zk_locked("a")
def function(): ...

print(context.library.context_of(function), "celery" in sys.modules)
sys.meta_path.insert(0, NoCelery())
try:
    zk_locked("a", unique="until_done")(lambda: None)
except django.core.exceptions.ImproperlyConfigured as error:
    print(error)
del sys.meta_path[0]
from celery import Celery
from celery._state import _task_stack
_task_stack.push(Celery(set_as_current=False).task(name="task")(function))
print(type(context.library.context_of(function)).__name__)
"""


def test_a_function_may_be_decorated_before_celery_is_imported() -> None:
    without, advice, context = run(DJANGO_FIRST)
    assert without == "None False"
    assert "pip install" in advice
    assert context == "TaskContext"


CELERY_FIRST = """
from celery import Celery
from django_zklock.decorators.locked import zk_locked

def work(): ...

for options in ({}, {"unique": "until_done"}):
    Celery(set_as_current=False).task(name="task")(zk_locked("a", **options)(lambda: None))
    print(hasattr(Celery.send_task, "__zk_locked__"))

try:
    Celery(broker="memory://").task(zk_locked("a", unique="until_done")(work)).delay()
except django.core.exceptions.ImproperlyConfigured as error:
    print(error)
"""


def test_a_task_may_be_defined_before_django_is_set_up() -> None:
    """A unique task is not sent without Django, as with a lock. Otherwise all duplicates would be sent."""
    plain, unique, error = run(CELERY_FIRST)
    assert [plain, unique] == ["False", "True"]
    assert "django.setup()" in error
