"""The page of the holders of a host, or of some locks, and the actions on those that are ticked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django.contrib import messages
from django.utils.functional import cached_property
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext_lazy

from django_zklock.core import clock
from django_zklock.dashboard.detail import row_of
from django_zklock.dashboard.forms import MAX_TARGETS, ReasonForm
from django_zklock.exceptions import LockChangedHands, ZkLockError, ZooKeeperUnavailable
from django_zklock.names.template import is_key
from django_zklock.report import lazy
from django_zklock.report.formatting import MAX_ERROR, clean, host_and_pid, key_text, keys_text, successor_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from django.http import HttpRequest

    from django_zklock.dashboard.detail import Row
    from django_zklock.dashboard.forms import Target
    from django_zklock.dashboard.views import LockViews
    from django_zklock.inspection import LockInfo, ScannedContender

MAX_KEYS: Final = 20
"""Most locks that are broken without a typed confirmation, which a page of a host always needs."""
MAX_NAMED: Final = 5
"""Locks that one message names."""
MAX_TIME: Final = 15.0
"""Seconds after which a page begins nothing more. Web servers end requests that take longer."""


class Action(NamedTuple):
    """An action on the ticked holders."""

    operation: str
    permission: str
    label: Any
    """Of its button."""
    done: Any
    """The message after it."""
    title: Any
    """Of its form, for one lock."""
    title_of_several: Any


ACTIONS: Final = {
    "ask": Action(
        operation="request_release",
        permission="request_release_lock",
        label=ngettext_lazy("Request release of the lock", "Request release of the ticked locks", "count"),
        done=ngettext_lazy(
            "%(count)d holder was asked to release: %(locks)s.",
            "%(count)d holders were asked to release: %(locks)s.",
            "count",
        ),
        title=gettext_lazy("Request release of %(lock)s?"),
        title_of_several=gettext_lazy("Request release of %(count)d locks?"),
    ),
    "break": Action(
        operation="break_lock",
        permission="break_lock",
        label=ngettext_lazy("Break the lock", "Break the ticked locks", "count"),
        done=ngettext_lazy("%(count)d lock was broken: %(locks)s.", "%(count)d locks were broken: %(locks)s.", "count"),
        title=gettext_lazy("Break %(lock)s?"),
        title_of_several=gettext_lazy("Break %(count)d locks?"),
    ),
    "end": Action(
        operation="end_hold",
        permission="hold_lock",
        label=ngettext_lazy("End the hold", "End the ticked holds", "count"),
        done=ngettext_lazy("%(count)d hold was ended: %(locks)s.", "%(count)d holds were ended: %(locks)s.", "count"),
        title=gettext_lazy("End the hold of %(lock)s?"),
        title_of_several=gettext_lazy("End the holds of %(count)d locks?"),
    ),
}
"""By the names of their buttons."""


class Process(NamedTuple):
    """The host that a request names, and one of its processes; empty or 0 without."""

    host: str = ""
    pid: int = 0

    def runs(self, contender: ScannedContender) -> bool:
        """Return whether this contender belongs here. Without a host, every contender does."""
        return not self.host or (contender.host == self.host and self.pid in {0, contender.pid})

    def word(self, count: int) -> str:
        """Return what the user must type to break so many locks; empty if there are few, and not those of a host."""
        return self.host or (str(count) if count > MAX_KEYS else "")


@dataclass
class HoldersPage:
    """
    The present holders of a host, or else of the locks with these keys, with a form that names each of them.

    The page has the button of the `meant` action, and links to the others. If nothing is meant, it has a button for
    each, and Enter presses none.
    If some were `stale`, nothing is ticked, no reason is filled in and the first button leads back: they have other
    holders now. After another failure, the same ones are ticked.
    """

    views: LockViews
    request: HttpRequest
    process: Process
    keys: Collection[str]
    meant: str
    form: ReasonForm | None = None
    stale: Collection[str] = ()
    back_url: str = ""

    def __post_init__(self) -> None:
        self._waits: Collection[Any] = ()
        self._read: dict[str, Any] = {}  # what is wrong with what was read
        self.locks = self._read_all() if self.process.host else self._read_some()

    @property
    def is_empty(self) -> bool:
        """Whether the request names neither a host nor a lock."""
        return not (self.process.host or self.locks)

    @property
    def is_away(self) -> bool:
        """Whether nothing current could be read."""
        return bool(self._read.get("problem")) and not self._read.get("incomplete")

    def context(self) -> dict[str, Any]:
        """Return the values for the template."""
        host, pid = self.process
        context: dict[str, Any] = {
            **self._read,
            "is_host": bool(host),
            "form_url": self.views.url("break"),
            "back_url": self.back_url,
            "refused": [successor_text(lock) for lock in self.locks if lock.key in self.stale][:MAX_NAMED],
            "holds": self._holds[:MAX_TARGETS],
            "hidden": max(0, len(self._holds) - MAX_TARGETS),
            "ticked": self._ticked(),
            **self._buttons(),
        }
        if not host:
            return {**context, **self._titles()}
        return {
            **context,
            "title": host_and_pid(host, pid),
            "host_url": self.views.host_url(host) if pid else "",
            "form_url": self.views.host_url(host, pid),
            "waits": [(lock, row) for lock, row in self._contenders if row.number > 0],
        }

    def _read_all(self) -> list[LockInfo]:
        # Not shared: this page does not refresh itself.
        snapshot = lazy.inspection.snapshot(reply_timeout=self.views.reply_timeout, max_age=0.0, max_locks=None)
        self._waits = snapshot.waits
        self._read = {
            "problem": clean(snapshot.problem, MAX_ERROR),
            "incomplete": snapshot.answers,
            "age": snapshot.age,
        }
        return list(snapshot.locks)

    def _read_some(self) -> list[LockInfo]:
        locks = []
        for key in [key for key in dict.fromkeys(self.keys) if is_key(key)][:MAX_TARGETS]:
            lock = self.views.read_lock(key)
            if lock.problem:  # the others would fail as slowly
                self._read = {"problem": lock.problem, "age": lock.age}
                return [lock.info]
            if lock.info.is_unread:
                self._read = {"problem": " ".join(lock.reasons), "incomplete": True}
            locks.append(lock.info)
        return locks

    @cached_property
    def _contenders(self) -> list[tuple[LockInfo, Row]]:
        """The contenders of the process, with their locks. The number of a holder is at most 0."""
        return [(lock, row) for lock in self.locks for row in self._rows(lock)]

    def _rows(self, lock: LockInfo) -> Iterator[Row]:
        victims = () if lock.deadlocked else [wait.owner for wait in self._waits if wait.holds == lock.key]
        contenders = (*lock.holders, *lock.expired_holds, *lock.waiters)
        for number, contender in enumerate(contenders, 1 + len(lock.waiters) - len(contenders)):
            if self.process.runs(contender):
                yield row_of(lock.key, contender, number, waits=contender.waits_as in victims)

    @cached_property
    def _holds(self) -> list[tuple[LockInfo, Row]]:
        """The holders: those with the most waiters first, then those that hold it longest."""
        holds = [(lock, row) for lock, row in self._contenders if row.number <= 0]
        return sorted(holds, key=lambda held: (-held[0].waiting, -held[1].info.certain_duration))

    @property
    def _shown(self) -> list[Row]:
        return [row for _lock, row in self._holds[:MAX_TARGETS]]

    def _ticked(self) -> list[str]:
        if "target" in self.request.POST:
            return [] if self.stale else self.request.POST.getlist("target")
        return self.request.GET.getlist("target") or [row.target for row in self._shown if not row.waits]

    @cached_property
    def _labels(self) -> dict[str, str]:
        """The labels of the actions that the user may carry out on these holders, by name."""
        rows = self._shown
        if self.is_away or not rows:
            return {}
        allowed = self.views.allowed(self.request)
        are_holds = all(row.info.operator for row in rows)
        offered = {
            "ask": any(row.info.can_be_asked for row in rows),
            "end": are_holds,
            "break": "end" not in allowed or not are_holds,
        }
        names = [name for name in ACTIONS if name in allowed and offered[name]]
        return {name: ACTIONS[name].label % {"count": len(rows)} for name in names}

    def _buttons(self) -> dict[str, Any]:
        """Return the buttons and their form; nothing if no action is offered."""
        is_meant = self.meant in self._labels
        buttons = [(self.meant, self._labels[self.meant])] if is_meant else [*self._labels.items()]
        if not buttons:
            return {}
        form = self.form
        if form is None or self.stale:
            form = ReasonForm(word=self.process.word(len(self._shown)) if "break" in dict(buttons) else "")
        form.fields["reason"].widget.attrs["autofocus"] = is_meant and not (form.errors or self.stale)
        return {"buttons": buttons, "form": form, "needs_click": len(buttons) > 1}

    def _titles(self) -> dict[str, Any]:
        """Return the title of the form of an action, and links to those of the others; of no action, a title."""
        keys = [lock.key for lock in self.locks]
        values = {"lock": key_text(keys[0]), "count": len(keys)}
        if self.meant not in self._labels:
            title = _("Chosen locks") if len(keys) > 1 else _("Holders of %(lock)s")
            return {"title": title % values, "others": []}
        action = ACTIONS[self.meant]
        here = f"{self.views.url('break')}?{urlencode({'key': keys}, doseq=True)}"
        others = [(label, f"{here}&do={name}") for name, label in self._labels.items() if name != self.meant]
        title = action.title_of_several if len(keys) > 1 else action.title
        return {"title": title % values, "others": others}


class Results:
    """The results of an action, one for each ticked holder."""

    def __init__(self, action: Action) -> None:
        self._action = action
        self._targets: dict[str, list[Target]] = {"done": [], "stale": [], "failed": [], "untried": []}
        self._error: Exception | None = None

    def keys(self, *results: str) -> set[str]:
        """Return the keys of the targets with one of these results."""
        return {target.key for result in results for target in self._targets[result]}

    def act(self, targets: Iterable[Target], *, reason: str, by: str) -> None:
        """Act on each target, until ZooKeeper does not answer or the time is over."""
        deadline = clock.now() + MAX_TIME
        for target in targets:
            is_over = clock.now() > deadline or isinstance(self._error, ZooKeeperUnavailable)  # others fail as slowly
            result = "untried" if is_over else self._act_on(target, reason=reason, by=by)
            self._targets[result].append(target)

    def _act_on(self, target: Target, **facts: str) -> str:
        operation = getattr(lazy.operations, self._action.operation)
        holder = {} if self._action is ACTIONS["end"] else {"guid": target.guid}
        try:
            operation(target.key, **holder, token=target.token, **facts)
        except LockChangedHands:
            return "stale"
        except (ZkLockError, ValueError) as failure:
            self._error = failure
            return "failed"
        return "done"

    def messages(self) -> Iterator[tuple[str, int]]:
        """Yield the messages for the user, with their levels."""
        unknown = _("It is unknown whether it was done: %(locks)s. %(error)s")
        refused = _("Nothing was done: %(locks)s. %(error)s")
        texts = {
            "done": (self._action.done, messages.SUCCESS),
            "stale": (_("The holder has changed, so nothing was done: %(locks)s."), messages.ERROR),
            "failed": (unknown if isinstance(self._error, ZooKeeperUnavailable) else refused, messages.ERROR),
            "untried": (_("The time was too short, so nothing was done yet: %(locks)s. Try again."), messages.WARNING),
        }
        for result, (text, level) in texts.items():
            named = [target.key for target in self._targets[result]]
            if named:
                locks, error = keys_text(named, MAX_NAMED), clean(self._error, MAX_ERROR)
                yield text % {"count": len(named), "locks": locks, "error": error}, level
