"""
`@zk_locked`: run a view, a Celery task or a function, sync or async, only while it holds a lock.

The context of a call (`decorators.context`) decides what happens without the lock.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NoReturn, ParamSpec, TypeVar, cast

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from django_zklock import conf
from django_zklock.conf import arguments
from django_zklock.conf.arguments import LockedOptions
from django_zklock.conf.options import OPTION_NAMES, UNSET, LockOptions, Unset, given_options
from django_zklock.decorators.context import CallContext, FunctionContext, connect_libraries, task_context
from django_zklock.decorators.uniqueness import Uniqueness
from django_zklock.decorators.validation import check_function, check_name, check_result, function_to_lock
from django_zklock.exceptions import LockLost, LockNotAcquired, ZooKeeperUnavailable
from django_zklock.execution.binding import KeyBinder, KeyBinding, Names, async_view
from django_zklock.http import atomic_requests, bodies, responses, views
from django_zklock.locks.lock import Lock
from django_zklock.locks.multi import Locks, MultiLock, joined, keys_of
from django_zklock.locks.spec import resolve_options
from django_zklock.locks.validation import check_arguments

if TYPE_CHECKING:
    from typing_extensions import Unpack


P = ParamSpec("P")
R = TypeVar("R")

_PER_LOCK: Final = arguments.KindOptions.__annotations__.keys() - {"timeout", "atomic"}
"""Of several locks, each has its own value of these options."""


def zk_locked(
    name: Names | Unset = UNSET, *more: NoReturn, **options: Unpack[LockedOptions]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """
    Run a view, a task or any function only while it holds a lock.

    `name` is an entry of `ZKLOCK["LOCKS"]`, or a path template. The call's arguments fill its fields, defaults
    included: `"inventory/{sku}"`, `"order/{order.pk}"`. A callable gets the arguments and returns the key. A list of
    names, or a callable that returns a list of keys, means several locks, which are acquired as by `zk_locks`. Without
    a name, `@zk_locked()` locks by the dotted name of the function, as in `shop.tasks.restock`.

    Put it below a decorator that makes a task of the function, such as `@shared_task`, and above
    `@transaction.atomic`: in an open transaction the lock raises `LockInTransaction`. The transaction of
    `ATOMIC_REQUESTS` begins inside the lock of a view, and is committed before the release. A template response is
    rendered before the release, too. A `StreamingHttpResponse` raises `TypeError`, because its body would be computed
    without the lock.

    `http.views` says which calls are views. A call that only gets a request is plain code, such as that of a helper.

    Args:
        name: see above. Several locks have the options of their own entries. But `timeout`, `on_conflict` and the
            options for tasks are those given here, or those of `ZKLOCK["DEFAULTS"]`.
        timeout: seconds to wait for the lock. 0 does not wait, None waits without limit. Default: none with "wait", 0
            with any other policy of a Celery task, 5 in views, else 10.
        on_conflict: what happens if the lock is not acquired in time. Default: "respond" in views, "wait" in Celery
            tasks ("retry" if a `timeout` is given), else "raise". If ZooKeeper is not available, that is no conflict: a
            view answers 503 (it raises with "raise"), "wait" waits in Celery tasks, "retry" and "coalesce" send the
            task again, and anything else raises `ZooKeeperUnavailable`.

            * "raise": raise `LockBusy` or `LockTimeout`.
            * "skip": do not run. A function returns None, a view answers 204, a task ends as REVOKED.
            * "wait": wait without limit unless `timeout` is given. After that, a view answers 409; anything else
              raises. A Celery task needs no slot of its worker while it waits.
            * "respond": a view answers 409 with Retry-After. Anything else raises.
            * "retry": a Celery task is sent again a little later, which does not count as a retry of its own.
              Anything else raises.
            * "coalesce": like "retry", but only one task waits; later ones are skipped. Anything else raises.
        **options: those of `Lock`, which `conf.arguments` explains, and those of `conf.arguments.TaskOptions` for
            Celery tasks. `release_on` has the default "commit" in a transaction that Django itself opens around a
            class-based view. With `max_waiters`, a call that is refused is a conflict.
        *more: refused; the error says what to write instead.

    """
    check_arguments("zk_locked", name, more, options, LockedOptions)
    uniqueness = Uniqueness.of(options)
    lock_options = given_options({option: value for option, value in options.items() if option in OPTION_NAMES})
    check_name(name)

    def decorate(*args: Callable[P, R], **kwargs: object) -> Callable[P, R]:
        function = function_to_lock(name, args, kwargs)
        check_function(function, lock_options)
        locked = LockedFunction(name, lock_options, function, uniqueness)
        connect_libraries(unique=uniqueness is not None)
        return cast("Callable[P, R]", locked.wrapper)

    return decorate


class LockedFunction:
    """A function and the lock around it."""

    def __init__(
        self, name: Names | Unset, options: LockOptions, function: Callable[..., Any], uniqueness: Uniqueness | None
    ) -> None:
        self.function = function
        self.options = options  # those given to the decorator
        self.uniqueness = uniqueness
        self.binder = KeyBinder(repr(self) if isinstance(name, Unset) else name, function)
        self.is_async = iscoroutinefunction(function)
        self.opted_out = atomic_requests.non_atomic_requests(function)  # shared with a locked function inside
        self._innermost = not hasattr(function, "zk_locked")
        self._resolved: tuple[conf.Config, LockOptions] | None = None  # replaced as a whole, by an equal one
        self._check_templates()
        self.wrapper = self._wrap()

    def __repr__(self) -> str:
        return f"{self.function.__module__}.{getattr(self.function, '__qualname__', self.function)}"

    def _wrap(self) -> Callable[..., Any]:
        wrapper: Any = functools.wraps(self.function)(_async_wrapper(self) if self.is_async else _sync_wrapper(self))
        # Celery checks arguments with getfullargspec, which does not look behind __wrapped__.
        wrapper.__signature__ = self.binder.signature
        wrapper.zk_locked = self  # for the system checks and for Celery
        if not self.is_async:  # else Django itself refuses ATOMIC_REQUESTS
            wrapper._non_atomic_requests = self.opted_out
        return cast("Callable[..., Any]", wrapper)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], context: CallContext | None = None) -> LockedCall:
        """Prepare one call; without a `context`, in that of the caller. Raises `InvalidLockName`."""
        _refuse_async_dispatch(self.function, args)
        request = views.request_of_view(self.wrapper, self.function, args)
        binding = self.binder.bind(args, kwargs)
        context = context or self._context(request)
        options = self._resolve(binding)
        if request is not None and not self.is_async:
            options = self._in_request(options, request)
        policy, timeout = options.on_conflict, options.timeout
        if isinstance(policy, Unset):
            policy = context.on_conflict if isinstance(timeout, Unset) else context.on_timeout
        if not context.waits:
            timeout = 0.0
        elif isinstance(timeout, Unset):
            timeout = None if policy == "wait" else context.timeout
        options = replace(options, timeout=timeout, on_conflict=policy)
        return LockedCall(self._lock(binding, options, context), context, options)

    def _context(self, request: HttpRequest | None) -> CallContext:
        if request is not None:
            return responses.ViewContext(request, f"view {self!r}")
        return task_context(self.wrapper) or FunctionContext(repr(self))

    def _lock(self, binding: KeyBinding, options: LockOptions, context: CallContext) -> Locks:
        if not binding.several:
            return Lock.with_options(
                binding.names[0], options, fields=binding.fields, what=context.what, about=context.about
            )
        # Each lock fills the gaps from its own entry in the settings.
        given: dict[str, Any] = {each: getattr(self.options, each) for each in _PER_LOCK}
        given |= {"release_on": options.release_on, "timeout": options.timeout, "atomic": options.atomic}
        given = {option: value for option, value in given.items() if value is not UNSET}
        return MultiLock(*binding.names, fields=binding.fields, what=context.what, about=context.about, **given)

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the key of a call's lock; of several locks, one key that represents all. Raises `InvalidLockName`."""
        binding = self.binder.bind(args, kwargs)
        if not binding.several:
            return Lock(binding.names[0], fields=binding.fields).key
        return joined(MultiLock(*binding.names, fields=binding.fields).keys)

    def options_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LockOptions:
        """Return the options of a call, without the defaults of its context. Raises `InvalidLockName`."""
        return self._resolve(self.binder.bind(args, kwargs))

    def atomic(self, config: conf.Config) -> tuple[str, ...]:
        """Return the databases on which each call is a transaction, as far as the templates tell."""
        given = [config.options_for(name, self.options).atomic for name in self.binder.templates]
        return tuple(alias for each in given or [self.options.atomic] for alias in (() if each is UNSET else each))

    def _resolve(self, binding: KeyBinding) -> LockOptions:
        config = conf.current()
        if self._resolved is not None and self._resolved[0] is config:
            return self._resolved[1]
        if binding.several:
            return self.options.over_defaults(config.defaults)
        options = resolve_options(config, binding.names[0], self.options)
        if binding.names == self.binder.templates:  # the same for each call
            self._resolved = config, options
        return options

    def _in_request(self, options: LockOptions, request: HttpRequest) -> LockOptions:
        """Return the options with the transactions that Django opens for the request."""
        own = () if isinstance(options.atomic, Unset) else options.atomic
        of_request = atomic_requests.to_begin(self.opted_out, request) if self._innermost else ()
        by_django = options.release_on is UNSET and atomic_requests.only_around_view(request)
        return replace(
            options,
            atomic=tuple(dict.fromkeys((*of_request, *own))),
            release_on="commit" if by_django else options.release_on,
        )

    def _check_templates(self) -> None:
        """
        Refuse a template with a field that the function does not get, and options that contradict each other.

        This happens at the decoration, if the settings can be read by then, so that the program does not fail later.
        """
        for name in self.binder.templates:
            try:
                config = conf.current()
            except ImproperlyConfigured:
                return  # the system checks report it
            options = resolve_options(config, name, self.options)
            self.binder.check_fields(options.path or name)


class LockedCall:
    """One call of a decorated function."""

    def __init__(self, lock: Locks, context: CallContext, options: LockOptions) -> None:
        self.lock = lock
        self.context = context
        self.options = options  # with the defaults of the context
        self.timeout = None if isinstance(options.timeout, Unset) else options.timeout
        self.acquired = False

    def begin(self) -> None:
        """Begin the work, under the lock."""
        self.context.on_acquired()
        self.acquired = True

    def without_lock(self, error: LockNotAcquired | ZooKeeperUnavailable | LockLost) -> Any:
        """Return what the call returns, if the error is about its own lock. An error from inside the work is raised."""
        if not self.acquired and not isinstance(error, LockLost):
            return self.context.on_not_acquired(error, self.lock, self.options)
        if self.acquired and isinstance(error, LockLost) and error.lock in keys_of(self.lock):
            return self.context.on_lost(error, self.options)
        raise error


def _sync_wrapper(locked: LockedFunction) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        call = locked.call(args, kwargs)
        try:
            call.context.before_acquire(call.lock, call.options)
            with call.lock:
                call.begin()
                result = check_result(locked.function(*args, **kwargs), locked.function)
                if isinstance(result, HttpResponseBase):
                    bodies.check_body(result, locked)
                    if bodies.is_unrendered(result):
                        result = result.render()
                return result
        except (LockNotAcquired, ZooKeeperUnavailable, LockLost) as error:
            return call.without_lock(error)

    return wrapper


def _async_wrapper(locked: LockedFunction) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        call = locked.call(args, kwargs)
        try:
            async with call.lock:
                call.begin()
                result = check_result(await locked.function(*args, **kwargs), locked.function)
                if isinstance(result, HttpResponseBase):
                    bodies.check_body(result, locked)
                    if bodies.is_unrendered(result):
                        result = await sync_to_async(result.render)()  # a template may read the database
                return result
        except (LockNotAcquired, ZooKeeperUnavailable, LockLost) as error:
            return call.without_lock(error)

    return wrapper


def _refuse_async_dispatch(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Refuse `dispatch` of an async class-based view: it is no coroutine function, it only returns a coroutine."""
    view = async_view(function, args)
    if view is not None:
        raise ImproperlyConfigured(
            f"{type(view).__name__}.dispatch returns before its async handler has run, so a lock on it would protect "
            "nothing; put @zk_locked on the handlers: async def get(...), async def post(...)."
        )
