"""The execution of work under a lock: who owns it, how its caller waits, and how it is aborted."""
