"""Failures in what Celery's main process calls: as often as the command `fail` says, or the environment."""

import functools
import importlib
import inspect
import os
import pkgutil

from celery.concurrency.base import BasePool
from celery.worker.control import Panel, control_command

from django_zklock.contrib.celery import control, dispatch

FAILING = "FAILING_STEPS"
"""Environment variable: "name" or "name times", which fails from the start of a worker on; empty: none does."""

PROMISES = (
    "loops.run_logged",
    "loops.HubLoop._run",
    *(
        f"dispatcher.Dispatcher.{name}"
        for name in (
            *("__init__", "include_if", "accept", "register_with_event_loop", "stop", "shutdown"),
            *("schedule", "_run_step", "_give_to_pool", "_give_now", "_check", "_on_wakeup"),
        )
    ),
    *("pool_slots.PoolSlots._apply", "pool_slots.PoolSlots._call_and_end"),
    *("waiting_tasks.MessageWaiter.set", "waiting_tasks.MessageWaiter.on_queued", "waiting_tasks.WaitingTask.cancel"),
)
"""The functions that promise to raise nothing into Celery. The functions that they call fail instead."""


def steps():
    return {name: owner for name, owner in _all_steps() if name not in PROMISES}


def _all_steps():
    yield "pool.apply_async", (BasePool, "apply_async")
    names = [module.name for module in pkgutil.iter_modules(dispatch.__path__)]
    modules = [importlib.import_module(f"{dispatch.__name__}.{name}") for name in names]
    for module in (*modules, control):
        short = module.__name__.rpartition(".")[2]
        for name, value in vars(module).items():
            if getattr(value, "__module__", "") != module.__name__:
                continue  # it is imported
            if inspect.isfunction(value):
                yield f"{short}.{name}", (module, name)
            elif inspect.isclass(value) and not getattr(value, "_is_protocol", False):
                for attribute, member in vars(value).items():
                    if value.__name__.endswith("Proxy") and attribute != "hand_over":
                        continue  # it runs in the pool, on a thread of its own
                    if inspect.isfunction(member) or isinstance(member, (property, functools.cached_property)):
                        yield f"{short}.{name}.{attribute}", (value, attribute)


_times = {}


def _may_fail(name, function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        if _times.get(name, 0) > 0:
            _times[name] -= 1
            raise RuntimeError(f"injected into {name}")
        return function(*args, **kwargs)

    return call


def _install():
    for name, (owner, attribute) in steps().items():
        member = vars(owner)[attribute]
        if isinstance(member, property):
            assert member.fget is not None
            setattr(owner, attribute, property(_may_fail(name, member.fget)))
        elif isinstance(member, functools.cached_property):
            member.func = _may_fail(name, member.func)
        else:
            failing = _may_fail(name, member)
            setattr(owner, attribute, failing)
            if inspect.ismodule(owner):
                _replace_everywhere(member, failing)


def _replace_everywhere(function, failing):
    """Replace a function in the modules that have imported it, and in Celery's list of commands."""
    for module in {*(owner for owner, _ in steps().values() if inspect.ismodule(owner)), control}:
        for name, value in list(vars(module).items()):
            if value is function:
                setattr(module, name, failing)
    for name, value in list(Panel.data.items()):
        if value is function:
            Panel.data[name] = failing


@control_command(args=[("name", str), ("times", int)])
def fail(state, name, times):
    left = sum(_times.values())
    _times.clear()
    _times[name] = times
    return left


if FAILING in os.environ:
    name, _, times = os.environ[FAILING].partition(" ")
    _times[name] = int(times or 1)
    _install()
