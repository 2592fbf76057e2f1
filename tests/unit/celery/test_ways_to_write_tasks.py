"""Each way to write or to wrap a task: its lock is found, or the sender is told that an option has no effect."""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import Any

import pytest
from celery import Celery, Task
from celery._state import _task_stack
from django.core.exceptions import ImproperlyConfigured
from pydantic import BaseModel

from django_zklock import zk_locked
from django_zklock.contrib.celery import worker
from django_zklock.contrib.celery.context import running_task
from django_zklock.contrib.celery.introspection import arguments, locked_of
from django_zklock.exceptions import InvalidLockName

lock = zk_locked("a/{pk}", unique="until_done", on_lost="retry")


class Order(BaseModel):
    pk: int


@lock
def plain(pk, region="eu"):
    """Some work."""


@lock
def bound(self, pk, region="eu"):
    """Some work of a bound task."""


@zk_locked("a/{order.pk}", unique="until_done")
def of_order(order: Order):
    """Some work with a model."""


def wrapping(function):
    return functools.update_wrapper(opaque(function), function)


def does_nothing(pk):
    """No work."""


def opaque(function):
    def call(*args, **kwargs):
        return function(*args, **kwargs)

    return call


def calls_plain(pk):
    return [plain(pk)]


def gets_order(pk):
    of_order(Order(pk=pk))


def bound_to_order(self, order: Order):
    """Some work of a bound task with a model."""


class Base(Task[..., Any]):
    abstract = True
    run: Any = bound


class Inherits(Base):
    name = "task"


class Partial(Task[..., Any]):
    name = "task"
    run = staticmethod(functools.partial(bound, None, region="us"))  # from Python 3.14 on, a partial is a method, too


class Extends(Base):
    name = "task"

    def run(self, pk):
        return super().run(pk, "us")


class LockedCall(Task[..., Any]):
    abstract = True

    @zk_locked("a/{pk}", unique="until_done")
    def __call__(self, *args, pk, **kwargs):
        return super().__call__(*args, pk=pk, **kwargs)


class Replaces(Base):
    name = "task"

    def run(self, pk): ...


@pytest.fixture
def app():
    app = Celery(set_as_current=False)
    yield app
    app.close()


def task_of(app, function, **options):
    return app.task(name="task", shared=False, **options)(function)


WAYS = {
    "function": lambda app: task_of(app, plain),
    "bound": lambda app: task_of(app, bound, bind=True),
    "autoretry": lambda app: task_of(app, wrapping(plain), autoretry_for=(OSError,)),
    "a decorator with wraps": lambda app: task_of(app, wrapping(plain)),
    "partial": lambda app: app.register_task(Partial()),
    "inherited": lambda app: app.register_task(Inherits()),
    "__call__": lambda app: task_of(app, does_nothing, base=LockedCall),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_lock_of_a_task_is_found(app, way):
    task = WAYS[way](app)
    locked = locked_of(task)
    assert locked is not None
    for args, kwargs in ((), {"pk": 7}), ((7,), {}):
        if args == () or way != "__call__":
            assert locked.key(*arguments(task, args, kwargs)).endswith("a/7")


REFUSED = {
    "a decorator without wraps": lambda app: task_of(app, opaque(plain)),
    "a call of a locked function": lambda app: task_of(app, calls_plain),
}


@pytest.mark.parametrize("way", REFUSED)
def test_a_lock_whose_options_have_no_effect_is_refused(app, way):
    with pytest.raises(ImproperlyConfigured, match=r"on_lost and unique.*functools.wraps"):
        REFUSED[way](app).apply((7,), throw=True)


def test_a_lock_whose_options_have_no_effect_is_refused_outside_of_tasks_too():
    with pytest.raises(ImproperlyConfigured, match="has max_conflicts in"):
        zk_locked("a", max_conflicts=3)(lambda: None)()
    with pytest.raises(ImproperlyConfigured, match=r'skip_value.* on_conflict is "raise"'):
        zk_locked("a", skip_value=3)(lambda: None)()


def test_a_key_that_only_the_task_can_compute_is_refused(app):
    """A unique task needs it before it is sent. The error says where to put the decorator."""
    of_model = task_of(app, of_order, pydantic=True)
    computed = app.task(name="computed", shared=False)(functools.update_wrapper(gets_order, of_order))
    for task, call in ((of_model, {"pk": 7}), (computed, 7)):
        with pytest.raises(InvalidLockName, match=r"has no 'pk'.*unique task .*put it below @zk_locked"):
            task.delay(call)


@pytest.mark.parametrize(
    "make",
    [
        lambda app: app.register_task(Extends()),
        lambda app: app.register_task(Replaces()),
        lambda app: task_of(app, does_nothing, base=Base),
    ],
    ids=["calls super()", "replaces it", "function"],
)
def test_a_task_that_overrides_a_unique_method_is_not_sent(app, make):
    task = make(app)
    assert locked_of(task) is None
    with pytest.raises(
        ImproperlyConfigured, match=r"overrides \S+bound, whose.*unique=.*Put @zk_locked on the override"
    ):
        task.delay(7)


def test_a_locked_method_that_is_called_by_an_override_has_the_policies_of_its_task(app):
    task = app.register_task(Extends())
    _task_stack.push(task)
    try:
        assert running_task(bound).about["task"] == "task"
    finally:
        _task_stack.pop()


LATER = """
from celery import Task
from django_zklock import zk_locked

@zk_locked("a/{pk}", unique="until_done")
def function(pk: Missing) -> Missing: ...
"""


@pytest.mark.skipif(sys.version_info < (3, 14), reason="Python 3.14 evaluates annotations when they are asked for")
def test_an_annotation_may_name_what_only_type_checkers_import(app):
    names = {}
    exec(compile(LATER, "later", "exec", dont_inherit=True), names)
    task = task_of(app, names["function"])
    assert locked_of(task).key(*arguments(task, (7,), {})).endswith("a/7")


# --- tasks that an agent for monitoring has wrapped -------------------------------------------------------------------


def keyed(key): ...


def keyed_bound(self, key): ...


work = zk_locked("outer/{key}")(zk_locked("inner/{key}")(keyed))
bound_work = zk_locked("bound/{key}")(keyed_bound)
helper = zk_locked("helper/{key}")(keyed)


class Proxy:
    """A proxy around a task, as an agent puts one there: all is that of the task, but its class has its own `run`."""

    def __init__(self, task):
        self._task = task

    def __getattr__(self, name):
        return getattr(self._task, name)

    def __call__(self, *args, **kwargs):
        return self._task(*args, **kwargs)

    def run(self, *args, **kwargs):
        return self(*args, **kwargs)


def behind_proxy(task):
    """New Relic puts such a proxy around the task while it builds the task's tracer."""
    return Proxy(task)


def with_wrapped_run(task):
    """Sentry replaces the attribute `run` of the task by a function that wraps it."""
    task.run = functools.wraps(task.run)(lambda *args, _run=task.run, **kwargs: _run(*args, **kwargs))
    return task


def with_replaced_run(task):
    """The new `run` does not say what it wraps, and is the method of something else."""
    task.run = Proxy(task.run).run
    return task


def as_it_is(task):
    return task


@pytest.fixture(params=[as_it_is, behind_proxy, with_wrapped_run, with_replaced_run], ids=lambda agent: agent.__name__)
def agent(request):
    return request.param


@pytest.mark.parametrize("options", [{}, {"autoretry_for": (ValueError,)}], ids=["", "autoretry"])
def test_a_wrapped_task_is_known_by_its_function(app, agent, options):
    task = agent(app.task(name="task", shared=False, **options)(work))
    _task_stack.push(task)
    try:
        contexts = [running_task(wrapper) for wrapper in (helper, work, work.__wrapped__, work)]
    finally:
        _task_stack.pop()
    assert [context and context.about["task"] for context in contexts] == [None, "task", "task", None]


@pytest.mark.parametrize("options", [{}, {"autoretry_for": (ValueError,)}], ids=["", "autoretry"])
def test_the_key_of_a_wrapped_task_is_computed_from_its_arguments(app, agent, options):
    for bind, function in ((False, work), (True, bound_work)):
        task = app.task(name=function.__name__, bind=bind, shared=False, **options)(function)
        wrapped = agent(task)
        locked = locked_of(wrapped)
        assert locked is function.zk_locked
        call = arguments(wrapped, ("a",), {})
        assert call == (((task,) if bind else ()) + ("a",), {})
        assert locked.key(*call).endswith("/a")


def test_a_task_of_a_class_is_known_by_its_method(app, agent):
    class OfClass(app.Task):
        name = "of class"
        run = bound_work

    task = OfClass()
    for known in (task, app.register_task(task)):
        assert locked_of(agent(known)) is bound_work.zk_locked
        assert arguments(known, ("a",), {}) == ((task, "a"), {})


def test_a_function_that_only_an_instance_has_is_known(app):
    class OfInstance(app.Task):
        name = "of instance"

        def __init__(self):
            self.run = work

    task = app.register_task(OfInstance())
    for agent in (as_it_is, behind_proxy, with_wrapped_run):
        assert locked_of(agent(task)) is work.zk_locked


def test_a_task_may_run_any_callable(app):
    class OfCallable(app.Task):
        name = "of callable"
        run = Proxy(keyed)

    assert locked_of(app.register_task(OfCallable())) is None


# --- whichever of Django and Celery is imported first -----------------------------------------------------------------


SETUP = """
import sys
from django.conf import settings
settings.configure(INSTALLED_APPS=["django_zklock"], ZKLOCK={"URL": "zk://h"})
import django, django.core.exceptions
"""


def run(code):
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
from django_zklock.decorators import library

@zk_locked("a")
def function(): ...

print(library.current.context_of(function), "celery" in sys.modules)
sys.meta_path.insert(0, NoCelery())
try:
    zk_locked("a", unique="until_done")(lambda: None)
except django.core.exceptions.ImproperlyConfigured as error:
    print(error)
del sys.meta_path[0]
from celery import Celery
from celery._state import _task_stack
_task_stack.push(Celery(set_as_current=False).task(name="task")(function))
print(type(library.current.context_of(function)).__name__)
"""


def test_a_function_may_be_decorated_before_celery_is_imported():
    without, advice, context = run(DJANGO_FIRST)
    assert without == "None False"
    assert "pip install" in advice
    assert context == "CallContext"


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


def test_a_task_may_be_defined_before_django_is_set_up():
    """A unique task is not sent without Django, as with a lock. Otherwise all duplicates would be sent."""
    plain, unique, error = run(CELERY_FIRST)
    assert [plain, unique] == ["False", "True"]
    assert "django.setup()" in error


class EventletWorker:
    """The part of a worker that `worker_init` gives away. The tests run without eventlet."""

    pool_cls = type("TaskPool", (), {"__module__": "celery.concurrency.eventlet"})


def test_a_worker_with_the_eventlet_pool_does_not_start():
    """The exception is no `Exception`: Celery would log that, and start."""
    with pytest.raises(SystemExit, match=r"not work in the eventlet pool.*--pool=gevent, --pool=threads or"):
        worker.begin_worker(sender=EventletWorker())
