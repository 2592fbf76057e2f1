"""
The order of locks in a test run: it tells a deadlock before it happens.

If an owner acquires B while it holds A, and another acquires A while it holds B, each can wait for the other. They need
not meet for this to be known: the two orders are enough. So the kernel of Linux finds deadlocks, too (lockdep).

Each process of the run, also one that a test starts, adds the pairs that it sees to one file. The process that began
the run reads it at the end.
"""

from __future__ import annotations

import inspect
import itertools
import json
import os
import sys
import tempfile
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

from django_zklock.core import hooks
from django_zklock.core.execution.owner import Owner
from django_zklock.core.locks.held import HeldLock, enclosing_holds, held_locks
from django_zklock.core.locks.spec import LockSpec
from django_zklock.core.log import Logger
from django_zklock.core.protocol.grant import Grant
from django_zklock.core.protocol.spec import QueueSpec
from django_zklock.core.queue.nodes import Kind
from django_zklock.names.binding import partial_below
from django_zklock.names.template import shape
from django_zklock.testing.awaits import waits_for

if TYPE_CHECKING:
    from django_zklock.core.locks.refusals import AnyContender  # it imports kazoo

# A handler of logging may fail, or acquire a lock itself. That must not happen inside the acquisition of the caller.
logger = Logger("django_zklock.locks", always=True)

FILE: Final = "ZKLOCK_LOCK_ORDER"
"""The environment variable with the path of the file. Without it, nothing is seen."""
MOST_CALLERS: Final = 3
MOST_PAIRS: Final = 1000
"""Most pairs of templates that a process writes. Names that are no templates, one for each row, are many."""


# --- the rule -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Edge:
    """A lock was acquired inside another one."""

    outer: str
    inner: str
    """The templates of the two."""
    location: str
    """Where the inner one was acquired: a file and a line."""
    sorted: bool = False
    """Whether one `zk_locks` acquired both. It sorts them by key, so two of these never wait for each other."""
    callers: tuple[str, ...] = ()
    """The lines of the project that led there, the innermost first. A function of the project may acquire all locks."""

    @property
    def shapes(self) -> tuple[str, str]:
        """The shapes of the two templates."""
        return shape(self.outer), shape(self.inner)

    def place(self, callers: int) -> str:
        """Return the location, with so many of its callers."""
        lines = ", ".join(self.callers[:callers])
        return f"{self.location} (called at {lines})" if lines else self.location


Circle = tuple[Edge, ...]
"""The last edge has closed it. The others are older, and lead from its `inner` to its `outer`."""


def circles(edges: Iterable[Edge]) -> list[Circle]:
    """Return the circles among these edges: of each edge the shortest that it closes with those before it, once."""
    older: dict[str, dict[str, Edge]] = {}  # by the shapes of the outer and the inner template
    closed: dict[frozenset[tuple[str, str]], Circle] = {}
    for edge in edges:
        outer, inner = edge.shapes
        same = older.get(outer, {}).get(inner)
        if same is not None and (edge.sorted or not same.sorted):
            continue
        older.setdefault(outer, {})[inner] = edge
        circle = _closed_by(edge, older)
        if circle is not None:
            closed.setdefault(frozenset(edge.shapes for edge in circle), circle)
    return list(closed.values())


def _closed_by(last: Edge, older: Mapping[str, Mapping[str, Edge]]) -> Circle | None:
    """Return the shortest way back from the inner template to the outer one, and this edge."""
    outer, inner = last.shapes
    if outer == inner:
        return None if last.sorted else (last,)
    ways: deque[Circle] = deque(((last,),))
    seen = set()
    while ways:
        way = ways.popleft()
        for inner, edge in older.get(shape(way[-1].inner), {}).items():
            longer = (*way, edge)
            all_sorted = all(edge.sorted for edge in longer)
            if inner == outer and not all_sorted:
                return (*longer[1:], last)
            if (inner, all_sorted) not in seen:
                seen.add((inner, all_sorted))
                ways.append(longer)
    return None


def advice(circle: Circle) -> str:
    """Return what is wrong, where, and what to do."""
    last = circle[-1]
    if not circle[1:]:
        return (
            f"A lock of {last.inner!r} is acquired inside another one of {last.outer!r}, at {last.place(1)}. Two "
            "callers with the same keys in another order would wait for each other. Acquire them together, by "
            "zk_locks(...)."
        )
    names = " before ".join(map(repr, (circle[0].outer, *(edge.inner for edge in circle[:-1]))))
    callers = 0
    while callers < MOST_CALLERS and last.place(callers) in [edge.place(callers) for edge in circle[:-1]]:
        callers += 1
    older = list(dict.fromkeys(edge.place(callers) for edge in circle[:-1]))
    do = "do" if older[1:] else "does"
    return (
        f"Two callers can wait for each other. Always lock {names}: {' and '.join(older)} {do}, {last.place(callers)} "
        "does not. Or acquire them together, by zk_locks(...)."
    )


# --- what a process sees ------------------------------------------------------------------------------------------


class Watcher(hooks.AcquisitionWatcher):
    """Adds each new pair of locks to the file of the run, if there is one."""

    def __init__(self) -> None:
        self._written: set[tuple[str, str, bool]] = set()  # two shapes, and whether sorted. Any thread adds to it.

    def asks(self, contender: AnyContender, owner: Owner, specs: tuple[LockSpec, ...]) -> None:
        """
        See that an owner wants a lock, and would wait for it.

        Other locks of the owner are those of its open blocks, and of the transactions that keep one. What another
        thread may release does not count.
        """
        for first, second in itertools.pairwise(specs):
            both_read = first.kind is second.kind is Kind.READ
            if not both_read and self._is_new(first, second, is_sorted=True):
                self._write(contender, first, second, is_sorted=True)
        holds = _in_blocks()
        if owner.kind not in ("task", "message") and hooks.scope.is_open():
            holds += [held for held in held_locks.all() if held.observer is not None]
        for held in holds:
            if held.owner == owner and self._is_new_inside(held, contender.spec):
                self._write(contender, held.grant, contender.spec, by_transaction=not held.uses)

    def answered(self, contender: AnyContender, owner: Owner) -> None:
        """
        See the locks of other owners that wait for this one, as a coroutine waits for a thread or `asyncio.gather`.

        When the caller begins to wait, the coroutine that has sent it to its thread may not wait for it yet.
        """
        for held in _in_blocks():
            if held.owner != owner and self._is_new_inside(held, contender.spec) and waits_for(held.owner, owner):
                self._write(contender, held.grant, contender.spec)

    def _is_new_inside(self, held: HeldLock, spec: QueueSpec) -> bool:
        """Return whether the lock has an order inside this hold, which was not seen."""
        both_read = held.grant.kind is spec.kind is Kind.READ
        # A forked child does not hold the locks of its parent.
        if held.is_dropped or held.grant.inherited or held.key == spec.key or both_read:
            return False
        return self._is_new(held.grant, spec)

    def _is_new(self, outer: QueueSpec | Grant, inner: QueueSpec, *, is_sorted: bool = False) -> bool:
        """Return whether this order was not seen, and is not meant. One that is meant is never known."""
        from django_zklock import conf  # noqa: PLC0415 - not imported in runs that acquire no lock inside another

        pair = shape(_template(outer)), shape(_template(inner))
        if FILE not in os.environ or (*pair, is_sorted) in self._written or len(self._written) >= MOST_PAIRS:
            return False
        return pair not in [(shape(first), shape(second)) for first, second in conf.current().lock_order]

    def _write(
        self,
        contender: AnyContender,
        outer: QueueSpec | Grant,
        inner: QueueSpec,
        *,
        is_sorted: bool = False,
        by_transaction: bool = False,
    ) -> None:
        """Add a new pair to the file. `by_transaction`: the block of the outer lock is over, perhaps elsewhere."""
        location, *callers = _lines() or [str(contender.caller.what)]
        if by_transaction:
            location += f" (its transaction keeps {_template(outer)!r})"
        edge = Edge(_template(outer), _template(inner), location, is_sorted, tuple(callers[:MOST_CALLERS]))
        self._written.add((*edge.shapes, is_sorted))
        path = os.environ.get(FILE, "")
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(edge)) + "\n")
        except OSError as error:
            logger.warning("the order of locks is not in the file %r: %s", path, error)


_watcher: Final = Watcher()


def watch() -> None:
    """See the order of locks in this process, while the environment names a file."""
    if _watcher not in hooks.watchers:
        hooks.watchers.append(_watcher)


def _in_blocks() -> list[HeldLock]:
    """Return the holds of the open blocks around the caller, the innermost first."""
    holds = []
    enclosing = enclosing_holds.get()
    while enclosing is not None:
        reference, enclosing = enclosing
        held = reference()
        if held is not None:
            holds.append(held)
    return holds


def _template(lock: QueueSpec | Grant) -> str:
    return lock.template or lock.key


def _lines() -> list[str]:
    """Return the lines of the project that led here, the innermost first. Of `@zk_locked`, it is the function's."""
    lines = []
    for frame, number in traceback.walk_stack(sys._getframe(1)):
        module = str(frame.f_globals.get("__name__"))  # `exec` accepts anything
        if not module.startswith("django_zklock."):
            lines.append(_line(frame.f_code, number))
        elif module == "django_zklock.decorators.locked":
            lines.append(_definition(frame.f_locals["locked"].function))
    in_project = [line for line in lines if line and not os.path.isabs(line) and "site-packages" not in line]
    return list(dict.fromkeys(in_project))


def _definition(function: Any) -> str:
    """Return where a locked function is defined: a file and a line; of a method of another module, its class."""
    unwrapped = inspect.unwrap(function)
    method = getattr(partial_below(function), "func", None)
    cls = type(getattr(method, "__self__", None))
    if method is not None and unwrapped.__module__ != cls.__module__:
        return f"{cls.__module__}.{cls.__qualname__}"
    code = getattr(unwrapped, "__code__", None)
    return "" if code is None else _line(code, code.co_firstlineno)


def _line(code: CodeType, number: int) -> str:
    """Return the file of this code, from the current folder if it is below that, and the number of the line."""
    path = code.co_filename
    with suppress(OSError):  # the current folder was deleted
        path = path.removeprefix(os.getcwd() + os.sep)
    return f"{path}:{number}"


# --- the run ------------------------------------------------------------------------------------------------------


class OrderOfRun:
    """The file of one run. Its path is in the environment, for all processes that are started."""

    def __init__(self) -> None:
        self._around = os.environ.get(FILE)  # of a run that runs this one, as pytest's `pytester` does
        handle, self._path = tempfile.mkstemp(prefix="zklock-order-")
        os.close(handle)
        os.environ[FILE] = self._path

    def inversions(self) -> list[str]:
        """Return what is wrong with the order of the locks in this run, in sentences."""
        try:
            with open(self._path, encoding="utf-8") as file:
                return [advice(circle) for circle in circles(map(read_edge, file))]
        except (OSError, ValueError) as error:  # a test has deleted it, or a process has written half a line
            logger.warning("the order of locks in this run is not known: %s", error)
            return []

    def fails_run(self) -> bool:
        """Return whether an inversion fails the run: the project has `STRICT`."""
        from django_zklock import conf  # noqa: PLC0415 - not imported in runs without an inversion

        settings = conf.setting("ZKLOCK") if conf.are_settings_known() else None
        return isinstance(settings, Mapping) and settings.get("STRICT") is True

    def stop(self) -> None:
        """Remove the file."""
        os.environ.pop(FILE, None)
        if self._around is not None:
            os.environ[FILE] = self._around
        with suppress(OSError):  # a test has deleted it
            os.unlink(self._path)


def read_edge(line: str) -> Edge:
    """Return the edge of one line of the file. Raises `ValueError`."""
    fields = json.loads(line)
    return Edge(**{**fields, "callers": tuple(fields["callers"])})


@contextmanager
def meant() -> Iterator[None]:
    """Do not look at the order of locks inside this block, nor in processes that it starts."""
    path = os.environ.pop(FILE, None)
    try:
        yield
    finally:
        if path is not None:
            os.environ[FILE] = path
