"""The options of one lock, with the settings and all defaults applied."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from django_zklock.conf import Config
from django_zklock.conf.options import LockOptions, Unset, contradiction
from django_zklock.conf.spelling import check_spelling
from django_zklock.execution import trace, work
from django_zklock.execution.owner import Owner
from django_zklock.execution.transactions import check_aliases
from django_zklock.locks.protocol.grant import Policy
from django_zklock.locks.protocol.spec import Caller, QueueSpec
from django_zklock.queue import names
from django_zklock.queue.nodes import Kind

DEFAULT_TIMEOUT = 10.0  # seconds to wait for a lock in plain code


@dataclass(frozen=True, slots=True, kw_only=True)
class LockSpec(QueueSpec):
    """The options of one lock, with all settings and defaults applied."""

    timeout: float | None  # seconds to wait; 0 does not wait, None waits without limit
    policy: Policy
    reentrant: bool
    atomic: tuple[str, ...]  # the databases on which the block is a transaction
    release_on: str | Unset  # `exit` or `commit`
    warn_after: float | None
    what: str  # the work it is for, as others in the queue see it; empty: the current work of the caller
    about: Mapping[str, str]  # the same, item by item

    @property
    def shares(self) -> bool:
        """Whether others may hold the lock at the same time: as readers, or with other permits."""
        return self.kind in (Kind.READ, Kind.PERMIT)

    @property
    def is_bounded(self) -> bool:
        """Whether something happens when it is held for long."""
        return self.max_hold is not None or self.warn_after is not None

    def caller(self, owner: Owner) -> Caller:
        """Return whom a contender stands for; called by the thread that wants the lock."""
        around = work.current()  # now, as the lock may be an object that lives longer than the work
        what = self.what or (around.what if around is not None else "") or _file_name(sys.argv[0]) or "python"
        about = self.about or (around.about if around is not None else {})
        if trace.items is not None:
            about = {**about, **trace.items()}
        return Caller(thread=threading.current_thread().name, owner=owner.number, what=what, about=about)


_file_name = functools.lru_cache(os.path.basename)  # of the program; asked for each acquisition


def resolve_options(config: Config, name: str, given: LockOptions) -> LockOptions:
    """Return the options of the lock `name`: those `given`, and for gaps those of the settings. All are checked."""
    names.check_type(name)
    check_spelling(config, name)
    options = config.options_for(name, given)
    check_contradictions(name, options)
    return options


def resolve(
    config: Config,
    name: str,
    fields: Mapping[str, object],
    options: LockOptions,
    *,
    what: str,
    about: Mapping[str, str],
) -> LockSpec:
    """Return the spec of the lock `name`, with these options from `resolve_options`. Raises `InvalidLockName`."""
    template = names.Template.parse(options.path or name)
    return spec_of_key(config, template.render(fields), options, what=what, about=about, template=template.text)


def spec_of_key(
    config: Config, key: str, options: LockOptions, *, what: str, about: Mapping[str, str], template: str = ""
) -> LockSpec:
    """Return the spec of the lock with this key, with these options from `resolve_options`."""
    atomic = () if isinstance(options.atomic, Unset) else options.atomic
    check_aliases(atomic)
    return LockSpec(
        key=key,
        template=template,
        parent=names.path(config.base, key),
        timeout=DEFAULT_TIMEOUT if isinstance(options.timeout, Unset) else options.timeout,
        policy=Policy(
            abort_on="suspended" if isinstance(options.abort_on, Unset) else options.abort_on,
            grace=0.0 if isinstance(options.grace, Unset) else options.grace,
        ),
        reentrant=True if isinstance(options.reentrant, Unset) else options.reentrant,
        atomic=atomic,
        release_on=options.release_on,
        kind=_kind(options),
        limit=None if isinstance(options.limit, Unset) else options.limit,
        compat=None if isinstance(options.compat, Unset) else options.compat,
        max_hold=None if isinstance(options.max_hold, Unset) else options.max_hold,
        warn_after=None if isinstance(options.warn_after, Unset) else options.warn_after,
        min_hold=0.0 if isinstance(options.min_hold, Unset) else options.min_hold,
        linger=0.0 if isinstance(options.linger, Unset) else options.linger,
        max_waiters=None if isinstance(options.max_waiters, Unset) else options.max_waiters,
        what=what,
        about=about,
    )


def _kind(options: LockOptions) -> Kind:
    if isinstance(options.limit, int):
        return Kind.PERMIT
    if options.kind == "read":
        return Kind.READ
    return Kind.WRITE if options.kind == "write" else Kind.LOCK


def check_contradictions(name: str, options: LockOptions) -> None:
    """Raise `ValueError` for options each of which is fine, and which cannot be had together."""
    problem = contradiction(options)
    if problem:
        raise ValueError(
            f"The lock {name!r} has {problem}; change one of them. What its entry or DEFAULTS say, a call undoes by "
            'limit=None, kind="lock", compat=None, max_hold=None, min_hold=0 or linger=0.'
        )
