"""Find what calls a locked function without its lock: a decorator below `@zk_locked` has registered it."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from types import CellType, FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from django_zklock.decorators.locked import LockedFunction

ADVICE: Final = "Put @zk_locked directly above the function, below the decorator that registers it."
_OWN_REFERENCES: Final = 3  # of the lock or a closure, of the wrapper, and of what counts them
_DEPTH: Final = 6  # from a function to an object that belongs to it, such as the closure of an attribute
_locked: weakref.WeakSet[LockedFunction] = weakref.WeakSet()


def remember(locked: LockedFunction) -> None:
    """
    Have `unlocked_callers` look at this function later.

    Raises `TypeError` if a signal has it already: it was just defined, so a decorator below has connected it.
    """
    if not isinstance(locked.function, FunctionType):
        return  # it was made for one call, as `method_decorator` does
    for wrapper in _wrappers(locked):
        if _is_receiver(wrapper.__wrapped__) and not _is_called_by_name(wrapper.__wrapped__):
            raise TypeError(f"A signal has {locked.name} already, and would call it without its @zk_locked. {ADVICE}")
    _locked.add(locked)


def unlocked_callers() -> dict[str, str]:
    """Return the names of the functions that something else calls without their lock, and what that is."""
    callers: dict[str, str] = {}
    for reference in [weakref.ref(locked) for locked in _locked]:  # a list of the locks themselves would be a holder
        locked = reference()
        if locked is None:
            continue
        wrappers = [*_wrappers(locked)]
        for wrapper in wrappers:
            holder = "a signal" if _is_receiver(wrapper.__wrapped__) else ""
            if not holder and sys.getrefcount(wrapper.__wrapped__) > _OWN_REFERENCES:
                holder = _holder_of(wrapper.__wrapped__, wrappers)
            if holder and not _is_called_by_name(wrapper.__wrapped__):
                callers[locked.name] = holder
    return callers


def _wrappers(locked: LockedFunction) -> Iterator[Any]:
    """Yield the wrapper of the lock, and those below it."""
    wrapper: Any = locked.wrapper
    while isinstance(getattr(wrapper, "__wrapped__", None), FunctionType):
        yield wrapper
        wrapper = wrapper.__wrapped__


def _is_receiver(function: Any) -> bool:
    """Return whether a signal has a weak reference to the function, whose end calls a method of the signal."""
    for reference in weakref.getweakrefs(function):
        callback: Any = reference.__callback__
        if isinstance(callback, weakref.finalize):  # as Celery has it, and Django before 6.1
            _, callback, *_ = callback.peek() or (None, None)
        if hasattr(getattr(callback, "__self__", None), "connect"):
            return True
    return False


def _is_called_by_name(function: Any) -> bool:
    """Return whether its module has the function itself: then other code may call it without the lock, on purpose."""
    return function.__globals__.get(function.__name__) is function


def _holder_of(function: Any, wrappers: list[Any]) -> str:
    """
    Describe what else has a function than its wrappers, its locks and running code; empty if nothing has.

    An attribute of one of these functions may have it, too. That only counts if something else has that attribute, as a
    router has an operation.
    """
    attributes = _attributes_of([function, *wrappers])
    known = _locks_of(function) | {id(item) for item in (function, wrappers, *wrappers, *map(vars, wrappers))}
    held: tuple[Any, ...] = (function,)  # no list: Python would copy it to a tuple, which is a holder, too
    while held:
        above: list[Any] = []
        for holder in gc.get_referrers(*held):
            if id(holder) in known or isinstance(holder, FrameType) or holder is held:
                continue
            if _is_namespace(holder):
                if held[0] is function:
                    return ""  # other code may call it by its name, on purpose
            elif id(holder) not in attributes:
                return _name_of(holder if held[0] is function else held[0])
            else:
                known.add(id(holder))
                above.append(holder)
        held = tuple(above)
    return ""


def _locks_of(function: object) -> set[int]:
    """Return the ids of the objects that have a function as its locks and their wrappers."""
    locks = [locked for locked in _locked if locked.function is function]
    return {id(item) for locked in locks for item in (locked, vars(locked), vars(locked.wrapper))}


def _is_namespace(holder: object) -> bool:
    """Return whether this is the dict of a module or a class."""
    return isinstance(holder, dict) and not holder.keys().isdisjoint(("__module__", "__builtins__"))


def _name_of(holder: object) -> str:
    return "another function" if isinstance(holder, CellType) else f"an object of type {type(holder).__name__}"


def _attributes_of(functions: list[Any]) -> set[int]:
    """Return the ids of the objects that these lead to: their attributes, their closures, and what these have."""
    ids: set[int] = set()
    layer = functions
    for _ in range(_DEPTH):
        inner: list[Any] = []
        for item in layer:
            parts = gc.get_referents(item)
            if isinstance(item, FunctionType):  # without its module
                parts = [vars(item), item.__closure__, *(item.__closure__ or ())]
            inner += [part for part in parts if not isinstance(part, (ModuleType, type))]
        ids.update(map(id, inner))
        layer = inner
    return ids
