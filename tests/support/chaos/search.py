"""
Decide whether a history is possible for a lock that is given as a state machine.

A history is linearizable if each operation can be given a moment, between its call and its return, so that the model
allows them all in that order. The search is the second opinion on a history; it does not use the leases to say that a
claim was too long, and so finds fewer faults than the checker does.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias, TypeVar

from support.chaos.kinds import SEMAPHORE
from support.chaos.operations import Op

M = TypeVar("M", bound="Model")


class Model(Protocol):
    """A lock in some state; a value, to be compared and hashed."""

    def step(self: M, op: Op) -> M | None:
        """Return the lock after this operation, or None if it cannot happen now."""


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
    needed = [op for op in ops if op.certain or op.hold in sure or op.kind == "limit"]
    search = _EasingSearch if getattr(model, "ends_ease", False) else _Search
    result = search(needed, model).run()
    return result if result.ok or len(needed) == len(ops) else search(ops, model).run()


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
                self._called(op)
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

    def _called(self, op: Op) -> None:
        """Take note that an operation may be put in place from now on."""

    def _in_turn(self, bit: int, op: Op, target: int) -> bool:
        """Tell whether to try this operation on the way to the one that has to have its place now."""
        return True

    def _settle(self, place: Place, unsure: int) -> tuple[Place, int]:
        """Return a configuration with what may as well be put in place at once."""
        return place, unsure

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
                if (sure | unsure) & bit or not self._in_turn(bit, op, target):
                    continue
                after = state.step(op)
                if after is not None:
                    place = (after, sure | bit) if op.certain else (after, sure)
                    (after, now), used = self._settle(place, unsure if op.certain else unsure | bit)
                    todo.append((after, now, used))
        return done


ENDS: Final = frozenset({"release", "lose", "downgrade"})


class _EasingSearch(_Search):
    """
    A search for a model in which whatever is given up allows others more, and each hold is known by its number.

    So what is given up is put in place as soon as it may be; and what is taken, as late as it may, unless something
    can depend on its coming early: it may be given up before it has returned, another limit may count then, or a
    contender with a smaller limit than others would not get its permit with them. Else the readers that wait at
    the same time, and the dead that nobody saw go, would make too many configurations.
    """

    def __init__(self, ops: Iterable[Op], model: Model) -> None:
        super().__init__(ops, model)
        ends: dict[int, list[Op]] = defaultdict(list)
        for op in self._ops:
            if op.kind in ENDS:
                ends[op.hold].append(op)
        changes = [op for op in self._ops if op.kind == "limit"]
        most = max((op.limit or math.inf for op in self._ops if op.mode == SEMAPHORE), default=0)
        self._late = frozenset(
            op
            for op in self._ops
            if op.kind == "acquire"
            and op.certain
            and all(end.call > op.back or end.back < op.call for end in ends[op.hold])
            and not (op.mode == SEMAPHORE and ((op.limit or math.inf) < most or _overlap(op, changes)))
        )

    def _called(self, op: Op) -> None:
        if op.kind in ENDS:
            settled: dict[Place, list[int]] = {}
            for place, ways in self._configurations.items():
                for unsure in ways:
                    _add(settled, *self._settle(place, unsure))
            self._configurations = settled

    def _in_turn(self, bit: int, op: Op, target: int) -> bool:
        return bit == target or op not in self._late

    def _settle(self, place: Place, unsure: int) -> tuple[Place, int]:
        state, sure = place
        ending = {bit: op for bit, op in self._pending.items() if op.kind in ENDS and not (sure | unsure) & bit}
        while ending:
            found = next(((bit, after) for bit, op in ending.items() if (after := state.step(op)) is not None), None)
            if found is None:
                break
            bit, state = found
            if ending.pop(bit).certain:
                sure |= bit
            else:
                unsure |= bit
        return (state, sure), unsure


def _overlap(op: Op, others: Iterable[Op]) -> bool:
    return any(other.call <= op.back and op.call <= other.back for other in others)


def _add(table: dict[Place, list[int]], place: Place, unsure: int) -> bool:
    """Note a configuration unless one is known that used no more; tell whether it was noted."""
    ways = table.setdefault(place, [])
    if any(way & unsure == way for way in ways):
        return False
    ways[:] = [way for way in ways if way & unsure != unsure]
    ways.append(unsure)
    return True
