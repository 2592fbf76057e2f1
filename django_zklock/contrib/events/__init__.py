"""
The past of all locks in a database table: a row for each hold, and for each wait that timed out.

Opt in by `"django_zklock.contrib.events"` in `INSTALLED_APPS` and `manage.py migrate`. No lock waits for the table.
"""
