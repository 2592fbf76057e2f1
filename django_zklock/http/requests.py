"""The request that a locked function gets: find it, describe it, and tell which transactions are begun for it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

from django.db import connections
from django.http import HttpRequest
from django.views import View

from django_zklock.locks import transactions
from django_zklock.names.binding import partial_below


def find_request(args: tuple[Any, ...]) -> HttpRequest | None:
    """
    Return Django's request among the first two arguments; in a method it is the second.

    Only types are looked at. `isinstance` asks an object for its class, and a lazy one would read its row before the
    lock.
    """
    rest = sys.modules.get("rest_framework.request")
    for argument in args[:2]:
        is_of_rest = rest is not None and issubclass(type(argument), rest.Request)
        request = argument._request if is_of_rest else argument
        if issubclass(type(request), HttpRequest):
            return cast("HttpRequest", request)
    return None


def route(request: HttpRequest) -> str:
    """Return the method and the route, not the path: a path may contain secrets, such as a token."""
    return f"{request.method} /{'' if request.resolver_match is None else request.resolver_match.route}"


def view_of_method(function: Callable[..., Any], args: tuple[Any, ...]) -> View | None:
    """Return the class-based view whose method is called with these arguments; None for any other function."""
    # `method_decorator` decorates a partial of the bound method.
    view = getattr(getattr(partial_below(function), "func", None), "__self__", args[0] if args else None)
    return cast("View", view) if issubclass(type(view), View) else None


def is_async_dispatch(function: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Return whether this is the `dispatch` of an async class-based view, a plain function that returns a coroutine."""
    view = view_of_method(function, args) if getattr(function, "__name__", "") == "dispatch" else None
    return view is not None and view.view_is_async


# --- ATOMIC_REQUESTS: lock, BEGIN, work, COMMIT, release ----------------------------------------------------------
#
# If the callback of the URL is locked, Django begins no transaction (`NonAtomicRequests`). The lock begins it, on each
# database that has none yet, unless the project has opted out. If not, Django has begun it before the view. Then a lock
# of a method of the view is kept until that transaction has ended, and any other lock is refused.


class NonAtomicRequests(set[str]):
    """
    The `_non_atomic_requests` of a locked view. `in` is always True, so Django itself begins no transaction.

    The members are the databases that the project has opted out of: `transaction.non_atomic_requests` above
    `@zk_locked` adds to them.
    """

    def __contains__(self, alias: object) -> bool:
        return True


def atomic_databases() -> tuple[str, ...]:
    """Return the databases with `ATOMIC_REQUESTS`."""
    return tuple(alias for alias, database in connections.settings.items() if database["ATOMIC_REQUESTS"])


def opted_out(view: object) -> set[str]:
    """Return the `_non_atomic_requests` of a view: a `NonAtomicRequests` if it is locked."""
    marks: set[str] = getattr(view, "_non_atomic_requests", set())
    return marks


def left_to_lock(request: HttpRequest) -> tuple[str, ...]:
    """Return the databases on which a lock begins the transaction of the request."""
    marks = opted_out(getattr(request.resolver_match, "func", None))
    if not isinstance(marks, NonAtomicRequests):
        return ()
    done = {*marks, *transactions.open_blocks()}
    return tuple(alias for alias in atomic_databases() if alias not in done)


def begun_by_django(request: HttpRequest) -> bool:
    """Return whether Django has begun all open transactions, around the view of the request."""
    marks = opted_out(getattr(request.resolver_match, "func", None))
    return all(alias in atomic_databases() and alias not in marks for alias in transactions.open_blocks())
