"""The options of one lock, with the settings and all defaults applied."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from django_zklock.conf import Config
from django_zklock.conf.options import DEFAULT_TIMEOUT, LockOptions, contradiction
from django_zklock.conf.spelling import check_spelling
from django_zklock.core.execution import work
from django_zklock.core.execution.owner import Owner
from django_zklock.core.protocol.grant import Policy
from django_zklock.core.protocol.spec import Caller, QueueSpec
from django_zklock.core.queue.nodes import Kind
from django_zklock.exceptions import LockInTransaction
from django_zklock.locks import trace, transactions
from django_zklock.locks.refusals import refuse_arguments
from django_zklock.names import template as names

MOST_SPECS = 1000  # in the cache, for the next lock with the same name and options
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})  # one for all, as there may be thousands of locks


@dataclass(frozen=True, slots=True, kw_only=True)
class LockSpec(QueueSpec):
    """The options of one lock, with all settings applied. A field has the same default as the option of its name."""

    timeout: float | None = DEFAULT_TIMEOUT  # seconds to wait; 0 does not wait, None waits without limit
    policy: Policy
    reentrant: bool = True
    atomic: tuple[str, ...] = ()  # the databases on which the block is a transaction
    release_on: str | None = None  # `exit` or `commit`
    warn_after: float | None = None
    what: str  # the work that it is for, as others in the queue see it; empty: the current work of the caller
    about: Mapping[str, str]  # that work, item by item

    @property
    def shares(self) -> bool:
        """Whether others may hold the lock at the same time: as readers, or with other permits."""
        return self.kind in (Kind.READ, Kind.PERMIT)

    def caller(self, owner: Owner) -> Caller:
        """Describe the caller and its work for others in the queue. Call it in the thread that wants the lock."""
        current = work.current()  # at each call, as the object of the lock may live longer than the work
        what = self.what or (current.what if current is not None else "") or _file_name(sys.argv[0]) or "python"
        about = self.about or (current.about if current is not None else {})
        if trace.items is not None:
            about = {**about, **trace.items()}
        return Caller(thread=threading.current_thread().name, owner=owner.number, what=what, about=about)


_file_name = functools.lru_cache(os.path.basename)  # cached, as each acquisition needs that of the program


def check_arguments(
    call: str, name: object, more: Sequence[object], options: Mapping[str, object], allowed: type
) -> None:
    """Raise `TypeError` for arguments that `call` does not have."""
    if more or not options.keys() <= allowed.__annotations__.keys():
        refuse_arguments(call, name, more, options, allowed)


def resolve_options(config: Config, name: str, given: LockOptions) -> LockOptions:
    """Return the options of the lock `name`: those `given`, completed by the settings. All are checked."""
    names.check_type(name)
    check_spelling(config, name)
    options = config.options_for(name, given)
    check_contradictions(name, options)
    return options


def spec_of_name(
    name: str,
    options: LockOptions,
    fields: Mapping[str, object] | None,
    what: str,
    about: Mapping[str, str] | None,
    config: Config,
) -> LockSpec:
    """Return the spec of the lock `name`, with the options that a call gave. Raises `InvalidLockName`."""
    if fields or about or what or type(name) is not str:
        return resolve(name, resolve_options(config, name, options), fields, what, about, config)
    cache_key = name, id(options)
    cached = config.specs.get(cache_key)
    if cached is None or cached[0] is not options:
        if len(config.specs) >= MOST_SPECS:
            config.specs.clear()
        spec = resolve(name, resolve_options(config, name, options), None, "", None, config)
        cached = config.specs[cache_key] = options, spec  # keeps the options, so no others get their id
    result: LockSpec = cached[1]
    return result


def resolve(
    name: str,
    options: LockOptions,
    fields: Mapping[str, object] | None,
    what: str,
    about: Mapping[str, str] | None,
    config: Config,
) -> LockSpec:
    """Return the spec of the lock `name`, with options from `resolve_options`. Raises `InvalidLockName`."""
    template = names.Template.parse(options.get("path", name))
    return spec_of_key(template.render(fields or {}), options, what, about, config, template=template.text)


def spec_of_key(
    key: str, options: LockOptions, what: str, about: Mapping[str, str] | None, config: Config, template: str = ""
) -> LockSpec:
    """Return the spec of the lock with this key, with options from `resolve_options`."""
    transactions.check_aliases(options.get("atomic", ()))
    return LockSpec(
        key=key,
        template=template,
        parent=names.path(config.base, key),
        kind=kind_of(options),
        policy=Policy(**{name: options[name] for name in _POLICY & options.keys()}),
        what=what,
        about=about or _NOTHING,
        **{name: options[name] for name in _SAME_NAME & options.keys()},
    )


_POLICY: Final = frozenset(Policy.__dataclass_fields__)
_SAME_NAME: Final = LockSpec.__dataclass_fields__.keys() - {"kind"}


def kind_of(options: LockOptions) -> Kind:
    """Return what a contender with these options wants."""
    if options.get("limit") is not None:
        return Kind.PERMIT
    if options.get("kind") == "read":
        return Kind.READ
    return Kind.WRITE if options.get("kind") == "write" else Kind.LOCK


def check_contradictions(name: str, options: LockOptions) -> None:
    """Raise `ValueError` for options that exclude each other."""
    problem = contradiction(options)
    if problem:
        raise ValueError(
            f"The lock {name!r} has {problem}; change one of them. To override its entry or DEFAULTS in a call, pass "
            'limit=None, kind="lock", compat=None, max_hold=None, min_hold=0 or linger=0.'
        )


def check_no_open_transaction(spec: LockSpec) -> None:
    """Raise if a transaction is open that would be committed after the release."""
    aliases = [] if spec.release_on == "commit" else transactions.open_blocks()
    if spec.release_on == "exit":  # then the lock protects nothing in the database of that transaction
        aliases = [alias for alias in aliases if alias in spec.atomic]
    if aliases:
        raise LockInTransaction(
            f"The lock {spec.key!r} cannot be acquired inside an open transaction (atomic block on "
            f"{', '.join(map(repr, aliases))}). It would be released before that is committed, and the next holder "
            "would not see its work. Acquire the lock first and begin the transaction inside it, as atomic=True does; "
            'or give release_on="commit" to keep the lock until the transaction has ended; or release_on="exit" if the '
            "lock protects nothing in that database.",
            lock=spec.key,
        )
