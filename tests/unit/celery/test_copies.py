"""Two copies of a task share one result: the second one neither overwrites it nor takes it for an older one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import celery
import pytest
from celery import Celery, states
from celery.app.trace import trace_task

from django_zklock import Lock, zk_locked
from django_zklock.contrib.celery import context, messages
from django_zklock.core import clock
from django_zklock.exceptions import LockBusy, ZkLockError

REDELIVERED = {"id": "one", "delivery_info": {"redelivered": True, "routing_key": "celery"}, "headers": {}}


def run_copy(app: Celery, is_queued: Callable[[], bool]) -> Any:
    """Run a copy that has found another one in the queue; return what its next run is told of the result before."""

    @app.task(name="copied", shared=False)
    def copied() -> None:
        messages.retry_copy(copied, ZkLockError("busy"), is_queued)

    trace_task(copied, "one", (), {}, request=REDELIVERED, app=app)
    with app.connection_for_read() as connection, connection.SimpleQueue(app.conf.task_default_queue) as queue:
        message = queue.get(block=False)
        message.ack()
    return message.headers[messages.COPY_HEADER]


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery(broker=f"memory://{__name__}", backend="cache+memory://", set_as_current=False)
    app.control.purge()  # all applications of this process share the memory
    yield app
    app.control.purge()
    app.backend.forget("one")
    app.close()


@pytest.mark.parametrize(("queued_for", "earlier"), [(math.inf, True), (0, False), (0.2, False)])
def test_a_result_is_of_an_earlier_call_only_if_the_other_copy_is_still_queued(
    app: Celery, queued_for: float, earlier: bool
) -> None:
    """Else that copy may have stored it before ZooKeeper has deleted its znode, and its work would be done twice."""
    app.backend.mark_as_done("one", "result")
    until = clock.now() + queued_for
    header = run_copy(app, lambda: clock.now() < until)
    assert header == (messages.finished_at(app.backend, "one") if earlier else "none")


@pytest.mark.skipif(celery.VERSION < (5, 7), reason="this Celery stores RETRY in any case")
def test_a_copy_that_is_sent_again_stores_nothing(app: Celery) -> None:
    """Celery looks for a result before it writes RETRY; the other copy may store one between the two."""
    assert run_copy(app, lambda: True) == "none"
    assert app.backend.get_state("one") == states.PENDING


@pytest.mark.skipif(celery.VERSION < (5, 7), reason="this Celery stores RETRY in any case")
def test_a_copy_that_finds_the_lock_busy_stores_nothing(app: Celery) -> None:
    """Another task may hold it, while the other copy, which has released it, stores its result."""

    @app.task(name="busy", shared=False)
    def busy() -> None:
        messages.send_again(busy, messages.CONFLICTS_HEADER, ZkLockError("busy"))

    trace_task(busy, "one", (), {}, request=REDELIVERED, app=app)
    assert app.backend.get_state("one") == states.PENDING


@pytest.mark.parametrize("policy", ["raise", "skip", "retry"])
def test_a_run_that_met_an_unknown_holder_at_its_end_is_sent_again(
    app: Celery, monkeypatch: pytest.MonkeyPatch, policy: Any
) -> None:
    """It may have been a copy, whose result this run must not overwrite."""

    def meet(*args: object) -> NoReturn:
        raise LockBusy("The lock 'k' is held by another owner.", lock="k")

    @app.task(name="met", shared=False)
    @zk_locked("k", on_conflict=policy)  # type: ignore[untyped-decorator]
    def met() -> None: ...

    monkeypatch.setattr(Lock, "__enter__", meet)
    monkeypatch.setattr(context, "_read_queue", lambda spec: ())
    trace_task(met, "one", (), {}, request=REDELIVERED, app=app)
    assert app.backend.get_state("one") not in (states.FAILURE, states.REVOKED)
    with app.connection_for_read() as connection, connection.SimpleQueue(app.conf.task_default_queue) as queue:
        headers: dict[str, Any] = queue.get(block=False).headers
    assert headers[messages.CONFLICTS_HEADER] == 1
