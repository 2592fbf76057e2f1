"""The views to break locks, to hold a lock as an operator, and to end such a hold. Only a POST changes anything."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.utils.translation import gettext as _

from django_zklock.dashboard import lazy
from django_zklock.dashboard.formatting import MAX_ERROR, clean, holder_text, time_text
from django_zklock.dashboard.forms import BreakForm, EndForm, HoldForm, Target
from django_zklock.dashboard.pages import CONFLICT, UNAVAILABLE, LockPages, user_name
from django_zklock.exceptions import LockChangedHands, LockNotAcquired, ZkLockError, ZooKeeperUnavailable

if TYPE_CHECKING:
    from django_zklock.dashboard.detail import Detail

MAX_KEYS: Final = 20
"""Locks on one page of confirmation. A longer one would not be read."""
MAX_TARGETS: Final = 100
"""Holders on such a page: a read-write lock may have many readers."""


class BreakViews(LockPages):
    """Break a lock, hold it, end such a hold; a part of `LockAdminMixin`."""

    def break_view(self, request: HttpRequest) -> HttpResponse:
        """Ask for a confirmation and a reason, then break the locks of exactly the chosen holders."""
        self.require(self.has_break_permission(request))
        if request.method != "POST":
            return self._confirm(request, request.GET.getlist("key"), BreakForm())
        targets = [Target.parse(text) for text in request.POST.getlist("target")[:MAX_TARGETS]]
        chosen = [target for target in targets if target is not None]
        form = BreakForm(request.POST)
        if not chosen:
            self.show_message(request, _("No holder was chosen, so no lock was broken."), messages.WARNING)
            return self.redirect_to()
        if not form.is_valid():
            return self._confirm(request, [target.key for target in chosen], form)
        remaining, status = self._break_all(request, chosen, form.cleaned_data["reason"])
        if remaining:
            return self._confirm(request, [target.key for target in remaining], form, status)
        return self.redirect_to({target.key for target in chosen})

    def _break_all(self, request: HttpRequest, targets: list[Target], reason: str) -> tuple[list[Target], int]:
        """Return the targets that were not broken, and the HTTP status that says why."""
        remaining, status = [], 200
        for number, target in enumerate(targets):
            key = clean(target.key)
            try:
                broken = lazy.operations.break_lock(
                    target.key, guid=target.guid, token=target.token, reason=reason, by=user_name(request)
                )
            except LockChangedHands:
                remaining.append(target)
                status = status if status == UNAVAILABLE else CONFLICT
                text = _("The lock '%(lock)s' was not broken: its holder has changed. The page shows the new state.")
                self.show_message(request, text % {"lock": key}, messages.ERROR)
            except ZkLockError as error:
                remaining.append(target)
                text = _("It is unknown whether the lock '%(lock)s' was broken: %(error)s")
                self.show_message(request, text % {"lock": key, "error": clean(error, MAX_ERROR)}, messages.ERROR)
                if isinstance(error, ZooKeeperUnavailable):
                    return [*remaining, *targets[number + 1 :]], UNAVAILABLE  # the others would fail as slowly
                status = CONFLICT
            else:
                text = _("The lock '%(lock)s' was broken. The loss is reported to its holder, %(who)s.")
                values = {"lock": key, "who": holder_text(broken.holder)}
                self.show_message(request, text % values, messages.SUCCESS)
        return remaining, status

    def _confirm(self, request: HttpRequest, keys: Iterable[str], form: BreakForm, status: int = 200) -> HttpResponse:
        """Show the present holders of these locks. The form names each of them, and is shown again with its ticks."""
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
        sure = [holder.target for lock in locks for holder in lock.holders]
        ticked = request.POST.getlist("target") if request.method == "POST" else sure
        context = {"title": _("Break locks"), "locks": locks, "problem": problem, "holders": holders, "ticked": ticked}
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
        """End an operator hold before its time."""
        self.require(self.has_hold_permission(request))
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        form = EndForm(request.POST)
        if not form.is_valid():
            self.show_message(request, _("This hold does not exist."), messages.ERROR)
            return self.redirect_to()
        given = form.cleaned_data
        key = given["key"]
        try:
            lazy.operations.end_hold(key, token=given["token"], by=user_name(request), reason=given["reason"])
        except LockChangedHands:
            self.show_message(request, _("This hold has already ended."), messages.WARNING)
        except ZkLockError as error:
            self.show_message(request, clean(error, MAX_ERROR), messages.ERROR)
        else:
            self.show_message(request, _("The hold has ended."), messages.SUCCESS)
        return self.redirect_to({key})
