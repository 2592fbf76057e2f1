"""The causes that are in the holders: what they do, or do not do."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_zklock.report import formatting
from django_zklock.report.incident import MANY, Incident

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Self

    from django_zklock.inspection import LockInfo
    from django_zklock.report.facts import Facts, Held

FORGOTTEN: Final = 0.9
"""Share of its planned time after which an operator hold that others wait for may be forgotten."""


class Deadlock(Incident):
    """Holders wait for each other's locks. Break one of them. Leases are not compared."""

    cause = "deadlock"
    severity = "error"
    title = _("Deadlock: %(keys)s")
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
    """Nothing deletes a contender without a session. It may come from a backup. Of the waiters, the first counts."""

    cause = "orphan"
    severity = "error"
    title = _("Contender without a session: %(keys)s")
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
    """A process hangs with three locks or more: callers wait for one of them, and it has held all of them for long."""

    cause = "host"
    severity = "error"
    title = _("%(process)s hangs, with %(count)d locks")
    sentence = _("It has held a lock for %(time)s. It is dead or silent, or its work hangs.")
    remedy = _("Look at the host. If it is dead, its locks are free when its session ends. If it hangs, break them.")
    ends = "It has fewer than three such locks."
    act = "host"
    command = "list"
    of_host = True

    @classmethod
    def find(cls, facts: Facts) -> Iterator[Self]:
        hosts: defaultdict[str, list[Held]] = defaultdict(list)
        for _stuck, late in facts.hung:
            hosts[late[0][1].host] += late if _is_many(late) else []
        for held in hosts.values():
            yield from cls.of(facts, held)


class Foreign(Incident):
    """Others wait for a client that cannot be asked to release the lock."""

    cause = "foreign"
    title = _("Another client blocks %(keys)s")
    who = "%(holders)s."
    sentence = _("It cannot be asked to release the lock.")
    remedy = _("End its program, or break the lock.")
    ends = "The holder releases the lock."
    act = "break"

    @classmethod
    def find(cls, facts: Facts) -> Iterator[Self]:
        others = [pair for pair in facts.holds if pair[1].source == "other" and not pair[1].lasts]
        for held in _by_lock(pair for pair in others if facts.is_hung(*pair)):
            yield from cls.of(facts, held)


class Silent(Incident):
    """A [`beat`](celery-beat.md) leads, but has not looked at its schedule for some time."""

    cause = "silent"
    title = _("The leader of %(keys)s gives no sign of life")
    who = "%(holders)s."
    sentence = _("Its next one is overdue by %(time)s. Its session lives, so no other candidate takes over.")
    remedy = _(
        "Look at its log: it may wait for its broker or database. If it hangs, break the lock: the next one leads."
    )
    ends = "The beat looks at its schedule, or another one leads."
    act = "break"

    @classmethod
    def find(cls, facts: Facts) -> Iterator[Self]:
        for lock, holder in facts.holds:
            if holder.is_silent and facts.is_hung(lock, holder):
                silence = formatting.duration(holder.silent_for)
                yield from cls.of(facts, [(lock, holder)], values={"time": silence})


class Hung(Incident):
    """
    The holder has had the lock for a minute, or for the `warn_after` of the lock.

    Others wait, or were refused or skipped their work since the grant.
    """

    cause = "hung"
    title = _("%(holder)s has held %(keys)s for %(time)s")
    who = _("The holder runs %(work)s.")
    remedy = _("Too long? 1. Request release (work that looks for requests finishes). 2. Break (work is stopped).")
    ends = "The holder releases the lock."
    act = "ask"

    @classmethod
    def find(cls, facts: Facts) -> Iterator[Self]:
        stuck = [pair for stuck, late in facts.hung if not _is_many(late) for pair in stuck]
        for held in _by_lock(stuck):
            processes = {(holder.session_id, holder.host, holder.pid) for _lock, holder in held}
            kind: type[Any] = HungProcesses if len(processes) > 1 else cls
            detail = _hung_text(facts, held[0][0], len(held))
            yield from kind.of(facts, held, detail=detail, values={"number": len(processes)})


class HungProcesses(Hung):
    """Several readers, or holders of permits."""

    title = _("%(number)d processes have held %(keys)s for %(time)s")


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


def _is_many(held: list[Held]) -> bool:
    return len({lock.key for lock, _holder in held}) >= MANY


def _by_lock(held: Iterable[Held]) -> Iterable[list[Held]]:
    """Return the holders of each lock: all its readers, or all its permits, are one incident."""
    locks: defaultdict[str, list[Held]] = defaultdict(list)
    for lock, holder in held:
        locks[lock.key].append((lock, holder))
    return locks.values()


def _hung_text(facts: Facts, lock: LockInfo, number: int) -> str:
    """Return how many permits are held for so long, and when a caller was refused if none waits."""
    texts = []
    if lock.limit is not None and number > 1:
        texts.append(gettext("%(used)d of %(limit)d permits") % {"used": number, "limit": lock.limit} + ".")
    if not lock.waiting:
        ago = formatting.duration(facts.refused[lock.key])
        texts.append(gettext("The last caller was refused, or skipped its work, %(time)s ago.") % {"time": ago})
    return " ".join(texts)
