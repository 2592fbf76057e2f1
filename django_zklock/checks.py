"""
Django's system checks for `settings.ZKLOCK`. They read settings and the files of TLS, and open no connection.

docs/reference/settings.md lists the ids. The meaning of an id never changes, because `SILENCED_SYSTEM_CHECKS` may name
it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Final

from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.urls import get_resolver
from django.utils.module_loading import import_string
from django.views import View

from django_zklock import conf
from django_zklock.conf import url
from django_zklock.conf.options import LockOptions, over_defaults
from django_zklock.core.zk.options import TlsFileAbsent, TlsProblem
from django_zklock.decorators import library
from django_zklock.decorators.context import FunctionContext
from django_zklock.http.requests import atomic_databases, opted_out
from django_zklock.names.template import Template, shape

if TYPE_CHECKING:
    from django_zklock.decorators.locked import LockedFunction

CHECK_TIME = 5.0
"""Seconds in which the files of TLS must be read."""

MIDDLEWARE: Final = "django_zklock.middleware.LockConflictMiddleware"
MOST_NAMED: Final = 5
"""Handlers that W005 names."""
LONGEST_NUMBER = 3600.0
"""Seconds of a time to wait above which W015 warns of a number."""
TIMES_OF_SESSION: Final = ("SESSION_TIMEOUT", "CONNECT_TIMEOUT", "DEADLOCK_TIMEOUT")
SHORTEST_SESSION = 6.0
"""Seconds of SESSION_TIMEOUT below which W002 warns."""


def check_settings(**kwargs: Any) -> list[checks.CheckMessage]:
    """Report every problem of `settings.ZKLOCK`; if it has none, warn of unwise values, and of locked functions."""
    problems = conf.problems(conf.raw())
    if not problems:
        return _messages(check_session_timeout, check_seconds, check_semaphores, check_views, check_tasks, check_files)
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
    """Warn of numbers of seconds that may be milliseconds."""
    for name, value in _times(config):
        if isinstance(value, (str, int, float)) and float(value) > LONGEST_NUMBER:
            yield checks.Warning(
                f"ZKLOCK{name} is {float(value):g} seconds, more than an hour. Are these milliseconds?",
                hint="Give seconds. If the time is meant, give a timedelta.",
                id="zklock.W015",
            )


def _times(config: conf.Config) -> Iterator[tuple[str, object]]:
    """Yield the times to wait, as they were given, and what they are called."""
    raw: Any = conf.raw()
    for key in TIMES_OF_SESSION:
        yield f'["{key}"]', raw.get(key) or getattr(config, key.lower())  # the query of the URL may have it
    tables = {'["DEFAULTS"]': raw.get("DEFAULTS") or {}}
    tables |= {f'["LOCKS"]["{name}"]': entry for name, entry in (raw.get("LOCKS") or {}).items()}
    for where, table in tables.items():
        for option in ("timeout", "grace", "linger"):
            yield f'{where}["{option}"]', table.get(option)


def check_semaphores(config: conf.Config) -> Iterator[checks.CheckMessage]:
    """Warn of two entries that have the same path, but different limits."""
    first_entries: dict[str, tuple[str, int]] = {}  # name and limit, by path
    for name, entry in config.locks.items():
        options = over_defaults(entry, config.defaults)
        if options.get("limit") is None:
            continue
        first_name, limit = first_entries.setdefault(shape(options["path"]), (name, options["limit"]))
        if limit != options["limit"]:
            yield checks.Warning(
                f'ZKLOCK["LOCKS"]["{name}"] and ZKLOCK["LOCKS"]["{first_name}"] have the same path, but different '
                "limits.",
                hint="Each entry uses its own limit, so there may be more holders than the lower limit allows. "
                "Give both the same limit, or different paths.",
                id="zklock.W007",
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
    """Warn of znodes that everybody may change, and of servers whose names are not checked, on another machine."""
    if not _is_remote(config):
        return
    if config.acl == "open" or (config.acl != "creator" and any(map(_lets_all_write, config.acl))):
        tls = "TLS encrypts, but does not ask who connects. " if config.tls else ""
        if config.tls and config.tls.cert:
            tls = "The client certificate tells who connects, but an open ACL lets all of its authority in. "
        yield checks.Warning(
            "Everybody whom ZooKeeper accepts as a client may change and delete the locks of ZKLOCK.",
            hint=f'{tls}Give AUTH, or a client certificate as TLS CERT with ACL "creator": then only processes with '
            "these credentials may. Or let only your own processes reach the port, and silence this check.",
            id="zklock.W010",
        )
    if config.tls is not None and not config.tls.check_hostname:
        yield checks.Warning(
            "ZKLOCK accepts each server whose certificate the authority has signed, whatever its name.",
            hint="So each machine with such a certificate can pose as ZooKeeper. Put the hosts' names into the "
            "certificates of the servers, and remove CHECK_HOSTNAME, or silence this check.",
            id="zklock.W011",
        )


def _lets_all_write(entry: tuple[str, str, str]) -> bool:
    """Return whether an entry of an ACL lets everybody do more than read."""
    scheme, who, rights = entry
    return bool({*rights} - {"r"}) and (scheme == "world" or (scheme == "ip" and who.endswith("/0")))


def check_files(config: conf.Config) -> Iterator[checks.CheckMessage]:
    """Report files of TLS that are wrong; warn of those that are not here, as they may be on other machines."""
    if config.tls is None:
        return
    from django_zklock.core.zk import outside  # noqa: PLC0415 - it imports kazoo, which the start of Django does not need

    try:
        outside.context(config.tls, CHECK_TIME)
    except OSError as error:
        is_wrong = isinstance(error, TlsProblem) and not isinstance(error, TlsFileAbsent)
        kind, ident = (checks.Error, "E008") if is_wrong else (checks.Warning, "W008")
        hint = "No process with these settings can connect to ZooKeeper. Correct the setting or the file."
        yield kind(f"{error}.", hint=hint, id=f"zklock.{ident}")


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
    """Report locked views with a wrong policy, with a missing transaction, or with one that begins before the lock."""
    if not conf.setting("ROOT_URLCONF"):
        return
    aliases = atomic_databases()
    views = list(_views(get_resolver().url_patterns))
    messages: dict[str, checks.CheckMessage] = {}
    for view in views:
        for message in (*_wrong_policy(view, config), *_opted_out(view, aliases, config)):
            messages.setdefault(message.msg, message)
    yield from messages.values()
    if not _has_middleware() and any(_is_unanswered(view, config) for view in views):
        yield checks.Warning(
            "Views are locked, and no middleware answers 409 if a lock is busy, or 503 if ZooKeeper does not answer.",
            hint=f'Add "{MIDDLEWARE}" to MIDDLEWARE. Otherwise the answer is 500.',
            id="zklock.W009",
        )
    begun: dict[str, None] = {}
    for view in views:
        begun.update(dict.fromkeys(_begun_outside(view, aliases, config)))
    if begun:
        yield _one_warning(list(begun))


def check_tasks(config: conf.Config) -> Iterator[checks.CheckMessage]:
    """Warn of tasks below whose lock a decorator without `functools.wraps` hides the arguments."""
    functions: list[Any] = []
    with suppress(Exception):  # a task that cannot be made, which its first use reports
        functions += library.current.functions()
    for text in sorted({text for function in functions for text in _hidden(function)}):
        yield checks.Warning(
            text,
            hint="Add functools.wraps to the decorator. Otherwise the task fails if it gets its arguments by position.",
            id="zklock.W012",
        )


def _hidden(function: Any) -> Iterator[str]:
    """Describe the fields of a lock whose function takes any arguments by position, but none of that name."""
    locked = _locked(function)
    parameters = {} if locked is None else locked.binder.signature.parameters
    if locked is None or all(parameter.kind is not Parameter.VAR_POSITIONAL for parameter in parameters.values()):
        return
    paths = [conf.path_for(name) for name in locked.binder.templates]
    fields = {field for path in paths for field in Template.parse(path).fields}
    for field in fields - parameters.keys():
        yield f"{_name(locked.function)} hides its argument {field!r} from its lock."


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


def _wrong_policy(view: Any, config: conf.Config) -> Iterator[checks.CheckMessage]:
    for locked in _locks_of(view):
        try:
            locked.check_policy(locked.binder.templates, config, FunctionContext)
        except ImproperlyConfigured as error:
            yield checks.Error(str(error), id="zklock.E019")


def _options(locked: LockedFunction, config: conf.Config) -> list[LockOptions]:
    """Return the options of each lock of a function; those of a callable's keys are not known."""
    names = locked.binder.templates or ("",)
    return [config.options_for(name, locked.options) for name in names]


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


def _opted_out(view: Any, aliases: tuple[str, ...], config: conf.Config) -> Iterator[checks.CheckMessage]:
    locked = _locked(view)
    if locked is None or locked.is_async:
        return
    own = {alias for options in _options(locked, config) for alias in options.get("atomic", ())}
    missing = [alias for alias in aliases if alias in {*opted_out(view)} - own]
    if missing:
        yield checks.Warning(
            f"The locked view {_name(view)} is opted out of ATOMIC_REQUESTS on {', '.join(missing)}, and has no "
            "atomic= of its own.",
            hint="When its lock is lost, the view is aborted, and what it has written by then stays. Under @zk_locked "
            "the transaction of a request begins inside the lock, so there is no need to opt out. Otherwise give "
            "atomic=True, or silence this check if every step can be repeated.",
            id="zklock.W004",
        )


def _begun_outside(view: Any, aliases: tuple[str, ...], config: conf.Config) -> Iterator[str]:
    """Yield the handlers of a view whose transactions begin before the lock."""
    begun = ", ".join(alias for alias in aliases if alias not in opted_out(view))
    for name, locked in _handlers(view) if begun else ():
        chosen = all("release_on" in options for options in _options(locked, config))
        if not locked.is_async and not chosen:
            yield f"{name} ({begun})"


def _one_warning(handlers: list[str]) -> checks.CheckMessage:
    """Return one warning for all handlers: with Django REST framework, a project has many of them."""
    more = f"; and {len(handlers) - MOST_NAMED} more" if len(handlers) > MOST_NAMED else ""
    return checks.Warning(
        "ATOMIC_REQUESTS begins the transaction of a locked handler before the lock. Handlers concerned, with their "
        f"databases ({len(handlers)}): {'; '.join(handlers[:MOST_NAMED])}{more}.",
        hint="The lock is held until that transaction has ended. But if the database takes its snapshot early, "
        "the view may read rows from before the lock. To begin the transaction inside the lock, put "
        '@method_decorator(zk_locked(...), name="dispatch") on the class, and login_required above it: '
        "LoginRequiredMixin comes after the lock. To lock only one of its handlers, a view of Django REST framework, "
        "or a function below @api_view, give the lock atomic=True, and opt out of ATOMIC_REQUESTS with "
        "@transaction.non_atomic_requests above @api_view, or with @method_decorator("
        'transaction.non_atomic_requests, name="dispatch") on the class and @transaction.atomic on its other '
        'handlers. In django-ninja, which cannot opt out, or to keep it as it is, set release_on="commit".',
        id="zklock.W005",
    )


def _name(view: Any) -> str:
    return f"{view.__module__}.{getattr(view, '__qualname__', type(view).__qualname__)}"
