"""
Set the limit of a semaphore for all processes, while permits are acquired and released.

The limit is a marker in the lock's directory. A contender that lists the queue reads it in the same reply, and uses it
from then on. A change replaces the marker in one transaction. The transaction also writes the data of the directory:
waiters for permits watch these data, and list again.

No holder loses its permit. A contender that was granted by an earlier limit does not look again, so it keeps the permit
although it is further back than the new limit.

The number of holders never exceeds the limit that the last holder in the queue saw at its grant. At that time, fewer
contenders than this limit were ahead of it, of any kind. Later ones come behind it, so the number ahead never rises.

Other processes cannot be certain which contenders keep a permit by an earlier limit. The record of a change has the
highest earlier limit, and by that limit they count as holders (`holders.permit_limit`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from django_zklock import signals
from django_zklock.conf.arguments import read_limit
from django_zklock.core.queue import markers, order
from django_zklock.core.queue.markers import LimitRecord, SetLimit
from django_zklock.core.zk.gateway import DirectoryState
from django_zklock.core.zk.multi import Create, Delete, SetData
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.locks.arguments import blocking
from django_zklock.locks.events import events
from django_zklock.locks.requests import Commit, Done, Step
from django_zklock.names.template import check_own_key
from django_zklock.operations.audit import Action, check_by, check_reason, record
from django_zklock.operations.client import REPLY_TIMEOUT, QueueClient, children

_MISSING: Final = DirectoryState(path="", data=b"", version=0, children=())


@blocking
def set_limit(key: str, limit: int, *, reason: str, by: str, reply_timeout: float = REPLY_TIMEOUT) -> None:
    """
    Set the limit of a semaphore for all processes, in place of the limit in their code, until it is cleared.

    Holders keep their permits. With a lower limit, the next permit is granted once enough of them are released. With a
    higher limit, waiters get theirs at once. A second call replaces the limit. The change is written to the log
    `zklock.audit`; then the signal `limit_changed` is sent.

    Args:
        key: of the lock; it needs no holder and no waiter.
        limit: the number of permits, from 1 to 10 000.
        reason: why, for the audit and shown with the lock; required.
        by: the operator.
        reply_timeout: seconds to wait for ZooKeeper.

    Raises:
        ZooKeeperUnavailable: ZooKeeper did not answer in time. If the request was sent, the limit may be set.
        ValueError: `reason` or `by` is empty, or `limit` is out of range.

    """
    by, reason = check_by(by), check_reason(reason)
    if not read_limit(limit, default=0):
        raise ValueError(f"limit is a number of permits from 1 to {markers.MOST_PERMITS}, not {limit!r}.")
    _change(key, limit, by, reason, reply_timeout)


@blocking
def clear_limit(key: str, *, reason: str, by: str, reply_timeout: float = REPLY_TIMEOUT) -> bool:
    """
    Clear the limit, so that the one in the code of each process applies again; return whether a limit was set.

    Holders keep their permits. The change is written to the log `zklock.audit`; then the signal `limit_changed` is
    sent, with None.

    Raises:
        ZooKeeperUnavailable: ZooKeeper did not answer in time. If the request was sent, the limit may be cleared.
        ValueError: `reason` or `by` is empty.

    """
    return _change(key, None, check_by(by), check_reason(reason), reply_timeout)


def _change(key: str, limit: int | None, by: str, reason: str, reply_timeout: float) -> bool:
    """Set the limit, or clear it with None; return False if there was none to clear."""
    client = QueueClient(key, reply_timeout)
    check_own_key(key)
    text = "Limit cleared" if limit is None else f"Limit set to {limit}"
    action = Action(text=text, key=client.key, by=by, reason=reason)
    try:
        done: bool = client.run(partial(_replace_marker, client.parent, limit or 0, LimitRecord(by=by, reason=reason)))
    except ZooKeeperUnavailable:
        record(action, sure=False)
        raise
    if done:
        record(action)
        events.send(client.session, signals.limit_changed, lock=key, limit=limit, by=by, reason=reason)
    return done


@blocking
def limit_of(key: str, *, reply_timeout: float = REPLY_TIMEOUT) -> SetLimit | None:
    """
    Return the limit that is set for all processes, with the operator and the reason; None if none is set.

    It also works for a semaphore without contenders, which `inspection` does not list. Raises `ZooKeeperUnavailable`.
    """
    client = QueueClient(key, reply_timeout)
    check_own_key(key)
    while True:
        name = order.limit_marker_in(client.run(children))
        if not markers.limit_in(name):
            return None
        node = client.read(name)
        if node is not None:  # else it was changed in between
            return markers.set_limit(name, node.data, node.ctime)


def _replace_marker(
    parent: str, limit: int, change: LimitRecord, directory: DirectoryState | None, session_id: int
) -> Step:
    """
    Replace the marker of the limit; 0 clears the limit. The value is False if there is no limit to clear, else True.

    The directory's data are the record of the last change. By the id in it, a change recognizes itself after a lost
    reply.
    """
    state = directory or _MISSING
    last = LimitRecord.read(state.data)
    if last.id == change.id:
        return Done(True)
    present = [name for name in state.children if markers.is_limit_marker(name)]
    # A marker that this release cannot read sets a limit, too.
    if not limit and all(markers.limit_in(name) == 0 for name in present):
        return Done(False)
    marker = order.limit_marker_in(present)
    before = max(markers.limit_in(marker) or 0, last.before) if marker else 0
    data = replace(change, before=before, unknown=last.unknown).encode()
    set_data = SetData(path=parent, data=data, version=state.version)
    deletes = [Delete(path=f"{parent}/{name}") for name in present]
    create = Create(path=f"{parent}/{markers.limit_marker(limit)}", data=data)
    return Commit((set_data, *deletes, create), True)
