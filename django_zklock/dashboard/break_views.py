"""The views to break locks, to hold a lock as an operator, and to end such a hold. Only a POST changes anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from django.contrib import messages
from django.contrib.admin.utils import quote
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_zklock import clock
from django_zklock.dashboard import lazy
from django_zklock.dashboard.formatting import MAX_ERROR, clean, holder_text, successor_text, time_text
from django_zklock.dashboard.forms import BreakForm, EndForm, HoldForm, Target
from django_zklock.dashboard.pages import CONFLICT, UNAVAILABLE, LockPages, user_name
from django_zklock.exceptions import LockChangedHands, LockNotAcquired, ZkLockError, ZooKeeperUnavailable
from django_zklock.queue.names import is_key

if TYPE_CHECKING:
    from django_zklock.dashboard.detail import Detail

MAX_KEYS: Final = 20
"""Locks on one page of confirmation. A longer one would not be read."""
MAX_NAMED: Final = 5
"""Locks that one message names."""
MAX_TIME: Final = 15.0
"""Seconds after which a page begins nothing more. Web servers end requests that take longer."""


@dataclass(slots=True)
class Results:
    """The targets of one form, by what became of them."""

    done: list[Target] = field(default_factory=list)
    stale: list[Target] = field(default_factory=list)
    failed: list[Target] = field(default_factory=list)
    untried: list[Target] = field(default_factory=list)
    error: str = ""
    """Why the last one failed."""
    holder: str = ""
    """The last holder that lost its lock."""
    status: int = 200

    @property
    def remaining(self) -> list[Target]:
        """The targets that may be tried again."""
        return [*self.stale, *self.failed, *self.untried]


class BreakViews(LockPages):
    """Break a lock, hold it, end such a hold; a part of `LockAdminMixin`."""

    def break_view(self, request: HttpRequest) -> HttpResponse:
        """Ask for a confirmation and a reason, then break the locks of exactly the chosen holders."""
        self.require(self.has_break_permission(request))
        if request.method != "POST":
            return self._confirm(request, request.GET.getlist("key"), BreakForm())
        chosen = Target.parse_all(request.POST.getlist("target"))
        form = BreakForm(request.POST)
        if not chosen:
            self.show_message(request, _("No holder was chosen, so no lock was broken."), messages.WARNING)
            return self.redirect_to()
        keys = [target.key for target in chosen]
        if not form.is_valid():
            return self._confirm(request, keys, form)
        results = self.act_on(request, chosen, lazy.operations.break_lock, form.cleaned_data["reason"])
        self.report(request, results)
        if results.remaining:
            form = form if results.status == UNAVAILABLE else BreakForm()
            return self._confirm(request, [target.key for target in results.remaining], form, results.status)
        return self.redirect_to(set(keys))

    def act_on(
        self, request: HttpRequest, targets: list[Target], operation: Callable[..., Any], reason: str
    ) -> Results:
        """Do an operation to each target, until ZooKeeper does not answer or the time is over."""
        results = Results()
        deadline = clock.now() + MAX_TIME
        for number, target in enumerate(targets):
            if clock.now() > deadline or results.status == UNAVAILABLE:  # the others would fail as slowly
                results.untried = targets[number:]
                break
            try:
                result = operation(
                    target.key, guid=target.guid, token=target.token, reason=reason, by=user_name(request)
                )
            except LockChangedHands:
                results.stale.append(target)
            except (ZkLockError, ValueError) as error:
                results.failed.append(target)
                results.error = clean(error, MAX_ERROR)
                results.status = UNAVAILABLE if isinstance(error, ZooKeeperUnavailable) else results.status
            else:
                results.done.append(target)
                results.holder = holder_text(result.holder) if isinstance(result, lazy.operations.Broken) else ""
        if results.remaining and results.status != UNAVAILABLE:
            results.status = CONFLICT
        return results

    def report(self, request: HttpRequest, results: Results, *, broken: bool = True) -> None:
        """Show in one message what was done, and in one for each kind of failure what was not."""
        count = len(results.done)
        done = ngettext("%(count)d lock was broken.", "%(count)d locks were broken.", count)
        if not broken:
            done = ngettext("%(count)d holder was asked to release.", "%(count)d holders were asked to release.", count)
        elif count == 1:
            done = _("The lock '%(locks)s' was broken. The loss is reported to its holder, %(who)s.")
        stale = _("The holder has changed, so nothing was done: %(locks)s.")
        failed = _("It is unknown whether it was done: %(locks)s. %(error)s")
        untried = _("The time was too short, so nothing was done yet: %(locks)s. Try again.")
        for text, targets, level in (
            (done, results.done, messages.SUCCESS),
            (stale, results.stale, messages.ERROR),
            (failed, results.failed, messages.ERROR),
            (untried, results.untried, messages.WARNING),
        ):
            if targets:
                values = {"count": count, "locks": _some(targets), "error": results.error, "who": results.holder}
                self.show_message(request, text % values, level)

    def _confirm(self, request: HttpRequest, keys: Iterable[str], form: BreakForm, status: int = 200) -> HttpResponse:
        """
        Show the present holders of these locks. The form names each of them, and is shown again with its ticks.

        After a refusal, nothing is ticked and the first button leads back: there are other holders now.
        """
        wanted = [key for key in dict.fromkeys(keys) if self.get_object(request, key) is not None][:MAX_KEYS]
        if not wanted:
            self.show_message(request, _("Choose the locks to break in the list."), messages.WARNING)
            return self.redirect_to()
        locks: list[Detail] = []
        for key in wanted:
            locks.append(self.read_lock(key))
            if locks[-1].problem:
                break  # the others would fail as slowly
        problem = locks[-1].problem
        holders = 0 if problem else sum(len(lock.possible_holders) for lock in locks)
        ticked = [holder.target for lock in locks for holder in lock.holders]
        if request.method == "POST":
            ticked = [] if status == CONFLICT else request.POST.getlist("target")
        context = {"title": _("Break locks"), "locks": locks, "problem": problem, "holders": holders, "ticked": ticked}
        if status == CONFLICT:
            context["refused"] = [successor_text(lock.info) for lock in locks]
            context["back_url"] = self.url("change", quote(wanted[0])) if len(wanted) == 1 else self.url("changelist")
        if holders:
            context["form"] = form
        return self.page(request, "break", context, UNAVAILABLE if problem else status)

    def hold_view(self, request: HttpRequest) -> HttpResponse:
        """Hold a lock for the user, with a reason and an end."""
        self.require(self.has_hold_permission(request))
        if request.method != "POST":
            return self._hold_page(request, HoldForm(initial={"key": request.GET.get("key", "")[:1000]}))
        form = HoldForm(request.POST)
        if not form.is_valid():
            return self._hold_page(request, form)
        given = form.cleaned_data
        key = given["key"]
        try:
            hold = lazy.operations.hold_lock(
                key, seconds=given["minutes"] * 60, reason=given["reason"], by=user_name(request), wait=given["wait"]
            )
        except (ZkLockError, ValueError) as error:
            form.add_error(None, clean(error, MAX_ERROR))
            status = CONFLICT if isinstance(error, LockNotAcquired) else 200
            return self._hold_page(request, form, UNAVAILABLE if isinstance(error, ZooKeeperUnavailable) else status)
        text = _("You hold the lock '%(lock)s' until %(until)s.")
        values = {"lock": clean(key), "until": time_text(hold.until)}
        self.show_message(request, text % values, messages.SUCCESS)
        return self.redirect_to({key})

    def _hold_page(self, request: HttpRequest, form: HoldForm, status: int = 200) -> HttpResponse:
        return self.page(request, "hold", {"title": _("Hold a lock"), "form": form}, status)

    def end_view(self, request: HttpRequest) -> HttpResponse:
        """Ask for a reason, then end an operator hold before its time."""
        self.require(self.has_hold_permission(request))
        given = request.POST if request.method == "POST" else request.GET
        initial = {"key": given.get("key", ""), "token": given.get("token", "")}
        form = EndForm(given) if request.method == "POST" else EndForm(initial=initial)
        if (request.method != "POST" and not is_key(initial["key"])) or {"key", "token"} & set(form.errors):
            self.show_message(request, _("This hold does not exist."), messages.ERROR)
            return self.redirect_to()
        if not form.is_valid():
            shown = self.read_lock(initial["key"])
            title = _("End the hold of %(lock)s") % {"lock": shown.shown_key}
            return self.page(request, "end", {"title": title, "form": form, "lock": shown})
        key, reason = form.cleaned_data["key"], form.cleaned_data["reason"]
        try:
            lazy.operations.end_hold(key, token=form.cleaned_data["token"], by=user_name(request), reason=reason)
        except LockChangedHands:
            self.show_message(request, _("This hold has already ended."), messages.WARNING)
        except ZkLockError as error:
            self.show_message(request, clean(error, MAX_ERROR), messages.ERROR)
        else:
            self.show_message(request, _("The hold has ended."), messages.SUCCESS)
        return self.redirect_to({key})


def _some(targets: list[Target]) -> str:
    """Return the keys of these targets, or the first of them and how many more there are."""
    keys = ", ".join(clean(target.key) for target in targets[:MAX_NAMED])
    more = len(targets) - MAX_NAMED
    return _("%(keys)s and %(count)d more") % {"keys": keys, "count": more} if more > 0 else keys
