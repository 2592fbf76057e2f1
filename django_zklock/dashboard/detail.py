"""The page of one lock, as values for the template."""

from __future__ import annotations

import ast
import re
import string
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

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
    from collections.abc import Iterator, Sequence

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """One lock."""

    info: LockInfo
    limit_set: str
    state: str
    state_label: str
    reasons: tuple[str, ...]
    advice: str
    """Advice for an operator; empty if there is nothing to do."""
    holders: tuple[Row, ...]
    expired_holds: tuple[Row, ...]
    """Operator holds whose time is over."""
    waiters: tuple[Row, ...]
    queue: tuple[tuple[Row, int, int], ...]
    """The waiters by process: the first of it, how many there are, and the place of the last."""
    hidden: int
    """The number of waiters that are not shown."""
    commands: tuple[str, ...]
    """Commands for the shell that comes with ZooKeeper."""
    chain: tuple[Wait, ...]
    """Why the lock is not released: its holder waits for another one, the holder of that one for a third, and so on."""
    is_cycle: bool
    """Whether they are a deadlock: the last of them waits for a lock that was named before, and none ends by itself."""
    root: str
    """The key of the lock that a holder that waits waits for, at the end of the chain: only that one helps."""
    root_holder: str
    victims: tuple[str, ...]
    """Keys of the locks to break: this one, or those of the deadlock; empty if nobody holds it, or its holder waits."""
    next_commands: tuple[str, ...]
    """Commands that do so."""
    blocked: tuple[str, ...]
    """Keys of locks whose holders wait for this one."""
    age: float
    problem: str

    @property
    def queue_in_order(self) -> list[tuple[Row, int, int]]:
        """Each waiter as a row of its own."""
        return [(row, 1, row.number) for row in self.waiters]

    @property
    def of_operators(self) -> bool:
        """Whether all its holds are operator holds, the expired ones too."""
        return all(row.info.operator is not None for row in (*self.holders, *self.expired_holds))

    @property
    def can_be_asked(self) -> bool:
        """Whether a holder can be asked to release it. In a deadlock, that does not help."""
        return not self.is_cycle and any(row.info.can_be_asked for row in self.holders)


def detail(
    key: str, info: LockInfo | None, others: Snapshot, *, long_held: float, age: float = 0.0, problem: str = ""
) -> Detail:
    """Return the page of a lock, seen among all others. `age` and `problem` say why the state may be old."""
    if info is None:
        info = lazy.inspection.LockInfo(key=key, path=names.path(conf.current().base, key))
    info = replace(info, deadlocked=key in others.deadlocked)
    state = info.state(long_held)
    numbers = {waiter.name: number for number, waiter in enumerate(info.waiters, 1)}
    incidents, facts = verdict.of_lock(info, others, long_held)
    chain, cycle = _chain(key, others.cycles, facts.waits)
    waiting = [facts.waits_elsewhere(info, holder) for holder in info.holders]
    is_victim = bool(waiting) and all(waiting) and not cycle  # to break it would stop work that is not to blame
    victims = tuple(wait.holds for wait in cycle) or (key,) if info.holders or info.expired_holds else ()
    advice = str(incidents[0].remedy) if incidents else ""
    root = chain[-1].waits_for if chain and not cycle else ""
    root_lock = next((lock for lock in others.locks if lock.key == root and lock.holders), None)
    if is_victim and root:
        advice = _("It waits for %(lock)s. Only that one helps.") % {"lock": key_text(root)}
    waiters = tuple(
        row_of(key, waiter, numbers[waiter.name], numbers.get(waiter.waits_behind, 0)) for waiter in info.waiters
    )
    return Detail(
        info=info,
        limit_set=limit_text(info.limit_set) if info.limit_set else "",
        state=state,
        state_label=state_text(info, state),
        reasons=tuple(reasons(info)),
        advice=advice,
        holders=tuple(
            row_of(key, holder, number, others=_others(key, holder, others), waits=waits and not cycle)
            for number, (holder, waits) in enumerate(zip(info.holders, waiting, strict=True), 1)
        ),
        expired_holds=tuple(row_of(key, hold, number) for number, hold in enumerate(info.expired_holds, 1)),
        waiters=waiters,
        queue=tuple(_by_process(waiters)),
        hidden=0 if info.problem else max(0, info.waiting - len(info.waiters)),
        commands=tuple(_commands(info)),
        chain=chain,
        is_cycle=bool(cycle),
        root=root if is_victim else "",
        root_holder=holder_text(root_lock.holders[0]) if root_lock else "",
        victims=() if is_victim else victims,
        next_commands=() if is_victim else tuple(commands(info)),
        blocked=tuple(dict.fromkeys(wait.holds for wait in facts.waits if wait.waits_for == key))[:MAX_KEYS],
        age=age,
        problem=clean(problem, MAX_ERROR),
    )


def read_detail(key: str, *, reply_timeout: float, long_held: float = LONG_HELD) -> Detail:
    """Return one lock as it is now, seen among all others. Raises `ZooKeeperUnavailable`."""
    info = lazy.inspection.look_at(key, reply_timeout=reply_timeout)
    others = lazy.inspection.snapshot(reply_timeout=reply_timeout, max_age=AGE_OF_OTHERS, max_waiters=1)
    if any(wait.holds == key for wait in others.waits):  # a deadlock that is over must not be shown
        others = lazy.inspection.snapshot(reply_timeout=reply_timeout, max_waiters=1)
    return detail(key, info, others, long_held=long_held)


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


def _by_process(waiters: Sequence[Row]) -> Iterator[tuple[Row, int, int]]:
    """Group the waiters by process, the first to come first."""
    processes: dict[object, list[Row]] = {}
    for row in waiters:
        processes.setdefault((row.info.host, row.info.pid, row.info.pid or row.number), []).append(row)
    for rows in processes.values():
        yield rows[0], len(rows), rows[-1].number


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
