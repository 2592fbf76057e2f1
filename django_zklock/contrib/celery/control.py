"""The remote control of a worker: `inspect scheduled` lists tasks that wait for locks, `revoke` frees their keys."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from celery.utils.functional import maybe_list
from celery.worker import control
from celery.worker.control import inspect_command
from celery.worker.state import active_requests, revoked, revoked_stamps

from django_zklock.contrib.celery.dispatch import DISPATCHER
from django_zklock.contrib.celery.dispatch.dispatcher import Dispatcher
from django_zklock.contrib.celery.dispatch.loops import run_logged
from django_zklock.contrib.celery.messages import headers_of
from django_zklock.contrib.celery.unique import lifecycle

_scheduled: Any = control.Panel.data["scheduled"]


@inspect_command(alias="dump_schedule")
def scheduled(state: Any, **kwargs: object) -> list[dict[str, Any]]:
    """List of currently scheduled ETA/countdown tasks, and of those that wait for their locks."""
    dispatcher: Dispatcher | None = getattr(state.consumer, DISPATCHER, None)
    waiting = [] if dispatcher is None else list(dispatcher.waiting)
    in_queue = [{"eta": None, "priority": 6, "request": task.request.info()} for task in waiting]
    return [*_scheduled(state, **kwargs), *in_queue]


def _ending_reservations(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command that revokes tasks and ends the reservations of those that have not begun."""

    @functools.wraps(command)
    def revoke(*args: Any, **kwargs: Any) -> Any:
        reply = command(*args, **kwargs)
        for request in list(lifecycle.received):
            in_pool = request in active_requests or request._apply_result is not None
            if not in_pool and _is_revoked(request):
                run_logged(lifecycle.end_in_background, headers_of(request), request.id)
        return reply

    return revoke


def _is_revoked(request: Any) -> bool:
    if request.id in revoked:
        return True
    for name, values in request.stamps.items():
        of_revoked = maybe_list(revoked_stamps.get(name, ()))
        if any(value in of_revoked for value in maybe_list(values) or ()):
            return True
    return False


for _name in ("revoke", "revoke_by_stamped_headers", "terminate"):
    control.Panel.data[_name] = _ending_reservations(control.Panel.data[_name])
