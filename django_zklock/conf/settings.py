"""
Read and check `settings.ZKLOCK`. No other module reads Django's settings.

The system checks and `current()` report the same problems in the same words. No message quotes a credential. Prefer
`AUTH` to a password in the `URL`: Django's error pages hide the values of such keys, but they would show the URL.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_zklock.conf import url as zk_url
from django_zklock.conf.options import NOT_GIVEN, LockOptions, contradiction, over_defaults, read_options
from django_zklock.conf.table import (
    SECONDS_ADVICE,
    InvalidValue,
    Problem,
    Problems,
    Row,
    accepts,
    boolean,
    did_you_mean,
    is_text,
    positive_seconds,
    read_keys,
    whole_number,
)
from django_zklock.core.queue.untrusted import digits, integer, number
from django_zklock.core.zk.options import Acl, Secret, SessionOptions, TlsOptions
from django_zklock.exceptions import InvalidLockName
from django_zklock.names.template import Template, shape

DEFAULT_ROOT: Final = "/zklock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(SessionOptions):
    """`settings.ZKLOCK`, checked: the options of the session, and all others. Times in seconds."""

    defaults: LockOptions = field(default_factory=dict)
    locks: Mapping[str, LockOptions] = field(default_factory=lambda: MappingProxyType({}))
    """The entries by name, immutable. `defaults` are not merged in."""
    admin_links: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """URL templates with fields in braces, by label; immutable."""
    lock_order: tuple[tuple[str, str], ...] = ()
    """Pairs of names, outer and inner, whose order is meant. Test runs alone read it: `testing.order`."""
    strict: bool = False
    real_in_tests: bool = False
    added: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """The keys of extensions that are given, as their readers return them; see `add_key`."""
    max_metric_locks: int = 100
    """How many names of locks `django_zklock.contrib.metrics` counts separately."""
    event_days: float = 7.0
    """For how many days `django_zklock.contrib.events` keeps a row."""
    checked_names: set[str] = field(default_factory=set, compare=False, repr=False)
    """Names that `conf.spelling` has checked. Any thread adds to it; none removes."""
    specs: dict[tuple[str, int], Any] = field(default_factory=dict, compare=False, repr=False)
    """The specs of locks without fields, which `locks.lock` has resolved. Any thread adds to it, or clears it."""

    @property
    def url_for_log(self) -> str:
        """The address of the locks, without credentials."""
        hosts = ",".join(zk_url.host_port(*host) for host in self.hosts)
        return f"{'zk' if self.tls is None else 'zk+tls'}://{hosts}{self.base}"

    def options_for(self, name: str, given: LockOptions = NOT_GIVEN) -> LockOptions:
        """
        Return the options of a lock: those `given`, else those of its entry, else the defaults.

        If no entry has this name, the name itself is the path, and there is no `path`.
        """
        entry = self.locks.get(name)
        return over_defaults(given if entry is None else {**entry, **given}, self.defaults)

    def entries_of_key(self, key: str) -> tuple[str, ...]:
        """Return the names of the entries whose path can render to this key."""
        return tuple(name for name, entry in self.locks.items() if Template.parse(entry["path"]).may_render(key))

    def path_of(self, name: str, key: str = "") -> str:
        """Return the path of the entry that a lock with this name or template belongs to; without any, the name."""
        if name in self.locks:
            return str(self.locks[name]["path"])
        entries = self.entries_of_key(key or Template.parse(name).example)
        paths = [str(self.locks[entry]["path"]) for entry in entries]
        return name if not paths or shape(name) in map(shape, paths) else paths[0]

    def options_of_key(self, key: str, given: LockOptions = NOT_GIVEN) -> LockOptions:
        """Return the options of a lock: those `given`, else those of its first entry, else the defaults."""
        return self.options_for(next(iter(self.entries_of_key(key)), ""), given)


_added: Final[dict[str, str]] = {}  # the readers of extensions, by key


def add_key(name: str, reader: str) -> None:
    """
    Accept a key of an extension. `Config.added` has what its reader returns.

    `reader` is the dotted path of a function, which is imported when the key is given. It gets the value, the text for
    its place, and the problems, to which it adds its own.
    """
    _added[name] = reader
    forget()


def problems(raw: object) -> list[Problem]:
    """Return the problems of `raw`, a value for `settings.ZKLOCK`."""
    return _read(raw)[1]


for_tests: dict[str, object] = {}
"""Keys that replace those in `settings.ZKLOCK` while all tests have locks on a dev server. Then call `forget()`."""


def raw() -> object:
    """Return `settings.ZKLOCK`, unchecked; None if it is missing."""
    value = setting("ZKLOCK")
    is_replaced = for_tests and isinstance(value, Mapping) and not value.get("REAL_IN_TESTS")
    return {**value, **for_tests} if is_replaced else value


def path_for(name: str) -> str:
    """Return the path template of the lock `name`. The rest of the settings may be missing or invalid."""
    lock = entry("LOCKS", name)
    path = lock.get("path") if isinstance(lock, Mapping) else None
    return path if isinstance(path, str) else name


def entry(*keys: str) -> object:
    """Return the value in `settings.ZKLOCK` under these nested keys, unchecked; None if there is none."""
    value = raw()
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def setting(name: str) -> Any:
    """Return a setting of Django; None if it is missing."""
    return getattr(settings, name, None)


def are_settings_known() -> bool:
    """Return whether settings are configured, or DJANGO_SETTINGS_MODULE names them."""
    return bool(settings.configured or os.environ.get("DJANGO_SETTINGS_MODULE"))


# Cached until `forget()` is called. If two threads make the first call at the same time, both may build a `Config`. The
# two are equal.
@functools.cache
def current() -> Config:
    """
    Return the configuration of this process. The first call reads the settings.

    Raises `ImproperlyConfigured`, which names all problems.
    """
    config, problems = _read(raw())
    if config is None:
        lines = "".join(f"\n* {problem} (zklock.{problem.id})" for problem in problems)
        raise ImproperlyConfigured(f"settings.ZKLOCK cannot be used:{lines}")
    return config


def forget() -> None:
    """Let `current()` read the settings again, because they have changed."""
    current.cache_clear()


def _at(*keys: object) -> str:
    return "ZKLOCK" + "".join(f'["{key}"]' for key in keys)


def _read(raw: object) -> tuple[Config | None, Problems]:
    """Return the configuration, or None if there are problems, and the problems. None mostly counts as not given."""
    problems = Problems()
    if not isinstance(raw, Mapping):
        fault = "missing" if raw is None else f"a {type(raw).__name__}, not a dict"
        problems.add("E001", f"settings.ZKLOCK is {fault}.", 'For example ZKLOCK = {"URL": "zk://zk1:2181/myproject"}.')
        return None, problems
    given = {"URL": "", **{key: value for key, value in raw.items() if value is not None}}
    values = read_keys(given, _KEYS, "ZKLOCK", problems, more=(*_DICTS, *_added))
    if raw.get("DEADLOCK_TIMEOUT", 0) is None:
        values["deadlock_timeout"] = None  # it has a meaning of its own: deadlocks are not looked for
    url, root = values.pop("url", _NO_ADDRESS), values.pop("root", DEFAULT_ROOT)
    if not url.chroot + root:
        # The list of all locks would contain the znodes of other programs, and all projects would share their locks.
        problems.add("E004", f"{_at('ROOT')} is the root of the whole tree.", "Give a path such as /zklock.")
    values["tls"] = _tls(given.get("TLS"), url, problems)
    _complete_access(values, url, problems)
    config = Config(
        hosts=url.hosts,
        base=url.chroot + root,
        defaults=read_options(given.get("DEFAULTS", {}), _at("DEFAULTS"), problems),
        locks=_locks(given.get("LOCKS", {}), problems),
        added=MappingProxyType(
            {name: import_string(_added[name])(given[name], _at(name), problems) for name in _added if name in given}
        ),
        **read_keys(dict(url.query), _QUERY_KEYS, f"The query of {_at('URL')}", problems) | values,
    )
    _contradictions(config, problems)
    if config.lock_order and not problems:
        _check_order(config, problems)
    return (None if problems else config), problems


def _complete_access(values: dict[str, Any], url: zk_url.Address, problems: Problems) -> None:
    """Add the credentials of the URL, and the ACL: only those who have credentials, if there are any, have access."""
    if url.credential is not None:
        values.setdefault("auth", (("digest", Secret(url.credential)),))
    acl = values.setdefault("acl", "creator" if values.get("auth") else "open")
    tls = values["tls"]
    if acl == "creator" and not values.get("auth") and not (tls and tls.cert):
        hint = "Give AUTH, or a TLS CERT."
        problems.add("E007", f'{_at("ACL")} is "creator", but there are no credentials.', hint)


def _tls(value: object, url: zk_url.Address, problems: Problems) -> TlsOptions | None:
    where = _at("TLS")
    if value is None or isinstance(value, bool):
        return TlsOptions() if value or url.tls else None
    given = problems.dict_of(value, "E008", where, f"Keys: {', '.join(_TLS_KEYS)}.")
    tls = TlsOptions(**read_keys(given, _TLS_KEYS, where, problems))
    if tls.cert is None and (tls.key or tls.key_password):
        problems.add("E008", f"{where} has a key without a certificate.", "Give CERT too.")
    return tls


def _locks(value: object, problems: Problems) -> Mapping[str, LockOptions]:
    entries = problems.dict_of(value, "E010", _at("LOCKS"), _LOCKS_EXAMPLE)
    if not all(isinstance(name, str) and name for name in entries):
        problems.add("E010", f"{_at('LOCKS')} has a name that is empty or not a str.", _LOCKS_EXAMPLE)
    return MappingProxyType({name: _lock(_at("LOCKS", name), entry, problems) for name, entry in entries.items()})


def _lock(where: str, entry: object, problems: Problems) -> LockOptions:
    options = read_options(entry, where, problems, more=("path",))
    path = entry.get("path") if isinstance(entry, Mapping) else None
    if not isinstance(path, str):
        problems.add("E010", f"{where} has no path.", _LOCKS_EXAMPLE)
        return options
    try:
        Template.parse(path)
    except InvalidLockName as error:
        problems.add("E010", f'{where}["path"] cannot be the name of a lock: {error}', _LOCKS_EXAMPLE)
    return {**options, "path": path}


def _contradictions(config: Config, problems: Problems) -> None:
    """Find options that exclude each other, in the defaults and in each entry with the defaults."""
    for name, options in {"": config.defaults, **config.locks}.items():
        fault = contradiction(over_defaults(options, config.defaults))
        if fault:
            where = _at("LOCKS", name) + " (or DEFAULTS)" if name else _at("DEFAULTS")
            problems.add("E013", f"{where} has {fault}.", f"Change one of them. To override a default: {_OVERRIDES}.")
        if fault and not name:
            return


def _check_order(config: Config, problems: Problems) -> None:
    """Find names in `LOCK_ORDER` that no lock can have, and pairs that contradict each other."""
    where = _at("LOCK_ORDER")
    outer_of: dict[str, list[str]] = {}
    try:
        for pair in config.lock_order:
            for name in pair:
                is_known = name in config.locks or config.entries_of_key(Template.parse(name).example)
                if config.strict and not is_known:
                    fault = f"{where} has {name!r}, which is not an entry of LOCKS, nor the path of one."
                    problems.add("E022", fault, did_you_mean(name, config.locks))
            outer, inner = (shape(config.path_of(name)) for name in pair)
            if outer != inner:
                outer_of.setdefault(inner, []).append(outer)
        TopologicalSorter(outer_of).prepare()
    except InvalidLockName as error:
        problems.add("E022", f"{where} has a name that no lock can have: {error}", "")
    except CycleError as error:
        circle = " before ".join(map(repr, error.args[1]))
        problems.add("E022", f"{where} contradicts itself: {circle}.", "Remove a pair.")


_OVERRIDES: Final = '"compat": None, "max_hold": None, "min_hold": 0 or "linger": 0'
_LOCKS_EXAMPLE: Final = 'For example {"inventory": {"path": "inventory/{sku}", "timeout": 5}}.'
_NO_ADDRESS: Final = zk_url.Address(hosts=(), chroot="")
_MOST_DAYS: Final = 10_000
_SMALLEST_BUFFER: Final = 2**17  # bytes: a heartbeat for 100 long keys has to fit
_LARGEST_BUFFER: Final = 2**31 - 1
_BYTES: Final = f"a number of bytes from {_SMALLEST_BUFFER} to {_LARGEST_BUFFER}"
# A URL whose host has no fields, or a path of this site, so that a lock's key never becomes a part of the host.
# Browsers read a backslash as a slash, read `//` as the beginning of a host, and drop tabs and line breaks.
_LINK: Final = re.compile(
    r"(?:https?://[^\s/\\{}@?#]+(?:[/?#](?:[^\s\\{}]|\{[A-Za-z_]\w*\})*)?|/(?![/\\])(?:[^\s\\{}]|\{[A-Za-z_]\w*\})*)\Z"
)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidValue(f"is a {type(value).__name__}, not a str")
    return value


def _url(value: object) -> zk_url.Address:
    if not value:
        raise InvalidValue("is missing or empty")
    return zk_url.parse(_text(value))


def _root(value: object) -> str:
    path = _text(value)
    zk_url.check_expanded(path)
    return zk_url.znode_path(path)


def _rows(value: object, columns: int, fault: str) -> tuple[Any, ...]:
    """Return a list whose rows have `columns` valid strings. A lone surrogate in one of them could not be sent."""
    rows = value if isinstance(value, (list, tuple)) else [None]
    if not all(isinstance(row, (list, tuple)) and len(row) == columns and all(map(is_text, row)) for row in rows):
        raise InvalidValue(fault)
    return tuple(map(tuple, rows))


def _auth(value: object) -> tuple[tuple[str, str], ...]:
    is_one = value and isinstance(value, str)
    pairs = _rows([("digest", value)] if is_one else value, 2, "is not a list of pairs")
    if any(scheme == "digest" and not all(secret.partition(":")) for scheme, secret in pairs):
        raise InvalidValue("has a digest credential that is not user:password")
    return tuple((scheme, Secret(secret)) for scheme, secret in pairs)


def _acl(value: object) -> Acl:
    if value in ("open", "creator"):
        return value
    fault = 'is neither "open" nor "creator" nor a list of entries'
    rows = _rows(value, 3, fault)
    if not rows or not all(set(permissions) <= set("crwda") for _, _, permissions in rows):
        raise InvalidValue(fault)
    return rows


def _lock_order(value: object) -> tuple[tuple[str, str], ...]:
    return _rows(value, 2, "is not a list of pairs")


def _file(value: object) -> str:
    return _text(str(value) if isinstance(value, os.PathLike) else value)


def _buffer_size(value: object) -> int:
    return integer(digits(value) if isinstance(value, str) else value, _SMALLEST_BUFFER, _LARGEST_BUFFER)


def _links(value: object) -> Mapping[str, str]:
    links = value if isinstance(value, Mapping) else None
    if links is None or not all(is_text(label) and is_text(link) for label, link in links.items()):
        raise InvalidValue("is not a dict of labels and URLs")
    for label, link in links.items():
        if not _LINK.match(link):
            raise InvalidValue(f'has "{label}", which is not a URL with plain fields')
    return MappingProxyType(dict(links))


_days: Final = accepts(
    f"a number of days above 0, up to {_MOST_DAYS}", partial(number, least=math.ulp(0.0), most=_MOST_DAYS)
)
_KEYS: Final = {
    "URL": Row("E003", _url, zk_url.EXAMPLE),
    "ROOT": Row("E004", _root, f"For example {DEFAULT_ROOT}."),
    "SESSION_TIMEOUT": Row("E005", positive_seconds, SECONDS_ADVICE),
    **dict.fromkeys(("CONNECT_TIMEOUT", "DEADLOCK_TIMEOUT"), Row("E005", positive_seconds, SECONDS_ADVICE)),
    "AUTH": Row("E006", _auth, 'Give "user:password", or [("digest", "user:password"), ...].'),
    "ACL": Row(
        "E007", _acl, 'Give (scheme, id, permissions) with letters of "crwda", as in [("ip", "10.0.0.0/8", "crwd")].'
    ),
    **dict.fromkeys(("STRICT", "REAL_IN_TESTS"), Row("E014", boolean, "It is False by default.")),
    "LOCK_ORDER": Row(
        "E022", _lock_order, 'For example [("orders/{order}", "stock/{sku}")]: the first is acquired before the second.'
    ),
    "JUTE_MAXBUFFER": Row(
        "E021", accepts(_BYTES, _buffer_size), "Give the jute.maxbuffer of the servers, 1048575 by default."
    ),
    "MAX_LINGERING": Row("E015", whole_number, "It is 1000 by default."),
    "MAX_METRIC_LOCKS": Row("E020", whole_number, "It is 100 by default."),
    "EVENT_DAYS": Row("E017", _days, "It is 7 by default."),
    "ADMIN_LINKS": Row("E012", _links, 'For example {"Flower": "https://flower.example.org/task/{id}"}.'),
}
_DICTS: Final = ("TLS", "DEFAULTS", "LOCKS")
_QUERY_KEYS: Final = {key.lower(): _KEYS[key] for key in ("SESSION_TIMEOUT", "CONNECT_TIMEOUT", "JUTE_MAXBUFFER")}
_TLS_KEYS: Final = {
    **dict.fromkeys(("CA", "CERT", "KEY"), Row("E008", _file, "Give the path of a PEM file.")),
    "KEY_PASSWORD": Row("E008", lambda value: Secret(_text(value)), "Leave it out if there is none."),
    "CHECK_HOSTNAME": Row("E008", boolean, "It is True by default."),
}
