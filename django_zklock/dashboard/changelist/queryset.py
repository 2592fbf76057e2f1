"""A list of locks that behaves like a `QuerySet`, as far as a change list of the admin needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn

from django.core.exceptions import FieldError
from django.db import NotSupportedError
from django.db.models import Q, QuerySet

from django_zklock.models import Lock

_LOOKUPS: Final[dict[str, Callable[[str, Any], bool]]] = {
    "exact": lambda key, value: key == str(value),
    "in": lambda key, value: key in {str(wanted) for wanted in value},
}
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

    It can be filtered by the key, sorted by the names in `_ORDERS`, and sliced. All else would query the database and
    raises `NotSupportedError`, as there is no table.
    """

    ordered = True

    def __init__(self, *args: Any, locks: Iterable[Lock] = (), **kwargs: Any) -> None:
        super().__init__(*(args or (Lock,)), **kwargs)
        self._result_cache = list(locks)

    def selected(self, wanted: Callable[[Lock], bool]) -> LockQuerySet:
        """Return the locks for which `wanted` is true."""
        return self._of(filter(wanted, self))

    def none(self) -> LockQuerySet:
        return self._of(())

    def filter(self, *args: Any, **kwargs: Any) -> LockQuerySet:
        """Return the locks that match. Raises `FieldError` for all but lookups of the key."""
        condition = Q(*filter(None, args), **kwargs)
        return self.selected(_matcher(condition)) if condition else self._clone()

    def exclude(self, *args: Any, **kwargs: Any) -> LockQuerySet:
        return self.selected(_matcher(~Q(*args, **kwargs)))

    def get(self, *args: Any, **kwargs: Any) -> Lock:
        locks = list(self.filter(*args, **kwargs))
        if len(locks) != 1:
            raise Lock.DoesNotExist if not locks else Lock.MultipleObjectsReturned
        return locks[0]

    def order_by(self, *names: Any) -> LockQuerySet:
        """Return the locks in this order. Raises `FieldError` for an unknown name."""
        locks = list(self)
        for name in reversed(names):  # sorting is stable, so the first name counts most
            order = _ORDERS.get(str(name).removeprefix("-"))
            if order is None:
                raise FieldError(f"Locks cannot be sorted by {name!r}.")
            locks.sort(key=order, reverse=str(name).startswith("-"))
        return self._of(locks)

    def _of(self, locks: Iterable[Lock]) -> LockQuerySet:
        return type(self)(self.model, locks=locks)

    def _clone(self) -> LockQuerySet:
        return self._of(self)

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotSupportedError("Locks are in ZooKeeper, not in the database: there is no table to query.")

    aggregate = annotate = create = bulk_create = bulk_update = delete = update = _refuse
    get_or_create = update_or_create = values = values_list = dates = datetimes = raw = _refuse
    iterator = aiterator = in_bulk = only = defer = extra = using = union = _refuse


def _matcher(q: Q) -> Callable[[Lock], bool]:
    tests = [_matcher(child) if isinstance(child, Q) else _lookup(child) for child in q.children]
    decide = any if q.connector == Q.OR and tests else all
    return lambda lock: decide(test(lock) for test in tests) is not q.negated


def _lookup(condition: Any) -> Callable[[Lock], bool]:
    name, value = condition
    field, _, lookup = name.partition("__")
    test = _LOOKUPS.get(lookup or "exact")
    if field not in {"pk", "key"} or test is None:
        raise FieldError(f"Locks cannot be looked up by {name!r}.")
    return lambda lock: test(lock.key, value)
