"""The options of one lock, with the settings and all defaults applied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from django_zklock.conf import Config
from django_zklock.conf.options import LockOptions, contradiction
from django_zklock.conf.spelling import check_spelling
from django_zklock.core.locks.spec import NOTHING, LockSpec
from django_zklock.core.protocol.grant import Policy
from django_zklock.core.queue.nodes import Kind
from django_zklock.locks import transactions
from django_zklock.locks.arguments import refuse_arguments
from django_zklock.names import template as names

MOST_SPECS = 1000  # in the cache, for the next lock with the same name and options


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
        about=about or NOTHING,
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
