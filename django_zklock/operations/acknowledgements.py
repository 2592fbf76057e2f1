"""Note who looks after an incident, and until when. The note ends with the incident, and changes no verdict."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from django_zklock.core import clock
from django_zklock.core.queue import acknowledgement
from django_zklock.core.queue.acknowledgement import Acknowledgement
from django_zklock.core.queue.operator_hold import LONGEST
from django_zklock.core.zk import process
from django_zklock.core.zk.errors import ZkError
from django_zklock.core.zk.gateway import DirectoryState
from django_zklock.core.zk.multi import Create, Delete, SetData
from django_zklock.core.zk.options import SessionOptions
from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable
from django_zklock.locks.arguments import blocking, check_seconds
from django_zklock.locks.requests import Commit, Done, OptimisticUpdate, Step, call, run
from django_zklock.operations.audit import check_by, check_reason, record_action
from django_zklock.operations.client import BATCH, REPLY_TIMEOUT
from django_zklock.shared import Shared

_is_identity: Final = re.compile(r"[a-z]+-[0-9a-f]{16}").fullmatch


@blocking
def acknowledge(
    identity: str, *, title: str, seconds: float, reason: str, by: str, reply_timeout: float = REPLY_TIMEOUT
) -> None:
    """
    Acknowledge an incident for so many seconds, at most a week, in place of an earlier time; 0 withdraws that.

    `identity` and `title` are those of the incident, as `doctor --incident --json` shows it. The call is written to the
    log `zklock.audit`. Raises `ZooKeeperUnavailable`, and `ValueError` for a wrong value.
    """
    by, reason = check_by(by), check_reason(reason)
    check_seconds("seconds", seconds, f"a number from 0 to {LONGEST:.0f}, a week")
    if seconds > LONGEST or not _is_identity(identity):
        raise ValueError("seconds is above a week." if seconds > LONGEST else f"No incident is named {identity!r}.")
    session, deadline, ends = process.current(), clock.now() + reply_timeout, time.time() + seconds
    parent = acknowledgement.directory(session.options.base)
    path = f"{parent}/{identity}"
    data = Acknowledgement(title=title, by=by, reason=reason, ends=ends).encode()
    tried = False

    def decide(directory: DirectoryState | None, session_id: int) -> Step:
        nonlocal tried
        exists = directory is not None and identity in directory.children
        if not (seconds or exists):
            return Done(tried)  # if it is gone after a try, only the reply was lost
        tried = True
        if not exists:
            return Commit((Create(path=path, data=data),), True)
        # A process that has read the old one may be about to delete that version.
        return Commit((SetData(path=path, data=data, version=-1) if seconds else Delete(path=path),), True)

    what = "acknowledged" if seconds else "acknowledgement withdrawn"
    record: Callable[..., None] = partial(record_action, what, "", by, reason, who=title, seconds=seconds)
    try:
        done = run(OptimisticUpdate(session, parent, decide, directory=parent), deadline)
    except ZooKeeperUnavailable:
        if tried:
            record(sure=False)
        raise
    _shared.clear()
    if done:
        record()


@blocking
def acknowledgements(*, reply_timeout: float = REPLY_TIMEOUT) -> dict[str, Acknowledgement]:
    """Return those that are not over, for a week at most, by identity; none if ZooKeeper does not answer."""
    known, now = _shared.get(process.current().options, reply_timeout, 1.0), time.time()
    valid = {identity: written for identity, written in known.items() if written.ends > now}
    return {identity: replace(written, ends=min(written.ends, now + LONGEST)) for identity, written in valid.items()}


def forget(identities: Iterable[str]) -> None:
    """Delete the acknowledgements of incidents that are over. The reply is not waited for."""
    session = process.current()
    parent = acknowledgement.directory(session.options.base)
    for identity in identities:
        session.post(session.gateway.commit, (Delete(path=f"{parent}/{identity}"),))
    _shared.clear()


@Shared
def _shared(options: SessionOptions, timeout: float) -> dict[str, Acknowledgement]:
    """Return those that are not over by ZooKeeper's clock, for a week at most. Delete the others."""
    session, parent = process.current(), acknowledgement.directory(options.base)
    ask: Callable[[Any], Any] = partial(call, session, deadline=clock.now() + timeout)
    known: dict[str, Acknowledgement] = {}
    over: list[Delete] = []
    with suppress(ZkLockError):  # what was read by then counts
        names = ask(lambda gateway, done: gateway.children(parent, done))
        now = ask(lambda gateway, done: done(gateway.clock.now() or 0.0))
        paths = [f"{parent}/{name}" for name in ([] if isinstance(names, ZkError) else names) if _is_identity(name)]
        while paths:
            batch, paths = paths[:BATCH], paths[BATCH:]
            for node in ask(lambda gateway, done, batch=batch: gateway.read_all(batch, done)).values():
                written = Acknowledgement.decode(node.data)
                ends = min(node.mtime + LONGEST, written.ends if written else math.inf)
                if ends < now:
                    over.append(Delete(path=node.path, version=node.version))
                elif written:
                    known[node.name] = replace(written, ends=ends)
    for delete in over[:BATCH]:  # the next call deletes more
        session.post(session.gateway.commit, (delete,))
    return known
