"""
Knows how a lock goes round a function: `@zk_locked` for views, Celery tasks and plain functions, sync and async.

One core, `Locked`, and two thin shells. What a call is made of, and what becomes of it when the lock is not to be had,
its surroundings know: a view, plain code, or a Celery task (`contrib.celery`).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from typing import Any, NoReturn, ParamSpec, TypeVar, cast

from asgiref.sync import iscoroutinefunction
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest

from django_zklock import conf
from django_zklock.conf.options import UNSET, Atomic, LockOptions, Unset, given_options
from django_zklock.conf.spelling import check_spelling
from django_zklock.decorators.context import Code, Surroundings
from django_zklock.decorators.validation import (
    refuse_async_atomic,
    refuse_awaitable,
    refuse_unlockable,
    refuse_unnamed,
    the_function,
)
from django_zklock.exceptions import LockLost, LockNotAcquired, ZooKeeperUnavailable
from django_zklock.execution import transactions
from django_zklock.execution.binding import Named, Names, Naming, async_view
from django_zklock.http import responses
from django_zklock.http.streaming import Handover
from django_zklock.locks.lock import Lock
from django_zklock.locks.multi import Locks, MultiLock, joined, keys_of
from django_zklock.locks.terms import refuse_contradictions
from django_zklock.locks.validation import refuse_arguments
from django_zklock.operations.reservations import Uniqueness

P = ParamSpec("P")
R = TypeVar("R")

_OF_EACH = (
    "abort_on",
    "grace",
    "reentrant",
    "release",
    "kind",
    "limit",
    "compat",
    "max_hold",
    "warn_after",
    "min_hold",
    "max_waiters",
)
"""The options that a lock is made with, but for those that depend on the call."""


def zk_locked(
    name: Names,
    *more: NoReturn,
    timeout: float | timedelta | Unset | None = UNSET,
    on_conflict: str | Unset = UNSET,
    abort_on: str | Unset = UNSET,
    grace: float | timedelta | Unset = UNSET,
    reentrant: bool | Unset = UNSET,
    atomic: Atomic | Unset = UNSET,
    release: str | Unset = UNSET,
    kind: str | Unset = UNSET,
    limit: int | Unset | None = UNSET,
    compat: str | Unset | None = UNSET,
    max_hold: float | timedelta | Unset | None = UNSET,
    warn_after: float | timedelta | Unset | None = UNSET,
    min_hold: float | timedelta | Unset = UNSET,
    max_waiters: int | Unset | None = UNSET,
    unique: str | None = None,
    on_duplicate: str | None = None,
    unique_for: float | timedelta | None = None,
    max_conflicts: int | Unset | None = UNSET,
    skip_value: Any = UNSET,
    on_lost: str | Unset = UNSET,
    **unknown: NoReturn,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """
    Run a view, a task or any function only while it holds a lock.

    `name` is one of `ZKLOCK["LOCKS"]`, or else a path template; its fields are the call's arguments, defaults applied:
    `"inventory/{sku}"`, `"order/{order.pk}"`. A callable gets the call's arguments and returns the key itself. A list
    of names, or a callable that returns a list of keys, is several locks that are taken as one, as `zk_locks` does.

    Put it below decorators that make something else of the function, such as `@shared_task`, and above
    `@transaction.atomic`: a transaction that is open when the lock is to be taken raises `LockInTransaction`. That of
    `ATOMIC_REQUESTS` is begun inside the lock of a view, and committed before its release. A response that is streamed,
    or rendered later, keeps the lock until its body is done, or the client gone.

    Args:
        name: as above. Of several locks each has the options of its own entry in the settings; but `timeout` and what a
            call does without them (`on_conflict` and the like) is said here, or by the defaults.
        timeout: seconds to wait for the lock; 0 does not wait, None waits for ever. Default: 5 in views, 0 in Celery
            tasks, else 10.
        on_conflict: what to do when it was not to be had. "raise" `LockBusy` or `LockTimeout`; "skip" the work (a
            function returns None, a view answers 204, a task ends as REVOKED); "wait", which waits without end if no
            timeout is given, and else raises after it (a view answers); "respond" (views: 409 with Retry-After);
            "retry" (Celery: the task is sent again after a moment, its own retries uncounted); "coalesce" (Celery: the
            same, for one task at a time, and those that come meanwhile are skipped). Elsewhere the last three raise.
            ZooKeeper away is no conflict: as nobody can tell who has the lock then, the work is not skipped but
            `ZooKeeperUnavailable` raised. A view answers 503, unless it is to raise, and "retry" and "coalesce" send
            the task again. Default: "respond" in views, "retry" in Celery tasks, else "raise".
        abort_on: when the work is stopped: "suspended" (default), "lost" or "never".
        grace: seconds that a suspended connection may last before that. Default 0.
        reentrant: whether its owner may take the lock again. Default True.
        atomic: the database, or databases, on which each call is a transaction inside the lock; True is the default
            one. Not for async functions.
        release: "on_commit" or "block": when the lock is let go if the call is made inside an open transaction, as in
            `Lock`. Default "on_commit" where that transaction is Django's own round a class-based view.
        kind: "lock" (default), or a side of a read-write lock: "read", which shares it with other readers, or
            "write". All are first come, first served, and keep each other out on the same path.
        limit: how many may hold it at a time: a semaphore, with a permit for each. `operations.set_limit` changes
            that for all processes, whatever they say here. Default None: no semaphore.
        compat: "curator" or "kazoo": the znodes get the names of that client's locks, so that its processes share
            the queue. None (default): only processes of this package do. Not for semaphores.
        max_hold: seconds after which the work is stopped and the hold is lost, as if the connection were. Default
            None.
        warn_after: seconds of holding after which a warning is logged and `lock_held_long` sent. Default None.
        min_hold: seconds from the grant during which nobody else gets the lock, even if the work is done before
            and the process has ended. For jobs that several hosts start at about the same time. Default 0.
        max_waiters: how many callers may wait for the lock. One more is refused at once, as if its time to wait were
            over, and nothing is written. Default None, any number.
        unique: for Celery tasks. "until_start" or "until_done": until then, the task is not sent a second time with
            the same key. Default None: it is.
        on_duplicate: what the caller gets who would have sent it: "return" (default) the first one's AsyncResult, or
            "raise" `AlreadyQueued`.
        unique_for: seconds after which a task that neither came to a worker nor ended stands in nobody's way any
            more. Default None: such a one does so until its message expires.
        max_conflicts: how often a Celery task is sent again before the error is raised. Default None: as often as it
            takes.
        skip_value: what a Celery task returns that is skipped, as its result; anything that JSON can say. If not
            given, it ends as REVOKED.
        on_lost: "fail" (default), or "retry": a Celery task whose lock was lost is sent again, its own retries
            uncounted.
        *more: refused, with what to write instead.
        **unknown: refused likewise.

    """
    if more or unknown:
        refuse_arguments("zk_locked", name, more, unknown)
    uniqueness = Uniqueness.given(unique, on_duplicate, unique_for)
    options = given_options(
        timeout=timeout,
        on_conflict=on_conflict,
        abort_on=abort_on,
        grace=grace,
        reentrant=reentrant,
        atomic=atomic,
        release=release,
        kind=kind,
        limit=limit,
        compat=compat,
        max_hold=max_hold,
        warn_after=warn_after,
        min_hold=min_hold,
        max_waiters=max_waiters,
        max_conflicts=max_conflicts,
        skip_value=skip_value,
        on_lost=on_lost,
    )
    refuse_unnamed(name)

    def decorate(*given: Callable[P, R], **more: object) -> Callable[P, R]:
        function = the_function(name, given, more)
        refuse_unlockable(function)
        refuse_async_atomic(function, options)
        locked = Locked(name, options, function, uniqueness)
        wrapper = _async_shell(locked) if locked.is_async else _sync_shell(locked)
        functools.update_wrapper(wrapper, function)
        # Celery checks arguments with getfullargspec, which does not look behind __wrapped__.
        wrapper.__signature__ = locked.naming.signature  # type: ignore[attr-defined]
        wrapper.zk_locked = locked  # type: ignore[attr-defined]  # for the system checks and for Celery
        if not locked.is_async:  # else Django itself refuses ATOMIC_REQUESTS
            wrapper._non_atomic_requests = locked.opted_out  # type: ignore[attr-defined]
        locked.wrapper = wrapper
        return cast("Callable[P, R]", wrapper)

    return decorate


def _sync_shell(locked: Locked) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        call = locked.call(args, kwargs)
        try:
            call.around.entering(call.lock, call.options)
            with call.handover as handover, call.lock as hold:
                call.begin()
                return handover.keep(hold, refuse_awaitable(locked.function(*args, **kwargs), locked))
        except (LockNotAcquired, ZooKeeperUnavailable, LockLost) as error:
            return call.without_lock(error)

    return wrapper


def _async_shell(locked: Locked) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        call = locked.call(args, kwargs)
        try:
            with call.handover as handover:
                async with call.lock as hold:
                    call.begin()
                    return handover.keep(hold, await locked.function(*args, **kwargs))
        except (LockNotAcquired, ZooKeeperUnavailable, LockLost) as error:
            return call.without_lock(error)

    return wrapper


class Locked:
    """A decorated function: from its arguments to the lock of one call."""

    def __init__(
        self, name: Names, options: LockOptions, function: Callable[..., Any], uniqueness: Uniqueness | None = None
    ) -> None:
        self.name = name
        self.options = options
        self.function = function
        self.naming = Naming(name, function)
        self.is_async = iscoroutinefunction(function)
        self.opted_out = transactions.non_atomic_requests(function)  # shared with a locked function inside
        self._innermost = not hasattr(function, "zk_locked")
        self.wrapper: Callable[..., Any] = function
        self._check_names()
        self.uniqueness = uniqueness
        self._begun: Callable[[Locked], None] | None = None
        if "celery" in sys.modules:  # perhaps only since Django was set up
            import_module("django_zklock.contrib.celery").connect()
        if uniqueness is not None:
            self._begun = _begun_by_celery()

    def __repr__(self) -> str:
        return f"{self.function.__module__}.{getattr(self.function, '__qualname__', self.function)}"

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        """Return what one call is about."""
        _refuse_async_dispatch(self.function, args)
        named = self.naming.named(args, kwargs)
        around = self._surroundings(args)
        request = responses.find_request(args)
        options = self._options_for(named, request)
        policy = around.on_conflict if isinstance(options.on_conflict, Unset) else options.on_conflict
        timeout = around.timeout if isinstance(options.timeout, Unset) else options.timeout
        if policy == "wait" and isinstance(options.timeout, Unset):
            timeout = None
        return _Call(
            self._lock(named, options, timeout, around),
            request,
            around,
            replace(options, timeout=timeout, on_conflict=policy),
            self._begun and functools.partial(self._begun, self),
        )

    def _lock(self, named: Named, options: LockOptions, timeout: float | None, around: Surroundings) -> Locks:
        # Of several, each fills the gaps from its own entry in the settings.
        of_each = self.options if named.several else options
        given: dict[str, Any] = {each: getattr(of_each, each) for each in _OF_EACH}
        given.update(fields=named.fields, timeout=timeout, atomic=options.atomic, what=around.what, about=around.about)
        if options.release is not UNSET:
            given["release"] = options.release
        return MultiLock(*named.names, **given) if named.several else Lock(named.names[0], **given)

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """
        Return the key of the lock that a call needs; of several, one that stands for all. Raises `InvalidLockName`.
        """
        named = self.naming.named(args, kwargs)
        if not named.several:
            return Lock(named.names[0], fields=named.fields).key
        return joined(MultiLock(*named.names, fields=named.fields).keys)

    def options_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LockOptions:
        """Return the options of a call, without those that its surroundings give. Raises `InvalidLockName`."""
        return self._options_in_settings(self.naming.named(args, kwargs))

    def atomic(self, config: conf.Config) -> tuple[str, ...]:
        """Return the databases on which each call is a transaction, as far as names tell that no callable makes."""
        given = [config.options_for(name, self.options).atomic for name in self.naming.templates]
        return tuple(alias for each in given or [self.options.atomic] for alias in (() if each is UNSET else each))

    def _options_in_settings(self, named: Named) -> LockOptions:
        config = conf.current()
        if named.several:
            return self.options.over_defaults(config.defaults)
        return config.options_for(named.names[0], self.options)

    def _options_for(self, named: Named, request: HttpRequest | None) -> LockOptions:
        """Return the options of one call, the transactions of its request being part of them."""
        options = self._options_in_settings(named)
        if request is None or self.is_async:
            return options
        own = () if isinstance(options.atomic, Unset) else options.atomic
        of_request = transactions.to_begin(self.opted_out, request) if self._innermost else ()
        by_django = options.release is UNSET and transactions.only_of_request(request)
        return replace(
            options,
            atomic=tuple(dict.fromkeys((*of_request, *own))),
            release="on_commit" if by_django else options.release,
        )

    def _surroundings(self, args: tuple[Any, ...]) -> Surroundings:
        request = responses.find_request(args)
        if request is not None:
            return responses.ViewCall(request, f"view {self!r}")
        if "celery" in sys.modules:
            # Not imported before Celery is, so that a project without it needs none.
            task = import_module("django_zklock.contrib.celery.calls").running_task(self.wrapper)
            if task is not None:
                return cast("Surroundings", task)
        return Code(repr(self))

    def _check_names(self) -> None:
        """
        Refuse a template that asks for what the function does not get, and options that contradict those of the lock.

        As soon as the settings can be read, so that a program does not begin with what would fail at the first call.
        """
        for name in self.naming.templates:
            try:
                config = conf.current()
            except ImproperlyConfigured:
                return  # the system checks will say what is wrong
            check_spelling(config, name)
            options = config.options_for(name, self.options)
            self.naming.check_fields(options.path or name)
            refuse_contradictions(name, options)


class _Call:
    """One call of a decorated function."""

    def __init__(
        self,
        lock: Locks,
        request: HttpRequest | None,
        around: Surroundings,
        options: LockOptions,
        begun: Callable[[], None] | None,
    ) -> None:
        self.lock = lock
        self.around = around
        self.options = options  # of this call, with the defaults of what is around it
        self.entered = False
        self.handover = Handover(lock, request, self._lost)
        self._begun = begun

    def begin(self) -> None:
        """Go to work, with the lock."""
        self.around.admitted()
        if self._begun is not None:
            self._begun()
        self.entered = True

    def without_lock(self, error: LockNotAcquired | ZooKeeperUnavailable | LockLost) -> Any:
        """Return what the call returns, if the error is about its own lock; one from inside the work goes on."""
        if not self.entered and not isinstance(error, LockLost):
            return self.around.refused(error, self.lock, self.options)
        if self.entered and isinstance(error, LockLost) and error.lock in keys_of(self.lock):
            return self._lost(error)
        raise error

    def _lost(self, error: LockLost) -> Any:
        return self.around.lost(error, self.options)


def _begun_by_celery() -> Callable[[Locked], None]:
    try:
        begun: Callable[[Locked], None] = import_module("django_zklock.contrib.celery.unique").begun
    except ModuleNotFoundError as error:
        raise ImproperlyConfigured(
            'unique= is for Celery tasks, and Celery is not installed: pip install "django-zklock[celery]".'
        ) from error
    return begun


def _refuse_async_dispatch(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Refuse `dispatch` of an async class-based view: it is no coroutine function, it only returns a coroutine."""
    view = async_view(function, args)
    if view is not None:
        raise ImproperlyConfigured(
            f"{type(view).__name__}.dispatch returns before its async handler has run, so a lock on it would protect "
            "nothing; put @zk_locked on the handlers: async def get(...), async def post(...)."
        )
