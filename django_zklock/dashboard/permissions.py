"""The permissions of the pages. Locks cannot be added, changed or deleted in the database."""

from __future__ import annotations

from typing import Any, Final

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.utils.translation import gettext as _

VIEW: Final = "zklock.view_lock"


class Permissions:
    """The permissions that a page demands before anything else; a part of `LockAdminMixin`."""

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return _has(request, VIEW)

    # A user who may not see locks may not act on them either.

    def has_break_permission(self, request: HttpRequest) -> bool:
        """Return True if this user may break locks."""
        return _has(request, VIEW, "zklock.break_lock")

    def has_hold_permission(self, request: HttpRequest) -> bool:
        """Return True if this user may hold locks as an operator."""
        return _has(request, VIEW, "zklock.hold_lock")

    def has_limit_permission(self, request: HttpRequest) -> bool:
        """Return True if this user may set the limit of a semaphore."""
        return _has(request, VIEW, "zklock.limit_lock")

    def has_request_release_permission(self, request: HttpRequest) -> bool:
        """Return True if this user may send release requests."""
        return _has(request, VIEW, "zklock.request_release_lock")

    def require(self, allowed: bool) -> None:
        """Raise `PermissionDenied` unless this is allowed."""
        if not allowed:
            raise PermissionDenied(_("You may not do this."))


def _has(request: HttpRequest, *permissions: str) -> bool:
    user: Any = request.user
    return bool(user.has_perms(permissions))
