"""
The way of a message through a worker: from the broker to a process of the pool, and to the release of its lock.

The worker's main process waits for the locks, so a task that waits needs no slot of the pool. It has the session, the
contender and the hold. The pool process works under that hold, so each part exists twice:

    main process            in the memory that both share           process, thread or greenlet of the pool
    --------------------    ------------------------------------    ---------------------------------------
    Session                 SharedGrants: when the lease ends       SessionProxy
    Contender               GrantRecord: begun, ended, reads        ContenderProxy
    Grant, PoolGrant        GrantRecord: suspect, lost, requests    Grant
    HeldLock                                                        HeldLock, which the task's block uses

*From the message to the lock, in the main process, on the loop of the `Dispatcher`:*

1. Celery gives a message to `Dispatcher.accept` when it would give it to the pool: after its ETA and its rate limit. If
   the message tells the key of its task's lock, it becomes a `WaitingTask`. All messages are in one queue, in the order
   in which they came.
2. When the pool has a free slot (`PoolSlots`), `Dispatcher._start` takes the first message. A task without a lock goes
   to the pool. A `WaitingTask` begins an `Acquisition`, as any caller does. It keeps the slot if its lock is free.
3. If the lock is busy, `Dispatcher.pass_slot_on` gives the slot to the next message. The task is one of `WaitingTasks`
   now. Its message stays unacknowledged, and counts as one with an ETA.
4. When ZooKeeper grants the lock, `Dispatcher.end_wait` looks for a slot. If there is none, the lock is given back at
   once, and the task is the first to get a slot: then it asks again. So no lock waits for a slot.
5. `PoolGrants.add` makes a `PoolGrant` with a record for each lock. The `PAYLOAD` of the request tells the pool which
   records these are. `Dispatcher._give_to_pool` passes the request on to Celery. A task whose wait has failed goes the
   same way, with the error in its payload.

*From the lock to the release, in both processes:*

    main process                                            process of the pool
    ----------------------------------------------------    --------------------------------------------------
 6.                                                         TaskContext finds the payload: `wait_result`.
                                                            `WaitResult.begin` writes its pid to each record.
 7.                                                         `WaitResult.hand_over` lists a second HeldLock, so the
                                                            block of @zk_locked acquires the lock again, without
                                                            a request.
 8. Each heartbeat extends the lease: `set_lease`.          Each check of the lock reads the lease.
    `PoolGrant` hears of a suspect session, of a loss       `ContenderProxy.read` looks for that, 20 times a
    or of a release request, and writes it down.            second, and tells its Grant. The guard may abort.
 9.                                                         At the end of the block, `ContenderProxy.abandon`
                                                            writes "ended", and wakes the main process. The task
                                                            goes on to its end. It waits for nothing.
10. The thread of `PoolGrants` releases the HeldLock.       Only `release()`, of a lock that the task has acquired
    When the znode is gone, it frees the record.            once more, waits until the record is free.
11. `Dispatcher._dispatch` uses the slot that is free.

*When something fails:*

* The pool process dies: `PoolGrant.is_abandoned` misses its pid, and the lock is released. If the process has not begun
  after ten seconds, the grant is cancelled. A process that comes later sees that. It runs the task if the lock is free
  at that moment, else it sends the task again.
* A task cannot be sent again: the run goes on, and waits for its lock in its slot (`messages.send`).
* The main process is stopped or dies: nobody extends the lease in the memory. When it ends, the pool's work is aborted.
* The task ends without using its grant: `contrib.celery.leaks` gives it back at the end of the run.
* A step of the dispatcher fails: its message goes to the pool without a lock (`Dispatcher._run_step`).
* A task without the main process' lock acquires it in the pool process: also an async one, one whose key a callable
  computes, and all tasks where processes are spawned, which share no memory.
"""

from __future__ import annotations

from typing import Final

DISPATCHER: Final = "zklock_dispatcher"  # attribute of a consumer
