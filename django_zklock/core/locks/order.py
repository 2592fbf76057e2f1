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
from django_zklock.core.execution.inner_tasks import waits_for
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
MOST_CALLERS: Final = 3
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


class LockOrder:
    """The edges that were seen, and the circles among them. Any thread adds to it, by single operations."""

    def __init__(self) -> None:
        self.edges: dict[tuple[str, str], Edge] = {}  # by the shapes of the outer and the inner one; the oldest first
        self._inside: dict[str, dict[str, Edge]] = {}  # the same, by one shape and the other
        self.known: set[tuple[str, str, bool]] = set()
        """Pairs that `knows` has found, by their templates, and whether sorted. To look into it costs no call."""
        self._reported: dict[frozenset[tuple[str, str]], object] = {}

    def knows(self, outer: str, inner: str, *, sorted: bool = False) -> bool:
        """Return whether there is nothing new about this pair."""
        edge = self.edges.get((shape(outer), shape(inner)))
        is_known = len(self.edges) >= MOST_EDGES if edge is None else sorted or not edge.sorted
        if is_known and len(self.known) < MOST_EDGES:
            self.known.add((outer, inner, sorted))
        return is_known

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


# --- what this process sees ---------------------------------------------------------------------------------------

seen = LockOrder()
is_meant = False
"""Whether the order of locks is meant at the moment, as in a test that is marked so. Then nothing is seen."""


def note(contender: AnyContender, owner: Owner, *, in_transaction: bool) -> bool:
    """
    See that an owner wants a lock, and would wait for it. Tell the circles that this closes.

    Other locks of the owner are those of its open blocks, and of the transactions that keep one. What another thread
    may release does not count. Return whether there is something new about the locks of other owners, for
    `note_of_others`.
    """
    has_others = False
    holds = _in_blocks(contender.spec)
    if in_transaction:
        holds += [held for held in held_locks.all() if held.observer is not None and held.owner == owner]
    for held in holds:
        if not _is_new(contender, held):
            continue
        if held.owner == owner:
            _see(contender, held.grant, contender.spec, held)
        else:
            has_others = True
    return has_others


def note_sorted(contender: AnyContender, specs: tuple[LockSpec, ...]) -> None:
    """See the order of the locks of one call, which has sorted them."""
    for first, second in itertools.pairwise(specs):
        is_known = (first.template or first.key, second.template or second.key, True) in seen.known
        both_read = first.kind is second.kind is Kind.READ
        if not is_known and not both_read and _is_unseen(contender, first, second, sorted=True):
            _see(contender, first, second, sorted=True)


def note_of_others(contender: AnyContender, owner: Owner) -> None:
    """
    See the locks of other owners that wait for this one, as a coroutine waits for a thread or for `asyncio.gather`.

    Call it when the wait is over. At its begin, a thread may run before the coroutine that has sent it there waits.
    """
    for held in _in_blocks(contender.spec):
        if held.owner != owner and _is_new(contender, held) and waits_for(held.owner, owner):
            _see(contender, held.grant, contender.spec, held)


def _in_blocks(spec: QueueSpec) -> list[HeldLock]:
    """Return the holds of the open blocks around the caller, without those that make a known pair with this lock."""
    holds = []
    inner, known = spec.template or spec.key, seen.known
    enclosing = enclosing_holds.get()
    while enclosing is not None:
        reference, enclosing = enclosing
        held = reference()
        if held is not None and (held.grant.template or held.key, inner, False) not in known:
            holds.append(held)
    return holds


def _is_new(contender: AnyContender, held: HeldLock) -> bool:
    """Return whether the lock has an order inside this hold, which is to be seen."""
    spec = contender.spec
    both_read = held.reads and spec.kind is Kind.READ
    # A forked child does not hold the locks of its parent.
    if held.is_dropped or held.grant.inherited or held.key == spec.key or both_read:
        return False
    return _is_unseen(contender, held.grant, spec)


def _is_unseen(contender: AnyContender, outer: QueueSpec | Grant, inner: QueueSpec, *, sorted: bool = False) -> bool:
    """Return whether this order was not seen, and is not meant. One that is meant is never known."""
    if is_meant or seen.knows(_template(outer), _template(inner), sorted=sorted):
        return False
    pair = shape(_template(outer)), shape(_template(inner))
    meant = contender.session.options.lock_order or ()
    return all((shape(first), shape(second)) != pair for first, second in meant)


def _template(lock: QueueSpec | Grant) -> str:
    return lock.template or lock.key


def _see(
    contender: AnyContender,
    outer: QueueSpec | Grant,
    inner: QueueSpec,
    held: HeldLock | None = None,
    *,
    sorted: bool = False,
) -> None:
    """See a new pair, and tell the circle that it closes. `held` is the outer one, if it is held."""
    location, *callers = _locations(contender, held)
    edge = Edge(_template(outer), _template(inner), location, sorted, tuple(callers))
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


def _locations(contender: AnyContender, held: HeldLock | None) -> list[str]:
    """
    Return where the lock is acquired, and callers: a line, or that of the function that has the decorator.

    A project may have a context manager of its own around the lock. Its line is the same for all locks, so that of the
    `with` is returned. If a transaction keeps the other lock, whose block is over, it says so.
    """
    frame = sys._getframe(1)
    location = ""
    while (
        frame.f_back is not None
        and not location
        and (_module_of(frame).startswith(_PASSING_ON) or _begins_block(frame) or _begins_block(frame.f_back))
    ):
        location = getattr(frame.f_locals.get("locked"), "location", "")
        frame = frame.f_back
    if _module_of(frame) == "threading":  # a thread of this package, which acquires for a message
        return [str(contender.caller.what)]
    callers = itertools.islice(_locations_in_project(frame if location else frame.f_back), MOST_CALLERS)
    location = location or line_of(frame.f_code, frame.f_lineno)
    if held is not None and not held.uses:
        location += f" (its transaction keeps {_template(held.grant)!r})"
    return [location, *callers]


def _locations_in_project(frame: FrameType | None) -> Iterator[str]:
    """Yield the lines of a stack that are in the current folder, the innermost first."""
    while frame is not None:
        line = line_of(frame.f_code, frame.f_lineno)
        if not os.path.isabs(line) and "site-packages" not in line and not _module_of(frame).startswith(_PASSING_ON):
            yield line
        frame = frame.f_back


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
        return Edge(**{**fields, "callers": tuple(fields.get("callers", ()))})
    except (AttributeError, TypeError) as error:
        raise ValueError(f"{fields!r} is no pair of locks.") from error
