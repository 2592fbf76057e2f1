"""Knows who may see locks and step in. Nothing of them can be added, changed or deleted in the database."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.utils.translation import gettext as _


class Permissions:
    """What the pages ask before anything else; a part of `LockAdminMixin`."""

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return _has(request, "zklock.view_lock")

    def has_break_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Tell whether this user may break locks; who may not see them may not break them either."""
        return self.has_view_permission(request) and _has(request, "zklock.break_lock")

    def has_hold_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Tell whether this user may take locks as an operator."""
        return self.has_view_permission(request) and _has(request, "zklock.hold_lock")

    def has_limit_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Tell whether this user may set how many permits a semaphore has."""
        return self.has_view_permission(request) and _has(request, "zklock.limit_lock")

    def has_request_release_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return True if this user may send release requests."""
        return self.has_view_permission(request) and _has(request, "zklock.request_release_lock")

    def demand(self, allowed: bool) -> None:
        """Raise `PermissionDenied` unless this is allowed."""
        if not allowed:
            raise PermissionDenied(_("You may not do this."))


def _has(request: HttpRequest, permission: str) -> bool:
    user: Any = request.user
    return bool(user.has_perm(permission))
