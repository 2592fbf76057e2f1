"""
The locks in Django's admin: who holds which, since when, who waits, and how to get one free.

`LockAdminMixin` goes before any `ModelAdmin`, so that themes bring their own: `class ThemedLockAdmin(LockAdminMixin,
unfold.admin.ModelAdmin)`, registered after `admin.site.unregister(Lock)`.
"""

from __future__ import annotations

from django.contrib import admin

from django_zklock.dashboard.base import LockAdminMixin
from django_zklock.models import Lock

__all__ = ["LockAdmin", "LockAdminMixin"]


@admin.register(Lock)
class LockAdmin(LockAdminMixin, admin.ModelAdmin):  # type: ignore[misc,type-arg]
    """The locks, in the admin that Django has by itself."""
