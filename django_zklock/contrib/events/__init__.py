"""
The past of all locks in two database tables: one of holds and of waits that timed out, one of operators' actions.

Opt in by `"django_zklock.contrib.events"` in `INSTALLED_APPS` and `manage.py migrate`. No lock waits for the tables.
"""
