"""Acknowledge an incident for a time, so that no process shows it as new. The incident itself goes on."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from django_zklock.core import clock
from django_zklock.core.queue import acknowledgement
from django_zklock.core.queue.acknowledgement import Acknowledgement
from django_zklock.core.queue.operator_hold import LONGEST
from django_zklock.core.zk import process
from django_zklock.core.zk.errors import ZkError
from django_zklock.core.zk.gateway import DirectoryState
from django_zklock.core.zk.multi import Create, Delete
from django_zklock.core.zk.options import SessionOptions
from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable
from django_zklock.locks.arguments import check_no_running_loop, check_seconds
from django_zklock.locks.requests import Commit, Done, OptimisticUpdate, Step, call, run
from django_zklock.operations.audit import check_by, check_reason, record_action
from django_zklock.operations.client import REPLY_TIMEOUT
from django_zklock.shared import Shared

_IDENTITY: Final = re.compile(r"[a-z]+-[0-9a-f]{16}")
_MOST: Final = 200  # that are read


def acknowledge(
    identity: str, *, title: str, seconds: float, reason: str, by: str, reply_timeout: float = REPLY_TIMEOUT
) -> None:
    """
    Acknowledge an incident for so many seconds, at most a week, in place of an earlier time; 0 withdraws that.

    `identity` is that of the incident, as `doctor --incident --json` shows it. All that are over are deleted. The call
    is written to the log `zklock.audit`. Raises `ZooKeeperUnavailable`, and `ValueError` for a wrong value.
    """
    check_no_running_loop("acknowledge", "await sync_to_async(acknowledge)(...)")
    by, reason = check_by(by), check_reason(reason)
    check_seconds("seconds", seconds, f"a number from 0 to {LONGEST:.0f}, a week")
    if seconds > LONGEST or not _IDENTITY.fullmatch(identity):
        raise ValueError("seconds is above a week." if seconds > LONGEST else f"No incident is named {identity!r}.")
    session, deadline, now = process.current(), clock.now() + reply_timeout, time.time()
    parent = acknowledgement.directory(session.options.base)
    known = _read(session.options, reply_timeout)
    over = {identity, *(name for name, before in known.items() if before.ends <= now)}
    data = Acknowledgement(title=title, by=by, reason=reason, ends=now + seconds).encode()

    tried = False

    def decide(directory: DirectoryState | None, session_id: int) -> Step:
        nonlocal tried
        tried = True
        names = over.intersection(() if directory is None else directory.children)
        deletes = tuple(Delete(path=f"{parent}/{name}") for name in sorted(names))
        create = (Create(path=f"{parent}/{identity}", data=data),) if seconds else ()
        return Commit((*deletes, *create), True) if deletes or create else Done(False)

    what = "acknowledged" if seconds else "acknowledgement withdrawn"
    record: Callable[..., None] = partial(record_action, what, "", by, reason, who=title, seconds=seconds)
    try:
        run(OptimisticUpdate(session, parent, decide, directory=parent), deadline)
    except ZooKeeperUnavailable:
        if tried:
            record(sure=False)
        raise
    _shared.clear()
    if seconds or identity in known:
        record()


def acknowledgements(*, reply_timeout: float = REPLY_TIMEOUT) -> dict[str, Acknowledgement]:
    """Return those that are not over, by the identities of the incidents; none if ZooKeeper does not answer."""
    known = _shared.get(process.current().options, reply_timeout, 1.0)
    return {identity: written for identity, written in known.items() if written.ends > time.time()}


def _read(options: SessionOptions, timeout: float) -> dict[str, Acknowledgement]:
    session, deadline, parent = process.current(), clock.now() + timeout, acknowledgement.directory(options.base)
    try:
        names: Any = call(session, lambda gateway, done: gateway.children(parent, done), deadline)  # type: ignore[arg-type]
        paths = [] if isinstance(names, ZkError) else [f"{parent}/{name}" for name in names[:_MOST]]
        nodes: Any = call(session, lambda gateway, done: gateway.read_all(paths, done), deadline)  # type: ignore[arg-type]
    except ZkLockError:
        return {}
    read = {} if isinstance(nodes, ZkError) else {node.name: node.data for node in nodes.values()}
    return {name: known for name in read if (known := Acknowledgement.decode(read[name])) is not None}


_shared: Final = Shared(_read)
