"""
Fences for resources without a row of their own: a table with the highest token of each name.

Opt in by `"django_zklock.contrib.fences"` in `INSTALLED_APPS` and `manage.py migrate`.
"""
