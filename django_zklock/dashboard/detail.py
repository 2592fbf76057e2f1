"""The page of one lock, as values for the template."""

from __future__ import annotations

import ast
import re
import string
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from django_zklock import conf
from django_zklock.conf.options import LONG_HELD
from django_zklock.conf.url import host_port
from django_zklock.core.queue.command_line import word
from django_zklock.dashboard.forms import Target
from django_zklock.names import template as names
from django_zklock.report import lazy, verdict
from django_zklock.report.formatting import (
    MAX_ERROR,
    clean,
    commands,
    holder_text,
    key_text,
    limit_text,
    reasons,
    state_text,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_zklock.inspection import ContenderInfo, LockInfo, ScannedContender, Snapshot, Wait

AGE_OF_OTHERS: Final = 30.0
"""Seconds: how old the state of all other locks may be on the page of one lock, unless its holder waits for them."""
MAX_KEYS: Final = 10
"""Waiting locks that the page of one lock names."""
_NAMES: Final = re.compile(r"""(?<!\w)(?:(['"])(?:(?!\1)[^\\]|\\.){1,58}\1|['"].{56}\.\.\.)""")
"""The names of znodes in the problem of an unreadable queue, as `quoted` writes them. One that is cut has no group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A holder or waiter."""

    info: ScannedContender
    number: int
    behind: int
    """The number of the waiter that it waits behind; 0 if that is a holder, or not shown."""
    links: tuple[tuple[str, str], ...]
    target: str
    other_locks: tuple[str, ...]
    """Keys of other locks that its process holds."""
    waits: bool
    """Whether it is a holder that waits for another lock: to break it helps nobody."""


class Detail:
    """One lock, seen among all others."""

    def __init__(
        self,
        key: str,
        info: LockInfo | None,
        others: Snapshot,
        *,
        long_held: float,
        age: float = 0.0,
        problem: str = "",
    ) -> None:
        """`age` and `problem` say why the state may be old."""
        if info is None:
            unread = lazy.inspection.info.HOLDER_UNREAD if problem else ""
            info = lazy.inspection.LockInfo(key=key, path=names.path(conf.current().base, key), problem=unread)
        self.info = replace(info, deadlocked=key in others.deadlocked)
        self.age = age
        self.problem = clean(problem, MAX_ERROR)
        self.state = self.info.state(long_held)
        self._others = others
        self._incidents, self._facts = verdict.of_lock(self.info, others, long_held)
        self.chain, self._cycle = _chain(key, others.cycles, self._facts.waits)
        """Why the lock is not released: its holder waits for another one, the holder of that one for a third, ..."""

    @property
    def is_cycle(self) -> bool:
        """Whether the chain is a deadlock: it ends at a lock that was named before, and no wait ends by itself."""
        return bool(self._cycle)

    @property
    def limit_set(self) -> str:
        return limit_text(self.info.limit_set) if self.info.limit_set else ""

    @property
    def state_label(self) -> str:
        return state_text(self.info, self.state)

    @property
    def reasons(self) -> list[str]:
        return list(reasons(self.info))

    @property
    def advice(self) -> str:
        """Advice for an operator; empty if there is nothing to do."""
        if self.root:
            return _("It waits for %(lock)s. Only that one helps.") % {"lock": key_text(self.root)}
        return str(self._incidents[0].describe()["remedy"]) if self._incidents else ""

    @cached_property
    def waiters(self) -> list[Row]:
        numbers = {waiter.name: number for number, waiter in enumerate(self.info.waiters, 1)}
        return [
            row_of(self.info.key, waiter, numbers[waiter.name], numbers.get(waiter.waits_behind, 0))
            for waiter in self.info.waiters
        ]

    @cached_property
    def holders(self) -> list[Row]:
        return [
            row_of(
                self.info.key,
                holder,
                number,
                others=_others(self.info.key, holder, self._others),
                waits=self._facts.waits_elsewhere(self.info, holder) and not self._cycle,
            )
            for number, holder in enumerate(self.info.holders, 1)
        ]

    @property
    def expired_holds(self) -> list[Row]:
        """Operator holds whose time is over."""
        return [row_of(self.info.key, hold, number) for number, hold in enumerate(self.info.expired_holds, 1)]

    @property
    def queue(self) -> list[tuple[Row, int, int]]:
        """The waiters by process: the first of it, how many there are, and the place of the last."""
        processes: dict[object, list[Row]] = {}
        for row in self.waiters:
            processes.setdefault((row.info.host, row.info.pid, row.info.pid or row.number), []).append(row)
        return [(rows[0], len(rows), rows[-1].number) for rows in processes.values()]

    @property
    def queue_in_order(self) -> list[tuple[Row, int, int]]:
        """Each waiter as a row of its own."""
        return [(row, 1, row.number) for row in self.waiters]

    @property
    def hidden(self) -> int:
        """The number of waiters that are not shown."""
        return 0 if self.info.problem else max(0, self.info.waiting - len(self.info.waiters))

    @property
    def commands(self) -> list[str]:
        """Commands for the shell that comes with ZooKeeper."""
        return _commands(self.info)

    @property
    def _is_victim(self) -> bool:
        """Whether all its holders wait for other locks: to break it would stop work that is not to blame."""
        return bool(self.holders) and all(row.waits for row in self.holders)

    @property
    def root(self) -> str:
        """The key of the lock at the end of the chain, if its holders wait: only that one helps."""
        return self.chain[-1].waits_for if self._is_victim and self.chain else ""

    @property
    def root_holder(self) -> str:
        holders = [holder for lock in self._others.locks if lock.key == self.root for holder in lock.holders]
        return holder_text(holders[0]) if holders else ""

    @property
    def victims(self) -> list[str]:
        """Keys of the locks to break: this one, or those of the deadlock; none if nobody holds it, or all wait."""
        if self._is_victim or not (self.info.holders or self.info.expired_holds):
            return []
        return [wait.holds for wait in self._cycle] or [self.info.key]

    @property
    def next_commands(self) -> list[str]:
        """Commands that break them."""
        return [] if self._is_victim else list(commands(self.info))

    @property
    def blocked(self) -> list[str]:
        """Keys of locks whose holders wait for this one."""
        waiting = (wait.holds for wait in self._facts.waits if wait.waits_for == self.info.key)
        return list(dict.fromkeys(waiting))[:MAX_KEYS]

    @property
    def of_operators(self) -> bool:
        """Whether all its holds are operator holds, the expired ones too."""
        return all(hold.operator is not None for hold in (*self.info.holders, *self.info.expired_holds))

    @property
    def can_be_asked(self) -> bool:
        """Whether a holder can be asked to release it. In a deadlock, that does not help."""
        return not self._cycle and any(holder.can_be_asked for holder in self.info.holders)


def read_detail(key: str, *, reply_timeout: float, long_held: float = LONG_HELD) -> Detail:
    """Return one lock as it is now, seen among all others. Raises `ZooKeeperUnavailable`."""
    info = lazy.inspection.look_at(key, reply_timeout=reply_timeout)
    others = lazy.inspection.snapshot(reply_timeout=reply_timeout, max_age=AGE_OF_OTHERS)
    if any(wait.holds == key for wait in others.waits):  # a deadlock that is over must not be shown
        others = lazy.inspection.snapshot(reply_timeout=reply_timeout)
    return Detail(key, info, others, long_held=long_held)


def _chain(
    key: str, cycles: Sequence[Sequence[Wait]], waits: Sequence[Wait]
) -> tuple[tuple[Wait, ...], Sequence[Wait]]:
    """Return why a lock is not released, and the deadlock at the end. Other waits in a circle end by themselves."""
    for cycle in cycles:
        for index, wait in enumerate(cycle):
            if wait.holds == key:
                return (*cycle[index:], *cycle[:index]), cycle
    chain = lazy.inspection.chain_from(key, waits)
    return chain, next((cycle for cycle in cycles if chain and chain[-1] in cycle), ())


def row_of(
    key: str, info: ScannedContender, number: int, behind: int = 0, others: Sequence[str] = (), *, waits: bool = False
) -> Row:
    """Return a contender for a page."""
    return Row(
        info=info,
        number=number,
        behind=behind,
        links=tuple(links(key, info)),
        target=str(Target(key, info.guid, info.token)),
        other_locks=tuple(others),
        waits=waits,
    )


def _others(key: str, holder: ScannedContender, others: Snapshot) -> list[str]:
    """
    Return the keys of the other locks that the process of a holder holds; of a task, only those that the task holds.

    The locks of all tasks of a worker are in the session of its main process.
    """

    def is_same(other: ScannedContender) -> bool:
        if "task" in holder.about and "task" in other.about:
            return (other.host, other.about.get("id")) == (holder.host, holder.about.get("id"))
        same_process = (other.host, other.pid) == (holder.host, holder.pid)
        return same_process if holder.pid else other.session_id == holder.session_id != 0

    return [lock.key for lock in others.locks if lock.key != key and any(map(is_same, lock.holders))]


def links(key: str, contender: ContenderInfo) -> list[tuple[str, str]]:
    """
    Return the labels and addresses of `ZKLOCK["ADMIN_LINKS"]`, without those that need a missing value.

    Each value is percent-encoded, slashes included, so that none can change where a link leads to.
    """
    facts = {name: str(getattr(contender, name) or "") for name in ("host", "pid", "what", "guid", "token")}
    values = {"key": key, **facts, **contender.about}
    addresses = []
    for label, template in conf.current().admin_links.items():
        fields = [name for _text, name, *_spec in string.Formatter().parse(template) if name]
        if all(values.get(name) for name in fields):
            addresses.append((label, template.format_map({name: quote(values[name], safe="") for name in fields})))
    return addresses


def _commands(lock: LockInfo) -> list[str]:
    """Return commands to paste into a shell. One with characters that do not print is left out."""
    server = ",".join(host_port(*host) for host in conf.current().hosts)
    odd = [f"{lock.path}/{ast.literal_eval(name[0])}" for name in _NAMES.finditer(lock.problem) if name[1]]
    commands: list[tuple[str, ...]] = [("ls", lock.path)]
    commands += [("get", "-s", path) for path in odd or [holder.path for holder in lock.holders[:1]]]
    if "elete" in lock.problem or lock.numbers_left is not None:  # the server deletes no directory that is not empty
        deleted = odd if lock.problem and not lock.is_worn_out else [lock.path]
        commands += [("delete", path) for path in deleted]
    # A path begins with a slash, so it is no option of `zkCli.sh`.
    return [" ".join(map(word, ("zkCli.sh", "-server", server, *line))) for line in commands if line[-1].isprintable()]
