"""The locks in an admin under django-unfold, as its guide says of the models of other packages."""

from __future__ import annotations

from django.contrib import admin
from unfold.admin import ModelAdmin

from django_zklock.admin import LockAdminMixin
from django_zklock.models import Lock

admin.site.unregister(Lock)


@admin.register(Lock)
class ThemedLockAdmin(LockAdminMixin, ModelAdmin):  # type: ignore[misc]
    ...
