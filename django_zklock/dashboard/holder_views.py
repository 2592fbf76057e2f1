"""The page of holders: of a host, or of chosen locks. There an operator breaks them, or asks them to release."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import ngettext_lazy

from django_zklock.core import clock
from django_zklock.dashboard import extension, lazy
from django_zklock.dashboard.detail import row_of
from django_zklock.dashboard.formatting import MAX_ERROR, clean, host_and_pid, keys_text, successor_text
from django_zklock.dashboard.forms import MAX_TARGETS, ReasonForm, Target
from django_zklock.dashboard.pages import CONFLICT, UNAVAILABLE, LockPages, user_name
from django_zklock.exceptions import LockChangedHands, ZkLockError, ZooKeeperUnavailable
from django_zklock.names.template import is_key

if TYPE_CHECKING:
    from django_zklock.dashboard.detail import Row
    from django_zklock.inspection import LockInfo

MAX_KEYS: Final = 20
"""Most locks that are broken without a typed confirmation, which a page of a host always needs."""
MAX_NAMED: Final = 5
"""Locks that one message names."""
MAX_TIME: Final = 15.0
"""Seconds after which a page begins nothing more. Web servers end requests that take longer."""
_ACTIONS: Final[dict[str, tuple[str, Any, Any]]] = {
    "ask": (
        "request_release",
        ngettext_lazy("Request release of the lock", "Request release of the ticked locks", "count"),
        ngettext_lazy(
            "%(count)d holder was asked to release: %(locks)s.",
            "%(count)d holders were asked to release: %(locks)s.",
            "count",
        ),
    ),
    "break": (
        "break_lock",
        ngettext_lazy("Break the lock", "Break the ticked locks", "count"),
        ngettext_lazy("%(count)d lock was broken: %(locks)s.", "%(count)d locks were broken: %(locks)s.", "count"),
    ),
    "end": (
        "end_hold",
        ngettext_lazy("End the hold", "End the ticked holds", "count"),
        ngettext_lazy("%(count)d hold was ended: %(locks)s.", "%(count)d holds were ended: %(locks)s.", "count"),
    ),
}
"""By the names of their buttons: the operation, the label of the button, and the message after it."""


class HolderViews(LockPages):
    """Act on the holders of locks; a part of `LockAdminMixin`."""

    def holders_view(self, request: HttpRequest) -> HttpResponse:
        """Show the holders of a host or of some locks. A POST acts on exactly the ticked ones."""
        host, pid = self._process(request)
        allowed = [name for name in self.allowed(request) if name in _ACTIONS]
        self.require(bool(allowed) or (bool(host) and self.has_view_permission(request)))
        if request.method != "POST":
            return self.holders_page(request, request.GET.getlist("key"))
        action = next((name for name in _ACTIONS if name in request.POST), "")
        self.require(not action or action in allowed)
        ticked = request.POST.getlist("target")[:MAX_TARGETS] if action else []
        targets = [target for text in ticked if (target := Target.parse(text)) is not None]
        keys = {target.key for target in targets}
        back = HttpResponseRedirect(self.host_url(host, pid)) if host else self.redirect_to(keys)
        if not targets:
            self.show_message(request, _("No holder was chosen, so nothing was done."), messages.WARNING)
            return back
        form = ReasonForm(request.POST, word=_word(host, len(targets)) if action == "break" else "")
        if not form.is_valid():
            return self.holders_page(request, keys, form)
        results = self._act(request, action, targets, form.cleaned_data["reason"])
        stale = {target.key for target in results["stale"]}
        remaining = stale.union(target.key for target in results["failed"] + results["untried"])
        if remaining:
            return self.holders_page(request, remaining, form, stale, back.url, CONFLICT)
        return back

    def _process(self, request: HttpRequest) -> tuple[str, int]:
        """Return the host and the process that the request names; empty or 0 without."""
        if request.path != self.url("host"):  # the filters of the list have the same names
            return "", 0
        pid = request.GET.get("pid", "")
        return request.GET.get("host", "").strip(), int(pid) if pid.isdecimal() and len(pid) < 10 else 0

    def _act(
        self, request: HttpRequest, action: str, targets: Iterable[Target], reason: str
    ) -> dict[str, list[Target]]:
        """Act on each target, until ZooKeeper does not answer or the time is over. Say what became of them."""
        name, _label, done = _ACTIONS[action]
        operation = getattr(lazy.operations, name)
        results: dict[str, list[Target]] = {"done": [], "stale": [], "failed": [], "untried": []}
        error: Exception | None = None
        deadline = clock.now() + MAX_TIME
        for target in targets:
            if clock.now() > deadline or isinstance(error, ZooKeeperUnavailable):  # the others would fail as slowly
                results["untried"].append(target)
                continue
            holder = {"guid": target.guid} if action != "end" else {}
            try:
                operation(target.key, **holder, token=target.token, reason=reason, by=user_name(request))
                result = "done"
            except LockChangedHands:
                result = "stale"
            except (ZkLockError, ValueError) as failure:
                result, error = "failed", failure
            results[result].append(target)
        unknown = _("It is unknown whether it was done: %(locks)s. %(error)s")
        refused = _("Nothing was done: %(locks)s. %(error)s")
        texts = {
            "done": (done, messages.SUCCESS),
            "stale": (_("The holder has changed, so nothing was done: %(locks)s."), messages.ERROR),
            "failed": (unknown if isinstance(error, ZooKeeperUnavailable) else refused, messages.ERROR),
            "untried": (_("The time was too short, so nothing was done yet: %(locks)s. Try again."), messages.WARNING),
        }
        for result, (text, level) in texts.items():
            if named := results[result]:
                keys = keys_text([target.key for target in named], MAX_NAMED)
                values = {"count": len(named), "locks": keys, "error": clean(error, MAX_ERROR)}
                self.show_message(request, text % values, level)
        return results

    def holders_page(
        self,
        request: HttpRequest,
        keys: Collection[str] = (),
        form: ReasonForm | None = None,
        stale: Collection[str] = (),
        back_url: str = "",
        status: int = 200,
    ) -> HttpResponse:
        """
        Show the present holders of a host, or else of the locks with these keys, with a form that names each of them.

        If some were `stale`, nothing is ticked, no reason is filled in and the first button leads back: they have other
        holders now. After another failure, the same ones are ticked.
        """
        host, pid = self._process(request)
        locks, read = self._read(host, keys)
        away = bool(read.get("problem")) and not read.get("incomplete")
        if not host and not locks:
            self.show_message(request, _("No lock was chosen, so nothing was done."), messages.WARNING)
            return self.redirect_to()
        holds: list[tuple[LockInfo, Row]] = []
        waits: list[tuple[LockInfo, Row]] = []
        for lock in locks:
            contenders = (*lock.holders, *lock.expired_holds, *lock.waiters)
            for number, contender in enumerate(contenders, 1 + len(lock.waiters) - len(contenders)):
                if not host or (contender.host == host and pid in {0, contender.pid}):
                    (waits if number > 0 else holds).append((lock, row_of(lock.key, contender, number)))
        holds.sort(key=lambda held: (-held[0].waiting, -held[1].info.certain_duration))
        shown, rows = holds[:MAX_TARGETS], [row for _lock, row in holds[:MAX_TARGETS]]
        title = _("Holders of %(lock)s") % {"lock": clean(locks[0].key)} if len(locks) == 1 else _("Chosen locks")
        context: dict[str, Any] = {
            **read,
            "title": host_and_pid(host, pid) if host else title,
            "is_host": bool(host),
            "host_url": self.host_url(host) if pid else "",
            "form_url": self.host_url(host, pid) if host else self.url("break"),
            "back_url": back_url,
            "refused": [successor_text(lock) for lock in locks if lock.key in stale][:MAX_NAMED],
            "holds": shown,
            "hidden": len(holds) - len(shown),
            "waits": waits if host else [],
            "ticked": [row.target for row in rows],
        }
        if host:
            tokens = {row.info.token for _lock, row in holds}
            context["panel"] = extension.installed.host_panel(host, pid, tokens)
        if "target" in request.POST:
            context["ticked"] = [] if stale else request.POST.getlist("target")
        allowed = [] if away or not rows else [name for name in _ACTIONS if name in self.allowed(request)]
        offered = {
            "ask": any(row.info.can_be_asked for row in rows),
            "end": all(row.info.operator for row in rows),
            "break": "end" not in allowed or not all(row.info.operator for row in rows),
        }
        buttons = [(name, _ACTIONS[name][1] % {"count": len(rows)}) for name in allowed if offered[name]]
        if buttons:
            word = _word(host, len(rows)) if "break" in dict(buttons) else ""
            context |= {"buttons": buttons, "form": ReasonForm(word=word) if form is None or stale else form}
        return self.page(request, "holders", context, UNAVAILABLE if away else status)

    def _read(self, host: str, keys: Collection[str]) -> tuple[list[LockInfo], dict[str, Any]]:
        """Return all locks, or those with these keys, and what is wrong with that."""
        if host:
            # Not shared: this page does not refresh itself.
            snapshot = lazy.inspection.snapshot(reply_timeout=self.reply_timeout, max_age=0.0, max_locks=None)
            fresh = snapshot.connection.state == "connected" and snapshot.age < 1
            problem = clean(snapshot.problem, MAX_ERROR)
            return list(snapshot.locks), {"problem": problem, "incomplete": fresh, "age": snapshot.age}
        shown = []
        for key in [key for key in dict.fromkeys(keys) if is_key(key)][:MAX_TARGETS]:
            shown.append(self.read_lock(key))
            if shown[-1].problem:  # the others would fail as slowly
                return [shown[-1].info], {"problem": shown[-1].problem, "age": shown[-1].age}
        return [lock.info for lock in shown], {}


def _word(host: str, count: int) -> str:
    """Return what the user must type to break so many locks; empty if there are few, and not those of a host."""
    return host or (str(count) if count > MAX_KEYS else "")
