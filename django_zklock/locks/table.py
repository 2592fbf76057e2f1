"""
The locks that this process holds, by owner and key. This table makes locks reentrant.

Only an owner's own thread reads and writes its entries. The table begins empty in a forked child. For locks that were
acquired by `with` it has weak references only, because their block keeps them.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, TypeAlias

from django_zklock.execution.owner import Owner
from django_zklock.locks.guard import Guard
from django_zklock.locks.protocol.grant import Grant

if TYPE_CHECKING:
    from django_zklock.locks.held import HeldLock

_Slot: TypeAlias = tuple[object, str, bool]  # the task, greenlet or thread; the key; whether it only reads


def _slot(held: HeldLock) -> _Slot:
    return held.owner.subject, held.grant.key, held.reads


class HeldLocks:
    """The held locks of this process, by owner, key, and whether they are held only for reading."""

    def __init__(self) -> None:
        self._kept: dict[_Slot, HeldLock] = {}  # acquired by `acquire`: `release` will be called
        self._weak: weakref.WeakValueDictionary[_Slot, HeldLock] = weakref.WeakValueDictionary()
        self._guards: dict[object, list[Guard]] = {}  # of open blocks, outermost first; by task, greenlet or thread

    def find(self, owner: Owner, key: str, *, reads: bool | None = None) -> HeldLock | None:
        """Return what this owner holds of this key: with `reads` only for reading; with None in any way."""
        if not self._kept and not self._weak:
            return None
        for slot in ((owner.subject, key, each) for each in ((False, True) if reads is None else (reads,))):
            found = self._kept.get(slot) or self._weak.get(slot)
            if found is not None:
                return found
        return None

    def all(self) -> list[HeldLock]:
        """Return every held lock of this process."""
        # Lists made in one step: other threads add and remove meanwhile.
        found = dict.fromkeys(list(self._kept.values()))
        found.update(dict.fromkeys(held for reference in self._weak.valuerefs() if (held := reference()) is not None))
        return list(found)

    def kept(self) -> list[HeldLock]:
        """Return those that were acquired by `acquire`."""
        return list(self._kept.values())

    def add(self, held: HeldLock, *, keep: bool) -> None:
        """Add a held lock. With `keep`, the table has a strong reference to it until it is released."""
        table = self._kept if keep else self._weak
        table[_slot(held)] = held

    def remove(self, held: HeldLock) -> None:
        """Remove a held lock. Doing it again changes nothing."""
        slot = _slot(held)
        for table in (self._kept, self._weak):
            if table.get(slot) is held:
                del table[slot]

    # --- open blocks ----------------------------------------------------------------------------------------------

    def open_block(self, owner: Owner, guard: Guard) -> None:
        """Add the guard of a block that begins."""
        self._guards.setdefault(owner.subject, []).append(guard)

    def close_block(self, owner: Owner, guard: Guard) -> list[Guard]:
        """Remove the guard of a block; return the guards of the owner's other open blocks, outermost first."""
        guards = self._guards.get(owner.subject, [])
        if guard in guards:
            guards.remove(guard)
        if not guards:
            self._guards.pop(owner.subject, None)
        return list(guards)

    def guards(self, owner: Owner) -> list[Guard]:
        """Return the guards of the open blocks of an owner, outermost first."""
        return list(self._guards.get(owner.subject, []))

    def drop_blocks(self, grant: Grant) -> None:
        """Disarm the guards of a grant whose blocks were destroyed by an exception; from any thread."""
        for subject, guards in list(self._guards.items()):
            for guard in [guard for guard in guards if guard.grant is grant]:
                guard.disarm()
                guards.remove(guard)
            if not guards:
                self._guards.pop(subject, None)


held_locks = HeldLocks()


def _begin_empty_in_child() -> None:
    global held_locks
    held_locks = HeldLocks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_empty_in_child)
