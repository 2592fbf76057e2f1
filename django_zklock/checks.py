"""
Django's system checks for `settings.ZKLOCK`; they read settings only, and never connect.

| Id          | Says                                                                                     |
|-------------|------------------------------------------------------------------------------------------|
| zklock.E001 | `ZKLOCK` is missing, or no dict                                                          |
| zklock.E002 | unknown key, at any level                                                                |
| zklock.E003 | `URL` is missing or cannot be read                                                       |
| zklock.E004 | `ROOT` cannot be a path for locks                                                        |
| zklock.E005 | `SESSION_TIMEOUT` or `CONNECT_TIMEOUT` is no time                                        |
| zklock.E006 | `AUTH` cannot be read                                                                    |
| zklock.E007 | `ACL` cannot be read, or is "creator" where nobody says who that is                      |
| zklock.E008 | `TLS` cannot be read, or contradicts the URL                                             |
| zklock.E009 | an option of a lock, or of `DEFAULTS`, has a value without a meaning                     |
| zklock.E010 | `LOCKS` cannot be read, or the path of a lock is no name                                 |
| zklock.E011 | `TOKEN_KEYS` is no list of keys, or one of them is too short                              |
| zklock.E012 | `ADMIN_LINKS` is no dict of labels and addresses with plain fields, none of them in the host |
| zklock.E013 | options of a lock, or of `DEFAULTS`, that cannot be had together                           |
| zklock.E014 | `STRICT` is neither True nor False                                                        |
| zklock.W001 | plain text to another machine (with `--deploy`)                                          |
| zklock.W002 | `SESSION_TIMEOUT` is so short that a pause of the process costs its locks                |
| zklock.W003 | neither a chroot nor a `ROOT`: all projects of the ensemble share names (with `--deploy`) |
| zklock.W004 | a locked view that is opted out of `ATOMIC_REQUESTS`, and is in no transaction at all      |
| zklock.W005 | a locked handler of a class-based view under `ATOMIC_REQUESTS`: BEGIN comes before its lock |
| zklock.W006 | `warn_after` is not below `max_hold`, so the warning never comes                           |
| zklock.W007 | two entries for one path, as semaphores that do not count each other's permits             |

An id keeps its meaning for good, so that `SILENCED_SYSTEM_CHECKS` can name it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from django.core import checks
from django.urls import get_resolver
from django.views import View

from django_zklock import conf
from django_zklock.conf import url
from django_zklock.conf.options import UNSET, LockOptions
from django_zklock.execution import transactions

if TYPE_CHECKING:
    from django_zklock.decorators.locked import Locked

SHORTEST_SESSION = 6.0
"""Seconds of SESSION_TIMEOUT below which W002 warns."""


def check_settings(**kwargs: Any) -> list[checks.CheckMessage]:
    """Report every problem of `settings.ZKLOCK`."""
    return [
        checks.Error(problem.message, hint=problem.hint, id=f"zklock.{problem.id}")
        for problem in conf.settings_problems()
    ]


def check_session_timeout(**kwargs: Any) -> list[checks.CheckMessage]:
    """Warn of leases that an ordinary pause of a process outlasts."""
    config = _config()
    if config is None or config.session_timeout >= SHORTEST_SESSION:
        return []
    return [
        checks.Warning(
            f"The session timeout of ZKLOCK is {config.session_timeout:g} s, so a lease lasts "
            f"{0.4 * config.session_timeout:.1f} s at most.",
            hint="A pause longer than that (a busy machine, a garbage collection, a live migration) costs the process "
            f"its locks and stops its work. Use {SHORTEST_SESSION:g} s or more; the default is 20 s.",
            id="zklock.W002",
        )
    ]


def check_bounds(**kwargs: Any) -> list[checks.CheckMessage]:
    """Warn of a warning that nobody will ever get, as the work is stopped before."""
    config = _config()
    found: list[checks.CheckMessage] = []
    for where, options in _entries(config) if config is not None else ():
        longest, warn = options.max_hold, options.warn_after
        if isinstance(longest, float) and isinstance(warn, float) and warn >= longest:
            found.append(
                checks.Warning(
                    f"{where} has warn_after={warn:g}, and max_hold={longest:g} stops the work by then.",
                    hint="Nobody is ever warned. Give warn_after fewer seconds than max_hold.",
                    id="zklock.W006",
                )
            )
    return found


def check_semaphores(**kwargs: Any) -> list[checks.CheckMessage]:
    """Warn of two names for one semaphore that disagree about it."""
    config = _config()
    seen: dict[str, tuple[str, LockOptions]] = {}
    found: list[checks.CheckMessage] = []
    for where, options in _entries(config) if config is not None else ():
        if options.path is None or not isinstance(options.limit, int):
            continue
        before, other = seen.setdefault(options.path, (where, options))
        if other.limit != options.limit:
            found.append(
                checks.Warning(
                    f"{where} and {before} are semaphores of one path with different limits.",
                    hint="Each goes by its own limit, so more may be let in than one of them says. Give both the same "
                    "limit, or one of them another path.",
                    id="zklock.W007",
                )
            )
    return found


def _entries(config: conf.Config) -> Iterator[tuple[str, LockOptions]]:
    """Yield where options stand and what they are, the defaults applied."""
    yield 'ZKLOCK["DEFAULTS"]', config.defaults
    for name, options in config.locks.items():
        yield f'ZKLOCK["LOCKS"]["{name}"]', options.over_defaults(config.defaults)


def check_transport(**kwargs: Any) -> list[checks.CheckMessage]:
    """Warn of a connection that leaves the machine in plain text."""
    config = _config()
    if config is None or config.tls is not None or all(url.is_loopback(host) for host, _ in config.hosts):
        return []
    # AUTH is no cure: it guards znodes, and who takes a session over deletes them as their owner.
    return [
        checks.Warning(
            "The connection to ZooKeeper is plain text, and leaves this machine.",
            hint="ZooKeeper derives the password of a session from its id, which anybody can read, so who reaches the "
            "port has full power over the locks, whatever AUTH and ACL say. Use zk+tls:// with client certificates, "
            "or let nobody but your own processes reach the port, and silence this.",
            id="zklock.W001",
        )
    ]


def check_root(**kwargs: Any) -> list[checks.CheckMessage]:
    """Warn of a tree that every project with default settings shares."""
    config = _config()
    if config is None or config.base != conf.DEFAULT_ROOT:
        return []
    return [
        checks.Warning(
            f"The locks are directly in {conf.DEFAULT_ROOT}, as ZKLOCK names neither a chroot nor a ROOT.",
            hint="Two projects on one ensemble would wait for each other's locks where a name is the same. "
            'Give each its own chroot, as in "zk://zk1:2181/myproject".',
            id="zklock.W003",
        )
    ]


def check_views(**kwargs: Any) -> list[checks.CheckMessage]:
    """Warn of locked views whose transaction is not what their author may think it is."""
    aliases = transactions.atomic_requests()
    config = _config()
    if not aliases or config is None or not conf.has_urlconf():
        return []
    found: dict[str, checks.CheckMessage] = {}
    for view in _views(get_resolver().url_patterns):
        for message in (*_opted_out(view, aliases, config), *_begun_outside(view, aliases)):
            found.setdefault(message.msg, message)
    return list(found.values())


def _views(patterns: list[Any]) -> Iterator[Any]:
    for pattern in patterns:
        if hasattr(pattern, "url_patterns"):
            yield from _views(pattern.url_patterns)
        else:
            yield pattern.callback


def _locked(view: Any) -> Locked | None:
    found = getattr(view, "zk_locked", None)
    if found is None:
        return None
    from django_zklock.decorators.locked import Locked  # noqa: PLC0415 - Django's start does not import kazoo

    return found if isinstance(found, Locked) else None


def _opted_out(view: Any, aliases: tuple[str, ...], config: conf.Config) -> Iterator[checks.CheckMessage]:
    locked = _locked(view)
    if locked is None or locked.is_async:
        return
    own = locked.atomic(config)
    missing = [alias for alias in aliases if alias in transactions.opted_out(view) and alias not in own]
    if missing:
        yield checks.Warning(
            f"The locked view {_name(view)} is opted out of ATOMIC_REQUESTS on {', '.join(missing)}, and has no "
            "atomic= of its own.",
            hint="When its lock is lost it is stopped wherever it is, and what it has written by then stays. Under "
            "@zk_locked the transaction of a request is begun inside the lock, so nothing need be opted out of; or "
            "give atomic=True, or silence this if every step can be repeated.",
            id="zklock.W004",
        )


def _begun_outside(view: Any, aliases: tuple[str, ...]) -> Iterator[checks.CheckMessage]:
    cls = getattr(view, "view_class", None) or getattr(view, "cls", None)  # Django's, Django REST framework's
    marks = getattr(view, "_non_atomic_requests", ())
    begun = [alias for alias in aliases if alias not in marks]
    if cls is None or not begun:
        return
    handlers = {*getattr(cls, "http_method_names", View.http_method_names), *getattr(view, "actions", {}).values()}
    for name in sorted(handlers):
        locked = _locked(getattr(cls, name, None))
        if locked is not None and not locked.is_async and locked.options.release is UNSET:
            yield checks.Warning(
                f"The handler {name} of {cls.__module__}.{cls.__qualname__} is locked, and ATOMIC_REQUESTS begins its "
                f"transaction on {', '.join(begun)} before the lock.",
                hint="The lock is kept until that transaction has ended. But the view may read rows from before the "
                "lock, where the database takes its snapshot early. Put @method_decorator(zk_locked(...), "
                'name="dispatch") on the class to have the transaction begun inside the lock, or say '
                'release="on_commit" to have it so.',
                id="zklock.W005",
            )


def _name(view: Any) -> str:
    return f"{view.__module__}.{getattr(view, '__qualname__', type(view).__qualname__)}"


def _config() -> conf.Config | None:
    return None if conf.settings_problems() else conf.current()
