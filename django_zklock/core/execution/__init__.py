"""The execution of work under a lock: its owner, context and transactions, and how it is aborted and woken."""
