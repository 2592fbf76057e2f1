"""Tasks that an agent for monitoring has wrapped: their functions, their locks and their arguments are known."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from celery._state import _task_stack  # type: ignore[attr-defined]

from django_zklock import zk_locked
from django_zklock.contrib.celery.context import running_task
from django_zklock.contrib.celery.introspection import arguments, locked_of


def plain(key: str) -> None: ...


def plain_bound(self: Any, key: str) -> None: ...


work: Any = zk_locked("outer/{key}")(zk_locked("inner/{key}")(plain))
bound_work: Any = zk_locked("bound/{key}")(plain_bound)
helper: Any = zk_locked("helper/{key}")(plain)


class Proxy:
    """A proxy around a task, as an agent puts one there: all is that of the task, but its class has its own `run`."""

    def __init__(self, task: Any) -> None:
        self._task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._task(*args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        return self(*args, **kwargs)


def behind_proxy(task: Any) -> Any:
    """New Relic puts such a proxy around the task while it builds the task's tracer."""
    return Proxy(task)


def with_wrapped_run(task: Any) -> Any:
    """Sentry replaces the attribute `run` of the task by a function that wraps it."""
    task.run = functools.wraps(task.run)(lambda *args, _run=task.run, **kwargs: _run(*args, **kwargs))
    return task


def with_replaced_run(task: Any) -> Any:
    """The new `run` does not say what it wraps, and is the method of something else."""
    task.run = Proxy(task.run).run
    return task


def as_it_is(task: Any) -> Any:
    return task


@pytest.fixture(params=[as_it_is, behind_proxy, with_wrapped_run, with_replaced_run], ids=lambda agent: agent.__name__)
def agent(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def app() -> Iterator[Any]:
    app: Any = Celery(set_as_current=False)
    yield app
    app.close()


@pytest.mark.parametrize("options", [{}, {"autoretry_for": (ValueError,)}], ids=["", "autoretry"])
def test_a_wrapped_task_is_known_by_its_function(
    app: Any, agent: Callable[[Any], Any], options: dict[str, Any]
) -> None:
    task = agent(app.task(name="task", shared=False, **options)(work))
    _task_stack.push(task)
    try:
        contexts = [running_task(wrapper) for wrapper in (helper, work, work.__wrapped__, work)]
    finally:
        _task_stack.pop()
    assert [context and context.about["task"] for context in contexts] == [None, "task", "task", None]


@pytest.mark.parametrize("options", [{}, {"autoretry_for": (ValueError,)}], ids=["", "autoretry"])
def test_the_key_of_a_wrapped_task_is_computed_from_its_arguments(
    app: Any, agent: Callable[[Any], Any], options: dict[str, Any]
) -> None:
    """A bound function gets the task before them, any other does not."""
    for bind, function in ((False, work), (True, bound_work)):
        task = app.task(name=function.__name__, bind=bind, shared=False, **options)(function)
        wrapped = agent(task)
        locked = locked_of(wrapped)
        assert locked is function.zk_locked
        call = arguments(wrapped, ("a",), {})
        assert call == (((task,) if bind else ()) + ("a",), {})
        assert locked.key(*call).endswith("/a")


def test_a_task_of_a_class_is_known_by_its_method(app: Any, agent: Callable[[Any], Any]) -> None:
    class OfClass(app.Task):  # type: ignore[misc]
        name = "of class"
        run = bound_work

    task = OfClass()
    for known in (task, app.register_task(task)):
        assert locked_of(agent(known)) is bound_work.zk_locked
        assert arguments(known, ("a",), {}) == ((task, "a"), {})


def test_a_function_that_only_an_instance_has_is_known(app: Any) -> None:
    """The method of the class is not what a worker runs."""

    class OfInstance(app.Task):  # type: ignore[misc]
        name = "of instance"

        def __init__(self) -> None:
            self.run = work

    task = app.register_task(OfInstance())
    for agent in (as_it_is, behind_proxy, with_wrapped_run):
        assert locked_of(agent(task)) is work.zk_locked


def test_a_task_may_run_any_callable(app: Any) -> None:
    """A worker asks each task for its lock."""

    class OfCallable(app.Task):  # type: ignore[misc]
        name = "of callable"
        run = Proxy(plain)

    assert locked_of(app.register_task(OfCallable())) is None
