"""
Read and check `settings.ZKLOCK`. No other module reads Django's settings.

The system checks and `current()` report the same problems in the same words. No message quotes a credential. Prefer
`AUTH` to a password in the `URL`: Django's error pages hide the values of such keys, but they would show the URL.
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

from django_zklock.conf import url as zk_url
from django_zklock.conf.errors import LONGEST_WAIT, Problem, Problems, is_text, seconds
from django_zklock.conf.leases import LeaseOptions, read_leases
from django_zklock.conf.options import NOT_GIVEN, LockOptions, contradiction, read_options
from django_zklock.exceptions import InvalidLockName
from django_zklock.queue.names import Template

DEFAULT_ROOT: Final = "/zklock"
DEFAULT_SESSION_TIMEOUT: Final = 20.0
DEFAULT_CONNECT_TIMEOUT: Final = 5.0
DEFAULT_MAX_LINGERING: Final = 1000
DEFAULT_EVENT_DAYS: Final = 7.0

Acl: TypeAlias = Literal["open", "creator"] | tuple[tuple[str, str, str], ...]
"""Access to the znodes: "open" for all clients, "creator" for ours, or entries (scheme, id, letters of "crwda")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """The TLS settings: paths of PEM files. If `ca` is None, the authorities of the system are trusted."""

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
    """The chroot of the URL plus ROOT: an absolute path, never "/", without a slash at its end."""
    session_timeout: float
    connect_timeout: float
    auth: tuple[tuple[str, str], ...] = field(repr=False)
    acl: Acl = field(repr=False)
    tls: Tls | None
    defaults: LockOptions
    locks: Mapping[str, LockOptions]
    """Immutable. `defaults` are not merged in."""
    admin_links: Mapping[str, str]
    """Immutable. URL templates with fields in braces, by label."""
    strict: bool = False
    leases: LeaseOptions = field(default_factory=LeaseOptions)
    """Of the lock coordinator."""
    max_lingering: int = DEFAULT_MAX_LINGERING
    """How many locks with `linger` this process keeps at a time."""
    event_days: float = DEFAULT_EVENT_DAYS
    """For how long `django_zklock.contrib.events` keeps a row."""
    checked_names: set[str] = field(default_factory=set, compare=False, repr=False)
    """Names of locks that `conf.spelling` has checked. Any thread adds to it; none removes."""
    plans: dict[tuple[str, int], Any] = field(default_factory=dict, compare=False, repr=False)
    """What `Lock` has made of these settings, for locks without fields. Any thread adds to it, or clears it."""

    @property
    def url_for_log(self) -> str:
        """The address of the locks, without credentials."""
        hosts = ",".join(zk_url.host_port(*host) for host in self.hosts)
        return f"{'zk' if self.tls is None else 'zk+tls'}://{hosts}{self.base}"

    def options_for(self, name: str, given: LockOptions = NOT_GIVEN) -> LockOptions:
        """
        Return the options of a lock: those `given`, else those of its entry, else the defaults.

        A name that is no entry is a path itself; then there is no `path`.
        """
        entry = self.locks.get(name)
        options = given if entry is None else given.merged_over(entry)
        return options.over_defaults(self.defaults)

    def options_of_key(self, key: str) -> LockOptions:
        """Return the options of the first entry whose path can render to this key; else the defaults."""
        for name in self.locks:
            options = self.options_for(name)
            if Template.parse(options.path or name).may_render(key):
                return options
        return self.defaults


def problems(raw: object) -> list[Problem]:
    """Return the problems of `raw`, a value for `settings.ZKLOCK`."""
    return _read(raw)[1]


def raw() -> object:
    """Return `settings.ZKLOCK`, unchecked; None if it is missing."""
    return getattr(settings, "ZKLOCK", None)


def token_keys(given: Sequence[str] | None = None) -> tuple[str | bytes, ...]:
    """
    Return the keys of signed tokens: those `given`, else `TOKEN_KEYS`, else `SECRET_KEY` and its fallbacks.

    The first one signs, all verify. They are not in `Config`, because a receiver of tokens needs no ZooKeeper. Raises
    `ImproperlyConfigured` if the keys are invalid.
    """
    found = Problems()
    where = "keys" if given is not None else _at("TOKEN_KEYS")
    keys = _token_keys(_entry("TOKEN_KEYS") if given is None else given, where, found)
    if found:
        raise ImproperlyConfigured(" ".join(map(str, found)))
    return keys or (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)


def path_for(name: str) -> str:
    """Return the path template of the lock `name`. The rest of the settings may be missing or invalid."""
    entry = _entry("LOCKS", name)
    path = entry.get("path") if isinstance(entry, Mapping) else None
    return path if isinstance(path, str) else name


def _entry(*keys: str) -> object:
    """Return the value in `settings.ZKLOCK` under these nested keys, unchecked; None if there is none."""
    value = raw()
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def debug() -> bool:
    """Return `settings.DEBUG`."""
    return bool(settings.DEBUG)


def are_settings_known() -> bool:
    """Return whether settings are configured, or DJANGO_SETTINGS_MODULE names them."""
    return bool(settings.configured or os.environ.get("DJANGO_SETTINGS_MODULE"))


def has_urlconf() -> bool:
    """Return whether this project has a `ROOT_URLCONF`."""
    return bool(getattr(settings, "ROOT_URLCONF", None))


# Cached until `forget()` is called. Two threads that call this first at the same time may both build a `Config`. These
# are equal.
@functools.cache
def current() -> Config:
    """
    Return the configuration of this process. The first call reads the settings.

    Raises `ImproperlyConfigured`, which names all problems.
    """
    config, found = _read(raw())
    if config is None:
        lines = "".join(f"\n* {problem} (zklock.{problem.id})" for problem in found)
        raise ImproperlyConfigured(f"settings.ZKLOCK cannot be used:{lines}")
    return config


def forget() -> None:
    """Let `current()` read the settings again, because they have changed."""
    current.cache_clear()


def _at(*keys: object) -> str:
    return "ZKLOCK" + "".join(f'["{key}"]' for key in keys)


_CONNECTION_KEYS: Final = ("URL", "ROOT", "SESSION_TIMEOUT", "CONNECT_TIMEOUT", "AUTH", "ACL", "TLS")
_LOCK_KEYS: Final = ("DEFAULTS", "LOCKS", "STRICT", "MAX_LINGERING", "LEASES", "EVENT_DAYS")
_KEYS: Final = (*_CONNECTION_KEYS, "TOKEN_KEYS", *_LOCK_KEYS, "ADMIN_LINKS")
_TLS_FILES: Final = ("CA", "CERT", "KEY")
_TLS_KEYS: Final = (*_TLS_FILES, "KEY_PASSWORD", "CHECK_HOSTNAME")
_QUERY_KEYS: Final = ("session_timeout", "connect_timeout")
_AUTH_EXAMPLE: Final = 'Give "user:password", or [("digest", "user:password"), ...].'
_SHORTEST_KEY: Final = 32  # characters; an attacker who has a token can try any number of keys on it
_LOCKS_EXAMPLE: Final = 'For example {"inventory": {"path": "inventory/{sku}", "timeout": 5}}.'
_LINKS_EXAMPLE: Final = 'For example {"Flower": "https://flower.example.org/task/{id}"}.'
_MOST_DAYS: Final = 10_000
_UNDONE: Final = '"compat": None, "max_hold": None, "min_hold": 0 or "linger": 0'
_NO_ADDRESS: Final = zk_url.Address(hosts=(), chroot="")


def _read(raw: object) -> tuple[Config | None, Problems]:
    """Return the configuration, or None if there are problems, and the problems. A key that is None is not given."""
    found = Problems()
    if not isinstance(raw, Mapping):
        what = "missing" if raw is None else f"a {type(raw).__name__}, not a dict"
        found.add("E001", f"settings.ZKLOCK is {what}.", 'For example ZKLOCK = {"URL": "zk://zk1:2181/myproject"}.')
        return None, found
    found.add_unknown_keys("ZKLOCK", raw, _KEYS)
    given = {key: value for key, value in raw.items() if value is not None}
    url = _address(given.get("URL"), found)
    query = _query(url, found)
    auth = _auth(given.get("AUTH"), url, found)
    tls = _tls(given.get("TLS"), url, found)
    _token_keys(given.get("TOKEN_KEYS"), _at("TOKEN_KEYS"), found)
    config = Config(
        hosts=url.hosts,
        base=url.chroot + _root(given.get("ROOT", DEFAULT_ROOT), url, found),
        session_timeout=_timeout("SESSION_TIMEOUT", given, query, DEFAULT_SESSION_TIMEOUT, found),
        connect_timeout=_timeout("CONNECT_TIMEOUT", given, query, DEFAULT_CONNECT_TIMEOUT, found),
        auth=auth,
        acl=_acl(given.get("ACL"), auth, tls, found),
        tls=tls,
        defaults=read_options(given.get("DEFAULTS", {}), _at("DEFAULTS"), found),
        locks=_locks(given.get("LOCKS", {}), found),
        admin_links=_links(given.get("ADMIN_LINKS", {}), found),
        leases=read_leases(given.get("LEASES", {}), _at("LEASES"), found),
        strict=_strict(given.get("STRICT", False), found),
        max_lingering=_max_lingering(given.get("MAX_LINGERING", DEFAULT_MAX_LINGERING), found),
        event_days=_event_days(given.get("EVENT_DAYS", DEFAULT_EVENT_DAYS), found),
    )
    _contradictions(config, found)
    return (None if found else config), found


def _contradictions(config: Config, found: Problems) -> None:
    """Find options that exclude each other, in each entry and in each entry with the defaults."""
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


def _address(url: object, found: Problems) -> zk_url.Address:
    if not url or not isinstance(url, str):
        what = "missing or empty" if not url else f"a {type(url).__name__}, not a str"
        found.add("E003", f"{_at('URL')} is {what}.", zk_url.EXAMPLE)
        return _NO_ADDRESS
    try:
        return zk_url.parse(url)
    except zk_url.AddressError as error:
        found.add("E003", f"{_at('URL')} {error}.", error.hint)
        return _NO_ADDRESS


def _query(url: zk_url.Address, found: Problems) -> dict[str, str]:
    query = dict(url.query)
    found.add_unknown_keys(f"The query of {_at('URL')}", query, _QUERY_KEYS)
    if len(query) < len(url.query):
        found.add("E003", f"{_at('URL')} has a key twice in its query.", "Remove one.")
    return query


def _root(root: object, url: zk_url.Address, found: Problems) -> str:
    if not isinstance(root, str):
        found.add("E004", f"{_at('ROOT')} is a {type(root).__name__}, not a str.", f"For example {DEFAULT_ROOT}.")
        return ""
    try:
        path = zk_url.znode_path(root)
    except zk_url.AddressError as error:
        found.add("E004", f"{_at('ROOT')} {error}.", error.hint)
        return ""
    if not url.chroot + path:
        # The list of all locks would contain the znodes of other programs, and all projects would share their locks.
        found.add("E004", f"{_at('ROOT')} is the root of the whole tree.", "Give a path such as /zklock.")
    return path


def _timeout(
    key: str, given: Mapping[object, object], query: Mapping[str, str], default: float, found: Problems
) -> float:
    """Return a timeout in seconds. The setting takes precedence over the query of the URL."""
    value = given.get(key, query.get(key.lower(), default))
    found_seconds = seconds(_number(value))
    if found_seconds:
        return found_seconds
    name = _at(key) if key in given else f"{key.lower()} in the query of {_at('URL')}"
    found.add("E005", f"{name} is not a time above 0.", f"Seconds, up to {LONGEST_WAIT:.0f}, or a timedelta.")
    return default


def _number(value: object) -> object:
    """Convert a string, such as an environment variable, to a number. Return anything else unchanged."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _auth(value: object, url: zk_url.Address, found: Problems) -> tuple[tuple[str, str], ...]:
    if value is None:
        value = url.credential or ()
    pairs = [("digest", value)] if value and isinstance(value, str) else value
    if not isinstance(pairs, (list, tuple)) or not all(_is_row_of_text(pair, 2) for pair in pairs):
        found.add("E006", f"{_at('AUTH')} is not a list of pairs.", _AUTH_EXAMPLE)
        return ()
    if any(scheme == "digest" and not all(secret.partition(":")) for scheme, secret in pairs):
        found.add("E006", f"{_at('AUTH')} has a digest credential that is not user:password.", _AUTH_EXAMPLE)
    return tuple((scheme, secret) for scheme, secret in pairs)


def _is_row_of_text(row: object, columns: int) -> bool:
    """Return whether `row` has `columns` valid strings. A lone surrogate in one of them would end kazoo's thread."""
    return isinstance(row, (list, tuple)) and len(row) == columns and all(map(is_text, row))


def _acl(value: object, auth: tuple[tuple[str, str], ...], tls: Tls | None, found: Problems) -> Acl:
    if value is None:
        return "creator" if auth else "open"
    if value == "open":
        return "open"
    if value == "creator":
        if not auth and not (tls and tls.cert):
            found.add("E007", f'{_at("ACL")} is "creator", but there are no credentials.', "Give AUTH, or a TLS CERT.")
        return "creator"
    rows = value if isinstance(value, (list, tuple)) else ()
    if not rows or not all(_is_row_of_text(row, 3) and set(row[2]) <= set("crwda") for row in rows):
        hint = 'Give (scheme, id, permissions) with letters of "crwda", as in [("ip", "10.0.0.0/8", "crwd")].'
        found.add("E007", f'{_at("ACL")} is neither "open" nor "creator" nor a list of entries.', hint)
        return "open"
    return tuple((scheme, identity, permissions) for scheme, identity, permissions in rows)


def _tls(value: object, url: zk_url.Address, found: Problems) -> Tls | None:
    if value is None:
        return Tls() if url.tls else None
    if not isinstance(value, (bool, Mapping)):
        found.add("E008", f"{_at('TLS')} is a {type(value).__name__}, not a dict.", f"Keys: {', '.join(_TLS_KEYS)}.")
        return None
    if isinstance(value, bool):
        if url.tls and not value:
            found.add("E008", f"{_at('TLS')} is False, but the URL says zk+tls://.", "Use zk:// or remove the False.")
        return Tls() if value else None
    found.add_unknown_keys(_at("TLS"), value, _TLS_KEYS)
    return _tls_of({key: entry for key, entry in value.items() if entry is not None}, found)


def _tls_of(given: Mapping[Any, Any], found: Problems) -> Tls:
    for name in _TLS_FILES:
        if not isinstance(given.get(name, ""), (str, os.PathLike)):
            found.add("E008", f"{_at('TLS', name)} is not the path of a file.", "Give the path of a PEM file.")
    key_password, check_hostname = given.get("KEY_PASSWORD"), given.get("CHECK_HOSTNAME", True)
    if not isinstance(key_password, (str, type(None))):
        found.add("E008", f"{_at('TLS', 'KEY_PASSWORD')} is not a str.", "Leave it out if there is none.")
    if not isinstance(check_hostname, bool):
        found.add("E008", f"{_at('TLS', 'CHECK_HOSTNAME')} is neither True nor False.", "It is True by default.")
    if "CERT" not in given and ("KEY" in given or "KEY_PASSWORD" in given):
        found.add("E008", f"{_at('TLS')} has a key without a certificate.", "Give CERT too.")
    ca, cert, key = (str(given[name]) if name in given else None for name in _TLS_FILES)
    return Tls(ca=ca, cert=cert, key=key, key_password=key_password, check_hostname=check_hostname)


def _token_keys(value: object, where: str, found: Problems) -> tuple[str, ...]:
    if value is None:
        return ()
    # A str is a sequence, too, but it is not a list of keys.
    keys = value if isinstance(value, (list, tuple)) else ()
    if not keys or not all(is_text(key) and len(key) >= _SHORTEST_KEY for key in keys):
        hint = "Put the newest first. `secrets.token_urlsafe(48)` generates a good key."
        found.add("E011", f"{where} is not a list of keys with {_SHORTEST_KEY} or more characters.", hint)
    return tuple(keys)


def _locks(value: object, found: Problems) -> Mapping[str, LockOptions]:
    if not isinstance(value, Mapping):
        found.add("E010", f"{_at('LOCKS')} is a {type(value).__name__}, not a dict.", _LOCKS_EXAMPLE)
        return MappingProxyType({})
    if not all(isinstance(name, str) and name for name in value):
        found.add("E010", f"{_at('LOCKS')} has a name that is empty or not a str.", _LOCKS_EXAMPLE)
    return MappingProxyType({name: _lock(name, entry, found) for name, entry in value.items()})


def _lock(name: str, entry: object, found: Problems) -> LockOptions:
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


def _strict(value: object, found: Problems) -> bool:
    if not isinstance(value, bool):
        found.add("E014", f"{_at('STRICT')} must be True or False; got {value!r}.", "It is False by default.")
    return value is True


def _max_lingering(value: object, found: Problems) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        where, hint = _at("MAX_LINGERING"), f"It is {DEFAULT_MAX_LINGERING} by default."
        found.add("E015", f"{where} must be a whole number from 0; got {value!r}.", hint)
        return DEFAULT_MAX_LINGERING
    return value


def _event_days(value: object, found: Problems) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= _MOST_DAYS:
        where, hint = _at("EVENT_DAYS"), f"It is {DEFAULT_EVENT_DAYS:g} by default."
        found.add("E017", f"{where} must be a number of days above 0, up to {_MOST_DAYS}; got {value!r}.", hint)
        return DEFAULT_EVENT_DAYS
    return float(value)


# A URL whose host has no fields, or a path of this site, so that a lock's key never becomes a part of the host.
# Browsers read a backslash as a slash, read `//` as the beginning of a host, and drop tabs and line breaks.
_ADDRESS: Final = re.compile(r"(?:https?://[^\s/\\{}@?#]+(?:[/?#][^\s\\]*)?|/(?![/\\])[^\s\\]*)\Z")


def _links(value: object, found: Problems) -> Mapping[str, str]:
    links = value if isinstance(value, Mapping) else None
    if links is None or not all(is_text(label) and is_text(link) for label, link in links.items()):
        found.add("E012", f"{_at('ADMIN_LINKS')} is not a dict of labels and URLs.", _LINKS_EXAMPLE)
        return MappingProxyType({})
    for label, link in links.items():
        if not _ADDRESS.match(link) or not _has_plain_fields(link):
            found.add("E012", f"{_at('ADMIN_LINKS', label)} is not a URL with plain fields.", _LINKS_EXAMPLE)
    return MappingProxyType(dict(links))


def _has_plain_fields(text: str) -> bool:
    try:
        fields = list(string.Formatter().parse(text))
    except ValueError:
        return False
    return all(name is None or (name.isidentifier() and not (form or turn)) for _, name, form, turn in fields)
