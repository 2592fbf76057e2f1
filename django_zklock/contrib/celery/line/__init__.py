"""
The line of a worker: its main process waits in the queue of a lock for a task, which needs no slot of the pool.

A granted task goes to the pool. A pool process works under the grant of the main process: it reads the lease, and what
happens to the lock, from a page of shared memory (`page`), and says there that its work is done.
"""
