"""The locks in groups: fifty tasks of one dead host are one fact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from django_zklock.inspection import LockInfo

LABELS: Final = {"path": _("path"), "template": _("template"), "host": _("host")}
"""Criteria by which locks can be grouped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Some locks, in figures. Times in seconds; None if there is none."""

    name: str
    """A host, a template, a key, or the first segments of keys with the slash behind them."""
    locks: int
    held: int
    contended: int
    waiting: int
    longest_wait: float | None
    longest_hold: float | None


def grouped(locks: Iterable[LockInfo], by: str, within: str = "") -> list[Group]:
    """
    Return the groups, those with the longest wait and then the longest hold first.

    `by` is one of `LABELS`. By path, only the keys that begin with `within` count, each with one segment more.
    """
    members: dict[str, list[LockInfo]] = {}
    for lock in locks:
        for name in _names(lock, by, within):
            members.setdefault(name, []).append(lock)
    groups = [_group(name, locks_of_group) for name, locks_of_group in members.items()]
    return sorted(groups, key=lambda group: (-(group.longest_wait or 0.0), -(group.longest_hold or 0.0), group.name))


def most_common(locks: Iterable[LockInfo], by: str, most: int) -> list[str]:
    """Return the names of the groups with the most locks."""
    return [name for name, _ in Counter(name for lock in locks for name in _names(lock, by, "")).most_common(most)]


def is_in_group(lock: LockInfo, by: str, name: str) -> bool:
    """Return True if the lock belongs to the group with this name."""
    if by == "path" and name.endswith("/"):
        return lock.key.startswith(name)
    return name in _names(lock, by, name)


def _names(lock: LockInfo, by: str, within: str) -> set[str]:
    if by == "host":
        return {holder.host for holder in lock.holders}
    if by == "template":
        return {next((contender.template for contender in (*lock.holders, *lock.waiters) if contender.template), "")}
    if not lock.key.startswith(within):
        return set()
    segment, slash, _ = lock.key[len(within) :].partition("/")
    return {within + segment + slash}


def _group(name: str, locks: list[LockInfo]) -> Group:
    return Group(
        name=name,
        locks=len(locks),
        held=sum(bool(lock.holders) for lock in locks),
        contended=sum(lock.contended for lock in locks),
        waiting=sum(lock.waiting for lock in locks),
        longest_wait=max((lock.longest_wait for lock in locks if lock.longest_wait is not None), default=None),
        longest_hold=max((lock.held_for for lock in locks if lock.held_for is not None), default=None),
    )
