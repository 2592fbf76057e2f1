"""
The locks in Django's admin: holders, waiters, and the actions on them.

For a theme with its own `ModelAdmin`, call `admin.site.unregister(Lock)` and register a class such as
`class ThemedLockAdmin(LockAdminMixin, unfold.admin.ModelAdmin)`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from django.contrib import admin

from django_zklock.models import Lock

if TYPE_CHECKING:
    from django_zklock.dashboard.lock_admin import LockAdmin, LockAdminMixin

__all__ = ["LockAdmin", "LockAdminMixin"]

DASHBOARD = "django_zklock.dashboard"


@admin.register(Lock)
class LazyLockAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Becomes a `LockAdmin`, with all subclasses, when Django asks for pages or checks, as most processes never do."""

    def get_urls(self) -> list[Any]:
        _complete()
        return super().get_urls()

    def check(self, **kwargs: Any) -> list[Any]:
        _complete()
        return super().check(**kwargs)


def _complete() -> None:
    """Make `LockAdmin` the base. The call is idempotent."""
    LazyLockAdmin.__bases__ = (import_module(f"{DASHBOARD}.lock_admin").LockAdmin,)


if not TYPE_CHECKING:  # otherwise a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{DASHBOARD}.lock_admin"), name)
