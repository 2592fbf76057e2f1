"""
The order in which owners acquire locks, from template to template: it tells a deadlock before it happens.

If an owner acquires B while it holds A, and another acquires A while it holds B, each can wait for the other. They need
not meet for this to be known: the two orders are enough. So the kernel of Linux finds deadlocks, too (lockdep).

What a process has seen stays in its memory. Tests collect it in a file; see `django_zklock.testing.order`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final

from django_zklock.core import hooks
from django_zklock.core.execution.owner import Owner
from django_zklock.core.locks.held import HeldLock, enclosing_holds, held_locks
from django_zklock.core.locks.spec import LockSpec
from django_zklock.core.log import Logger
from django_zklock.core.protocol.grant import Grant
from django_zklock.core.protocol.spec import QueueSpec
from django_zklock.core.queue.nodes import Kind

if TYPE_CHECKING:
    from django_zklock.core.locks.refusals import AnyContender  # it imports kazoo

# A handler of logging may fail, or acquire a lock itself. That must not happen inside the acquisition of the caller.
logger = Logger("django_zklock.locks", always=True)

FILE: Final = "ZKLOCK_LOCK_ORDER"
"""The environment variable with the path of a file, to which each process adds what it sees. Tests set it."""
MOST_EDGES: Final = 1000
"""Most pairs of templates that a process remembers. Names that are no templates, one for each row, are many."""


_FIELD: Final = re.compile(r"(?<!\{)\{[^{}:]+")


@functools.lru_cache(maxsize=MOST_EDGES)
def shape(template: str) -> str:
    """Return a template without the names of its fields: `orders/{order}` and `orders/{pk}` have the same keys."""
    return _FIELD.sub("{", template)


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

    @property
    def shapes(self) -> tuple[str, str]:
        """The shapes of the two templates."""
        return shape(self.outer), shape(self.inner)


Circle = tuple[Edge, ...]
"""The last edge has closed it. The others are older, and lead from its `inner` to its `outer`."""


class LockOrder:
    """The edges that were seen, and the circles among them. Any thread adds to it, by single operations."""

    def __init__(self) -> None:
        self.edges: dict[tuple[str, str], Edge] = {}  # by the shapes of the outer and the inner one; the oldest first
        self._inside: dict[str, dict[str, Edge]] = {}  # the same, by one shape and the other
        self._reported: dict[frozenset[tuple[str, str]], object] = {}

    def knows(self, outer: str, inner: str, *, sorted: bool = False) -> bool:
        """Return whether there is nothing new about this pair. It is cheap."""
        edge = self.edges.get((shape(outer), shape(inner)))
        if edge is None:
            return len(self.edges) >= MOST_EDGES
        return sorted or not edge.sorted

    def add(self, edge: Edge) -> Circle | None:
        """Add an edge. Return the shortest circle that it closes, unless that was returned before."""
        self.edges[edge.shapes] = edge
        outer, inner = edge.shapes
        self._inside.setdefault(outer, {})[inner] = edge
        circle = self._circle(edge)
        if circle is None:
            return None
        pairs = frozenset(edge.shapes for edge in circle)
        mark = object()
        return circle if self._reported.setdefault(pairs, mark) is mark else None

    def _circle(self, last: Edge) -> Circle | None:
        """Return the shortest way back from the inner template to the outer one, and this edge."""
        outer, inner = last.shapes
        if outer == inner:
            return None if last.sorted else (last,)
        ways: deque[Circle] = deque(((last,),))
        seen = set()
        while ways:
            way = ways.popleft()
            for inner, edge in list(self._inside.get(shape(way[-1].inner), {}).items()):
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
            f"A lock of {last.inner!r} is acquired inside another one of {last.outer!r}, at {last.location}. Two "
            "callers with the same keys in another order would wait for each other. Acquire them together, by "
            "zk_locks(...)."
        )
    names = " before ".join(map(repr, (circle[0].outer, *(edge.inner for edge in circle[:-1]))))
    older = list(dict.fromkeys(edge.location for edge in circle[:-1]))
    do = "do" if older[1:] else "does"
    return (
        f"Two callers can wait for each other. Always lock {names}: {' and '.join(older)} {do}, {last.location} does "
        "not. Or acquire them together, by zk_locks(...)."
    )


# --- what this process sees ---------------------------------------------------------------------------------------

seen = LockOrder()
is_meant = False
"""Whether the order of locks is meant at the moment, as in a test that is marked so. Then nothing is seen."""


def note(contender: AnyContender, owner: Owner, specs: tuple[LockSpec, ...], *, is_first: bool) -> None:
    """
    See that an owner wants a lock, and would wait for it. Tell the circles that this closes.

    `specs` are all locks of the same call, in their order. `is_first`: it has wanted no other one yet. Other locks of
    the owner are those of its open blocks, and of the transactions that keep one. What another thread may release does
    not count.
    """
    spec = contender.spec
    if spec.adopts is not None:
        return  # another owner has waited for it
    inner = _name(spec)
    for held in _held_by(owner):
        both_read = held.only_reads and spec.kind is Kind.READ
        if held.key != spec.key and not both_read and not seen.knows(_name(held.grant), inner):
            _see(contender, _name(held.grant), inner, held)
    for first, second in itertools.pairwise(specs) if is_first else ():
        both_read = first.kind is second.kind is Kind.READ
        if not both_read and not seen.knows(_name(first), _name(second), sorted=True):
            _see(contender, _name(first), _name(second), sorted=True)


def _name(lock: QueueSpec | Grant) -> str:
    return lock.template or lock.key


def _held_by(owner: Owner) -> Iterator[HeldLock]:
    """Yield the holds of the open blocks, and of transactions, around the caller."""
    enclosing = enclosing_holds.get()
    while enclosing is not None:
        reference, enclosing = enclosing
        held = reference()
        # A thread that works for a coroutine, or a coroutine that runs in a thread: the block waits for it. A task that
        # was begun inside a block may outlive it. A forked child does not hold the locks of its parent.
        if held is None or held.is_dropped or held.grant.inherited:
            continue
        if held.owner == owner or held.owner.kind != owner.kind:
            yield held
    if hooks.scope.is_open():
        yield from (held for held in held_locks.all() if held.observer is not None and held.owner == owner)


def _see(
    contender: AnyContender, outer: str, inner: str, held: HeldLock | None = None, *, sorted: bool = False
) -> None:
    """See a new pair. One that is meant is never known, so this comes first: it is cheap, and the location is not."""
    meant = contender.session.options.lock_order
    pair = shape(outer), shape(inner)
    if meant is None or is_meant or any((shape(first), shape(second)) == pair for first, second in meant):
        return
    edge = Edge(outer, inner, _location(contender, held), sorted)
    _write(edge)
    circle = seen.add(edge)
    if circle is not None:
        text = advice(circle)
        logger.warning("locks are acquired in two orders: %s", text)
        hooks.events.order_inverted(contender, circle, text)


def location_of(outer: str, inner: str) -> str:
    """Return where this process has acquired the inner one of these templates inside the outer one; empty: nowhere."""
    edge = seen.edges.get((shape(outer), shape(inner)))
    return "" if edge is None else edge.location


def _location(contender: AnyContender, held: HeldLock | None = None) -> str:
    """Return where the lock is acquired. If a transaction keeps the other one, whose block is over, it says so."""
    at = _acquired_at(contender)
    if held is not None and not held.uses:
        return f"{at} (its transaction keeps {_name(held.grant)!r})"
    return at


def _acquired_at(contender: AnyContender) -> str:
    """
    Return the line of the caller, or of the function that has the decorator.

    A project may have a context manager of its own around the lock. Its line is the same for all locks, so that of the
    `with` is returned.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and (
        _module_of(frame).startswith(_PASSING_ON) or _begins_block(frame) or _begins_block(frame.f_back)
    ):
        location: str = getattr(frame.f_locals.get("locked"), "location", "")
        if location:
            return location
        frame = frame.f_back
    if _module_of(frame) == "threading":  # a thread of this package, which acquires for a message
        return str(contender.caller.what)
    return line_of(frame.f_code, frame.f_lineno)


_PASSING_ON: Final = ("django_zklock.", "contextlib")  # such as an `ExitStack`


def _begins_block(frame: FrameType) -> bool:
    """Return whether the frame begins a block, also one whose context manager is a generator."""
    return frame.f_code.co_name in ("__enter__", "__aenter__")


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))  # `exec` accepts anything


def line_of(code: CodeType, number: int) -> str:
    """Return the file of this code, from the current folder if it is below that, and the number of the line."""
    path = code.co_filename
    with contextlib.suppress(OSError):  # the current folder was deleted
        path = path.removeprefix(os.getcwd() + os.sep)
    return f"{path}:{number}"


# --- the file of a test run ---------------------------------------------------------------------------------------


def _write(edge: Edge) -> None:
    path = os.environ.get(FILE)
    if path:
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(edge)) + "\n")
        except OSError as error:
            logger.warning("the order of locks is not in the file %r: %s", path, error)


def read(lines: Iterable[str]) -> tuple[LockOrder, list[Circle]]:
    """Return the edges that processes wrote to a file, and the circles among them. Raises `ValueError`."""
    order = LockOrder()
    circles = []
    for line in lines:
        edge = _edge(json.loads(line))
        if not order.knows(edge.outer, edge.inner, sorted=edge.sorted):
            circle = order.add(edge)
            if circle is not None:
                circles.append(circle)
    return order, circles


def _edge(fields: Any) -> Edge:
    try:
        return Edge(**fields)
    except TypeError as error:
        raise ValueError(f"{fields!r} is no pair of locks.") from error
