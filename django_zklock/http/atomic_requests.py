"""Django's `ATOMIC_REQUESTS` for locked views: the transaction of a request begins inside the lock."""

from __future__ import annotations

from typing import Any

from django.db import connections
from django.http import HttpRequest

from django_zklock.locks import transactions


class NonAtomicRequests(set[str]):
    """
    The `_non_atomic_requests` of a locked view. `in` is always True, so Django itself opens no transaction.

    The locked view begins the transaction after it has acquired the lock. The members are the databases that the
    project has opted out of: `transaction.non_atomic_requests` above `@zk_locked` adds to them.
    """

    def __contains__(self, alias: object) -> bool:
        return True


def databases() -> tuple[str, ...]:
    """Return the databases with `ATOMIC_REQUESTS`."""
    return tuple(alias for alias, database in connections.settings.items() if database["ATOMIC_REQUESTS"])


def non_atomic_requests(view: object) -> NonAtomicRequests:
    """Return the `NonAtomicRequests` of a locked view, with the databases that the project has opted out of already."""
    marks = getattr(view, "_non_atomic_requests", ())
    return marks if isinstance(marks, NonAtomicRequests) else NonAtomicRequests(marks)


def opted_out(view: object) -> frozenset[str]:
    """Return the databases for which the project has opted a view out of `ATOMIC_REQUESTS`."""
    return frozenset(getattr(view, "_non_atomic_requests", ()))


def _marks(request: HttpRequest) -> Any:
    return getattr(getattr(request.resolver_match, "func", None), "_non_atomic_requests", ())


def databases_to_begin(marks: NonAtomicRequests, request: HttpRequest) -> tuple[str, ...]:
    """
    Return the databases on which a locked function with these marks begins the transaction of the request.

    It does so if Django has left that to a locked function around or in the callback of the URL.
    """
    of_callback = _marks(request)
    if not isinstance(of_callback, NonAtomicRequests):
        return ()
    excluded = {*marks, *of_callback, *transactions.open_blocks()}
    return tuple(alias for alias in databases() if alias not in excluded)


def only_around_view(request: HttpRequest) -> bool:
    """Return whether Django itself has begun all open blocks, around the view of this request."""
    by_django = {alias for alias in databases() if alias not in _marks(request)}
    return set(transactions.open_blocks()) <= by_django and all(
        _is_alone(alias) for alias in transactions.open_blocks()
    )


def _is_alone(alias: str) -> bool:
    return sum(not transactions.is_of_test_case(block) for block in connections[alias].atomic_blocks) == 1
