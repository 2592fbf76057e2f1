"""The causes that are in the holders: what they do, or do not do."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from django.utils.translation import gettext_lazy as _

from django_zklock.report import formatting
from django_zklock.report.incident import MANY, Incident

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

    from django_zklock.inspection import LockInfo, ScannedContender
    from django_zklock.report.facts import Facts, Held

TIMES_USUAL: Final = 3.0
"""Ratio to the usual hold from which on a holder counts as hung."""
LEAST_SECONDS: Final = 10.0
"""A shorter hold is never hung, however short the usual one is. Another client may block a waiter for so long."""
FORGOTTEN: Final = 0.9
"""Share of its planned time after which an operator hold that others wait for may be forgotten."""


def is_hung(facts: Facts, lock: LockInfo, holder: ScannedContender) -> bool:
    """Return whether a holder has the lock for too long, and no other lock is the cause of that."""
    if holder.lasts:
        is_late = holder.silent_for > 0
    elif holder.source == "other":  # it does not say since when it holds the lock
        is_late = (lock.longest_wait or 0.0) >= min(facts.long_held, LEAST_SECONDS)
    else:
        certain, usual = holder.certain_duration, None
        if LEAST_SECONDS <= certain < facts.long_held and holder.template:
            usual = facts.past("usual_hold", holder.template, default=None)
        is_late = certain >= facts.long_held or (usual is not None and certain >= TIMES_USUAL * usual)
    return is_late and not facts.is_victim(lock, holder)


class Deadlock(Incident):
    """Holders wait for each other's locks. Break one of them. Leases are not compared."""

    cause = "deadlock"
    severity = "error"
    title = _("Deadlock: %(keys)s")
    word = _("Blocked")
    who = "%(holders)s."
    sentence = _("Each waits for a lock that another one holds.")
    remedy = _("Break one of them: its work is stopped, and the others continue.")
    ends = "One of them leaves its block."
    act = "break"

    @classmethod
    def find(cls, facts: Facts) -> Iterator[Self]:
        for cycle in facts.snapshot.cycles:
            locks = [facts.locks[wait.holds] for wait in cycle if wait.holds in facts.locks]
            yield from cls.of(facts, [(lock, holder) for lock in locks for holder in lock.holders])


class Orphan(Incident):
    """Nothing deletes a contender without a session. It may come from a backup."""

    cause = "orphan"
    severity = "error"
    title = _("Contender without a session: %(keys)s")
    word = _("Blocked")
    who = "%(holders)s."
    sentence = _("Nothing deletes it: it was restored from a backup or copied, or its client made it so.")
    remedy = _("If its program is gone, break the lock. If it only waits, delete its znode with zkCli.sh.")
    ends = "The znode is deleted."
    act = "break"

    @classmethod
    def find(cls, facts: Facts) -> Iterator[Self]:
        contenders = [(lock, who) for lock in facts.snapshot.locks for who in (*lock.holders, *lock.waiters)]
        yield from cls.of(facts, [(lock, contender) for lock, contender in contenders if contender.is_orphan])


class Host(Incident):
    """Others wait, and a hung process holds three locks or more."""

    cause = "host"
    severity = "error"
    word = _("Blocked")
    title = _("%(process)s hangs, with %(count)d locks")
    sentence = _("It has held a lock for %(time)s. It is dead or silent, or its work hangs.")
    remedy = _("Look at the host. If it is dead, its locks are free when its session ends. If it hangs, break them.")
    ends = "It releases its oldest lock."
    act = "host"
    command = "list"
    of_host = True

    @classmethod
    def find(cls, facts: Facts) -> Iterator[Self]:
        hosts: defaultdict[str, list[Held]] = defaultdict(list)
        for (host, _pid), (_stuck, held) in _processes(facts).items():
            hosts[host] += held if _is_many(held) else []
        for held in hosts.values():
            yield from cls.of(facts, held)


class Foreign(Incident):
    """Others wait for a client that cannot be asked to release the lock."""

    cause = "foreign"
    title = _("Another client blocks %(keys)s")
    who = "%(holders)s."
    sentence = _("It cannot be asked to release the lock.")
    remedy = _("End its program, or break the lock.")
    ends = "It releases the lock."
    act = "break"

    @classmethod
    def find(cls, facts: Facts) -> Iterator[Self]:
        for lock, holder in facts.holds:
            is_other = holder.source == "other" and not holder.lasts
            yield from cls.of(facts, [(lock, holder)] if is_other and is_hung(facts, lock, holder) else [])


class Silent(Incident):
    """A [`beat`](celery-beat.md) leads, but has not looked at its schedule for some time."""

    cause = "silent"
    title = _("The leader of %(keys)s gives no sign of life")
    who = "%(holders)s."
    sentence = _("Its next one is overdue by %(time)s. Its session lives, so no other candidate takes over.")
    remedy = _(
        "Look at its log: it may wait for its broker or database. If it hangs, break the lock: the next one leads."
    )
    ends = "It looks at its schedule, or another one leads."
    act = "break"

    @classmethod
    def find(cls, facts: Facts) -> Iterator[Self]:
        for lock, holder in facts.holds:
            if holder.lasts and holder.operator is None and is_hung(facts, lock, holder):
                silence = formatting.duration(holder.silent_for)
                yield from cls.of(facts, [(lock, holder)], since=holder.renewal_due, values={"time": silence})


class Hung(Incident):
    """Others wait. It has held the lock for a minute, or for 10 s and three times its usual hold."""

    cause = "hung"
    title = _("%(holder)s has held %(keys)s for %(time)s")
    who = "%(runs)s"
    sentence = "%(times)s"
    remedy = _("Too long? 1. Request release (work that looks for requests finishes). 2. Break (work is stopped).")
    ends = "It releases the lock."
    act = "ask"

    @classmethod
    def find(cls, facts: Facts) -> Iterator[Self]:
        for stuck, held in _processes(facts).values():
            for pair in [] if _is_many(held) else stuck:
                yield from cls.of(facts, [pair])


class Operator(Incident):
    """Others wait for an operator, and 90 % of the planned time is over."""

    cause = "operator"
    word = _("Held")
    title = _("Forgotten hold? %(keys)s, %(holder)s")
    sentence = _("It has lasted %(time)s. %(operator)s")
    remedy = _("If the reason is gone, end this hold.")
    ends = "The hold ends."
    act = "end"

    @classmethod
    def find(cls, facts: Facts) -> Iterator[Self]:
        for lock, holder in facts.holds:
            hold = holder.operator
            if hold is not None and lock.waiting and holder.duration >= FORGOTTEN * hold.seconds:
                yield from cls.of(facts, [(lock, holder)])


def _processes(facts: Facts) -> dict[Any, tuple[list[Held], list[Held]]]:
    """Return by process the holds that others wait for too long, and all its holds, but for those of victims."""
    processes: defaultdict[Any, tuple[list[Held], list[Held]]] = defaultdict(lambda: ([], []))
    for lock, holder in facts.holds:
        if holder.operator is None and not holder.lasts and holder.source != "other":
            stuck, held = processes[holder.host, holder.pid]
            held.append((lock, holder))
            if lock.waiting and holder.idle_for is None and is_hung(facts, lock, holder):
                stuck.append((lock, holder))
    hung = {process: holds for process, holds in processes.items() if holds[0]}
    return {
        process: (stuck, [pair for pair in held if not facts.is_victim(*pair)])
        for process, (stuck, held) in hung.items()
    }


def _is_many(held: list[Held]) -> bool:
    return len({lock.key for lock, _holder in held}) >= MANY


CAUSES: Final = (Deadlock, Orphan, Host, Foreign, Silent, Hung, Operator)
