"""The list of locks: its rows, which behave like a `QuerySet`, and its filters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin
from django.core.exceptions import FieldError
from django.db.models import QuerySet
from django.utils.translation import gettext_lazy as _

from django_zklock.models import Lock
from django_zklock.report.formatting import STATE_LABELS, key_text
from django_zklock.report.verdict import state_of

if TYPE_CHECKING:
    from django.http import HttpRequest

    from django_zklock.inspection import Snapshot

MAX_HOSTS: Final = 50
_ORDERS: Final[dict[str, Callable[[Lock], Any]]] = {
    "key": lambda lock: lock.key,
    "pk": lambda lock: lock.key,
    "held_for": lambda lock: lock.info.held_for or 0.0,
    "waiting": lambda lock: lock.info.waiting,
    "longest_wait": lambda lock: lock.info.longest_wait or 0.0,
    # What an operator should see first is at the end of an ascending order.
    "trouble": lambda lock: lock.info.trouble,
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


def totals(snapshot: Snapshot) -> dict[str, int]:
    """Return how many locks of a snapshot are held, kept or contended, and how many callers wait for them."""
    return {
        "shown": len(snapshot.locks),
        "held": sum(lock.held_for is not None for lock in snapshot.locks),
        "kept": sum(lock.idle_for is not None for lock in snapshot.locks),
        "contended": sum(lock.waiting > 0 for lock in snapshot.locks),
        "waiting": sum(lock.waiting for lock in snapshot.locks),
    }


class StateFilter(admin.SimpleListFilter):
    """Filter by the state."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(state, label) for state, label in STATE_LABELS.items() if state != "free"]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        value = self.value()
        if not value:
            return queryset
        return queryset.selected(lambda lock: value in (state_of(lock.info, lock.incident), *lock.info.states))


class HostFilter(admin.SimpleListFilter):
    """Filter by the host of a holder."""

    title = _("host")
    parameter_name = "host"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        hosts = Counter(holder.host for lock in model_admin.snapshot(request).locks for holder in lock.holders)
        return [(host, key_text(host, 60)) for host, _count in hosts.most_common(MAX_HOSTS)]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        host = self.value()
        return queryset.selected(lambda lock: host in {who.host for who in lock.info.holders}) if host else queryset
