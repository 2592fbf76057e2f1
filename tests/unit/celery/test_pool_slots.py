"""The slots of a pool that runs no tasks."""

from __future__ import annotations

from types import SimpleNamespace

from celery.concurrency.prefork import TaskPool

from django_zklock.contrib.celery.dispatch.pool_slots import PoolSlots


def test_a_pool_that_was_stopped_has_no_slots() -> None:
    """A worker that is stopped twice ends its pool while messages still wait."""
    pool = TaskPool(limit=1)
    controller = SimpleNamespace(max_tasks_per_child=None)
    slots = PoolSlots(SimpleNamespace(pool=pool, controller=controller), SimpleNamespace(), on_end=print)  # type: ignore[arg-type]
    pool.terminate()
    assert slots.available == 0
