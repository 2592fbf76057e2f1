"""Find the request that a function gets, and describe it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest
from django.views import View

from django_zklock.names.binding import partial_below


def find_request(args: tuple[Any, ...]) -> HttpRequest | None:
    """Return Django's request among the first two arguments; in a method it is the second."""
    for argument in args[:2]:
        request = getattr(argument, "_request", argument)  # Django REST framework's wraps it
        if isinstance(request, HttpRequest):
            return request
    return None


def route(request: HttpRequest) -> str:
    """Return the method and the route, not the path: a path may contain secrets, such as a token."""
    return f"{request.method} /{'' if request.resolver_match is None else request.resolver_match.route}"


def view_of_method(function: Callable[..., Any], args: tuple[Any, ...]) -> View | None:
    """Return the class-based view whose method is called with these arguments; None for any other function."""
    # `method_decorator` decorates a partial of the bound method.
    view = getattr(getattr(partial_below(function), "func", None), "__self__", args[0] if args else None)
    return view if isinstance(view, View) else None


def is_async_dispatch(function: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Return whether `dispatch` of an async class-based view is called: it only returns a coroutine."""
    if getattr(function, "__name__", "") != "dispatch" or iscoroutinefunction(function):
        return False
    view = view_of_method(function, args)
    return view is not None and view.view_is_async
