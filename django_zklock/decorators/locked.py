"""
`@zk_locked`: run a view, a Celery task or a function, sync or async, only while it holds a lock.

The context of a call (`decorators.context`) decides what happens without the lock.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, NoReturn, ParamSpec, TypeVar, cast

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest

from django_zklock import conf
from django_zklock.conf import arguments
from django_zklock.conf.arguments import (
    AbortOn,
    Atomic,
    Compat,
    KindOfLock,
    LockedOptions,
    OnConflict,
    OnLost,
    ReleaseOn,
    Seconds,
)
from django_zklock.conf.options import OPTION_NAMES, UNSET, LockOptions, Unset, given_options
from django_zklock.decorators.context import (
    FunctionContext,
    connect_library,
    function_context,
    is_of_task,
    task_context,
)
from django_zklock.decorators.results import check_result, is_unrendered
from django_zklock.decorators.uniqueness import Uniqueness
from django_zklock.decorators.validation import check_function, check_name, function_to_lock
from django_zklock.exceptions import LockLost, LockNotAcquired, ZooKeeperUnavailable
from django_zklock.http import atomic_requests, requests
from django_zklock.locks.lock import Lock
from django_zklock.locks.multi import Locks, MultiLock, joined, keys_of
from django_zklock.locks.spec import check_arguments, resolve_options
from django_zklock.names.binding import KeyBinder, KeyBinding, Names

P = ParamSpec("P")
R = TypeVar("R")

_OPTIONS: Final = frozenset(LockedOptions.__annotations__)
_PER_LOCK: Final = arguments.KindOptions.__annotations__.keys() - {"timeout", "atomic"}
"""The options that each of several locks reads from its own entry, unless the decorator gives them."""


def zk_locked(
    name: Names | Unset = UNSET,
    *more: NoReturn,
    timeout: Seconds | Unset | None = UNSET,
    on_conflict: OnConflict | Unset = UNSET,
    kind: KindOfLock | Unset = UNSET,
    limit: int | Unset | None = UNSET,
    reentrant: bool | Unset = UNSET,
    atomic: Atomic | Unset = UNSET,
    release_on: ReleaseOn | Unset = UNSET,
    abort_on: AbortOn | Unset = UNSET,
    grace: Seconds | Unset = UNSET,
    max_hold: Seconds | Unset | None = UNSET,
    min_hold: Seconds | Unset = UNSET,
    warn_after: Seconds | Unset | None = UNSET,
    linger: Seconds | Unset = UNSET,
    max_waiters: int | Unset | None = UNSET,
    compat: Compat | Unset | None = UNSET,
    max_conflicts: int | Unset | None = UNSET,
    skip_value: Any = UNSET,
    on_lost: OnLost | Unset = UNSET,
    unique: Literal["until_start", "until_done"] | Unset | None = UNSET,
    on_duplicate: Literal["return", "raise"] | Unset | None = UNSET,
    unique_for: Seconds | Unset | None = UNSET,
    **unknown: NoReturn,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """
    Run a view, a task or any function only while it holds a lock.

    `name` is an entry of `ZKLOCK["LOCKS"]`, or a path template. The call's arguments fill its fields, defaults
    included: `"inventory/{sku}"`, `"order/{order.pk}"`. A callable gets the arguments and returns the key. A list of
    names, or a callable that returns a list of keys, means several locks, which are acquired as by `zk_locks`. Without
    a name, `@zk_locked()` locks by the dotted name of a function of an imported module, as in `shop.tasks.restock`.

    Put it below a decorator that makes a task of the function, such as `@shared_task`, and above
    `@transaction.atomic`: in an open transaction the lock raises `LockInTransaction`. The transaction of
    `ATOMIC_REQUESTS` begins inside the lock of a view, and is committed before the release. A template response is
    rendered before the release, too. A `StreamingHttpResponse` raises `TypeError`, because its body would be computed
    without the lock. A view raises, too; `LockConflictMiddleware` makes 409 or 503 of that.

    Args:
        name: see above. Several locks have the options of their own entries. But `timeout`, `on_conflict` and the
            options for tasks are those given here, or those of `ZKLOCK["DEFAULTS"]`.
        timeout: seconds to wait for the lock. 0 does not wait, None waits without limit. Default: none with "wait", 0
            with any other policy of a Celery task, else 5.
        on_conflict: what happens if the lock is not acquired in time. Each kind of function has its own values, and any
            other value raises `ImproperlyConfigured`. If ZooKeeper is not available, that is no conflict: "wait" waits,
            "retry" and "coalesce" send the task again, and anything else raises `ZooKeeperUnavailable`.

            * A Celery task: "wait" (default) waits without limit unless `timeout` is given, and needs no slot of its
              worker meanwhile; then it raises. "retry" (default with a `timeout`) sends the task again a little later,
              which does not count as a retry of its own. "coalesce" is like "retry", but only one task waits, and later
              ones are skipped. "skip" ends the task as REVOKED. "raise" raises.
            * Any other function: "raise" (default) raises `LockBusy` or `LockTimeout`. "skip" returns `skip_value`, or
              None, without a call.
        kind: "lock" (default), or the side of a read-write lock: "read" or "write".
        limit: how many owners of a semaphore hold it at a time.
        reentrant: whether the owner may acquire the lock again (default).
        atomic: the databases on which the call is a transaction inside the lock. True means the default database.
        release_on: "commit" or "exit", for a lock in an open transaction. Default: "commit" in a transaction that
            Django itself opens around a class-based view, else `LockInTransaction` is raised.
        abort_on: when the work is aborted: if the connection is "suspended" (default), if the lock is "lost", or
            "never".
        grace: seconds that a suspended connection may last before the abort.
        max_hold: seconds of holding after which the lock is lost and the work is aborted.
        min_hold: seconds from the grant in which no other contender gets the lock.
        warn_after: seconds of holding after which a warning is logged.
        linger: seconds for which this process keeps the lock after a release, for its own next owners.
        max_waiters: how many callers may wait for the lock. To be refused is a conflict.
        compat: the client whose names the znodes get, so that its processes share the queue.
        max_conflicts: how often a busy Celery task is sent again before the error is raised.
        skip_value: the result of a skipped call, instead of None, or of the state REVOKED of a Celery task.
        on_lost: "retry" sends a Celery task again that lost its lock. Default: "fail".
        unique: until when a Celery task is not sent again with the same key: "until_start" or "until_done".
        on_duplicate: what the sender of such a task gets: "return" the first result (default), or "raise".
        unique_for: seconds after which a unique task that never started no longer prevents another one.
        *more: refused; the error says what to write instead.
        **unknown: refused in the same way.

    `conf.arguments` explains the options of locks and tasks in full.

    """
    options = {option: value for option, value in locals().items() if option in _OPTIONS and value is not UNSET}
    check_arguments("zk_locked", name, more, unknown, LockedOptions)
    uniqueness = Uniqueness.of(options)
    lock_options = given_options({option: value for option, value in options.items() if option in OPTION_NAMES})
    check_name(name)

    def decorate(*args: Callable[P, R], **kwargs: object) -> Callable[P, R]:
        function = function_to_lock(name, args, kwargs)
        check_function(function, lock_options)
        locked = LockedFunction(name, lock_options, function, uniqueness)
        connect_library(unique=uniqueness is not None)
        return cast("Callable[P, R]", locked.wrapper)

    return decorate


class LockedFunction:
    """A function and the lock around it."""

    def __init__(
        self, name: Names | Unset, options: LockOptions, function: Callable[..., Any], uniqueness: Uniqueness | None
    ) -> None:
        self.function = function
        self.name = f"{function.__module__}.{getattr(function, '__qualname__', function)}"
        self.options = options  # those given to the decorator
        self.uniqueness = uniqueness
        self.given = [name for name in OPTION_NAMES if getattr(options, name) is not UNSET]
        """The names of the options of the decorator."""
        if uniqueness is not None:
            self.given.append("unique")
        self._of_tasks = [name for name in self.given if name in ("max_conflicts", "on_lost", "unique")]
        """Those that only tasks have, until it is known that a task calls this function."""
        self.binder = KeyBinder(self.name if isinstance(name, Unset) else name, function)
        self.is_async = iscoroutinefunction(function)
        self.opted_out = atomic_requests.non_atomic_requests(function)  # shared with a locked function inside
        self._innermost = not hasattr(function, "zk_locked")
        self._resolved: tuple[conf.Config, LockOptions] | None = None  # replaced as a whole, by an equal one
        self._check_templates()
        self.wrapper = self._wrap()

    def __repr__(self) -> str:
        return self.name

    def _wrap(self) -> Callable[..., Any]:
        wrapper: Any = functools.wraps(self.function)(_async_wrapper(self) if self.is_async else _sync_wrapper(self))
        # Celery checks arguments with getfullargspec, which does not look behind __wrapped__.
        wrapper.__signature__ = self.binder.signature
        wrapper.zk_locked = self  # for the system checks and for Celery
        if not self.is_async:  # else Django itself refuses ATOMIC_REQUESTS
            wrapper._non_atomic_requests = self.opted_out
        return cast("Callable[..., Any]", wrapper)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], context: FunctionContext | None = None) -> LockedCall:
        """Prepare one call; without a `context`, in that of the caller. Raises `InvalidLockName`."""
        binding = self.binder.bind(args, kwargs)
        options = self._resolve(binding)
        context = context or task_context(self.wrapper)
        if context is None:
            if self._of_tasks:
                self._check_that_task_calls()
            _refuse_async_dispatch(self.function, args)
            request = requests.find_request(args)
            context = function_context(self.name, request)
            if request is not None and not self.is_async:
                options = self._in_request(options, request, args)
        options = self._with_defaults(options, binding, context)
        return LockedCall(self._lock(binding, options, context), context, options)

    def _with_defaults(self, options: LockOptions, binding: KeyBinding, context: FunctionContext) -> LockOptions:
        """
        Return the options with the defaults of the context.

        A function ignores a policy of `ZKLOCK["DEFAULTS"]` that its kind cannot have.
        """
        policy, timeout = options.on_conflict, options.timeout
        if not isinstance(policy, Unset) and policy not in context.policies:
            self.check_policy(binding.names, conf.current(), context.kind, context.policies)
            policy = UNSET
        if isinstance(policy, Unset):
            policy = context.on_conflict if isinstance(timeout, Unset) else context.on_conflict_with_timeout
        if not context.waits:
            timeout = 0.0
        elif isinstance(timeout, Unset):
            timeout = None if policy == "wait" else context.timeout
        if self.options.skip_value is not UNSET and policy not in ("skip", "coalesce"):
            raise ImproperlyConfigured(
                f'The {context.kind} {self.name} has a skip_value, but nothing skips it: on_conflict is "{policy}". '
                'Set on_conflict to "skip", or remove skip_value.'
            )
        return replace(options, timeout=timeout, on_conflict=policy)

    def _check_that_task_calls(self) -> None:
        """Raise `ImproperlyConfigured` if options have no effect, because no task is known to call this function."""
        if not is_of_task(self.wrapper):
            raise ImproperlyConfigured(
                f"{self.name} has {' and '.join(self._of_tasks)} in its @zk_locked, which only has an effect on the "
                "function of a Celery task, and no task is known that calls this function. A decorator between it and "
                "the task needs functools.wraps. An override of run() must call super().run()."
            )
        self._of_tasks = []

    def check_policy(self, names: Sequence[str], config: conf.Config, kind: str, policies: tuple[str, ...]) -> None:
        """Raise `ImproperlyConfigured` if the decorator, or the entry of its only lock, has none of these policies."""
        policy = self.options.on_conflict
        if isinstance(policy, Unset) and not self.binder.several and len(names) == 1 and names[0] in config.locks:
            policy = config.locks[names[0]].on_conflict
        if not isinstance(policy, Unset) and policy not in policies:
            raise ImproperlyConfigured(
                f'The {kind} {self.name} has on_conflict="{policy}". A {kind} can have only '
                f"{', '.join(map(repr, policies))}. Give one of them to its @zk_locked. If the function is called in "
                'several ways, give "raise", or leave the option out.'
            )

    def _lock(self, binding: KeyBinding, options: LockOptions, context: FunctionContext) -> Locks:
        if not binding.several:
            return Lock.with_options(
                binding.names[0], options, fields=binding.fields, what=context.what, about=context.about
            )
        # Each lock fills the gaps from its own entry in the settings.
        given: dict[str, Any] = {option: getattr(self.options, option) for option in _PER_LOCK}
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
        options = [config.options_for(name, self.options) for name in self.binder.templates] or [self.options]
        return tuple(alias for lock in options if not isinstance(lock.atomic, Unset) for alias in lock.atomic)

    def _resolve(self, binding: KeyBinding) -> LockOptions:
        config = conf.current()
        if self._resolved is not None and self._resolved[0] is config:
            return self._resolved[1]
        if binding.several:
            return self.options.over_defaults(config.defaults)
        options = resolve_options(config, binding.names[0], self.options)
        if binding.names == self.binder.templates:  # so each call has the same options
            self._resolved = config, options
        return options

    def _in_request(self, options: LockOptions, request: HttpRequest, args: tuple[Any, ...]) -> LockOptions:
        """
        Return the options of a call with a request, under `ATOMIC_REQUESTS`.

        If Django has left the transaction of the request to a locked function, it begins inside the lock. If Django has
        begun it before a method of a class-based view, the lock is held until it has ended.
        """
        own = () if isinstance(options.atomic, Unset) else options.atomic
        of_request = atomic_requests.databases_to_begin(self.opted_out, request) if self._innermost else ()
        is_method = requests.view_of_method(self.function, args) is not None
        by_django = options.release_on is UNSET and is_method and atomic_requests.only_around_view(request)
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

    def __init__(self, lock: Locks, context: FunctionContext, options: LockOptions) -> None:
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
        """Return the result of a call that failed by its own lock. Raise the error if it comes from inside the work."""
        lost = isinstance(error, LockLost)
        if lost != self.acquired or (lost and error.lock not in keys_of(self.lock)):
            raise error
        return self.context.without_lock(error, self.lock, self.options)


def _sync_wrapper(locked: LockedFunction) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        call = locked.call(args, kwargs)
        try:
            call.context.before_acquire(call.lock, call.options)
            with call.lock:
                call.begin()
                result = locked.function(*args, **kwargs)
                check_result(result, locked.function, locked.name)
                return result.render() if is_unrendered(result) else result
        except (LockNotAcquired, ZooKeeperUnavailable, LockLost) as error:
            return call.without_lock(error)

    return wrapper


def _async_wrapper(locked: LockedFunction) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        call = locked.call(args, kwargs)
        try:
            async with call.lock:
                call.begin()
                result = await locked.function(*args, **kwargs)
                check_result(result, locked.function, locked.name)
                if is_unrendered(result):
                    return await sync_to_async(result.render)()  # a template may read the database
                return result
        except (LockNotAcquired, ZooKeeperUnavailable, LockLost) as error:
            return call.without_lock(error)

    return wrapper


def _refuse_async_dispatch(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Refuse `dispatch` of an async class-based view: it is no coroutine function, it only returns a coroutine."""
    if requests.is_async_dispatch(function, args):
        raise ImproperlyConfigured(
            f"{getattr(function, '__qualname__', function)} returns before its async handler has run, so a lock on it "
            "would protect nothing; put @zk_locked on the handlers: async def get(...), async def post(...)."
        )
