"""
`@zk_locked`: run a view, a Celery task or a function, sync or async, only while it holds a lock.

The context of a call (`decorators.context`) decides what happens without the lock.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, Protocol, TypeVar, Unpack, overload

from asgiref.sync import AsyncToSync, iscoroutinefunction, sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest

from django_zklock import conf
from django_zklock.conf.arguments import (
    UNSET,
    KindOptions,
    LockedOptions,
    NamedFunction,
    RepeatOptions,
    TaskPolicy,
    Unset,
)
from django_zklock.conf.options import LockOptions, given_options, over_defaults
from django_zklock.decorators import library
from django_zklock.decorators.context import AcquireAgain, FunctionContext
from django_zklock.decorators.validation import (
    check_function,
    check_name,
    check_own_name,
    check_result,
    is_unrendered,
)
from django_zklock.exceptions import LockLost, LockNotAcquired, ZooKeeperUnavailable
from django_zklock.http import requests
from django_zklock.locks.arguments import check_options
from django_zklock.locks.lock import Lock, resolve_options, template_of
from django_zklock.locks.multi import TOGETHER, Locks, MultiLock, joined, shortest
from django_zklock.names.binding import KeyBinder, KeyBinding, Names

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    V = TypeVarWithDefault("V", default=None)

P = ParamSpec("P")
R = TypeVar("R")
Skipped = TypeVar("Skipped", covariant=True)


class SkippingDecorator(Protocol[Skipped]):
    """The type of a decorator whose function returns `Skipped` if the lock is busy."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R | Skipped]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | Skipped]: ...


_OF_CALLS: Final = ("on_conflict", "skip_value", *RepeatOptions.__annotations__)
"""The options that say what a call does without its lock."""


@overload
def zk_locked(
    name: Names | Unset = UNSET,
    *,
    on_conflict: Literal["raise", "wait", "retry"] = ...,
    **options: Unpack[NamedFunction],
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@overload
def zk_locked(
    name: Names | Unset = UNSET,
    *,
    skip_value: V = ...,
    on_conflict: TaskPolicy = ...,
    **options: Unpack[NamedFunction],
) -> SkippingDecorator[V]: ...
def zk_locked(name: Names | Unset = UNSET, **given: Unpack[LockedOptions]) -> Any:
    """
    Run a view, a task or any function only while it holds a lock.

    `name` is an entry of `ZKLOCK["LOCKS"]`, or a path template. The call's arguments fill its fields, defaults
    included: `"inventory/{sku}"`, `"order/{order.pk}"`. A callable gets the arguments and returns the key. A list of
    names, or a callable that returns a list of keys, means several locks, which are acquired as by `zk_locks`. Without
    a name, `@zk_locked()` locks by the dotted name of a function of an imported module, as in `shop.tasks.restock`.

    `conf.arguments.LockedOptions` explains the options. Several locks have the options of their own entries. But
    `timeout`, `on_conflict` and the options for tasks are those given here, or those of `ZKLOCK["DEFAULTS"]`.

    Put it below a decorator that makes a task of the function, such as `@shared_task`, and above
    `@transaction.atomic`: in an open transaction the lock raises `LockInTransaction`. The transaction of
    `ATOMIC_REQUESTS` begins inside the lock of a view, and is committed before the release. A template response is
    rendered before the release, too. A `StreamingHttpResponse` raises `TypeError`, because its body would be computed
    without the lock. A view raises, too; `LockConflictMiddleware` makes 409 or 503 of that.
    """
    check_options("zk_locked", given, LockedOptions.__annotations__)
    options = given_options(given)
    if options.get("unique") is None and (options.get("on_duplicate") or options.get("unique_for")):
        raise ValueError('on_duplicate and unique_for need unique="until_start" or unique="until_done".')
    check_name(name)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        check_function(function, options)
        if isinstance(name, Unset):
            check_own_name(function)
        locked = LockedFunction(name, options, function)
        library.connect(unique=options.get("unique") is not None)
        return locked.wrapper

    return decorate


class LockedFunction:
    """A function and the lock around it."""

    def __init__(self, name: Names | Unset, options: LockOptions, function: Callable[..., Any]) -> None:
        self.function = function
        named = function.awaitable if isinstance(function, AsyncToSync) else function
        self.name = f"{named.__module__}.{getattr(named, '__qualname__', named)}"
        self.options = options  # those given to the decorator
        self._of_tasks = [option for option in ("max_conflicts", "on_lost", "unique") if option in options]
        """The options that only tasks have, until it is known that a task calls this function."""
        self.binder = KeyBinder(self.name if isinstance(name, Unset) else name, function)
        self.is_async = iscoroutinefunction(function)
        self._resolved: tuple[conf.Config, LockOptions] | None = None  # replaced as a whole, by an equal one
        self._check_templates()
        wrapper: Any = functools.wraps(function)(_async_wrapper(self) if self.is_async else _sync_wrapper(self))
        # Celery checks arguments with getfullargspec, which does not look behind __wrapped__.
        wrapper.__signature__ = self.binder.signature
        wrapper.zk_locked = self  # for the system checks and for Celery
        self._innermost = not hasattr(function, "zk_locked")
        if not self.is_async and self._innermost:  # Django itself refuses ATOMIC_REQUESTS for an async view
            wrapper._non_atomic_requests = requests.NonAtomicRequests(requests.opted_out(function))
        self.wrapper: Callable[..., Any] = wrapper

    def __repr__(self) -> str:
        return self.name

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
            self.binder.check_fields(resolve_options(config, name, self.options).get("path", name))

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the key of a call's lock; of several locks, one key that represents all. Raises `InvalidLockName`."""
        binding = self.binder.bind(args, kwargs)
        config = conf.current()
        return joined(template_of(config, name).render(binding.fields) for name in binding.names)

    def context_of(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], context: FunctionContext | None = None
    ) -> FunctionContext:
        """Complete the context of one call; without one, that of the caller. Raises `InvalidLockName`."""
        binding = self.binder.bind(args, kwargs)
        options = self._resolve(binding)
        context = context or library.current.context_of(self.wrapper)
        if context is None:
            self._check_options_of_tasks()
            request = requests.find_request(args)
            context = FunctionContext(self.name, {} if request is None else {"request": requests.route(request)})
            if request is not None and not self.is_async:
                options = self._in_request(options, request, args)
        context.options = self._with_defaults(options, binding, context)
        context.lock = self._lock(binding, context)
        return context

    def _resolve(self, binding: KeyBinding) -> LockOptions:
        config = conf.current()
        if self._resolved is not None and self._resolved[0] is config:
            return self._resolved[1]
        if binding.several:
            return over_defaults({**self._of_entries(binding.names, config), **self.options}, config.defaults)
        options = resolve_options(config, binding.names[0], self.options)
        if binding.names == self.binder.templates:  # so each call has the same options
            self._resolved = config, options
        return options

    def _of_entries(self, names: Sequence[str], config: conf.Config) -> LockOptions:
        """Return the options that the entries of several locks have for the call as a whole."""
        options: dict[str, Any] = {}
        waits = [lock["timeout"] for lock in map(config.options_for, names) if "timeout" in lock]
        if waits:
            options["timeout"] = shortest(waits)
        for option in _OF_CALLS:
            values = [config.locks[name][option] for name in names if option in config.locks.get(name, ())]
            if values and option not in self.options and values != values[:1] * len(values):
                raise ImproperlyConfigured(
                    f"{self.name} has several locks, whose entries differ in {option}. Give {option} to its @zk_locked."
                )
            if values:
                options[option] = values[0]
        return options

    def _check_options_of_tasks(self) -> None:
        """Raise `ImproperlyConfigured` if options have no effect, because no task is known to call this function."""
        if self._of_tasks and self.wrapper not in library.current.functions():
            raise ImproperlyConfigured(
                f"{self.name} has {' and '.join(self._of_tasks)} in its @zk_locked, which only has an effect on the "
                "function of a Celery task, and no task is known that calls this function. A decorator between it and "
                "the task needs functools.wraps. An override of run() must call super().run()."
            )
        self._of_tasks = []

    def _in_request(self, options: LockOptions, request: HttpRequest, args: tuple[Any, ...]) -> LockOptions:
        """Return the options of a sync call with a request, under `ATOMIC_REQUESTS`; `http.requests` has the rule."""
        begun = requests.left_to_lock(request) if self._innermost else ()
        options = {**options, "atomic": tuple(dict.fromkeys((*begun, *options.get("atomic", ()))))}
        is_method = requests.view_of_method(self.function, args) is not None
        if "release_on" not in options and is_method and requests.begun_by_django(request):
            options["release_on"] = "commit"
        return options

    def _with_defaults(self, options: LockOptions, binding: KeyBinding, context: FunctionContext) -> LockOptions:
        """Return the options with the defaults of the context."""
        policy = self._policy(options, binding.names, context)
        if "skip_value" in self.options and policy != "skip":
            raise ImproperlyConfigured(
                f'The {context.kind} {self.name} has a skip_value, but nothing skips it: on_conflict is "{policy}". '
                'Set on_conflict to "skip", or remove skip_value.'
            )
        timeout = options.get("timeout", None if policy == "wait" else context.timeout)
        if context.is_again and policy != "skip":
            timeout = context.timeout
        return {**options, "timeout": timeout if context.waits else 0.0, "on_conflict": policy}

    def _policy(self, options: LockOptions, names: Sequence[str], context: FunctionContext) -> str:
        """Return the option `on_conflict`. One of `ZKLOCK["DEFAULTS"]` that the function cannot have is ignored."""
        policy: str | None = options.get("on_conflict")
        if policy in context.policies:
            return policy
        if policy is not None:
            self.check_policy(names, conf.current(), context)
        return context.on_conflict_with_timeout if "timeout" in options else context.on_conflict

    def check_policy(
        self, names: Sequence[str], config: conf.Config, context: FunctionContext | type[FunctionContext]
    ) -> None:
        """Raise `ImproperlyConfigured` if the decorator, or the entry of a lock, has a policy of other kinds."""
        policy = {**self._of_entries(names, config), **self.options}.get("on_conflict")
        if policy is not None and policy not in context.policies:
            raise ImproperlyConfigured(
                f'The {context.kind} {self.name} has on_conflict="{policy}". A {context.kind} can have only '
                f"{', '.join(map(repr, context.policies))}. Give one of them to its @zk_locked. If the function is "
                'called in several ways, give "raise", or leave the option out.'
            )

    def _lock(self, binding: KeyBinding, context: FunctionContext) -> Locks:
        options = context.options
        work: Any = {"fields": binding.fields, "what": context.what, "about": context.about}
        if not binding.several:
            return Lock.with_options(binding.names[0], options, **work)
        # Each lock fills the gaps from its own entry in the settings.
        given = {name: value for name, value in self.options.items() if name in KindOptions.__annotations__}
        together = {name: options[name] for name in TOGETHER & options.keys()}
        lock = MultiLock(*binding.names, **work, **{**given, **together})
        lock.fields = {}  # an argument need not be in a name
        return lock


def _sync_wrapper(locked: LockedFunction) -> Callable[..., Any]:
    def run(call: FunctionContext, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            call.before_acquire()
            with call.lock:
                call.begin()
                result = locked.function(*args, **kwargs)
                check_result(result, locked.name)
                result = result.render() if is_unrendered(result) else result
            call.on_released()
            return result
        except (LockNotAcquired, ZooKeeperUnavailable, LockLost) as error:
            return call.on_error(error)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        call = locked.context_of(args, kwargs)
        while True:
            try:
                return run(call, args, kwargs)
            except AcquireAgain as again:
                call.again(again)
                time.sleep(again.args[0])
                locked.context_of(args, kwargs, call)

    return wrapper


def _async_wrapper(locked: LockedFunction) -> Callable[..., Any]:
    async def run(call: FunctionContext, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            async with call.lock:
                call.begin()
                result = await locked.function(*args, **kwargs)
                check_result(result, locked.name)
                if is_unrendered(result):
                    return await sync_to_async(result.render)()  # a template may read the database
                return result
        except (LockNotAcquired, ZooKeeperUnavailable, LockLost) as error:
            return call.on_error(error)

    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        call = locked.context_of(args, kwargs)
        while True:
            try:
                return await run(call, args, kwargs)
            except AcquireAgain as again:
                call.again(again)
                await asyncio.sleep(again.args[0])
                locked.context_of(args, kwargs, call)

    return wrapper
