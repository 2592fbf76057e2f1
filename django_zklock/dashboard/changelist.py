"""The list of locks: its rows, which behave like a `QuerySet`, its filters, and the groups that some of them select."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.contrib import admin
from django.core.exceptions import FieldError
from django.db.models import QuerySet
from django.utils.translation import gettext_lazy as _

from django_zklock.models import Lock
from django_zklock.report.formatting import KIND_LABELS, STATE_LABELS, key_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django.http import HttpRequest

    from django_zklock.inspection import LockInfo

MAX_GROUPS: Final = 50
GROUPINGS: Final = {"path": _("path"), "template": _("template"), "host": _("host")}
"""Labels of the criteria by which locks can be grouped."""
_ORDERS: Final[dict[str, Callable[[Lock], Any]]] = {
    "key": lambda lock: lock.key,
    "pk": lambda lock: lock.key,
    "held_for": lambda lock: lock.info.held_for or 0.0,
    "waiting": lambda lock: lock.info.waiting,
    "longest_wait": lambda lock: lock.info.longest_wait or 0.0,
    # What an operator should see first is at the end of an ascending order.
    "trouble": lambda lock: lock.info.trouble,
    "holder": lambda lock: [(holder.host, holder.pid, holder.what) for holder in lock.info.holders],
}


class LockQuerySet(QuerySet[Lock]):
    """
    The locks of one snapshot, where the admin expects a `QuerySet`.

    It does what a change list asks for: it has a length, can be sliced, and sorted by the names in `_ORDERS`. The locks
    that were selected for an action are found by their keys. There is no table for anything else.
    """

    ordered = True

    def __init__(self, *args: Any, locks: Iterable[Lock] = (), **kwargs: Any) -> None:
        super().__init__(*(args or (Lock,)), **kwargs)
        self._result_cache = list(locks)

    def selected(self, wanted: Callable[[Lock], bool]) -> LockQuerySet:
        """Return the locks for which `wanted` is true."""
        return LockQuerySet(locks=filter(wanted, self))

    def filter(self, *conditions: Any, pk__in: Iterable[str] | None = None, **others: Any) -> LockQuerySet:
        """Return the locks with these keys; all without an argument. Raises `FieldError` for any other condition."""
        if others or any(conditions):
            raise FieldError("Locks can only be looked up by pk__in.")
        return self._clone() if pk__in is None else self.selected(lambda lock: lock.key in pk__in)

    def order_by(self, *names: Any) -> LockQuerySet:
        """Return the locks in this order. Raises `FieldError` for an unknown name."""
        locks = list(self)
        for name in reversed(names):  # sorting is stable, so the first name counts most
            order = _ORDERS.get(str(name).removeprefix("-"))
            if order is None:
                raise FieldError(f"Locks cannot be sorted by {name!r}.")
            locks.sort(key=order, reverse=str(name).startswith("-"))
        return LockQuerySet(locks=locks)

    def _clone(self) -> LockQuerySet:
        return LockQuerySet(locks=self)


def grouped(locks: Iterable[LockInfo], by: str, within: str = "") -> dict[str, list[LockInfo]]:
    """
    Return the groups by name: by host, by template, or by the first segments of the keys.

    By path, only the keys that begin with `within` count, each with one segment more. The name of such a group is a
    key, or ends with the slash that follows these segments.
    """
    groups: dict[str, list[LockInfo]] = {}
    for lock in locks:
        for name in _names(lock, by, within):
            groups.setdefault(name, []).append(lock)
    return groups


def _names(lock: LockInfo, by: str, within: str) -> set[str]:
    if by == "host":
        return {holder.host for holder in lock.holders}
    if by == "template":
        return {next((contender.template for contender in (*lock.holders, *lock.waiters) if contender.template), "")}
    if not lock.key.startswith(within):
        return set()
    segment, slash, _rest = lock.key[len(within) :].partition("/")
    return {within + segment + slash}


class _LockFilter(admin.SimpleListFilter):
    """A filter by something that is known of a lock."""

    options: ClassVar[Mapping[str, Any]] = {}
    """Labels of the choices, by value."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return list(self.options.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Lock]) -> QuerySet[Lock]:
        value = self.value()
        if value is None or not isinstance(queryset, LockQuerySet):
            return queryset
        return queryset.selected(lambda lock: self.matches(lock.info, value))

    @abstractmethod
    def matches(self, info: LockInfo, value: str) -> bool:
        """Return True if a lock belongs to this choice."""


class StateFilter(_LockFilter):
    """Filter by the state."""

    title = _("state")
    parameter_name = "state"
    options: ClassVar = {state: label for state, label in STATE_LABELS.items() if state != "free"}

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        self._long_held = float(model_admin.long_held)
        return super().lookups(request, model_admin)

    def matches(self, info: LockInfo, value: str) -> bool:
        return value in info.states(self._long_held)


class KindFilter(_LockFilter):
    """Filter by the kind of lock."""

    title = _("kind")
    parameter_name = "kind"
    options: ClassVar = KIND_LABELS

    def matches(self, info: LockInfo, value: str) -> bool:
        return info.kind == value


class SourceFilter(_LockFilter):
    """Filter by the kind of program that holds the lock."""

    title = _("holder")
    parameter_name = "source"
    options: ClassVar = {
        "celery": _("Celery task"),
        "view": _("View"),
        "code": _("Command or other code"),
        "operator": _("Operator"),
        "other": _("Another client"),
    }

    def matches(self, info: LockInfo, value: str) -> bool:
        return any(holder.source == value for holder in info.holders)


class _GroupFilter(_LockFilter):
    """A filter by the groups of the page of groups."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        by = str(self.parameter_name)
        counts: Counter[str] = Counter()
        for lock in model_admin.snapshot(request).locks:
            counts.update(_names(lock, by, ""))
        names = set(dict(counts.most_common(MAX_GROUPS)))
        value = self.value()
        if value is not None:  # it may be a deeper path, or a group whose locks are gone
            names.add(value)
        return [(name, key_text(name, 60) or _("(none)")) for name in sorted(names)]

    def matches(self, info: LockInfo, value: str) -> bool:
        by = str(self.parameter_name)
        if by == "path" and value.endswith("/"):
            return info.key.startswith(value)
        return value in _names(info, by, value)


FILTERS = (
    StateFilter,
    KindFilter,
    SourceFilter,
    *(
        type(f"{by.title()}Filter", (_GroupFilter,), {"title": GROUPINGS[by], "parameter_name": by})
        for by in ("host", "template", "path")
    ),
)
