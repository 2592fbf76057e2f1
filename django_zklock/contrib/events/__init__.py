"""
The past of all locks in one database table: holds, waits that were not granted, and what operators did.

Opt in by `"django_zklock.contrib.events"` in `INSTALLED_APPS` and `manage.py migrate`. No lock waits for the table.
"""
