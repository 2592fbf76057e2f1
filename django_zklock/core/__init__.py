"""
The lock on ZooKeeper, without Django. Somebody who changes the lock reads this folder, and nothing else.

What it offers
    `locks.acquisition.Acquisition` acquires one lock, or several as one, for the calling owner, and releases them. Its
    `holds` say whether they are still held. Its block, between `open_block` and `end_block`, is aborted when a lock is
    lost. `locks.spec.LockSpec` says what is wanted; it is plain data. `locks.held.held_locks` knows all that this
    process holds. `zk.process` has the one session of the process.

What it asks for
    `zk.process.configure` takes a function that returns the options of the session. `hooks.connect` takes the
    `Events` and the `Scope` of the program: what it wants to hear, and its database transactions. Without that call,
    nobody hears of events and there are no transactions. The core reads no settings. It calls `Events` wherever things
    happen, also on the protocol's thread; receivers, callbacks and log handlers of users run on threads of their own.

Layers, from the top; imports run downwards
    `locks`      one acquisition: its holds, its block, what aborts its work, and locks that linger. In the caller.
    `protocol`   the contender: into the queue, through it, out of it. On the protocol's thread.
    `zk`         the session, its lease, its requests. The only code that knows kazoo.
    `execution`  who the owner is, how the caller waits, and how its work is aborted.
    `queue`      the rules: who holds the lock, and for whom a waiter waits, from a list of names. Pure functions.
    `hooks`, `log`, `errors`, `clock`

Threads
    The caller (a thread, a greenlet, a coroutine) starts a contender and waits. The protocol's thread (`zk.loop`) does
    the work, as short events that never wait; kazoo's thread connects and reads the socket. So an exception in the
    caller never interrupts the protocol. The caller talks to the protocol by `Session.post`; the answer comes by a
    waiter of `execution.waiters`. Log records of these threads are handled on a thread of their own.

Interruptions
    The handler of a signal may raise between any two instructions of the caller. So the caller changes shared state by
    single steps, and an idempotent `release` gives back whatever is left. `execution.abort.CleanupOnError` calls it.

Where to begin
    Read `Acquisition.acquire` from top to bottom, then `protocol.contender.Contender` in the same way: together they
    are the path of one lock. `zk.session` and `zk.lease` say when a hold is valid. This is the whole life of a lock::

        from django_zklock.core.execution.abort import CleanupOnError
        from django_zklock.core.execution.waiters import ThreadWaiter, run
        from django_zklock.core.locks.acquisition import Acquisition
        from django_zklock.core.locks.held import released
        from django_zklock.core.locks.spec import LockSpec
        from django_zklock.core.queue.nodes import Kind
        from django_zklock.core.zk import process
        from django_zklock.core.zk.options import SessionOptions

        process.configure(lambda: SessionOptions(hosts=(("127.0.0.1", 2181),)))
        spec = LockSpec(key="invoice", parent="/zklock/invoice", kind=Kind.LOCK)
        acquisition = Acquisition()
        with CleanupOnError(acquisition.release):
            run(acquisition.acquire((spec,), 5.0, ThreadWaiter))
            (held,) = acquisition.holds
            held.check()
            print("token", held.grant.token)
            acquisition.release()
            run(released((held,), ThreadWaiter))
"""
