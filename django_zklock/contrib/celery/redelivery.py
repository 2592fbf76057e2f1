"""
Knows when a task meets itself: a second copy of its message, while the first one runs or lies dead.

A broker delivers a task again when it hears nothing of it: when its worker died, and also when it did not (Redis'
visibility timeout, a connection that was cut). The copy can't tell which. The node that it meets lives on after its
process for as long as the session does, and no longer. So a copy comes again until the node is gone, and then asks the
result backend whether the task has ended; or until the node has outlived any session of the dead.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from celery import Task, states
from celery.backends.base import DisabledBackend
from celery.exceptions import Ignore

from django_zklock.contrib.celery import messages
from django_zklock.contrib.celery.messages import CONFLICTS_HEADER
from django_zklock.exceptions import ZkLockError
from django_zklock.locks.looking import Contending
from django_zklock.zk import clock, process

logger = logging.getLogger("django_zklock.celery")

COPY_HEADER = "zklock_copy"
"""
The node that a copy has met, and since when.

In JSON: "node", its name; "seen", for each machine the time on its own clock at which a copy first met it there, so
that no machine's clock is compared with another's; "done", when the result that was there at first sight was stored,
or an empty text; "calm", if the node was gone when last looked for.
"""

OUTLIVED = 2.0
"""
Sessions that a node must have been seen for before its session can't be a dead one's.

The session of a dead process ends within its timeout and two ticks, and a server grants no timeout under two ticks.
"""

LONGEST_DELAY = 2.0  # seconds until a copy comes again: what it meets is done soon, or dead, and the work is late then
MOST_MACHINES = 20  # in the header
SHOWN = 64  # characters of an id


def short_id(task_id: object) -> str:
    """Return a task's id as the queue of a lock shows it; ids that somebody made up may be long."""
    found = str(task_id or "")
    if len(found) <= SHOWN:
        return found
    # By its two ends alone, it could be taken for a copy of another task, and be dropped.
    digest = hashlib.sha256(found.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{found[: SHOWN - 33]}…{digest}"


def own(task: Task[..., Any], queue: Iterable[Contending]) -> Contending | None:
    """Return the contender in a queue that is a copy of the running task; None if there is none."""
    mine = short_id(task.request.id)
    return next((each for each in queue if each.payload is not None and each.payload.about.get("id") == mine), None)


def outlived(task: Task[..., Any], node: Contending) -> bool:
    """Tell whether copies on this machine have met this node for so long that its process must live."""
    seen = _met(task).get("seen", {}) if _met(task).get("node") == node.name else {}
    since = seen.get(_machine())
    return isinstance(since, (int, float)) and clock.now() - since > OUTLIVED * process.current().timeout


def meet_again(task: Task[..., Any], node: Contending, error: ZkLockError) -> None:
    """Send the copy again, with what it has seen."""
    met = _met(task)
    if met.get("node") != node.name:
        met = {"node": node.name, "seen": {}, "done": met.get("done", _stored(task))}
    seen = {_machine(): clock.now(), **met["seen"]}
    header = json.dumps({**met, "seen": dict(list(seen.items())[:MOST_MACHINES])})
    messages.come_again(task, CONFLICTS_HEADER, error, longest=LONGEST_DELAY, **{COPY_HEADER: header})


def settle(task: Task[..., Any]) -> None:
    """
    Look what became of the copy that was met, before the work is begun; raise `Ignore` if it has done it.

    A result is stored only after the lock is free. So who finds none comes again once, and then believes it.
    """
    met = _met(task)
    if not met:
        return
    done = _stored(task)
    if done and done != met.get("done"):
        raise Ignore(f"another copy of task {task.request.id} has done its work")
    if not met.get("calm"):
        gone = ZkLockError("another copy of this task has just let go of the lock")
        header = json.dumps({**met, "calm": True})
        messages.come_again(task, CONFLICTS_HEADER, gone, longest=messages.FIRST_DELAY, **{COPY_HEADER: header})


def _met(task: Task[..., Any]) -> dict[str, Any]:
    try:
        found = json.loads(messages.text(task.request, COPY_HEADER) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("seen"), dict) else {}


def _stored(task: Task[..., Any]) -> str:
    """Return when the task's result was stored, or an empty text if there is none, or nobody could tell."""
    backend = task.backend
    if isinstance(backend, DisabledBackend) or backend.as_uri().startswith("rpc://"):
        return ""
    try:
        meta = backend.get_task_meta(str(task.request.id), cache=False)
    except Exception as error:  # noqa: BLE001 - whatever a backend's client raises
        logger.warning("the result backend can't tell whether task %s has ended: %r", task.request.id, error)
        return ""
    return str(meta.get("date_done") or "there") if meta.get("status") in states.READY_STATES else ""


def _machine() -> str:
    """Return what tells this machine, since it was started, from all others: the extent of its clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:13]
    except OSError:
        return f"{socket.gethostname()}/{os.getpid()}"  # no clock is surely common to two processes
