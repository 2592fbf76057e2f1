"""Set the limit of a semaphore for all processes, over the limit in their code."""

from __future__ import annotations

from django_zklock import signals
from django_zklock.conf import options
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.locks.notify import send_from
from django_zklock.locks.validation import refuse_running_loop
from django_zklock.operations import limits
from django_zklock.operations.audit import check_by, check_reason, log_limit
from django_zklock.operations.client import PATIENCE, QueueClient
from django_zklock.queue.limits import Record, SetLimit
from django_zklock.queue.names import check_escaped


def set_limit(key: str, limit: int, *, reason: str, by: str, patience: float = PATIENCE) -> None:
    """
    Set how many permits a semaphore has, for all processes and over what their code says, until it is cleared.

    Holders keep their permits. With a lower limit, the next permit is granted once enough of them are released. With a
    higher limit, waiters get theirs at once. A second call replaces the limit. The change is written to the log
    `zklock.audit`; then the signal `limit_changed` is sent.

    Args:
        key: of the lock; it needs no holder and no waiter.
        limit: the number of permits, from 1 to 10 000.
        reason: why, for the audit and for everybody who looks at the lock; required.
        by: who sets it.
        patience: seconds to wait for ZooKeeper.

    Raises:
        ZooKeeperUnavailable: ZooKeeper did not answer in time. If the request was sent, the limit may be set.
        UnreadableQueue: the queue has a znode that no known client writes.
        ValueError: `reason` or `by` is empty, or `limit` is out of range.

    """
    refuse_running_loop("set_limit", "await sync_to_async(set_limit)(...)")
    by, reason = check_by(by), check_reason(reason)
    if not options.is_limit(limit):
        raise ValueError(f"limit is a number of permits from 1 to {options.MOST_PERMITS}, not {limit!r}.")
    client = QueueClient(key, patience)
    check_escaped(key)
    record = Record(by, reason)
    try:
        limits.set_limit(client, limit, record)
    except ZooKeeperUnavailable:
        log_limit(key, f"may have been set to {limit}, as the answer was lost,", by, reason)
        raise
    log_limit(key, f"was set to {limit}", by, reason)
    send_from(client.session, signals.limit_changed, lock=key, limit=limit, by=by, reason=reason)


def clear_limit(key: str, *, reason: str, by: str, patience: float = PATIENCE) -> bool:
    """
    Clear the limit, so that the one in the code of each process applies again; return whether a limit was set.

    Holders keep their permits. The change is written to the log `zklock.audit`; then the signal `limit_changed` is
    sent, with None.

    Raises:
        ZooKeeperUnavailable: ZooKeeper did not answer in time. If the request was sent, the limit may be cleared.
        ValueError: `reason` or `by` is empty.

    """
    refuse_running_loop("clear_limit", "await sync_to_async(clear_limit)(...)")
    by, reason = check_by(by), check_reason(reason)
    client = QueueClient(key, patience)
    check_escaped(key)
    try:
        done = limits.clear_limit(client)
    except ZooKeeperUnavailable:
        log_limit(key, "may have been cleared, as the answer was lost,", by, reason)
        raise
    if done:
        log_limit(key, "was cleared", by, reason)
        send_from(client.session, signals.limit_changed, lock=key, limit=None, by=by, reason=reason)
    return done


def limit_of(key: str, *, patience: float = PATIENCE) -> SetLimit | None:
    """
    Return the limit that is set for all processes, with who set it and why; None if none is set.

    It also works for a semaphore without contenders, which `inspection` does not list. Raises `ZooKeeperUnavailable`.
    """
    refuse_running_loop("limit_of", "await sync_to_async(limit_of)(...)")
    client = QueueClient(key, patience)
    check_escaped(key)
    return limits.limit_of(client)
