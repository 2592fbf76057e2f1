"""
Knows what an exclusive lock is, as state machines, and whether a history could be one of it.

The models are those that the Jepsen suites of etcd and Hazelcast use: a mutex, one that minds its owner, one that is
reentrant, and two whose grants carry a fence. A history is linearizable if each operation can be given a moment,
between its call and its return, so that the model allows them all in that order.

A loss is an operation, too: the owner holds the lock no more, however often it took it. Where a model that took the
history at its word would raise false alarms, the operations are made wider:

* Nobody knows when a lock was lost, only when the last check that passed began and when the holder was told. The loss
  was at any moment between; one of which nobody was told, at any moment since, or never.
* A holder may find its lease over and release the lock nevertheless, as one that was paused does. If the lease was
  over by the release, the hold ended at any moment between.
* A release that failed, or whose process was killed, may or may not have been; so may an acquire that was interrupted.
  To such a one belongs a loss that may have been at any time, as its contender is cleared away some time.
* A hold whose owner was granted the lock anew, not reentrantly, had ended by then.
* An inner level that was taken or released near a loss may have found nothing; it is left out, as a loss ends all.
* A fence of 0 is "unknown". Fences of before and after the servers lost their memory cannot be compared: do not feed
  such a history to a fenced model.

The search is the second opinion on a history; it does not use the leases to say that a claim was too long, and so
finds fewer faults than the checker does.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol, TypeAlias, TypeVar

from support.chaos.holds import Call, Event, Hold, time_of
from support.chaos.reading import read_run

Kind: TypeAlias = Literal["acquire", "release", "lose"]
M = TypeVar("M", bound="Model")


@dataclass(frozen=True, slots=True)
class Op:
    """One operation on a lock, which took effect at one moment from `call` to `back`."""

    kind: Kind
    owner: str
    call: float
    back: float = math.inf
    certain: bool = True
    """Whether it did take effect; if not, it may have, at any time since `call`, or never."""
    fence: int = 0
    key: str = ""
    hold: int = 0
    """Which hold of the history it belongs to."""

    def __str__(self) -> str:
        fence = f" fence={self.fence}" if self.fence else ""
        return f"{self.owner} {self.kind}{fence}{'' if self.certain else ' (perhaps)'}"


class Model(Protocol):
    """A lock in some state; a value, to be compared and hashed."""

    def step(self: M, op: Op) -> M | None:
        """Return the lock after this operation, or None if it cannot happen now."""


@dataclass(frozen=True, slots=True)
class Mutex:
    """A lock that is taken or not. Anybody's release will do, so where losses overlap it sees less than the others."""

    locked: bool = False

    def step(self, op: Op) -> Mutex | None:
        if (op.kind == "acquire") == self.locked:
            return None
        return Mutex(not self.locked)


@dataclass(frozen=True, slots=True)
class OwnerAwareMutex:
    """A lock that only its owner releases."""

    owner: str | None = None

    def step(self, op: Op) -> OwnerAwareMutex | None:
        if op.kind == "acquire":
            return OwnerAwareMutex(op.owner) if self.owner is None else None
        return OwnerAwareMutex() if self.owner == op.owner else None


@dataclass(frozen=True, slots=True)
class ReentrantMutex:
    """A lock that its owner takes several times, and releases as often."""

    owner: str | None = None
    count: int = 0

    def step(self, op: Op) -> ReentrantMutex | None:
        if op.kind == "acquire":
            return ReentrantMutex(op.owner, self.count + 1) if self.owner in (None, op.owner) else None
        if self.owner != op.owner:
            return None
        return ReentrantMutex() if op.kind == "lose" or self.count == 1 else ReentrantMutex(op.owner, self.count - 1)


@dataclass(frozen=True, slots=True)
class FencedMutex:
    """A lock each of whose grants has a greater fence than all before."""

    owner: str | None = None
    fence: int = 0
    """The greatest so far."""

    def step(self, op: Op) -> FencedMutex | None:
        if op.kind != "acquire":
            return FencedMutex(None, self.fence) if self.owner == op.owner else None
        if self.owner is not None or 0 < op.fence <= self.fence:
            return None
        return FencedMutex(op.owner, op.fence or self.fence)


@dataclass(frozen=True, slots=True)
class ReentrantFencedMutex:
    """A reentrant lock whose owner sees one fence at all levels, greater than all before."""

    owner: str | None = None
    count: int = 0
    held: int = 0
    """The fence of the present hold, once it is known."""
    fence: int = 0

    def step(self, op: Op) -> ReentrantFencedMutex | None:
        if op.kind != "acquire":
            if self.owner != op.owner:
                return None
            last = op.kind == "lose" or self.count == 1
            return ReentrantFencedMutex(fence=self.fence) if last else replace(self, count=self.count - 1)
        if self.owner not in (None, op.owner):
            return None
        if op.fence and (op.fence != self.held if self.held else op.fence <= self.fence):
            return None
        held = op.fence or self.held
        return ReentrantFencedMutex(op.owner, self.count + 1, held, max(held, self.fence))


# --- from a history to operations -------------------------------------------------------------------------------------


def operations(events: Sequence[Event], *, reentrant: bool = True) -> list[Op]:
    """Return the operations of a history; without the inner levels, for a model that knows none."""
    run = read_run(events)
    found: list[Op] = []
    for holds in run.holds.values():
        anew = _next_grants(holds)
        for number, hold in enumerate(holds):
            found += _of_hold(hold, number, anew.get(number, math.inf), reentrant)
    for number, call in enumerate(run.calls):
        if not call.granted and _unknown(call):
            # It may have been granted, and cleared away: two more operations that may have been, or not.
            acquire = Op("acquire", call.owner, call.start, certain=False, key=call.key, hold=-1 - number)
            found += [acquire, replace(acquire, kind="lose")]
    return sorted(found, key=lambda op: op.call)


def _unknown(call: Call) -> bool:
    return call.answer is None or not call.answer.get("definite", True)


def _next_grants(holds: Sequence[Hold]) -> dict[int, float]:
    """Return when the owner of each hold had the next one of the same key."""
    later: dict[str, float] = {}
    found: dict[int, float] = {}
    for number in range(len(holds) - 1, -1, -1):
        hold = holds[number]
        if hold.owner in later:
            found[number] = later[hold.owner]
        later[hold.owner] = hold.granted
    return found


def _of_hold(hold: Hold, number: int, anew: float, reentrant: bool) -> Iterator[Op]:
    """Yield what became of one hold; `anew` is when its owner had the next."""
    base = Op("acquire", hold.owner, hold.start, hold.granted, fence=hold.token, key=hold.key, hold=number)
    yield base
    since, by = _loss(hold)
    if reentrant:
        yield from _inner(hold, base, since)
    if since < math.inf:
        by = min(by, anew)
        kind: Kind = "lose"
    else:
        since, by = _time(hold.release), _time(hold.released)
        kind = "release" if reentrant and all(map(_succeeded, hold.answers)) else "lose"
    back = by if by == math.inf else max(since, by, hold.granted)
    yield replace(base, kind=kind, call=since, back=back, certain=back < math.inf, fence=0)


def _inner(hold: Hold, base: Op, since: float) -> Iterator[Op]:
    for call, grant in zip(hold.calls[1:], hold.grants[1:], strict=True):
        if time_of(grant) < since:
            yield replace(base, call=call.start, back=time_of(grant), fence=int(grant.get("token") or 0))
    for release, answer in zip(hold.releases[: len(hold.grants) - 1], hold.answers, strict=False):
        if time_of(answer) < since and _succeeded(answer):
            yield replace(base, kind="release", call=time_of(release), back=time_of(answer), fence=0)


def _loss(hold: Hold) -> tuple[float, float]:
    """Return from when to when the hold was lost: from infinity, if it was given back as it should be."""
    release, told = _time(hold.release), _time(hold.lost)
    released = _time(hold.released if hold.released is not None and _succeeded(hold.released) else None)
    gone = min(told, released)
    if hold.force is not None:
        return max(hold.start, hold.force.start), gone
    if hold.ended is not None:
        return max(hold.start, min(hold.proven, time_of(hold.ended))), gone
    if hold.leased and hold.trusted_until < release < math.inf and told == math.inf:
        return max(hold.start, hold.trusted_until), gone
    if gone == released < math.inf and told == math.inf:
        return math.inf, math.inf
    return min(hold.proven, release), gone


def _succeeded(answer: Event) -> bool:
    return bool(answer["e"] == "released")


def _time(event: Event | None) -> float:
    return math.inf if event is None else time_of(event)


# --- the search -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Result:
    """Whether operations were linearizable, and if not, how they begin to be none."""

    ok: bool
    prefix: tuple[Op, ...] = ()
    """The shortest beginning that is none: what had been called when the operation returned that had no place."""
    stuck: Op | None = None
    states: tuple[object, ...] = ()
    """The states that the lock could be in before that."""
    configurations: int = field(default=0, compare=False)

    def short(self, lines: int = 25) -> str:
        """Return the end of the prefix, one operation a line: from when to when, relative to the first."""
        if self.ok or self.stuck is None:
            return "linearizable"
        start = min(op.call for op in self.prefix)
        shown = sorted(self.prefix, key=lambda op: (op.back, op.call))
        current = [op for op in shown if op.back >= self.stuck.call]
        shown = shown[len(shown) - max(min(len(current) + 6, lines), 1) :]
        states = " or ".join(str(state) for state in self.states[:4])
        head = f"not linearizable: {self.stuck} has no place in {len(self.prefix)} operations; the lock was {states}"
        rows = [f"{'> ' if op is self.stuck else '  '}{_span(op, start)}  {op}" for op in shown]
        return "\n".join([head, *rows])


def _span(op: Op, start: float) -> str:
    back = f"{op.back - start:+10.3f}" if op.back < math.inf else "         ?"
    return f"{op.call - start:+10.3f} {back}"


TooMany: Final = 500_000  # configurations in one step: the history is too concurrent to be judged


class Undecided(RuntimeError):
    """The search has more to try than is sensible."""


def linearizable(ops: Iterable[Op], model: Model) -> Result:
    """
    Tell whether these operations, on each key for itself, could have been those of a lock that begins as `model`.

    Wing and Gong's search with Lowe's just-in-time order: operations are put in place only when one returns that has
    none yet. Of two ways to the same state, the one that used fewer of the operations that may never have been is
    kept: it can go on in every way that the other can. Raises `Undecided`.
    """
    keys: dict[str, list[Op]] = defaultdict(list)
    for op in ops:
        keys[op.key].append(op)
    count = 0
    for of_key in keys.values():
        result = _of_one_lock(of_key, model)
        count += result.configurations
        if not result.ok:
            return result
    return Result(True, configurations=count)


def _of_one_lock(ops: Sequence[Op], model: Model) -> Result:
    """Search; at first without the acquires that may never have been: if all is well without them, it is well."""
    sure = {op.hold for op in ops if op.kind == "acquire" and op.certain}
    needed = [op for op in ops if op.certain or op.hold in sure]
    result = _Search(needed, model).run()
    return result if result.ok or len(needed) == len(ops) else _Search(ops, model).run()


Place: TypeAlias = "tuple[Model, int]"  # a state, and which of the pending certain operations it includes


class _Search:
    """
    One search; operations that have been called and have not returned are bits of an integer.

    A configuration is a state, the certain operations that are in place, and those of the others.
    """

    def __init__(self, ops: Iterable[Op], model: Model) -> None:
        self._ops = sorted(ops, key=lambda op: op.call)
        self._pending: dict[int, Op] = {}  # by bit
        self._configurations: dict[Place, list[int]] = {(model, 0): [0]}
        self._count = 0

    def run(self) -> Result:
        bits: dict[int, int] = {}  # of the pending operations, by their places in the list
        free: list[int] = []
        for _, returns, number in self._events():
            op = self._ops[number]
            if not returns:
                bits[number] = bit = free.pop() if free else 1 << len(bits)
                self._pending[bit] = op
                continue
            bit = bits.pop(number)
            before = self._configurations
            self._configurations = self._put_in_place(bit)
            if not self._configurations:
                return self._stuck(op, before)
            del self._pending[bit]
            free.append(bit)
        return Result(True, configurations=self._count)

    def _events(self) -> list[tuple[float, bool, int]]:
        """Calls and returns in order; of those at one moment the calls first, as one may have been before the other."""
        calls = [(op.call, False, number) for number, op in enumerate(self._ops)]
        return sorted(calls + [(op.back, True, number) for number, op in enumerate(self._ops) if op.back < math.inf])

    def _stuck(self, op: Op, before: dict[Place, list[int]]) -> Result:
        prefix = tuple(each for each in self._ops if each.call < op.back or each is op)
        states = tuple(dict.fromkeys(state for state, _ in before))
        return Result(False, prefix, op, states, self._count)

    def _put_in_place(self, target: int) -> dict[Place, list[int]]:
        """Return the configurations in which this operation has its place, and forget its bit."""
        done: dict[Place, list[int]] = {}
        seen: dict[Place, list[int]] = {}
        todo = [(state, sure, unsure) for (state, sure), ways in self._configurations.items() for unsure in ways]
        while todo:
            state, sure, unsure = todo.pop()
            if sure & target:
                _add(done, (state, sure & ~target), unsure)
                continue
            if not _add(seen, (state, sure), unsure):
                continue
            self._count += 1
            if len(seen) > TooMany:
                raise Undecided(f"more than {TooMany} configurations at {self._pending[target]}")
            for bit, op in self._pending.items():
                if (sure | unsure) & bit:
                    continue
                after = state.step(op)
                if after is not None:
                    todo.append((after, sure | bit, unsure) if op.certain else (after, sure, unsure | bit))
        return done


def _add(table: dict[Place, list[int]], place: Place, unsure: int) -> bool:
    """Note a configuration unless one is known that used no more; tell whether it was noted."""
    ways = table.setdefault(place, [])
    if any(way & unsure == way for way in ways):
        return False
    ways[:] = [way for way in ways if way & unsure != unsure]
    ways.append(unsure)
    return True
