"""The lock as users see it: `with`, `async with`, and the methods of `threading.RLock`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from django_zklock import conf
from django_zklock.conf.arguments import LockArguments, SideArguments
from django_zklock.conf.options import LockOptions, given_options
from django_zklock.locks import notify
from django_zklock.locks.base import LockBase
from django_zklock.locks.held import HeldLock
from django_zklock.locks.hold import Hold
from django_zklock.locks.spec import LockSpec, check_contradictions, resolve, resolve_options, spec_of_key
from django_zklock.locks.validation import check_arguments
from django_zklock.queue import names

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

MOST_PLANS = 1000  # that are kept for the next lock with the same name and options
_NOTHING: Mapping[str, Any] = MappingProxyType({})  # shared, as there may be thousands of locks without fields


class Lock(LockBase[Hold]):
    """
    A lock that one owner at a time holds, in all processes on all machines that use the same ZooKeeper.

    `name` is an entry of `ZKLOCK["LOCKS"]`, or a path template. `fields` are the values for the fields of the template.
    The owner is the current asyncio task, else greenlet, else thread. Any number of owners may use one object, and two
    objects with the same key are the same lock. Nothing is sent before it is first acquired.

    Use it by `with` or `async with`, or by the methods of `threading.RLock`. The block raises `LockBusy` (for
    `timeout=0`) or `LockTimeout` if it did not get the lock, `ZooKeeperUnavailable` if ZooKeeper does not answer, and
    `LockLost` if the lock was lost while the work ran.

    `django_zklock.conf.arguments.LockArguments` explains the options. Those that are not given come from the lock's
    entry in `ZKLOCK["LOCKS"]`, then from `ZKLOCK["DEFAULTS"]`.
    """

    _is_key = False  # whether the name is a key

    def __init__(self, name: str, *more: NoReturn, **options: Unpack[LockArguments]) -> None:
        check_arguments("zk_lock", name, more, options, LockArguments)
        given = dict(options)
        fields: Any = given.pop("fields", None)
        about: Any = given.pop("about", None)
        what: Any = given.pop("what", "")
        fields, about = dict(fields) if fields else _NOTHING, dict(about) if about else _NOTHING
        self._set(name, given_options(given), fields, what, about)

    @classmethod
    def with_options(
        cls, name: str, options: LockOptions, *, fields: Mapping[str, object], what: str, about: Mapping[str, str]
    ) -> Self:
        """Return a lock with options from `resolve_options`, which are neither checked nor completed again."""
        lock = cls.__new__(cls)
        lock._set(name, options, fields, what, about, complete=True)
        return lock

    @classmethod
    def of_key(cls, key: str, **options: Unpack[LockArguments]) -> Self:
        """
        Return the lock with this key, which a list has shown or another program has sent, and not a name.

        Options that are not given come from the first entry of `ZKLOCK["LOCKS"]` whose path can become this key.
        Raises `InvalidLockName` if it is not the key of a lock of this package.
        """
        names.check_own_key(key := names.show_tails(key))
        given: dict[str, Any] = dict(options)
        what, about = given.pop("what", ""), given.pop("about", None) or _NOTHING
        complete = given_options(given).merged_over(conf.current().options_of_key(key))
        check_contradictions(key, complete)
        lock = cls.__new__(cls)
        lock._set(key, complete, _NOTHING, what, about, complete=True)
        lock._is_key = True
        return lock

    def _set(
        self,
        name: str,
        options: LockOptions,
        fields: Mapping[str, object],
        what: str,
        about: Mapping[str, str],
        *,
        complete: bool = False,
    ) -> None:
        self.name = name
        self._options = options
        self._complete = complete  # with the options of the settings
        self._fields = fields
        self._what = what
        self._about = about
        self._resolved: tuple[conf.Config, tuple[LockSpec, ...]] | None = (
            None  # replaced as a whole; any thread computes the same
        )
        super().__init__()

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
        """The specs of the locks that a call acquires; see `LockBase`."""
        config = conf.current()
        if self._resolved is None or self._resolved[0] is not config:
            self._resolved = config, self._known_specs(config)
        return self._resolved[1]

    def _known_specs(self, config: conf.Config) -> tuple[LockSpec, ...]:
        """Return the spec that another lock with this name and these options has made, if there is one."""
        if self._fields is not _NOTHING or self._about is not _NOTHING or self._what or type(self.name) is not str:
            return self._new_specs(config)
        place = self.name, id(self._options)
        known = config.plans.get(place)
        if known is not None and known[0] is self._options:
            specs: tuple[LockSpec, ...] = known[1]
            return specs
        specs = self._new_specs(config)
        if len(config.plans) >= MOST_PLANS:
            config.plans.clear()
        config.plans[place] = self._options, specs  # with the options, or their id could become that of others
        return specs

    def _new_specs(self, config: conf.Config) -> tuple[LockSpec, ...]:
        options = self._options if self._complete else resolve_options(config, self.name, self._options)
        if self._is_key:
            spec = spec_of_key(config, self.name, options, what=self._what, about=self._about)
        else:
            spec = resolve(config, self.name, self._fields, options, what=self._what, about=self._about)
        return (spec,)

    def _view(self, holds: list[HeldLock]) -> Hold:
        return holds[0]


notify.set_sender(Lock)


def zk_lock(name: str, *more: NoReturn, **options: Unpack[LockArguments]) -> Lock:
    """
    Return the lock of this name, for `with`, `async with`, or its methods.

    `Lock` explains the arguments. Raises `TypeError` and `ValueError` for wrong ones, with what to write instead.
    """
    return Lock(name, *more, **options)


def zk_read(name: str, *more: NoReturn, **options: Unpack[SideArguments]) -> Lock:
    """Return the read side of the read-write lock `name`: any number of readers hold it at a time, or one writer."""
    check_arguments("zk_read", name, more, options, SideArguments)
    return Lock(name, kind="read", **options)


def zk_write(name: str, *more: NoReturn, **options: Unpack[SideArguments]) -> Lock:
    """Return the write side of the read-write lock `name`."""
    check_arguments("zk_write", name, more, options, SideArguments)
    return Lock(name, kind="write", **options)


def zk_semaphore(name: str, limit: int, *more: NoReturn, **options: Unpack[SideArguments]) -> Lock:
    """Return a semaphore that at most `limit` owners hold at a time, in all processes."""
    check_arguments("zk_semaphore", name, more, options, SideArguments)
    return Lock(name, limit=limit, **options)


class ReadWriteLock:
    """
    A lock that any number of readers hold at a time, or one writer.

    Both are first come, first served: a reader that comes after a writer waits for it, so neither side starves. An
    owner may acquire again what it holds, and the writer may read, too. It becomes a reader without a gap by
    `hold.downgrade()`, or by releasing the write side first. A reader that wants to write gets `LockUpgradeRefused`
    at once: two of them would wait for each other. A plain `zk_lock` on the same path keeps both sides out.

    The arguments are those of `Lock`, without `kind` and `limit`; both sides have them.
    """

    def __init__(self, name: str, *more: NoReturn, **options: Unpack[SideArguments]) -> None:
        check_arguments("ReadWriteLock", name, more, options, SideArguments)
        self.name = name
        self._read = zk_read(name, **options)
        self._write = zk_write(name, **options)

    def __repr__(self) -> str:
        return f"<ReadWriteLock {self.name!r}>"

    @property
    def key(self) -> str:
        """The key, with all fields filled in and escaped. Raises `InvalidLockName`."""
        return self._read.key

    def read(self) -> Lock:
        """Return the lock to acquire for reading."""
        return self._read

    def write(self) -> Lock:
        """Return the lock to acquire for writing."""
        return self._write
