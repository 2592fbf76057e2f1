"""The lock as users see it: `with`, `async with`, and the methods of `threading.RLock`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, Unpack

from django_zklock import conf
from django_zklock.conf import Config
from django_zklock.conf.arguments import LockArguments, SideArguments
from django_zklock.conf.options import LockOptions, contradiction, given_options
from django_zklock.conf.spelling import check_spelling
from django_zklock.core import hooks
from django_zklock.core.locks.acquisition import Acquisition
from django_zklock.core.locks.spec import NOTHING, LockSpec, Policy
from django_zklock.core.queue.escaping import path
from django_zklock.core.queue.nodes import Kind
from django_zklock.locks.arguments import check_options, skips
from django_zklock.locks.base import BlockPolicy, GivenPolicy, LockBase
from django_zklock.locks.events import events
from django_zklock.locks.hold import Hold
from django_zklock.locks.transactions import DatabaseScope, check_aliases
from django_zklock.names.template import Template, check_own_key, check_type, check_used, show_tails

if TYPE_CHECKING:
    from typing import Self

_Resolve: TypeAlias = Callable[[conf.Config], LockSpec]
_Work: TypeAlias = "tuple[str, Mapping[str, str]]"  # the arguments what and about

ARGUMENTS: Final = ("on_conflict", *LockArguments.__annotations__)
"""The options of a lock."""


class Lock(LockBase[Hold, BlockPolicy]):
    """
    A lock that one owner at a time holds, in all processes on all machines that use the same ZooKeeper.

    `name` is an entry of `ZKLOCK["LOCKS"]`, or a path template. `fields` are the values for the fields of the template.
    The owner is the current asyncio task, else greenlet, else thread. Any number of owners may use one object, and two
    objects with the same key are the same lock. Nothing is sent before it is first acquired.

    Use it by `with` or `async with`, or by the methods of `threading.RLock`. The block raises `LockBusy` (for
    `timeout=0`) or `LockTimeout` if it did not get the lock, `ZooKeeperUnavailable` if ZooKeeper does not answer, and
    `LockLost` if the lock was lost while the work ran.

    With `on_conflict="skip"`, the body runs without a lock that is not acquired in time, and gets None instead of a
    hold. It begins with `if not hold: return`. The settings do not change what a block does.

    `django_zklock.conf.arguments.LockArguments` explains the other options. Those that are not given come from the
    lock's entry in `ZKLOCK["LOCKS"]`, then from `ZKLOCK["DEFAULTS"]`.
    """

    def __init__(
        self,
        name: str,
        *,
        on_conflict: BlockPolicy = "raise",  # type: ignore[assignment]
        **given: Unpack[LockArguments],
    ) -> None:
        options: Any = given
        check_options("zk_lock", options, ARGUMENTS)
        check_type(name)
        super().__init__()
        self._skips = skips(on_conflict)
        fields, what, about = options.pop("fields", None), options.pop("what", ""), options.pop("about", None)
        self.name = name
        self.fields: Mapping[str, object] = dict(fields) if fields else NOTHING
        """Values that were given for fields. Each must have its field. For this package only."""
        self._work: _Work = what, dict(about) if about else NOTHING
        self._given = given_options(options)
        # Completes the options by the settings. For this package only.
        self.resolve: _Resolve = partial(spec_of_name, name, self._given, self.fields, self._work)
        # Written without a lock, as any thread computes the same value.
        self._resolved: tuple[conf.Config, tuple[LockSpec, ...]] | None = None

    @classmethod
    def with_options(
        cls, name: str, options: LockOptions, *, fields: Mapping[str, object], what: str, about: Mapping[str, str]
    ) -> Self:
        """Return a lock with options from `resolve_options`, which are neither checked nor completed again."""
        lock = cls(name)
        lock.resolve = partial(resolve, name, options, fields, (what, about))
        return lock

    @classmethod
    def of_key(cls, key: str, **options: Unpack[LockArguments]) -> Self:
        """
        Return the lock with this key. It is for a key from a list or from another program; code uses names.

        Options that are not given come from the first entry of `ZKLOCK["LOCKS"]` whose path can become this key.
        Raises `InvalidLockName` if it is not the key of a lock of this package.
        """
        check_own_key(key := show_tails(key))
        lock = cls(key, **options)
        check_used(lock.fields, key, ())
        complete = conf.current().options_of_key(key, lock._given)
        check_contradictions(key, complete)
        lock.resolve = partial(spec_of_key, key, complete, lock._work)
        return lock

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    @property
    def key(self) -> str:
        """The key, with all fields filled in and escaped. Raises `InvalidLockName`."""
        return self.spec.key

    @property
    def spec(self) -> LockSpec:
        """The options of this lock, with the settings and all defaults applied. Raises `InvalidLockName`."""
        return self.specs[0]

    @property
    def specs(self) -> tuple[LockSpec, ...]:
        """The spec, as a tuple; see `LockBase`."""
        config = conf.current()
        if self._resolved is None or self._resolved[0] is not config:
            spec = self.resolve(config)
            if self.fields:
                check_used(self.fields, self.name, (spec.template,))
            self._resolved = config, (replace(spec, lasts=self._lasts) if self._lasts else spec,)
        return self._resolved[1]

    def _view(self, acquisition: Acquisition) -> Hold:
        (spec,) = acquisition.specs
        return Hold(acquisition.holds[0], acquisition.use, None if spec.atomic else spec.release_on)


def zk_lock(
    name: str,
    *,
    on_conflict: GivenPolicy = "raise",  # type: ignore[assignment]
    **options: Unpack[LockArguments],
) -> Lock[GivenPolicy]:
    """
    Return the lock of this name, for `with`, `async with`, or its methods.

    `Lock` explains the arguments. Wrong ones raise `TypeError` or `ValueError`, which say what to write instead.
    """
    return Lock(name, on_conflict=on_conflict, **options)


def zk_read(
    name: str,
    *,
    on_conflict: GivenPolicy = "raise",  # type: ignore[assignment]
    **options: Unpack[SideArguments],
) -> Lock[GivenPolicy]:
    """
    Return the read side of the read-write lock `name`: any number of readers hold it at a time, or one writer.

    The options of `zk_read`, `zk_write` and `zk_semaphore` are those of `zk_lock`, without `kind` and `limit`.
    """
    return Lock(name, kind="read", on_conflict=on_conflict, **options)


def zk_write(
    name: str,
    *,
    on_conflict: GivenPolicy = "raise",  # type: ignore[assignment]
    **options: Unpack[SideArguments],
) -> Lock[GivenPolicy]:
    """Return the write side of the read-write lock `name`; see `zk_read`."""
    return Lock(name, kind="write", on_conflict=on_conflict, **options)


def zk_semaphore(
    name: str,
    limit: int,
    *,
    on_conflict: GivenPolicy = "raise",  # type: ignore[assignment]
    **options: Unpack[SideArguments],
) -> Lock[GivenPolicy]:
    """Return a semaphore that at most `limit` owners hold at a time, in all processes; see `zk_read`."""
    return Lock(name, limit=limit, on_conflict=on_conflict, **options)


class ReadWriteLock(Generic[BlockPolicy]):
    """
    A lock that any number of readers hold at a time, or one writer.

    Readers and writers are served in the order in which they come: a reader waits for a writer that came before it. So
    neither side starves. An owner may acquire again what it holds, and the writer may read, too: then the write lock
    lasts until both have ended. A reader that wants to write gets `LockUpgradeRefused` at once: two of them would wait
    for each other. A `zk_lock` on the same path excludes both.

    The arguments are those of `Lock`, without `kind` and `limit`; both sides have them.
    """

    def __init__(
        self,
        name: str,
        *,
        on_conflict: BlockPolicy = "raise",  # type: ignore[assignment]
        **options: Unpack[SideArguments],
    ) -> None:
        self.name = name
        self._read = zk_read(name, on_conflict=on_conflict, **options)
        self._write = zk_write(name, on_conflict=on_conflict, **options)

    def __repr__(self) -> str:
        return f"<ReadWriteLock {self.name!r}>"

    @property
    def key(self) -> str:
        """The key, with all fields filled in and escaped. Raises `InvalidLockName`."""
        return self._read.key

    def read(self) -> Lock[BlockPolicy]:
        """Return the lock to acquire for reading."""
        return self._read

    def write(self) -> Lock[BlockPolicy]:
        """Return the lock to acquire for writing."""
        return self._write


# --- from options to a spec ---------------------------------------------------------------------------------------

MOST_SPECS: Final = 1000  # in the cache, for the next lock with the same name and options


def template_of(config: Config, name: str) -> Template:
    """Return the template of the lock `name`, for code that acquires nothing. Raises `InvalidLockName`."""
    return Template.parse(resolve_options(config, name, {}).get("path", name))


def resolve_options(config: Config, name: str, given: LockOptions) -> LockOptions:
    """Return the options of the lock `name`: those `given`, completed by the settings. All are checked."""
    check_type(name)
    check_spelling(config, name)
    options = config.options_for(name, given)
    check_contradictions(name, options)
    return options


def spec_of_name(
    name: str, options: LockOptions, fields: Mapping[str, object], work: _Work, config: Config
) -> LockSpec:
    """Return the spec of the lock `name`, with the options that a call gave. Raises `InvalidLockName`."""
    if fields or any(work) or type(name) is not str:
        return resolve(name, resolve_options(config, name, options), fields, work, config)
    cache_key = name, id(options)
    cached = config.specs.get(cache_key)
    if cached is None:
        if len(config.specs) >= MOST_SPECS:
            config.specs.clear()
        spec = resolve(name, resolve_options(config, name, options), fields, work, config)
        cached = config.specs[cache_key] = options, spec  # keeps the options, so no others get their id
    result: LockSpec = cached[1]
    return result


def resolve(name: str, options: LockOptions, fields: Mapping[str, object], work: _Work, config: Config) -> LockSpec:
    """Return the spec of the lock `name`, with options from `resolve_options`. Raises `InvalidLockName`."""
    template = Template.parse(options.get("path", name))
    return spec_of_key(template.render(fields), options, work, config, template=template.text)


def spec_of_key(key: str, options: LockOptions, work: _Work, config: Config, template: str = "") -> LockSpec:
    """Return the spec of the lock with this key, with options from `resolve_options`."""
    check_aliases(options.get("atomic", ()))
    return LockSpec(
        key=key,
        template=template,
        parent=path(config.base, key),
        kind=kind_of(options),
        policy=Policy(**{name: options[name] for name in _POLICY & options.keys()}),
        has_timeout="timeout" in options,
        what=work[0],
        about=work[1],
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


# --- the core, which hears of nothing and knows no transaction until now ------------------------------------------

events.sender = Lock
hooks.connect(events, DatabaseScope())
