"""
The signals of this package, and their arguments.

All are sent with `send_robust` on the thread "zklock-signals" of the process, one after the other, in the order of the
events. So a slow or failing receiver delays neither a lock nor an abort. A receiver learns of an event a little later,
when things may have changed again. A receiver that uses the database closes its own connection, as in any thread.

With `sender` = the `Lock` class; `lock` is the key (`inventory/4711`), `hold` the `Hold`, times are seconds (float):

`lock_acquired(lock, hold, waited)`
    A lock was granted. `waited` is the time from the call to the grant. Sent once for each grant, so not again when
    the owner acquires a reentrant lock a second time.

`lock_released(lock, hold, held)`
    A lock was released by its owner, and ZooKeeper has confirmed it or does not answer. `held` is the time since the
    grant.

`lock_release_refused(lock, reason, about)`
    The work under a lock has ended, or a wait for it, but ZooKeeper refuses to delete the znode, for example by its
    ACL. Until that changes or the process ends, others wait behind it. Sent instead of `lock_released`; for a task of
    Celery, the main process of the worker sends it. `reason` is a text for a log. `about` describes the work as items.

`lock_lost(lock, hold, reason, receipt)`
    A hold can no longer be trusted: its lease or session is over, or its znode was deleted. `reason` is a text for a
    log. `receipt` describes the abort: how the work was interrupted, how long that took, and whether the work swallowed
    the interrupt; None if there was no work. Sent as soon as the receipt is known, instead of `lock_released`.

`lock_waiting(lock, ahead, about)`
    A lock was not free, and the caller starts to wait. `ahead` is a text about the contender just ahead, or empty.
    `about` describes the work of the caller as items (for a Celery task "task", "id" and more).

`lock_failed(lock, error, reason, circle, waited, template, kind, about)`
    An acquisition has ended with an error. `error` is its class, `reason` its text. If the lock had another holder,
    the class is derived from `LockNotAcquired`; if ZooKeeper did not answer, it is `ZooKeeperUnavailable`. `circle` is
    that of a `LockDeadlock`, so that the other owners of the circle go on; else it is empty. `waited` is the time since
    the call, and 0 for one that did not want to wait. `about` describes the work of the caller as items. `template`
    and `kind` are those of a `Hold`.

`lock_release_requested(lock, hold, by, reason)`
    A holder in this process is asked to release. `by` and `reason` are texts for a log. Sent once for each request
    that the holder has seen; of two requests at the same moment it may see only the later one.

`lock_held_long(lock, hold, held)`
    A lock has been held for longer than its option `warn_after`. `held` is the time since the grant. Sent once for each
    grant.

`lock_broken(lock, holder, reason, by)`
    A lock was broken by this process. `holder` is the former holder, a `django_zklock.inspection.ContenderInfo`.
    `reason` and `by` are texts for a log. The process of the former holder sends `lock_lost`.

`write_refused(lock, template, kind, work)`
    A fenced write was refused, although its holder still trusts its hold: a newer holder has just written, or the
    tokens of ZooKeeper have fallen. `work` is what the holder does.

`limit_changed(lock, limit, by, reason)`
    This process has set the limit of a semaphore for all processes, or has cleared it. If it was
    cleared, `limit` is None, and the limit in the code applies again. `by` and `reason` are texts for a log.

With `sender` = the `Dispatcher` class of `django_zklock.contrib.celery.dispatch.dispatcher`:

`waiting_tasks_changed(waiting)`
    The number of messages that wait for locks in this Celery worker has changed. `waiting` is an int.

With `sender` = the `Session` class of `django_zklock.core.zk.session`:

`heartbeat(took, margin, lease, error)`
    A heartbeat of this process has ended. `took` is the time from the request to the reply. `margin` is how long the
    old lease still lasted at the reply; 0 if it was over. `lease` is the length of a whole lease. `error` is the name
    of an error; empty if a quorum has acknowledged the heartbeat.

`connection_state_changed(state, previous, session_id)`
    The connection of this process changed. `state` and `previous` are each "connecting", "connected", "suspended" (no
    connection, the session may be alive) or "lost" (the session is over, and so are its locks). `session_id` is an int,
    or None before the first session.
"""

from __future__ import annotations

import threading

from django.db.backends import signals as backend_signals
from django.db.models import signals as model_signals
from django.dispatch import Signal

from django_zklock.core import fork

connection_state_changed = Signal()
lock_acquired = Signal()
lock_released = Signal()
lock_release_refused = Signal()
lock_lost = Signal()
lock_failed = Signal()
lock_waiting = Signal()
lock_release_requested = Signal()
lock_held_long = Signal()
lock_broken = Signal()
write_refused = Signal()
limit_changed = Signal()
waiting_tasks_changed = Signal()
heartbeat = Signal()


def _unlock_in_child() -> None:
    # During the fork, a thread of this package may have held the mutex of a signal: of its own, or of one that Django
    # sends for a query. The child does not have that thread, so nobody would release the mutex.
    for signal in [*vars(backend_signals).values(), *vars(model_signals).values(), *globals().values()]:
        if isinstance(signal, Signal):
            signal.lock = threading.Lock()


fork.in_child(_unlock_in_child)
