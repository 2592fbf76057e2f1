"""
Unique tasks: only one task of a key exists, from before it is sent until it has started or is done.

`lifecycle` stops duplicates where they are sent, and follows the task in a worker. `reservations` has the reservation
in ZooKeeper.
"""
