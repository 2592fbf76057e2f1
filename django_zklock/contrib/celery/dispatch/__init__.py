"""
How a worker's main process brings a message from the broker to a process of its pool, with the lock of its task.

1. Celery gives a message to the `Dispatcher` when it would give it to the pool: after its ETA and its rate limit.
   Messages of all tasks are in one queue, in the order in which they came.
2. When the pool has a free slot (`PoolSlots`), the first message uses it. A task without a lock runs.
3. A task with a lock (`WaitingTask`) asks ZooKeeper for it now, and runs if it is free. If the lock is busy, the task
   passes its slot on and waits in the lock's queue. It stays unacknowledged, and counts as one with an ETA.
4. When ZooKeeper grants it the lock, it runs if the pool has a free slot. If not, it gives the lock back at once, and
   is the first to get a slot: then it asks again. So no lock waits for a slot.
5. The pool process works under the grant of the main process (`WaitResult`). It reads the lease, and what happens to
   the lock, from memory that both share (`SharedGrants`). Threads and greenlets do the same in one process.
6. At the end of the task, the pool process writes to that memory that its work is done. A thread of the main process
   (`PoolGrants`) releases the lock. It does the same for a process that has died.
"""

from __future__ import annotations

from typing import Final

DISPATCHER: Final = "zklock_dispatcher"  # attribute of a consumer
