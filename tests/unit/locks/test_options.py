"""Each option, in each place that takes options, has an effect, or is refused there."""

import argparse
from typing import get_type_hints

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_zklock import Lock, ReadWriteLock, conf, zk_leader, zk_lock, zk_locked, zk_locks
from django_zklock import zk_read as read
from django_zklock import zk_semaphore as semaphore
from django_zklock import zk_write as write
from django_zklock.conf.arguments import CHECKS, LockArguments, LockedOptions
from django_zklock.decorators.context import FunctionContext
from django_zklock.exceptions import InvalidLockName
from django_zklock.management.zklock import run

zk = zk_lock
REFUSED = (TypeError, ValueError, InvalidLockName, ImproperlyConfigured)
OPTIONS = sorted({**get_type_hints(LockArguments), **get_type_hints(LockedOptions)})
VALUES = (True, False, 7.5, 3, "read", "lost", "commit", "kazoo", "skip", "retry", "raise", "until_done")
NO_CHECK = {"fields": {"pk": 7}, "what": "work", "about": {"a": "b"}}
"""Values of the options that have no check: the settings do not have them."""


def value_of(option):
    """Return a value that the option accepts, and that is not its default."""
    if option in NO_CHECK:
        return NO_CHECK[option]
    defaults = seen(zk_lock("k")) | {"skip_value": None}
    for value in VALUES:
        try:
            checked = CHECKS[option].read(value)
        except (TypeError, ValueError):
            continue
        if checked != defaults.get(option):
            return value
    raise AssertionError(f"add a value of {option} to VALUES")


def seen(lock):
    """Return what the options of a lock, or of several, have come to."""
    values = {"skips": lock._skips}
    for index, spec in enumerate(lock.specs):
        for name in (*type(spec).__dataclass_fields__, "abort_on", "grace"):
            values[f"{index} {name}"] = getattr(spec.policy if name in ("abort_on", "grace") else spec, name)
    return values | {key.removeprefix("0 "): value for key, value in values.items() if key.startswith("0 ")}


class Task(FunctionContext):
    """The context of a call whose function can have each policy, as a task can."""

    policies = ("wait", "retry", "skip", "raise")
    on_conflict = "retry"


async def coroutine(pk=7): ...


def decorated(names, make=lambda pk=7: None, **options):
    """Return the options of one call of a decorated function."""
    locked = zk_locked(names, **options)(make)
    call = locked.zk_locked.context_of((), {}, Task("", {}))
    of_decorator = {name: value for name, value in locked.zk_locked.options.items() if name.startswith(("un", "on_du"))}
    return seen(call.lock) | {"options": dict(call.options)} | of_decorator


def entry(**options):
    return override_settings(ZKLOCK={"URL": "zk://127.0.0.1:1/x", "LOCKS": {"entry": {"path": "k", **options}}})


def defaults(**options):
    return override_settings(ZKLOCK={"URL": "zk://127.0.0.1:1/x", "DEFAULTS": options})


def used(settings, *uses):
    with settings:
        conf.current()
        return [use() for use in uses]


def commanded(**options):
    """Return the lock of `manage.py zklock run`."""

    class Parser(argparse.ArgumentParser):
        def error(self, message):
            raise ValueError(message.replace("-", "_"))

    parser = Parser()
    run.add_arguments(parser)
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    return run._lock(parser.parse_args([*words, "--", "k", "true"]))


WAYS = {
    "a name": lambda **options: seen(zk("k", **options)),
    "a name with a field": lambda **options: seen(zk("k/{pk}", **{"fields": {"pk": 1}, **options})),
    "a key": lambda **options: seen(Lock.of_key("k", **options)),
    "the read side": lambda **options: seen(read("k", **options)),
    "the write side": lambda **options: seen(write("k", **options)),
    "both sides": lambda **options: [seen(side()) for side in sides(**options)],
    "a semaphore": lambda **options: seen(semaphore("k", **{"limit": 2, **options})),
    "a leader": lambda **options: seen(zk_leader("k", **options)),
    "names": lambda **options: seen(zk_locks("k", "l", **options)),
    "names with fields": lambda **options: seen(zk_locks("k", "l/{pk}", **{"fields": {"pk": 1}, **options})),
    "an object of several": lambda **options: seen(zk_locks(zk("k", **options))),
    "an object and a name": lambda **options: seen(zk_locks(zk("k", **options), "l")),
    "several with objects only": lambda **options: seen(zk_locks(zk_lock("k"), read("l"), **options)),
    "several with an object": lambda **options: seen(zk_locks(zk_lock("k"), "l", **options)),
    "one key twice": lambda **options: seen(zk_locks(zk_lock("k"), zk("k", **options))),
    "a decorator": lambda **options: decorated("k", **options),
    "a decorator with names": lambda **options: decorated(["k", "l"], **options),
    "a decorator with keys": lambda **options: decorated(lambda pk=7: ["k", "l"], **options),
    "the command line": lambda **options: seen(commanded(**options)),
    "an entry": lambda **options: used(entry(**options), lambda: seen(zk_lock("entry")), lambda: decorated("entry")),
    "an entry of several": lambda **options: used(entry(**options), lambda: seen(zk_locks("l", "entry"))),
    "an entry of a decorator with names": lambda **options: used(entry(**options), lambda: decorated(["l", "entry"])),
    "an entry of a leader": lambda **options: used(entry(**options), lambda: seen(zk_leader("entry"))),
    "an entry of the read side": lambda **options: used(entry(**options), lambda: seen(read("entry"))),
    "an entry of both sides": lambda **options: used(
        entry(**options), lambda: [seen(getattr(ReadWriteLock("entry"), side)()) for side in ("read", "write")]
    ),
    "an entry of a semaphore": lambda **options: used(entry(**options), lambda: seen(semaphore("entry", limit=2))),
    "a decorator of a coroutine": lambda **options: decorated("k", make=coroutine, **options),
    "all of the read side": lambda **options: used(defaults(**options), lambda: seen(read("k"))),
    "all locks": lambda **options: used(defaults(**options), lambda: seen(zk_lock("k")), lambda: decorated("k")),
    "all of several": lambda **options: used(defaults(**options), lambda: decorated(["k", "l"])),
}
OF_FUNCTIONS = {"on_conflict", "skip_value", "max_conflicts", "on_lost"}
EXCEPT = {
    "an entry of several": OF_FUNCTIONS,
    "an entry of a leader": OF_FUNCTIONS | {"reentrant"},  # the value differs from the default, but a leader has it
    "an entry of the read side": {*OF_FUNCTIONS, "kind"},  # that of the call wins, as each option does
    "an entry of both sides": {*OF_FUNCTIONS, "kind"},
    "an entry of a semaphore": {*OF_FUNCTIONS, "limit"},
    "all of the read side": {*OF_FUNCTIONS, "kind", "limit"},
    "one key twice": {"kind", "limit"},  # the stronger one wins
}
"""The reference says that the settings do not change what a block does."""


def sides(**options):
    both = ReadWriteLock("k", **options)
    return iter((both.read, both.write))


@pytest.fixture(autouse=True)
def _settings():
    with override_settings(ZKLOCK={"URL": "zk://127.0.0.1:1/x"}):
        yield


@pytest.mark.parametrize("way", WAYS)
def test_each_option_has_an_effect_or_is_refused_where_it_is_given(way):
    make = WAYS[way]
    before, ignored = make(), []
    for option in OPTIONS:
        given = {option: value_of(option)}
        if option in ("on_duplicate", "unique_for"):
            given["unique"] = "until_done"
        try:
            has_effect = make(**given) != before
        except REFUSED as refused:
            has_effect = option.removesuffix("s") in str(refused)
        if not has_effect:
            ignored.append(option)
    assert not set(ignored) - EXCEPT.get(way, set())
