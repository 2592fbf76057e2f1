"""The page of one lock, as values for the template and for `zklock show`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from django_zklock import conf
from django_zklock.dashboard.acts import Target
from django_zklock.names import template as names
from django_zklock.report import lazy, verdict
from django_zklock.report.formatting import MAX_ERROR, STATE_LABELS, clean, hold_commands, key_text, limit_text, reasons

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django_zklock.inspection import ContenderInfo, LockInfo, ScannedContender, Snapshot, Wait
    from django_zklock.report.facts import Facts
    from django_zklock.report.incident import Incident

AGE_OF_OTHERS: Final = 30.0
"""Seconds: how old the state of all other locks may be on the page of one lock, unless its holder waits for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A holder or waiter."""

    info: ScannedContender
    number: int
    links: list[tuple[str, str]]
    target: str
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
        locks = (self.info, *(other for other in others.locks if other.key != key))
        self._others = replace(others, locks=locks)

    @cached_property
    def _look(self) -> tuple[dict[str, Incident], Facts]:
        return verdict.by_key(self._others)

    @property
    def _incident(self) -> Incident | None:
        return self._look[0].get(self.info.key)

    @cached_property
    def state(self) -> str:
        return verdict.state_of(self.info, self._incident)

    @property
    def state_label(self) -> str:
        return str(STATE_LABELS[self.state])

    @cached_property
    def chain(self) -> tuple[Wait, ...]:
        """Why the lock is not released: its holder waits for another one, the holder of that one for a third, ..."""
        return self._look[1].graph.chain(self.info.key)

    @property
    def limit_set(self) -> str:
        return limit_text(self.info.limit_set) if self.info.limit_set else ""

    @property
    def reasons(self) -> list[str]:
        return reasons(self.info)

    @property
    def advice(self) -> str:
        """Advice for an operator; empty if there is nothing to do."""
        if self.root:
            return _("It waits for %(lock)s. Only that one helps.") % {"lock": key_text(self.root)}
        return str(self._incident.describe()["remedy"]) if self._incident else ""

    @cached_property
    def rows(self) -> list[Row]:
        """The holders, and then the waiters with their numbers."""
        return self.holders + [self._row(waiter, number) for number, waiter in enumerate(self.info.waiters, 1)]

    @cached_property
    def holders(self) -> list[Row]:
        """The holders, and the operator holds whose time is over."""
        return [self._row(holder, 0) for holder in (*self.info.holders, *self.info.expired_holds)]

    def _row(self, info: ScannedContender, number: int) -> Row:
        return Row(
            info=info,
            number=number,
            links=links(self.info.key, info),
            target=str(Target(self.info.key, info.guid, info.token)),
            waits=self._look[1].waits_elsewhere(self.info, info) and not self.info.deadlocked,
        )

    @property
    def hidden(self) -> int:
        """The number of waiters that are not shown."""
        return 0 if self.info.problem else max(0, self.info.waiting - len(self.info.waiters))

    @property
    def root(self) -> str:
        """The key of the lock at the end of the chain, if all holders wait: only that one helps."""
        return self.chain[-1].waits_for if self.chain and all(row.waits for row in self.holders) else ""

    @property
    def next_commands(self) -> list[str]:
        """Commands that end the first hold. A request ends no deadlock."""
        holders = () if self.root else self.info.holders[:1]
        mildest = -1 if self.info.deadlocked else 0
        return [line for holder in holders for line in hold_commands(self.info.key, holder)[mildest:]]


def read_details(keys: Iterable[str], *, reply_timeout: float) -> list[Detail]:
    """Return some locks as they are now, seen among all others. Raises `ZooKeeperUnavailable`."""
    keys = [names.show_tails(key) for key in keys]
    infos = lazy.inspection.look_at_each(keys, reply_timeout)
    others = lazy.inspection.snapshot(reply_timeout=reply_timeout, max_age=AGE_OF_OTHERS)
    if any(wait.holds in keys for wait in others.waits):  # a deadlock that is over must not be shown
        others = lazy.inspection.snapshot(reply_timeout=reply_timeout)
    return [Detail(key, infos.get(key), others) for key in keys]


def links(key: str, contender: ContenderInfo) -> list[tuple[str, str]]:
    """
    Return the labels and addresses of `ZKLOCK["ADMIN_LINKS"]`, without those that need a missing value.

    Each value is percent-encoded, slashes included, so that none can change where a link leads to.
    """
    facts = {name: str(getattr(contender, name) or "") for name in ("host", "pid", "what", "guid", "token")}
    values = {name: quote(value, safe="") for name, value in {"key": key, **facts, **contender.about}.items() if value}
    addresses = []
    for label, template in conf.current().admin_links.items():
        with suppress(KeyError):
            addresses.append((label, template.format_map(values)))
    return addresses
