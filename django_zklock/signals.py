"""
The signals of this package: bare objects, and who sends them with what.

All are sent with `send_robust` on the thread "zklock-signals" of the process, one after the other in the order of the
events, never on a thread that runs the lock protocol or the work. So a receiver can be slow, or fail, and delay neither
a lock nor an abort; in turn it learns of an event a little later, and may not rely on the event still being true. An
abort never depends on a signal. A receiver that uses the database closes its own connection, as in any thread.

Sent with `sender` = the `Lock` class; `lock` is the key (`inventory/4711`), `hold` the `Hold`, times are float seconds:

`lock_acquired(lock, hold, waited)`
    A lock was granted. `waited` is the time from the call to the grant. Sent once for each grant by ZooKeeper, so not
    again when its owner takes a reentrant lock a second time.

`lock_released(lock, hold, held)`
    A lock was let go in order, by its owner. `held` is the time since the grant. Where the body of a response had the
    lock last, that is its end, and `hold` is the body's, which has the same `key` and `token`.

`lock_lost(lock, hold, reason, receipt)`
    A hold can no longer be trusted: its lease is over, its session expired or its node is gone. `reason` says which,
    in words for a log. `receipt` tells what the abort did: how the work was stopped, how long that took, and whether
    it swallowed the interrupt; None if nothing was to be stopped. Sent once that is known, instead of `lock_released`.

`lock_waiting(lock, ahead, about)`
    A lock was not free, and its caller begins to wait. `ahead` says in words who is just ahead, or is empty; `about`
    what work the caller does, item by item (of a Celery task "task", "id" and more).

`lock_contended(lock, waited, template, kind)`
    A lock was not acquired, because somebody else had it until the time to wait was over. `waited` is the time since
    the call; `template` and `kind` are what a `Hold` would have. Not sent when ZooKeeper was away: nobody can tell then
    who has the lock.

`lock_release_requested(lock, hold, by, reason)`
    A holder in this process was asked to release: `by` and `reason` are texts for a log. Sent once for each
    request that the holder has seen; two that come in the same moment may be seen as one, the later one.

`lock_held_long(lock, hold, held)`
    A lock has been held for longer than its option `warn_after`. `held` is the time since the grant. Sent once for each
    grant.

`lock_broken(lock, holder, reason, by)`
    Somebody broke a lock, through this process. `holder` says who lost it (`django_zklock.operations.Holder`), `reason`
    why and `by` who did it. The process that lost it sends `lock_lost`.

`limit_changed(lock, limit, by, reason)`
    Somebody set how many permits a semaphore has for all processes, through this process. `limit` is None if that was
    cleared, and the limit in the code of each counts again; `by` and `reason` are texts for a log.

Sent with `sender` = the `Session` class of `django_zklock.zk.session`:

`connection_state_changed(state, previous, session_id)`
    The connection of this process changed. `state` and `previous` are each "connecting", "connected", "suspended" (no
    connection, the session may be alive) or "lost" (the session is over, and so are its locks). `session_id` is an int,
    or None before the first session.
"""

from __future__ import annotations

from django.dispatch import Signal

connection_state_changed = Signal()
lock_acquired = Signal()
lock_released = Signal()
lock_lost = Signal()
lock_contended = Signal()
lock_waiting = Signal()
lock_release_requested = Signal()
lock_held_long = Signal()
lock_broken = Signal()
limit_changed = Signal()
