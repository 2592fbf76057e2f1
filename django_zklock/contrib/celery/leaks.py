"""Knows where a task begins and ends: what it has taken by then and not released is released."""

from __future__ import annotations

from typing import Any

from celery import Task
from celery.signals import task_postrun, task_prerun

from django_zklock.contrib.celery.context import about, what
from django_zklock.execution import abort, work
from django_zklock.execution.work import Work
from django_zklock.locks.leftovers import Inventory

_INVENTORY = "_zklock_inventory"
_BEFORE = "_zklock_before"


@abort.shielded
def begin(*, task: Task[..., Any], **kwargs: object) -> None:
    """Note what is held as a task begins, and say what work comes now."""
    request = task.request
    piece = Work(what(task), about(task))
    setattr(request, _INVENTORY, Inventory(piece))
    setattr(request, _BEFORE, work.begin(piece))


@abort.shielded
def end(*, task: Task[..., Any], **kwargs: object) -> None:
    """Release what the task has left, in whatever way it ended."""
    request = task.request
    inventory = getattr(request, _INVENTORY, None)
    if inventory is None:
        return  # it was struck before it began
    try:
        inventory.settle()
    except BaseException:
        inventory.settle()  # struck half way, by a soft time limit, say; so once more
        raise
    finally:
        work.begin(getattr(request, _BEFORE, None))


task_prerun.connect(begin, dispatch_uid="zklock.begin")
task_postrun.connect(end, dispatch_uid="zklock.end")
