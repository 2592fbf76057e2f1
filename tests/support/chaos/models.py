"""
An exclusive lock as state machines.

They are those that the Jepsen suites of etcd and Hazelcast use: a mutex, one that minds its owner, one that is
reentrant, and two whose grants carry a fence. `shared_model` has the other kinds on a key.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from support.chaos.operations import Op


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
