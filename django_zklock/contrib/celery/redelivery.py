"""
Redelivered messages: what a task does that finds another copy of itself in the queue of its lock.

A broker delivers a message again if the first copy is not acknowledged: its worker died, or was only slow (Redis'
visibility timeout, a lost connection). The second copy cannot know which. The znode of a dead process exists until its
session ends, and no longer. So the second copy is sent again until the znode is gone, and then asks the result backend
whether the work is done; or until the znode has existed for longer than the session of a dead process can.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from celery import Task
from celery.exceptions import Ignore

from django_zklock import clock
from django_zklock.contrib.celery import messages
from django_zklock.contrib.celery.introspection import finished_at, short_id
from django_zklock.contrib.celery.messages import CONFLICTS_HEADER
from django_zklock.exceptions import ZkLockError
from django_zklock.locks.queue_reader import ContenderInfo
from django_zklock.queue.escaping import printable
from django_zklock.zk import process

COPY_HEADER: Final = "zklock_copy"
"""
The znode of the other copy, and since when it is known.

In JSON: "node", its name; "seen", for each machine the time on its own clock at which a copy first found the znode
there, so that clocks of different machines are never compared; "done", when the result that existed at first was
stored, or an empty text; "calm", if the znode was gone at the last look.
"""

OUTLIVED: Final = 2.0
"""
Session timeouts for which a znode must be known before its process must be alive.

The session of a dead process ends within its timeout and two ticks, and no server grants a timeout under two ticks.
"""

LONGEST_DELAY: Final = 2.0  # seconds until a copy is sent again: soon, as the other copy is nearly done, or dead
_MOST_MACHINES: Final = 20  # in the header


def find_copy(task: Task[..., Any], queue: Iterable[ContenderInfo]) -> ContenderInfo | None:
    """Return the contender in a queue that is a copy of the running task; None if there is none."""
    return copy_of(task.request.id, queue)


def copy_of(task_id: object, queue: Iterable[ContenderInfo]) -> ContenderInfo | None:
    """Return the contender in a queue that is a task with this id; None if there is none."""
    own = printable(short_id(task_id))
    return next((each for each in queue if each.about.get("id") == own), None)


def is_alive(task: Task[..., Any], copy: ContenderInfo) -> bool:
    """Tell whether this machine has known the znode for so long that its process must be alive."""
    known = _known(task)
    since = known["seen"].get(_machine()) if known.get("node") == copy.name else None
    return isinstance(since, (int, float)) and clock.now() - since > OUTLIVED * process.current().timeout


def retry_later(task: Task[..., Any], copy: ContenderInfo, error: ZkLockError) -> None:
    """Send this copy again, with what it knows about the other one."""
    known = _known(task)
    if known.get("node") != copy.name:
        known = {"node": copy.name, "seen": {}, "done": known.get("done", _finished_at(task))}
    seen = {_machine(): clock.now(), **known["seen"]}
    header = json.dumps({**known, "seen": dict(list(seen.items())[:_MOST_MACHINES])})
    messages.send_again(task, CONFLICTS_HEADER, error, longest=LONGEST_DELAY, **{COPY_HEADER: header})


def check_done(task: Task[..., Any]) -> None:
    """
    Raise `Ignore` if another copy has done the work; called under the lock, before the work.

    A result is stored only after the lock is released. So a copy that finds no result is sent again once, and then
    relies on the answer.
    """
    known = _known(task)
    if "node" not in known:
        return
    done = _finished_at(task)
    if done and done != known.get("done"):
        raise Ignore(f"another copy of task {task.request.id} has done the work")
    if not known.get("calm"):
        gone = ZkLockError("another copy of this task has just released the lock")
        header = json.dumps({**known, "calm": True})
        messages.send_again(task, CONFLICTS_HEADER, gone, longest=messages.FIRST_DELAY, **{COPY_HEADER: header})


def _known(task: Task[..., Any]) -> dict[str, Any]:
    try:
        found = json.loads(messages.text(task.request, COPY_HEADER) or "{}")
    except ValueError:
        found = None
    return found if isinstance(found, dict) and isinstance(found.get("seen"), dict) else {"seen": {}}


def _finished_at(task: Task[..., Any]) -> str:
    return finished_at(task.backend, str(task.request.id))


def _machine() -> str:
    """Return an id of this machine since its start: clocks are comparable within it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:13]
    except OSError:
        return f"{socket.gethostname()}/{os.getpid()}"  # two processes may have different clocks
