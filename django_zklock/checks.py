"""
Django's system checks for `settings.ZKLOCK`. They read settings, and open no file and no connection.

docs/reference/settings.md lists the ids. The meaning of an id never changes, because `SILENCED_SYSTEM_CHECKS` may name
it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.urls import get_resolver
from django.utils.module_loading import import_string
from django.views import View

from django_zklock import conf
from django_zklock.conf import url
from django_zklock.conf.options import LockOptions
from django_zklock.decorators.context import FunctionContext
from django_zklock.http.requests import atomic_databases, opted_out

if TYPE_CHECKING:
    from django_zklock.decorators.locked import LockedFunction

MIDDLEWARE: Final = "django_zklock.middleware.LockConflictMiddleware"
MOST_NAMED: Final = 5
"""Handlers that W005 names."""
LONGEST_WAIT = 3600.0
"""Seconds of a time to wait above which W015 warns."""
TIMES_OF_SESSION: Final = ("SESSION_TIMEOUT", "CONNECT_TIMEOUT", "DEADLOCK_TIMEOUT")
TIMES_OF_LOCKS: Final = ("timeout", "grace", "linger")
SHORTEST_SESSION = 6.0
"""Seconds of SESSION_TIMEOUT below which W002 warns."""


def check_settings(**kwargs: Any) -> list[checks.CheckMessage]:
    """Report every problem of `settings.ZKLOCK`; if it has none, warn of unwise values, and of locked functions."""
    problems = conf.problems(conf.raw())
    if not problems:
        return _messages(check_session_timeout, check_seconds, check_views)
    return [checks.Error(problem.message, hint=problem.hint, id=f"zklock.{problem.id}") for problem in problems]


def check_deployment(**kwargs: Any) -> list[checks.CheckMessage]:
    """Warn of valid settings that are unwise on another machine than that of a developer."""
    return [] if conf.problems(conf.raw()) else _messages(check_transport, check_access, check_root)


def _messages(*of_config: Callable[[conf.Config], Iterator[checks.CheckMessage]]) -> list[checks.CheckMessage]:
    config = conf.current()
    return [message for check in of_config for message in check(config)]


def check_session_timeout(config: conf.Config) -> Iterator[checks.CheckMessage]:
    """Warn of a lease that is shorter than ordinary pauses of a process."""
    if config.session_timeout < SHORTEST_SESSION:
        yield checks.Warning(
            f"The session timeout of ZKLOCK is {config.session_timeout:g} s, so a lease lasts "
            f"{0.4 * config.session_timeout:.1f} s at most.",
            hint="During a longer pause (a busy machine, a live migration, an election) the process loses its locks, "
            f"and its work is aborted. Use {SHORTEST_SESSION:g} s or more; the default is 20 s.",
            id="zklock.W002",
        )


def check_seconds(config: conf.Config) -> Iterator[checks.CheckMessage]:
    """Warn of times to wait that may be milliseconds."""
    times = {key: getattr(config, key.lower()) for key in TIMES_OF_SESSION}
    times |= {f"{option} in DEFAULTS": config.defaults.get(option) for option in TIMES_OF_LOCKS}
    for name, entry in config.locks.items():
        times |= {f"{option} of {name!r} in LOCKS": entry.get(option) for option in TIMES_OF_LOCKS}
    for name, seconds in times.items():
        if seconds is not None and seconds > LONGEST_WAIT:
            yield checks.Warning(
                f"ZKLOCK has {name} = {seconds:g} seconds, more than an hour. Are these milliseconds?",
                hint="Give seconds. If the time is meant, silence this check.",
                id="zklock.W015",
            )


def check_transport(config: conf.Config) -> Iterator[checks.CheckMessage]:
    """Warn of a plain-text connection to another machine."""
    # AUTH does not help: it protects znodes, but an attacker who takes over a session is their owner.
    if config.tls is None and _is_remote(config):
        yield checks.Warning(
            "The connection to ZooKeeper leaves this machine in plain text.",
            hint="ZooKeeper derives the password of a session from its id, and any client can read the id. So an "
            "attacker who reaches the port controls all locks, in spite of AUTH and ACL. Use zk+tls:// with "
            "client certificates, or let only your own processes reach the port, and silence this check.",
            id="zklock.W001",
        )


def _is_remote(config: conf.Config) -> bool:
    return not all(url.is_loopback(host) for host, _ in config.hosts)


def check_access(config: conf.Config) -> Iterator[checks.CheckMessage]:
    """Warn of znodes that everybody may change, on another machine."""
    is_open = config.acl == "open" or (config.acl != "creator" and any(map(_lets_all_write, config.acl)))
    if is_open and _is_remote(config):
        yield checks.Warning(
            "Everybody whom ZooKeeper accepts as a client may change and delete the locks of ZKLOCK.",
            hint='Give AUTH, or a client certificate as TLS CERT with ACL "creator": then only processes with these '
            "credentials may. TLS alone does not help. Or let only your own processes reach the port, and silence this "
            "check.",
            id="zklock.W010",
        )


def _lets_all_write(entry: tuple[str, str, str]) -> bool:
    """Return whether an entry of an ACL lets everybody do more than read."""
    scheme, who, rights = entry
    return bool({*rights} - {"r"}) and (scheme == "world" or (scheme == "ip" and who.endswith("/0")))


def check_root(config: conf.Config) -> Iterator[checks.CheckMessage]:
    """Warn of the default root, which all projects without a `ROOT` share."""
    if config.base == conf.DEFAULT_ROOT:
        yield checks.Warning(
            f"The locks are directly in {conf.DEFAULT_ROOT}, because ZKLOCK has neither a chroot nor a ROOT.",
            hint="Two projects on one ensemble would wait for each other's locks if names are the same. "
            'Give each project its own chroot, as in "zk://zk1:2181/myproject".',
            id="zklock.W003",
        )


def check_views(config: conf.Config) -> Iterator[checks.CheckMessage]:
    """Report locked views with a wrong policy, without a middleware, or whose transaction begins before the lock."""
    if conf.setting("ROOT_URLCONF"):
        views = list(_views(get_resolver().url_patterns))
        yield from _check_policies(views, config)
        yield from _check_middleware(views, config)
        yield from _check_transactions(views, config)


def _views(patterns: list[Any]) -> Iterator[Any]:
    for pattern in patterns:
        if hasattr(pattern, "url_patterns"):
            yield from _views(pattern.url_patterns)
        else:
            yield pattern.callback


def _has_middleware() -> bool:
    """Return whether the middleware, or a subclass of it, is in the settings. Django reports one that is missing."""
    classes: list[type] = []
    for name in conf.setting("MIDDLEWARE"):
        with suppress(ImportError):
            classes += getattr(import_string(name), "__mro__", ())
    return MIDDLEWARE in {f"{cls.__module__}.{cls.__qualname__}" for cls in classes}


def _locked(view: Any) -> LockedFunction | None:
    # `isinstance` would import kazoo at Django's start. A mock has every attribute, but the class of a mock has not.
    locked = getattr(view, "zk_locked", None)
    return locked if hasattr(type(locked), "check_policy") else None


def _handlers(view: Any) -> Iterator[tuple[str, LockedFunction]]:
    """Yield the locked handlers and actions of a class-based view, with their names."""
    cls = getattr(view, "view_class", None) or getattr(view, "cls", None)  # Django's, Django REST framework's
    names = {*getattr(cls, "http_method_names", View.http_method_names), *getattr(view, "actions", {}).values()}
    for name in sorted(names) if cls is not None else ():
        locked = _locked(getattr(cls, name, None))
        if locked is not None:
            yield f"{name} of {_name(cls)}", locked


def _locks_of(view: Any) -> Iterator[LockedFunction]:
    """Yield the locks of a callback and of the handlers of its class."""
    locked = _locked(view)
    if locked is not None:
        yield locked
    yield from (locked for _, locked in _handlers(view))


def _check_policies(views: list[Any], config: conf.Config) -> Iterator[checks.CheckMessage]:
    for locked in dict.fromkeys(locked for view in views for locked in _locks_of(view)):
        try:
            locked.check_policy(locked.binder.templates, config, FunctionContext)
        except ImproperlyConfigured as error:
            yield checks.Error(str(error), id="zklock.E019")


def _options(locked: LockedFunction, config: conf.Config) -> list[LockOptions]:
    """Return the options of each lock of a function; those of a callable's keys are not known."""
    names = locked.binder.templates or ("",)
    return [config.options_for(name, locked.options) for name in names]


def _check_middleware(views: list[Any], config: conf.Config) -> Iterator[checks.CheckMessage]:
    if not _has_middleware() and any(_is_unanswered(view, config) for view in views):
        yield checks.Warning(
            "Views are locked, and no middleware answers 409 if a lock is busy, or 503 if ZooKeeper does not answer.",
            hint=f'Add "{MIDDLEWARE}" to MIDDLEWARE. Otherwise the answer is 500.',
            id="zklock.W009",
        )


def _is_unanswered(view: Any, config: conf.Config) -> bool:
    """Return whether a lock of the view raises if it is busy, and its framework does not answer."""
    locks = filter(None, [_locked(view)]) if _answers_in_handlers(view) else _locks_of(view)
    return any(options.get("on_conflict") != "skip" for locked in locks for options in _options(locked, config))


def _answers_in_handlers(view: Any) -> bool:
    """Return whether an exception handler of the project, for Django REST framework, may answer errors of handlers."""
    rest = sys.modules.get("rest_framework.views")
    cls = getattr(view, "cls", None)
    if rest is None or not (isinstance(cls, type) and issubclass(cls, rest.APIView)):
        return False
    return view.cls.settings.EXCEPTION_HANDLER is not rest.exception_handler


def _begun_outside(view: Any, config: conf.Config) -> Iterator[str]:
    """Yield the handlers of a view whose transactions begin before the lock."""
    begun = ", ".join(alias for alias in atomic_databases() if alias not in opted_out(view))
    for name, locked in _handlers(view) if begun else ():
        chosen = all("release_on" in options for options in _options(locked, config))
        if not locked.is_async and not chosen:
            yield f"{name} ({begun})"


def _check_transactions(views: list[Any], config: conf.Config) -> Iterator[checks.CheckMessage]:
    handlers = list(dict.fromkeys(text for view in views for text in _begun_outside(view, config)))
    if handlers:  # one warning for all: with Django REST framework, a project has many of them
        yield checks.Warning(
            f"ATOMIC_REQUESTS begins the transactions of {len(handlers)} locked handlers before the lock, with their "
            f"databases: {'; '.join(handlers[:MOST_NAMED])}.",
            hint="The lock is held until that transaction has ended. But if the database takes its snapshot early, "
            "the view may read rows from before the lock. To begin the transaction inside the lock, put "
            '@method_decorator(zk_locked(...), name="dispatch") on the class, and login_required above it: '
            "LoginRequiredMixin comes after the lock. To lock only one of its handlers, a view of Django REST "
            "framework, or a function below @api_view, give the lock atomic=True, and opt out of ATOMIC_REQUESTS with "
            "@transaction.non_atomic_requests above @api_view, or with @method_decorator("
            'transaction.non_atomic_requests, name="dispatch") on the class and @transaction.atomic on its other '
            'handlers. In django-ninja, which cannot opt out, or to keep it as it is, set release_on="commit".',
            id="zklock.W005",
        )


def _name(view: Any) -> str:
    return f"{view.__module__}.{getattr(view, '__qualname__', type(view).__qualname__)}"
