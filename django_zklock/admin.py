"""
The locks in Django's admin: holders, waiters, and the actions on them.

For a theme with its own `ModelAdmin`, call `admin.site.unregister(Lock)` and register a class such as
`class ThemedLockAdmin(LockAdminMixin, unfold.admin.ModelAdmin)`.
"""

from __future__ import annotations

from django.contrib import admin

from django_zklock.dashboard import frame
from django_zklock.dashboard.lock_admin import LockAdminMixin
from django_zklock.models import Lock

__all__ = ["LockAdmin", "LockAdminMixin"]


# Migrations see the name in the class, and the index of the admin this one, which may have a count.
Lock._meta.verbose_name_plural = frame.plural_name


@admin.register(Lock)
class LockAdmin(LockAdminMixin, admin.ModelAdmin):  # type: ignore[misc,type-arg]
    """The locks, in Django's own admin."""

    actions_on_top = False  # the locks come first
    actions_on_bottom = True
    change_list_template = "admin/zklock/lock/compact_list.html"
