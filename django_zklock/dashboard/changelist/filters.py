"""The filters of the list."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin
from django.utils.translation import gettext_lazy as _

from django_zklock.dashboard.changelist.groups import LABELS, is_in_group, most_common
from django_zklock.dashboard.changelist.queryset import LockQuerySet
from django_zklock.dashboard.formatting import clean, source_of

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest

    from django_zklock.inspection import LockInfo
    from django_zklock.models import Lock

MAX_GROUPS: Final = 50


class _LockFilter(admin.SimpleListFilter):
    """A filter by the state of a lock."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Lock]) -> QuerySet[Lock]:
        value = self.value()
        if value is None or not isinstance(queryset, LockQuerySet):
            return queryset
        return queryset.selected(lambda lock: lock.info is not None and self.matches(lock.info, value))

    @abstractmethod
    def matches(self, info: LockInfo, value: str) -> bool:
        """Return True if a lock belongs to this choice."""


class StateFilter(_LockFilter):
    """Filter by the state."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        self._long = float(model_admin.long_held)
        return [
            ("contended", _("Contended")),
            ("long", _("Long held")),
            ("held", _("Held")),
            ("kept", _("Kept for the next user")),
            ("operator", _("Held by an operator")),
            ("handing-over", _("Handing over")),
            ("broken", _("Unreadable")),
        ]

    def matches(self, info: LockInfo, value: str) -> bool:
        match value:
            case "contended":
                return info.contended
            case "long":
                return info.held_for is not None and info.held_for >= self._long
            case "held":
                return info.held_for is not None
            case "kept":
                return info.idle_for is not None
            case "operator":
                return info.operator is not None
            case "handing-over":
                return not info.holders and info.waiting > 0
            case "broken":
                return bool(info.problem)
        return False


class KindFilter(_LockFilter):
    """Filter by the kind of lock."""

    title = _("kind")
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("lock", _("Lock")), ("read-write", _("Read-write lock")), ("semaphore", _("Semaphore"))]

    def matches(self, info: LockInfo, value: str) -> bool:
        return info.kind == value


class SourceFilter(_LockFilter):
    """Filter by the kind of program that holds the lock."""

    title = _("holder")
    parameter_name = "source"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [
            ("celery", _("Celery task")),
            ("view", _("View")),
            ("code", _("Command or other code")),
            ("operator", _("Operator")),
            ("other", _("Another client")),
        ]

    def matches(self, info: LockInfo, value: str) -> bool:
        return any(source_of(holder) == value for holder in info.holders)


class _GroupFilter(_LockFilter):
    """A filter by the groups of the page of groups."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        by = str(self.parameter_name)
        names = most_common(model_admin.snapshot(request).locks, by, MAX_GROUPS)
        value = self.value()
        if value is not None and value not in names:  # a deeper path, or locks that are gone
            names.append(value)
        return [(name, clean(name, 60) or _("(none)")) for name in sorted(names)]

    def matches(self, info: LockInfo, value: str) -> bool:
        return is_in_group(info, str(self.parameter_name), value)


class HostFilter(_GroupFilter):
    """Filter by the host of the holder."""

    title = LABELS["host"]
    parameter_name = "host"


class TemplateFilter(_GroupFilter):
    """Filter by the template: the name of the lock before its fields were filled in."""

    title = LABELS["template"]
    parameter_name = "template"


class PathFilter(_GroupFilter):
    """Filter by the first segments of the key."""

    title = LABELS["path"]
    parameter_name = "path"


FILTERS = (StateFilter, KindFilter, SourceFilter, HostFilter, TemplateFilter, PathFilter)
