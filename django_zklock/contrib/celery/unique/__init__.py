"""
Unique tasks: only one task of a key exists, from before it is sent until it has started or is done.

`lifecycle` stops duplicates where they are sent, and follows the task in a worker. It changes a reservation in
ZooKeeper (`reservations`), whose data and rules are in `record`. `on_conflict="coalesce"` uses reservations, too.

`record` and `reservations` do not import Celery, so that `zklock doctor` can read reservations without it.
"""
