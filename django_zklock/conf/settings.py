"""
What `settings.ZKLOCK` says, checked and frozen: the only reader of Django's settings, a stranger to `zk`.

One validator has two reporters. `problems()` feeds the system checks, and `current()` raises `ImproperlyConfigured`
in the same words, all of them at once. No message quotes a credential. Prefer `AUTH` to a password in the `URL`:
Django blanks keys named like that on its error pages, and it would show the URL whole.
"""

from __future__ import annotations

import functools
import os
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from django_zklock.conf import url as address
from django_zklock.conf.errors import LONGEST, Findings, Problem, is_text, seconds
from django_zklock.conf.options import NOT_GIVEN, LockOptions, contradiction, read_options
from django_zklock.exceptions import InvalidLockName
from django_zklock.queue.names import Template

DEFAULT_ROOT: Final = "/zklock"
DEFAULT_SESSION_TIMEOUT: Final = 20.0
DEFAULT_CONNECT_TIMEOUT: Final = 5.0

Acl: TypeAlias = Literal["open", "creator"] | tuple[tuple[str, str, str], ...]
"""Who may touch the znodes: everybody, who made them, or a list of (scheme, id, permissions out of "crwda")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """How to speak TLS: paths of PEM files, with the system's own authorities where `ca` is None."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """`settings.ZKLOCK`, checked. Times in seconds."""

    hosts: tuple[tuple[str, int], ...]
    base: str
    """The URL's chroot and ROOT joined: absolute, never "/", without a slash at its end."""
    session_timeout: float
    connect_timeout: float
    auth: tuple[tuple[str, str], ...] = field(repr=False)
    acl: Acl = field(repr=False)
    tls: Tls | None
    defaults: LockOptions
    locks: Mapping[str, LockOptions]
    """Immutable. As the settings say it: `defaults` are not merged in."""
    admin_links: Mapping[str, str]
    """Immutable. By label, templates of addresses with fields in braces."""
    strict: bool = False
    checked_names: set[str] = field(default_factory=set, compare=False, repr=False)
    """Names of locks that were looked at already, for `locks.spelling`. Any thread adds to it; none removes."""

    @property
    def url_for_log(self) -> str:
        """Where the locks are, without a word of who asks."""
        hosts = ",".join(address.host_port(*host) for host in self.hosts)
        return f"{'zk' if self.tls is None else 'zk+tls'}://{hosts}{self.base}"

    def options_for(self, name: str, given: LockOptions = NOT_GIVEN) -> LockOptions:
        """Return the options of a lock: the `given` over its entry over the defaults. Unlisted: no `path`."""
        entry = self.locks.get(name)
        options = given if entry is None else given.merged_over(entry)
        return options.over_defaults(self.defaults)

    def options_of_key(self, key: str) -> LockOptions:
        """Return the options of the lock with this key, as far as its path in the settings tells; else the defaults."""
        for name in self.locks:
            options = self.options_for(name)
            if Template.parse(options.path or name).may_render(key):
                return options
        return self.defaults


def problems(raw: object) -> list[Problem]:
    """Return everything that is wrong with `raw`, a value for `settings.ZKLOCK`; an empty list if nothing is."""
    return _read(raw)[1]


def settings_problems() -> list[Problem]:
    """Return everything that is wrong with the `settings.ZKLOCK` of this project."""
    return problems(raw())


def raw() -> object:
    """Return `settings.ZKLOCK` as it stands, unchecked; None if it is missing."""
    return getattr(settings, "ZKLOCK", None)


def token_keys(given: Sequence[str] | None = None) -> tuple[str | bytes, ...]:
    """
    Return the keys of signed tokens: those `given`, else `TOKEN_KEYS`, else `SECRET_KEY` and its fallbacks.

    The first one signs, all verify. They are no part of `Config`, as who receives tokens needs no ZooKeeper. Raises
    `ImproperlyConfigured` for what is no list of keys.
    """
    found = Findings()
    where = "keys" if given is not None else _at("TOKEN_KEYS")
    keys = _token_keys(_entry("TOKEN_KEYS") if given is None else given, where, found)
    if found:
        raise ImproperlyConfigured(" ".join(map(str, found)))
    return keys or (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)


def path_for(name: str) -> str:
    """Return the path template of the lock `name`, without a need for the rest of the settings."""
    entry = _entry("LOCKS", name)
    path = entry.get("path") if isinstance(entry, Mapping) else None
    return path if isinstance(path, str) else name


def _entry(*keys: str) -> object:
    """Return what stands in `settings.ZKLOCK` under these keys, unchecked; None if nothing does."""
    value = raw()
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def debug() -> bool:
    """Tell whether this project runs with `settings.DEBUG`."""
    return bool(settings.DEBUG)


def are_settings_known() -> bool:
    """Tell whether the settings of a project are configured, or named by DJANGO_SETTINGS_MODULE."""
    return bool(settings.configured or os.environ.get("DJANGO_SETTINGS_MODULE"))


def has_urlconf() -> bool:
    """Tell whether this project has a `ROOT_URLCONF`."""
    return bool(getattr(settings, "ROOT_URLCONF", None))


# Kept for the life of the process, dropped by `forget()`. The cache is safe between threads and survives a fork (it
# is a value); two threads that come first at once may both build it, and get equal ones.
@functools.cache
def current() -> Config:
    """
    Return the configuration of this process, built when it is first asked for.

    Raises `ImproperlyConfigured`, naming all problems.
    """
    config, found = _read(raw())
    if config is None:
        lines = "".join(f"\n* {problem} (zklock.{problem.id})" for problem in found)
        raise ImproperlyConfigured(f"settings.ZKLOCK cannot be used:{lines}")
    return config


def forget() -> None:
    """Drop what `current()` keeps: the settings have changed."""
    current.cache_clear()


def _at(*keys: object) -> str:
    return "ZKLOCK" + "".join(f'["{key}"]' for key in keys)


_CONNECTION_KEYS: Final = ("URL", "ROOT", "SESSION_TIMEOUT", "CONNECT_TIMEOUT", "AUTH", "ACL", "TLS")
_KEYS: Final = (*_CONNECTION_KEYS, "TOKEN_KEYS", "DEFAULTS", "LOCKS", "STRICT", "ADMIN_LINKS")
_TLS_FILES: Final = ("CA", "CERT", "KEY")
_TLS_KEYS: Final = (*_TLS_FILES, "KEY_PASSWORD", "CHECK_HOSTNAME")
_QUERY_KEYS: Final = ("session_timeout", "connect_timeout")
_AUTH_EXAMPLE: Final = 'Give "user:password", or [("digest", "user:password"), ...].'
_SHORTEST_KEY: Final = 32  # characters; who has a token may try keys on it for as long as he likes
_LOCKS_EXAMPLE: Final = 'For example {"inventory": {"path": "inventory/{sku}", "timeout": 5}}.'
_LINKS_EXAMPLE: Final = 'For example {"Flower": "https://flower.example.org/task/{id}"}.'
_UNDONE: Final = '"compat": None, "max_hold": None or "min_hold": 0'
_NOWHERE: Final = address.Address(hosts=(), chroot="")


def _read(raw: object) -> tuple[Config | None, Findings]:
    """Return the configuration and no findings, or none and the findings. A key that is None counts as not given."""
    found = Findings()
    if not isinstance(raw, Mapping):
        what = "missing" if raw is None else f"a {type(raw).__name__}, not a dict"
        found.add("E001", f"settings.ZKLOCK is {what}.", 'For example ZKLOCK = {"URL": "zk://zk1:2181/myproject"}.')
        return None, found
    found.unknown_keys("ZKLOCK", raw, _KEYS)
    given = {key: value for key, value in raw.items() if value is not None}
    where = _address(given.get("URL"), found)
    query = _query(where, found)
    auth = _auth(given.get("AUTH"), where, found)
    tls = _tls(given.get("TLS"), where, found)
    _token_keys(given.get("TOKEN_KEYS"), _at("TOKEN_KEYS"), found)
    config = Config(
        hosts=where.hosts,
        base=where.chroot + _root(given.get("ROOT", DEFAULT_ROOT), where, found),
        session_timeout=_timeout("SESSION_TIMEOUT", given, query, DEFAULT_SESSION_TIMEOUT, found),
        connect_timeout=_timeout("CONNECT_TIMEOUT", given, query, DEFAULT_CONNECT_TIMEOUT, found),
        auth=auth,
        acl=_acl(given.get("ACL"), auth, tls, found),
        tls=tls,
        defaults=read_options(given.get("DEFAULTS", {}), _at("DEFAULTS"), found),
        locks=_locks(given.get("LOCKS", {}), found),
        admin_links=_links(given.get("ADMIN_LINKS", {}), found),
        strict=_strict(given.get("STRICT", False), found),
    )
    _contradictions(config, found)
    return (None if found else config), found


def _contradictions(config: Config, found: Findings) -> None:
    """Find options that cannot be had together, of each lock and of it with the defaults."""
    of_all = contradiction(config.defaults)
    if of_all:
        found.add("E013", f"{_at('DEFAULTS')} has {of_all}.", "Change one of them.")
        return
    for name, options in config.locks.items():
        own = contradiction(options)
        merged = own or contradiction(options.over_defaults(config.defaults))
        if merged:
            more = "" if own else f", one of them from {_at('DEFAULTS')}"
            hint = "Change one of them." if own else f"Change one of them, or undo the default here: {_UNDONE}."
            found.add("E013", f"{_at('LOCKS', name)} has {merged}{more}.", hint)


def _address(url: object, found: Findings) -> address.Address:
    if not url or not isinstance(url, str):
        what = "missing or empty" if not url else f"a {type(url).__name__}, not a str"
        found.add("E003", f"{_at('URL')} is {what}.", address.EXAMPLE)
        return _NOWHERE
    try:
        return address.parse(url)
    except address.AddressError as error:
        found.add("E003", f"{_at('URL')} {error}.", error.hint)
        return _NOWHERE


def _query(where: address.Address, found: Findings) -> dict[str, str]:
    query = dict(where.query)
    found.unknown_keys(f"The query of {_at('URL')}", query, _QUERY_KEYS)
    if len(query) < len(where.query):
        found.add("E003", f"{_at('URL')} gives a key of its query twice.", "Keep one.")
    return query


def _root(root: object, where: address.Address, found: Findings) -> str:
    if not isinstance(root, str):
        found.add("E004", f"{_at('ROOT')} is a {type(root).__name__}, not a str.", f"For example {DEFAULT_ROOT}.")
        return ""
    try:
        path = address.znode_path(root)
    except address.AddressError as error:
        found.add("E004", f"{_at('ROOT')} {error}.", error.hint)
        return ""
    if not where.chroot + path:
        # A list of all locks would meet what others keep there, and every project would share every name.
        found.add("E004", f"{_at('ROOT')} is the root of the whole tree.", "Locks need a path of their own.")
    return path


def _timeout(
    key: str, given: Mapping[object, object], query: Mapping[str, str], default: float, found: Findings
) -> float:
    """Read a session's or connection's time: the key of the dict wins over the URL's query."""
    value = given.get(key, query.get(key.lower(), default))
    found_seconds = seconds(_number(value))
    if found_seconds:
        return found_seconds
    name = _at(key) if key in given else f"{key.lower()} in the query of {_at('URL')}"
    found.add("E005", f"{name} is not a time above 0.", f"Seconds, up to {LONGEST:.0f}, or a timedelta.")
    return default


def _number(value: object) -> object:
    """Return the number that a str holds, as an environment variable does; anything else unchanged."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _auth(value: object, where: address.Address, found: Findings) -> tuple[tuple[str, str], ...]:
    if value is None:
        value = where.credential or ()
    pairs = [("digest", value)] if value and isinstance(value, str) else value
    if not isinstance(pairs, (list, tuple)) or not all(_is_row_of_text(pair, 2) for pair in pairs):
        found.add("E006", f"{_at('AUTH')} is no list of pairs.", _AUTH_EXAMPLE)
        return ()
    if any(scheme == "digest" and not all(secret.partition(":")) for scheme, secret in pairs):
        found.add("E006", f"{_at('AUTH')} has a digest credential that is not user:password.", _AUTH_EXAMPLE)
    return tuple((scheme, secret) for scheme, secret in pairs)


def _is_row_of_text(row: object, columns: int) -> bool:
    """Tell if `row` is so many non-empty texts, each fit to be sent (a lone surrogate would end kazoo's thread)."""
    return isinstance(row, (list, tuple)) and len(row) == columns and all(map(is_text, row))


def _acl(value: object, auth: tuple[tuple[str, str], ...], tls: Tls | None, found: Findings) -> Acl:
    if value is None:
        return "creator" if auth else "open"
    if value == "open":
        return "open"
    if value == "creator":
        if not auth and not (tls and tls.cert):
            found.add("E007", f'{_at("ACL")} is "creator", but nothing says who that is.', "Give AUTH, or a TLS CERT.")
        return "creator"
    rows = value if isinstance(value, (list, tuple)) else ()
    if not rows or not all(_is_row_of_text(row, 3) and set(row[2]) <= set("crwda") for row in rows):
        hint = 'Give (scheme, id, permissions) with letters of "crwda", as in [("ip", "10.0.0.0/8", "crwd")].'
        found.add("E007", f'{_at("ACL")} is neither "open" nor "creator" nor a list of entries.', hint)
        return "open"
    return tuple((scheme, identity, permissions) for scheme, identity, permissions in rows)


def _tls(value: object, where: address.Address, found: Findings) -> Tls | None:
    if value is None:
        return Tls() if where.tls else None
    if not isinstance(value, (bool, Mapping)):
        found.add("E008", f"{_at('TLS')} is a {type(value).__name__}, not a dict.", f"Keys: {', '.join(_TLS_KEYS)}.")
        return None
    if isinstance(value, bool):
        if where.tls and not value:
            found.add("E008", f"{_at('TLS')} is False, but the URL says zk+tls://.", "Let both say the same.")
        return Tls() if value else None
    found.unknown_keys(_at("TLS"), value, _TLS_KEYS)
    return _tls_of({key: entry for key, entry in value.items() if entry is not None}, found)


def _tls_of(given: Mapping[Any, Any], found: Findings) -> Tls:
    for name in _TLS_FILES:
        if not isinstance(given.get(name, ""), (str, os.PathLike)):
            found.add("E008", f"{_at('TLS', name)} is not the path of a file.", "A PEM file.")
    key_password, check_hostname = given.get("KEY_PASSWORD"), given.get("CHECK_HOSTNAME", True)
    if not isinstance(key_password, (str, type(None))):
        found.add("E008", f"{_at('TLS', 'KEY_PASSWORD')} is not a str.", "Leave it out if there is none.")
    if not isinstance(check_hostname, bool):
        found.add("E008", f"{_at('TLS', 'CHECK_HOSTNAME')} is neither True nor False.", "It is True by default.")
    if "CERT" not in given and ("KEY" in given or "KEY_PASSWORD" in given):
        found.add("E008", f"{_at('TLS')} has a key without a certificate.", "Give CERT too.")
    ca, cert, key = (str(given[name]) if name in given else None for name in _TLS_FILES)
    return Tls(ca=ca, cert=cert, key=key, key_password=key_password, check_hostname=check_hostname)


def _token_keys(value: object, where: str, found: Findings) -> tuple[str, ...]:
    if value is None:
        return ()
    # A single text would be a list, too: of keys of one character.
    keys = value if isinstance(value, (list, tuple)) else ()
    if not keys or not all(is_text(key) and len(key) >= _SHORTEST_KEY for key in keys):
        hint = (
            f"Texts of {_SHORTEST_KEY} random characters or more, as `secrets.token_urlsafe(48)` makes; newest first."
        )
        found.add("E011", f"{where} is no list of keys that are long enough.", hint)
    return tuple(keys)


def _locks(value: object, found: Findings) -> Mapping[str, LockOptions]:
    if not isinstance(value, Mapping):
        found.add("E010", f"{_at('LOCKS')} is a {type(value).__name__}, not a dict.", _LOCKS_EXAMPLE)
        return MappingProxyType({})
    if not all(isinstance(name, str) and name for name in value):
        found.add("E010", f"{_at('LOCKS')} has a name that is empty or not a str.", _LOCKS_EXAMPLE)
    return MappingProxyType({name: _lock(name, entry, found) for name, entry in value.items()})


def _lock(name: str, entry: object, found: Findings) -> LockOptions:
    where = _at("LOCKS", name)
    found_options = read_options(entry, where, found, more=("path",))
    path = entry.get("path") if isinstance(entry, Mapping) else None
    if not isinstance(path, str):
        found.add("E010", f"{where} has no path.", _LOCKS_EXAMPLE)
        return found_options
    try:
        Template.parse(path)
    except InvalidLockName as error:
        found.add("E010", f'{where}["path"] cannot be the name of a lock: {error}', _LOCKS_EXAMPLE)
    return replace(found_options, path=path)


def _strict(value: object, found: Findings) -> bool:
    if not isinstance(value, bool):
        found.add("E014", f"{_at('STRICT')} must be True or False; got {value!r}.", "It is False by default.")
    return value is True


# A host without fields, or a path of this site: the content of a key must never become a part of the host. Browsers
# read a backslash as a slash, take `//` for the beginning of a host, and drop tabs and line breaks.
_ADDRESS: Final = re.compile(r"(?:https?://[^\s/\\{}@?#]+(?:[/?#][^\s\\]*)?|/(?![/\\])[^\s\\]*)\Z")


def _links(value: object, found: Findings) -> Mapping[str, str]:
    links = value if isinstance(value, Mapping) else None
    if links is None or not all(is_text(label) and is_text(link) for label, link in links.items()):
        found.add("E012", f"{_at('ADMIN_LINKS')} is no dict of labels and addresses.", _LINKS_EXAMPLE)
        return MappingProxyType({})
    for label, link in links.items():
        if not _ADDRESS.match(link) or not _has_plain_fields(link):
            found.add("E012", f"{_at('ADMIN_LINKS', label)} is no address with plain fields.", _LINKS_EXAMPLE)
    return MappingProxyType(dict(links))


def _has_plain_fields(text: str) -> bool:
    try:
        fields = list(string.Formatter().parse(text))
    except ValueError:
        return False
    return all(name is None or (name.isidentifier() and not (form or turn)) for _, name, form, turn in fields)
