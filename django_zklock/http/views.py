"""
Decide whether a locked function is called as a view. Only then a conflict is answered; any other call raises.

Only the caller of a view expects a response. A permission class would take a 409 for "yes", and the admin for "saved".
A function is called as a view in these cases, whatever other decorators are around it:

* The function is the callback of the request's URL, or is below its decorators. The callback may be a method (a view of
  a `ModelAdmin`, also if it is overridden and called by `super`) or an instance (a `Feed`).
* It is `dispatch` or a handler (`get`, `post`) of a class-based view. In a view set, it is the action of this URL.
* A handler of the framework only calls it: `create` of a `CreateAPIView`, `changeform_view` of a `ModelAdmin`.
* The URL calls it through `@api_view` of Django REST framework, or as an operation of django-ninja for this method.

Everything else is plain code, even if it gets a request: helpers, permissions, hooks of forms, views and the admin,
signal receivers, middleware, views of other URLs, and functions that are called without a resolved URL, as in tests.
So is a function view below a decorator without `functools.wraps`, which hides the function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest
from django.views import View

from django_zklock.execution.binding import partial_below

_PASS_ON = ("django.contrib.admin.options", "rest_framework.generics", "rest_framework.mixins")
"""Modules of frameworks. A method there whose code names nothing but one other method only calls that method."""


def find_request(args: tuple[Any, ...]) -> HttpRequest | None:
    """Return Django's request among the first two arguments; in a method it is the second."""
    for argument in args[:2]:
        request = getattr(argument, "_request", argument)  # Django REST framework's wraps it
        if isinstance(request, HttpRequest):
            return request
    return None


def request_of_view(wrapper: object, function: Any, args: tuple[Any, ...]) -> HttpRequest | None:
    """Return the request if `function`, decorated as `wrapper`, is called as a view with these arguments; else None."""
    request = find_request(args)
    if request is None:
        return None
    bound = getattr(partial_below(function), "func", None)  # `method_decorator` makes a new wrapper for each call
    owner, called = (bound.__self__, bound.__func__) if isinstance(bound, MethodType) else (args[0], wrapper)
    callbacks = [getattr(request.resolver_match, "func", None)]
    if isinstance(owner, View):
        callbacks = [getattr(owner, name, None) for name in ("dispatch", *owner.http_method_names)]
    is_view = any(layer is called for callback in callbacks for layer in _layers(callback, request.method))
    return request if is_view else None


def async_view(function: Callable[..., Any], args: tuple[Any, ...]) -> View | None:
    """Return the class-based view whose `dispatch` is called, if it is async: `dispatch` only returns a coroutine."""
    if getattr(function, "__name__", "") != "dispatch" or iscoroutinefunction(function):
        return None
    view = getattr(getattr(partial_below(function), "func", None), "__self__", args[0] if args else None)
    return view if isinstance(view, View) and view.view_is_async else None


def _layers(callback: Any, method: str | None) -> Iterator[object]:
    """Yield a callback, and the functions that it calls as views for this HTTP method, from the outermost inwards."""
    for _ in range(100):  # a mock wraps another mock, without end
        if callback is None:
            return
        yield callback
        for function in framework_functions(callback, method):
            yield from _layers(function, method)
        if isinstance(callback, MethodType):  # other attributes are those of the function
            for cls in type(callback.__self__).__mro__:
                yield from _layers(vars(cls).get(getattr(callback, "__name__", "")), method)
            names: tuple[str, ...] = getattr(getattr(callback, "__code__", None), "co_names", ())
            if len(names) == 1 and callback.__module__ in _PASS_ON:
                yield from _layers(getattr(callback.__self__, names[0], None), method)
            callback = callback.__func__
        else:
            # "func" is in a partial or sync_to_async, "awaitable" in async_to_sync. Any other instance has a __call__.
            inner = [getattr(callback, name, None) for name in ("func", "awaitable", "__wrapped__")]
            inner.append(None if inspect.isroutine(callback) else type(callback).__call__)
            callback = next((layer for layer in inner if layer is not None), None)


def framework_functions(callback: Any, method: str | None = None) -> Iterator[Any]:
    """Yield the functions that Django REST framework or django-ninja calls for a URL; with None, by any HTTP method."""
    for handler in getattr(getattr(callback, "cls", None), "__dict__", {}).values():
        if getattr(handler, "__module__", None) == "rest_framework.decorators":
            yield inspect.getclosurevars(handler).nonlocals.get("func")
    if getattr(callback, "__module__", None) == "ninja.operation" and inspect.isroutine(callback):
        path_view = getattr(callback, "__self__", None) or inspect.getclosurevars(callback).nonlocals.get("self")
        for operation in getattr(path_view, "operations", ()):
            if method in (None, *operation.methods):
                yield from (operation.view_func, operation.run)
