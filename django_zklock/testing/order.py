"""
The order of locks in a test run: it tells a deadlock before it happens.

If an owner acquires B while it holds A, and another acquires A while it holds B, each can wait for the other. They need
not meet for this to be known: the two orders are enough. So the kernel of Linux finds deadlocks, too (lockdep).

Each process of the run, also one that a test starts, adds the pairs that it sees to one file. The process that began
the run reads it at the end.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import traceback
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from django_zklock.core import hooks
from django_zklock.core.execution.owner import Owner
from django_zklock.core.locks.held import HeldLock, enclosing_holds, held_locks
from django_zklock.core.locks.spec import LockSpec
from django_zklock.core.log import Logger
from django_zklock.core.protocol.grant import Grant
from django_zklock.core.queue.nodes import Kind
from django_zklock.names.template import shape

# A handler of logging may fail, or acquire a lock itself. That must not happen inside the acquisition of the caller.
logger = Logger("django_zklock.locks", always=True)

FILE: Final = "ZKLOCK_LOCK_ORDER"
"""The environment variable with the path of the file. Without it, nothing is seen."""
MOST_LINES: Final = 20


# --- the rule -----------------------------------------------------------------------------------------------------


class Edge(NamedTuple):
    """A lock was acquired inside another one."""

    outer: str
    inner: str
    """The templates of the two."""
    lines: Sequence[str]
    """The lines of the project where the inner one was acquired, the innermost first."""
    gates: Sequence[str] = ()
    """The keys of other exclusive locks that the owner held, each time. Under one, two owners never meet."""
    is_sorted: bool = False
    """Whether one `zk_locks` acquired both. It sorts them by key, so two of these never wait for each other."""

    @property
    def pair(self) -> tuple[str, str]:
        """The shapes of the two templates."""
        return shape(self.outer), shape(self.inner)


class Edges:
    """One edge for each pair of templates, and another one if `zk_locks` acquired both."""

    def __init__(self) -> None:
        self._edges: dict[tuple[str, str, bool], Edge] = {}  # any thread adds to it, by one operation

    def add(self, edge: Edge) -> bool:
        """Add an edge. Return whether it says more than those before: a new pair, or one without a gate."""
        key = *edge.pair, edge.is_sorted
        known = self._edges.get(key)
        if known is not None and set(known.gates) <= set(edge.gates):
            return False
        gates = edge.gates if known is None else [gate for gate in known.gates if gate in edge.gates]
        self._edges[key] = edge._replace(gates=gates)
        return True

    def circles(self) -> list[Circle]:
        """Return the circles: of each edge the shortest, once. An edge of `zk_locks` alone has none."""
        inside = defaultdict(list)  # by the shape of the outer template
        for edge in self._edges.values():
            inside[edge.pair[0]].append(edge)
        circles: dict[frozenset[tuple[str, str]], Circle] = {}
        for edge in reversed(self._edges.values()):
            circle = None if edge.is_sorted else _circle_of(edge, inside)
            if circle is not None:
                circles.setdefault(frozenset(edge.pair for edge in circle), circle)
        return list(circles.values())


Circle = tuple[Edge, ...]
"""The first edge is the newest one of those that `zk_locks` has not sorted. The others lead back to its outer lock."""


def _circle_of(first: Edge, inside: Mapping[str, list[Edge]]) -> Circle | None:
    """Return the shortest circle of this edge, in which no two edges share a gate."""
    if first.pair[0] == first.pair[1]:
        return None if first.gates else (first,)
    ways: deque[Circle] = deque([(first,)])
    seen = set()
    while ways:
        way = ways.popleft()
        gates = {gate for edge in way for gate in edge.gates}
        for edge in inside.get(way[-1].pair[1], ()):
            longer = (*way, edge)
            state = edge.pair[1], frozenset(gates.union(edge.gates))
            if state in seen or not gates.isdisjoint(edge.gates):
                continue
            if edge.pair[1] == first.pair[0]:
                return longer
            seen.add(state)
            ways.append(longer)
    return None


def advice(circle: Circle) -> str:
    """Return what is wrong, where, and what to do."""
    last, *older = circle
    location = _location(last, circle)
    others = list(dict.fromkeys(_location(edge, circle) for edge in older))
    if not older:
        return (
            f"A lock of {last.inner!r} is acquired inside another one of {last.outer!r}, at {location}. Two callers "
            "with the same keys in another order would wait for each other. Acquire them together, by zk_locks(...). "
            "If all callers have the same order, name the pair in LOCK_ORDER."
        )
    names = " before ".join(map(repr, (older[0].outer, *(edge.inner for edge in older))))
    if location in others:
        where = f"{location} has both orders"
    else:
        where = f"{' and '.join(others)} {'do' if others[1:] else 'does'}, {location} does not"
    return (
        f"Two callers can wait for each other. Always lock {names}: {where}. Or acquire them together, by "
        "zk_locks(...)."
    )


def _location(edge: Edge, circle: Circle) -> str:
    """Return the line of an edge, and its first caller that is not one of another edge with the same line."""
    line, *callers = edge.lines
    same = [other for other in circle if other.lines[0] == line and other.lines != edge.lines]
    common = {caller for other in same for caller in other.lines}
    own = [caller for caller in callers if caller not in common]
    return f"{line} (called at {own[0]})" if own and (same or not circle[1:]) else line


# --- what a process sees ------------------------------------------------------------------------------------------


class _OfTestCase(threading.local):
    """The locks that the transaction of the code would keep if it were not inside that of a `TestCase`."""

    savepoint: object = None  # which stands for that transaction
    specs: tuple[LockSpec, ...] = ()


class Watcher:
    """Adds each new pair of locks to the file of the run, if there is one."""

    def __init__(self) -> None:
        self._edges = Edges()
        self._of_test_case = _OfTestCase()

    def asks(self, inner: LockSpec, specs: tuple[LockSpec, ...], owner: Owner) -> None:
        """See that an owner asks for a lock, one of `specs`, and would wait for it."""
        if FILE not in os.environ or inner.max_waiters == 0:
            return
        around: list[LockSpec | Grant] = [*_around(owner), *self._kept_in_test_case(owner, inner)]
        held = [*around, *_gates(owner)]
        exclusive = {lock.key for lock in held if lock.kind in (Kind.LOCK, Kind.WRITE)}
        for outer in around:
            self._add(outer, inner, exclusive)
        index = specs.index(inner)
        if index:
            self._add(specs[index - 1], inner, exclusive, is_sorted=True)

    def _kept_in_test_case(self, owner: Owner, spec: LockSpec) -> tuple[LockSpec, ...]:
        """Return the other locks that the transaction of the code would keep, and remember this one."""
        from django_zklock.locks.transactions import savepoint_in_test_case  # noqa: PLC0415 - imports Django

        if owner.kind not in ("thread", "greenlet"):
            return ()  # it has no transactions
        kept = self._of_test_case
        savepoint = savepoint_in_test_case()
        if savepoint != kept.savepoint:
            kept.savepoint, kept.specs = savepoint, ()
        before = kept.specs
        if savepoint is not None and spec.release_on == "commit":
            kept.specs = (*before, spec)
        return before

    def _add(self, outer: LockSpec | Grant, inner: LockSpec, exclusive: set[str], *, is_sorted: bool = False) -> None:
        """Add the pair of two locks to the file, unless it is known or meant."""
        from django_zklock import conf  # noqa: PLC0415 - not imported in runs that acquire no lock inside another

        if outer.key == inner.key or outer.kind is inner.kind is Kind.READ:
            return
        config = conf.current()
        edge = Edge(
            outer=config.path_of(outer.template or outer.key, outer.key),
            inner=config.path_of(inner.template or inner.key, inner.key),
            lines=_lines(inner.what),
            gates=tuple(exclusive - {outer.key}),
            is_sorted=is_sorted,
        )
        meant = [tuple(shape(config.path_of(name)) for name in pair) for pair in config.lock_order]
        if edge.pair in meant or not self._edges.add(edge):
            return
        path = os.environ[FILE]
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(edge) + "\n")
        except OSError as error:
            logger.warning("the order of locks is not in the file %r: %s", path, error)


_watcher: Final = Watcher()


def watch() -> None:
    """See the order of locks in this process, while the environment names a file."""
    if _watcher.asks not in hooks.watchers:
        hooks.watchers.append(_watcher.asks)


def _enclosing() -> Iterator[HeldLock]:
    """Yield the locks of the open blocks around the caller, also of other owners that it works for."""
    enclosing = enclosing_holds.get()
    while enclosing is not None:
        reference, enclosing = enclosing
        held = reference()
        if held is not None and held.uses and not held.grant.inherited:  # a forked child does not hold its parent's
            yield held


def _around(owner: Owner) -> Iterator[Grant]:
    """
    Yield the locks of the open blocks that wait for the caller, and those that its transactions keep.

    A coroutine waits for its threads, and a thread for its coroutines. It may not wait for another task. A hold of
    `acquire` is around nothing, as any thread may release it.
    """
    for held in _enclosing():
        if held.owner == owner or {held.owner.kind, owner.kind} == {"task", "thread"}:
            yield held.grant
    for held in held_locks.all():
        if held.owner == owner and held.observer is not None and not held.uses:
            yield held.grant


def _gates(owner: Owner) -> list[Grant]:
    """Return all locks that are held while the caller works."""
    own = [held for held in held_locks.all() if held.owner == owner and not held.lost]
    return [held.grant for held in (*_enclosing(), *own)]


def _lines(what: str) -> list[str]:
    """Return the lines of the project that led here, the innermost first, with the work that the lock is for."""
    folder = ""
    with suppress(OSError):  # it was deleted
        folder = os.getcwd() + os.sep
    lines = []
    for frame, number in traceback.walk_stack(sys._getframe(1)):
        if not str(frame.f_globals.get("__name__")).startswith("django_zklock."):  # `exec` accepts anything
            lines.append(f"{frame.f_code.co_filename.removeprefix(folder)}:{number}")
    in_project = [line for line in lines if not os.path.isabs(line) and "site-packages" not in line]
    shown = list(dict.fromkeys(in_project))[:MOST_LINES] or lines[:1]
    return [f"{what} at {shown[0]}", *shown[1:]] if what else shown


# --- the run ------------------------------------------------------------------------------------------------------


class OrderOfRun:
    """The file of one run. Its path is in the environment, for all processes that are started."""

    def __init__(self) -> None:
        self._around = os.environ.get(FILE)  # of a run that runs this one, as pytest's `pytester` does
        handle, self._path = tempfile.mkstemp(prefix="zklock-order-")
        os.close(handle)
        os.environ[FILE] = self._path

    def report(self) -> str:
        """Return what is wrong with the order of the locks in this run; empty if nothing is."""
        edges = Edges()
        try:
            with open(self._path, encoding="utf-8") as file:
                for line in file:
                    edges.add(Edge(*json.loads(line)))
        except (OSError, ValueError) as error:  # a test has deleted it, or a process has written half a line
            logger.warning("the order of locks in this run is not known: %s", error)
            return ""
        lines = [advice(circle) for circle in edges.circles()]
        if lines and self.is_strict:
            lines.append('The run fails, because ZKLOCK["STRICT"] is True.')
        return "\n".join(lines)

    @property
    def is_strict(self) -> bool:
        """Whether an inversion fails the run."""
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


@contextmanager
def meant() -> Iterator[None]:
    """Do not look at the order of locks inside this block, nor in processes that it starts."""
    path = os.environ.pop(FILE, None)
    try:
        yield
    finally:
        if path is not None:
            os.environ[FILE] = path
