"""Knows what the page of one lock shows, as values that a template only has to lay out."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from django_zklock import conf
from django_zklock.dashboard import words
from django_zklock.dashboard.columns import state_of
from django_zklock.dashboard.forms import Target
from django_zklock.dashboard.links import links
from django_zklock.queue import names
from django_zklock.queue.printable import session_hex

if TYPE_CHECKING:
    from django_zklock.inspection import ContenderInfo, LockInfo

_SHORT_GUID = 8
_MOST_ITEMS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One who holds the lock or waits for it."""

    number: int
    place: str
    work: str
    thread: str
    client: str
    template: str
    guid: str
    short_guid: str
    token: int
    session: str
    came: datetime
    age: float
    since: datetime
    """When it got the lock; of who waits, when it came."""
    lasting: float
    """Seconds since then."""
    behind: int
    """The number of the one it waits behind in this list; 0 if that is a holder, or out of sight."""
    items: tuple[tuple[str, str], ...]
    links: tuple[tuple[str, str], ...]
    path: str
    target: str
    by: str
    """The operator who holds it; empty if none does."""
    reason: str
    until: datetime | None
    role: str
    """What it wants or has of a lock that can be shared; empty for a plain one."""
    request: str
    """The last release request to it, as text; empty if there is none."""
    hears: bool
    """Whether it can be asked to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """One lock."""

    key: str
    shown_key: str
    path: str
    kind: str
    kind_label: str
    limit_set: str
    """Who has set the limit, and why; empty if nobody has."""
    state: str
    state_label: str
    reasons: tuple[str, ...]
    holders: tuple[Row, ...]
    over: tuple[Row, ...]
    """Holds whose time is over, that nobody has ended yet."""
    waiters: tuple[Row, ...]
    waiting: int
    hidden: int
    """How many wait beyond those that are shown."""
    commands: tuple[str, ...]
    """For the shell that comes with ZooKeeper."""
    age: float
    problem: str


def detail(key: str, info: LockInfo | None, *, long_held: float, age: float = 0.0, problem: str = "") -> Detail:
    """Return what there is to say of a lock; `age` and `problem` say why it may be old."""
    state, label = state_of(info, long_held)
    holders = info.holders if info else ()
    waiters = info.waiters if info else ()
    numbers = {each.name: number for number, each in enumerate(waiters, 1)}
    path = info.path if info else names.path(conf.current().base, key)
    return Detail(
        key=key,
        shown_key=words.clean(key, 1000),
        path=words.clean(path, 2000),
        kind=info.kind if info else "lock",
        kind_label=words.kind(info) if info and info.kind != "lock" else "",
        limit_set=words.limit_set(info.limit_set) if info and info.limit_set else "",
        state=state,
        state_label=label,
        reasons=tuple(words.reasons(info)) if info else (),
        holders=tuple(_row(key, each, number, 0) for number, each in enumerate(holders, 1)),
        over=tuple(_row(key, each, number, 0) for number, each in enumerate(info.over if info else (), 1)),
        waiters=tuple(_row(key, each, numbers[each.name], numbers.get(each.waits_behind, 0)) for each in waiters),
        waiting=info.waiting if info else 0,
        hidden=max(0, info.waiting - len(waiters)) if info else 0,
        commands=tuple(_commands(path, holders)),
        age=age,
        problem=words.clean(problem),
    )


def _row(key: str, each: ContenderInfo, number: int, behind: int) -> Row:
    waited = (each.held_since - each.came).total_seconds() if each.held_since else 0.0
    operator = each.operator
    return Row(
        number=number,
        place=words.place(each),
        work=words.work(each),
        thread=words.clean(each.thread, 100),
        client=words.clean(each.client, 40),
        template=words.clean(each.template),
        guid=words.clean(each.guid, 40),
        short_guid=words.clean(each.guid, 40)[:_SHORT_GUID],
        token=each.token,
        session=session_hex(each.session_id),
        came=each.came,
        age=each.age,
        since=each.held_since or each.came,
        lasting=max(0.0, each.age - waited),
        behind=behind,
        items=tuple(
            (words.clean(name, 40), words.clean(item)) for name, item in list(each.about.items())[:_MOST_ITEMS]
        ),
        links=tuple(links(key, each)),
        path=words.clean(each.path, 2000),
        target=str(Target(key, each.guid, each.token)),
        by=words.clean(operator.by) if operator else "",
        reason=words.clean(operator.reason) if operator else "",
        until=operator.until if operator else None,
        role=words.role(each),
        request=words.request(each),
        hears=operator is None and each.client != "kazoo",
    )


def _commands(path: str, holders: tuple[ContenderInfo, ...]) -> list[str]:
    """Return what may be pasted into a shell: nothing at all of a name that does not print as it is."""
    server = ",".join(f"{host}:{port}" for host, port in conf.current().hosts)
    asked = [f"ls {shlex.quote(path)}", *(f"get -s {shlex.quote(each.path)}" for each in holders[:1])]
    return [f"zkCli.sh -server {shlex.quote(server)} {command}" for command in asked if command.isprintable()]
